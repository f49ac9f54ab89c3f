/* try.c - whether a candidate can be one kernel, and its programs if it can: the passes of this folder in
 * order. */
#include "tile.h"

tn_cut_reason fu_try_loops(fu_ctx *c, const fu_candidate *k)
{
    if (fu_looks_too_late(c, k->n, k->member)) return TN_CUT_UNCHECKED;
    tn_cut_reason why = fu_domain_build(c, c->domain, k->n, k->member);
    if (!why) why = fu_program(c, k, c->domain, c->prog);
    if (!why) why = fu_schedule(c->prog);
    return why;
}

tn_cut_reason fu_try(fu_ctx *c, const fu_candidate *k)
{
    fu_tile_parts parts;
    return fu_tile_conv(c, k->n, k->member) >= 0 ? fu_tile_try(c, k, &parts) : fu_try_loops(c, k);
}
