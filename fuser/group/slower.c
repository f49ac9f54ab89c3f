/* slower.c - whether one kernel would take longer than several.
 *
 * Loops that compute all of a group run over what its members have in common: where a transpose, a slice or a reshape
 * stands between them, few elements at a time, or along memory that jumps. Then what is saved by not writing a value
 * and reading it again may cost more. The cost model tells how long each takes, and how much of it because of that
 * (fu_time); what only that makes slower is left apart. Start with fu_slower. */
#include "../loops/cost.h"
#include "group.h"

bool fu_slower(fu_ctx *c, const int *group, int n, double more_ns)
{
    enum { NEAR = 8 << 20, MANY = 1 << 16 }; /* operands lie so many bytes back, say; elements that matter */
    static const double CLEARLY = 1.3;
    if (fu_can(c->target)->grid || fu_count(c->prog, fu_all_atoms(c->prog)) < MANY) return false;
    const fu_time both = fu_prog_time(c->prog, c->target, NEAR);
    double ns = more_ns, odd = 0;
    for (int i = 0; i < n; i++) {
        const fu_group *g = &c->group[group[i]];
        const fu_candidate k = {.a = group[i], .b = group[i], .n = g->n, .member = g->member};
        if (fu_try(c, &k)) return false;
        const fu_time one = fu_prog_time(c->prog, c->target, NEAR);
        ns += one.ns, odd += one.odd;
    }
    return both.ns > CLEARLY * ns && both.odd - odd > (both.ns - ns) / 2;
}
