/* budget.c - .memory_budget: which values of forward are made a second time for backward, so that a step's
 * values fit into as many bytes.
 *
 * As a backward is recorded, the calls of forward are cut into parts of about equal weight, a part's weight
 * being the bytes that backward would read of it, each cut where few bytes cross it. The first parts, whose
 * values would be kept longest, then become what tn_checkpoint_begin and its end would have made of them
 * (autograd/again.c): of those only what later parts read is kept. With k of n parts
 *
 *   at the end of forward  sum over i < k of crossing(i)  +  sum over i >= k of weight(i)
 *   in backward            sum over i < k of crossing(i)  +  max over i < k of weight(i)
 *
 * are alive, of which the larger must fit; of the choices that fit the one that computes least again is
 * taken. (Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016, for n parts alike.)
 * What the planner then needs is another number, as it knows which values are never in memory; the ratio of
 * the two, seen in the steps before, is taken into account, for some steps until it is known. Where nothing
 * fits, the choice that has taken least is settled on; one step without any part computed again is tried,
 * too, unless what cannot be made by a look at other values is more already.
 *
 * Start with tn_budget_choose. */
#include "wanted.h"

enum { MOST_PARTS = 32, TRIES = 6 };

typedef struct tn_budget tn_budget;

typedef struct parts {
    int n;
    uint32_t end[MOST_PARTS]; /* ids */
    int64_t weight[MOST_PARTS], crossing[MOST_PARTS];
} parts;

typedef struct choosing {
    const tn_wanted *of;
    tn_graph *g;
    uint32_t end, *until;       /* of forward; of each node: the last of forward that reads it */
    int64_t *across, all, dear; /* bytes that a cut ahead of each node is crossed by; of all weights; of those
                                   that no elementwise operator makes */
} choosing;

static bool weigh(choosing *w)
{
    w->until = tn_calloc(w->end + 1, sizeof *w->until);
    w->across = tn_calloc(w->end + 2, sizeof *w->across);
    if (!w->until || !w->across) return tn_error_set(w->g, TN_E_NOMEM, "no memory for its plan") != NULL;
    for (uint32_t i = 0; i < w->end; i++) {
        const tn_tensor *n = w->g->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            const tn_tensor *b = n->in[k]->base;
            if (b->id < i && w->g->nodes[b->id] == b) w->until[b->id] = i;
        }
    }
    for (uint32_t i = 0; i < w->end; i++) {
        const tn_tensor *n = w->g->nodes[i];
        const tn_kind kind = tn_kind_of(n);
        if (kind != TN_KIND_ELTWISE && kind != TN_KIND_CAST) w->dear += w->of->bytes[i];
        if (w->until[i] <= i || tn_is_number(n) || !tn_is_open(n)) continue;
        const int64_t bytes = tn_node_numel(n) * (int64_t)tn_dtype_size(n->dtype);
        w->across[i + 1] += bytes;
        w->across[w->until[i] + 1] -= bytes;
    }
    for (uint32_t i = 1; i <= w->end; i++) w->across[i] += w->across[i - 1];
    w->all = tn_wanted_sum(w->of);
    return true;
}

static bool can_cut(const choosing *w, uint32_t at)
{
    return at == w->end || w->g->nodes[at]->call != w->g->nodes[at - 1]->call;
}

/* n parts, or fewer. A cut is the cheapest in the second half of the part's share. */
static void cut(const choosing *w, int n, parts *p)
{
    uint32_t first = 0, best = 0;
    int64_t weight = 0, until_best = 0;
    p->n = 0;
    for (uint32_t i = 1; i <= w->end && p->n < n; i++) {
        const int64_t share = w->all / n;
        weight += w->of->bytes[i - 1];
        const bool last = i == w->end;
        if (!last && !can_cut(w, i)) continue;
        if (last || (2 * weight > share && (best <= first || w->across[i] <= w->across[best]))) {
            best = i;
            until_best = weight;
        }
        if (best > first && (last || weight >= share)) {
            p->end[p->n] = best;
            p->weight[p->n++] = until_best;
            first = best;
            weight -= until_best;
        }
    }
    if (p->n) {
        p->weight[p->n - 1] += weight;
        p->end[p->n - 1] = w->end;
    }
    for (uint32_t i = 0, k = 0; i < w->end && (int)k < p->n; i++) {
        const tn_tensor *b = w->g->nodes[i];
        if (i >= p->end[k]) p->crossing[++k] = 0;
        if (!i) p->crossing[0] = 0;
        if (w->until[i] >= p->end[k] && tn_is_open(b) && !tn_is_number(b) && b->base == b)
            p->crossing[k] += tn_node_numel(b) * (int64_t)tn_dtype_size(b->dtype);
    }
}

/* The bytes alive at most with the first k parts made again. */
static int64_t alive(const parts *p, int k)
{
    int64_t kept = 0, rest = 0, largest = 0;
    for (int i = 0; i < p->n; i++) {
        if (i < k) kept += p->crossing[i];
        if (i >= k) rest += p->weight[i];
        if (i < k && p->weight[i] > largest) largest = p->weight[i];
    }
    return kept + (rest > largest ? rest : largest);
}

/* Neighbours of one number are made again at once: what is left out parts them. */
static void make_regions(const choosing *w, const parts *p, int k)
{
    uint32_t open = 0;
    for (uint32_t i = 0, part = 0; part < (uint32_t)k && i < p->end[k - 1]; i++) {
        tn_tensor *n = w->g->nodes[i];
        if (i == p->end[part]) part++, open = 0;
        if (part == (uint32_t)k) break;
        if (n->region == TN_REGION_AGAIN) n->region = 0; /* as one of its part, not by itself */
        const bool leaf = tn_kind_of(n) == TN_KIND_LEAF && !n->region;
        open = !leaf && !tn_is_open(n) ? 0 : open ? open : TN_REGION_CHOSEN | i;
        if (open) n->region = open;
    }
}

/* What the values may come to as they are counted here. */
static double most_bytes(const tn_budget *b) { return (double)b->bytes / (b->ratio > 0 ? b->ratio : 1); }

static bool choose_parts(tn_session *s, const tn_wanted *of)
{
    tn_budget *b = &s->budget;
    choosing w = {.of = of, .g = of->g, .end = of->end};
    const bool ok = weigh(&w);
    const double most = most_bytes(b);
    parts p = {0}, best = {0};
    int best_n = 0, best_k = 0;
    double best_cost = 0;
    int64_t least = w.all;
    const bool settled = b->state == TN_BUDGET_SETTLED, without = b->state == TN_BUDGET_WITHOUT;
    if (ok && settled && b->best.cut) {
        cut(&w, b->best.cut, &best);
        best_n = b->best.cut;
        best_k = b->best.again < best.n ? b->best.again : best.n;
        least = alive(&best, best_k);
    }
    for (int n = 2; n <= MOST_PARTS && (double)w.all > most && ok && !settled && !without;
         n += n < 8 ? 1 : n / 4) {
        cut(&w, n, &p);
        double cost = 0;
        for (int k = 1; k <= p.n; k++) {
            cost += (double)p.weight[k - 1];
            const int64_t need = alive(&p, k);
            const bool fits = (double)need <= most, fitted = (double)least <= most;
            if (fits ? !fitted || cost < best_cost : need < least) {
                best = p;
                best_n = n;
                best_k = k;
                best_cost = cost;
                least = need;
            }
        }
    }
    b->estimate = least;
    b->all = w.all;
    b->dear = w.dear;
    b->cut = best_n;
    b->parts = best.n;
    b->again = best_k;
    b->at_least = (double)least > most;
    if (best_k) make_regions(&w, &best, best_k);
    tn_free_mem(w.until);
    tn_free_mem(w.across);
    return ok;
}

bool tn_budget_choose(tn_session *s, const tn_tensor *loss)
{
    tn_wanted of = {.bytes = NULL};
    if (!tn_deferred(s) || !s->in_step) return true;
    /* where each node is run by itself, what is made again has no kernel to be made in */
    const bool plans = !s->device->no_compiler && !s->device->is_reference;
    bool ok = tn_wanted_open(&of, s, loss) && (!plans || tn_rematerialize(&of, false));
    if (ok && s->budget.bytes) {
        const bool over = (double)tn_wanted_sum(&of) > most_bytes(&s->budget);
        if (plans && over && s->budget.ratio > 0) ok = tn_rematerialize(&of, true);
        ok = ok && choose_parts(s, &of);
    }
    tn_wanted_close(&of);
    return ok;
}

/* How near the estimate came. */
void tn_budget_learn(tn_session *s)
{
    tn_budget *b = &s->budget;
    int64_t taken = 0, lent = 0; /* to values, of memory that gradients are written to later */
    if (!b->bytes || !s->explain->now.backward || b->estimate <= 0 || s->graph.error.status) return;
    for (int i = 0; i < s->explain->now.n; i++) {
        const tn_plan *p = s->explain->now.run[i].plan;
        if ((int64_t)p->arena_bytes > taken) taken = (int64_t)p->arena_bytes;
        if ((int64_t)p->lent_bytes > lent) lent = (int64_t)p->lent_bytes;
    }
    const double share = (double)taken / (double)b->all; /* batches may be of several sizes */
    if (b->best.share == 0 || share < b->best.share) {
        b->best.cut = b->cut;
        b->best.again = b->again;
        b->best.taken = taken;
        b->best.share = share;
    }
    if (b->state == TN_BUDGET_SETTLED) return;
    const bool over = taken > b->bytes, loose = b->again && taken < b->bytes - b->bytes / 5 && b->tries < 2;
    if (b->state == TN_BUDGET_WITHOUT || (over && (b->at_least || b->tries == TRIES))) {
        const bool try = b->state == TN_BUDGET_LEARNS && b->again &&
                         (double)(b->dear - lent) < b->best.share * (double)b->all;
        b->state = try ? TN_BUDGET_WITHOUT : TN_BUDGET_SETTLED;
        b->tries++; /* the next step is recorded anew, here and below */
        if (!try && b->best.taken > b->bytes)
            tn_warn(s,
                    "memory budget: %.2f MB were asked for, and a step takes %.2f MB for its values with all "
                    "that is worth it computed again",
                    (double)b->bytes * 1e-6, (double)b->best.taken * 1e-6);
    } else if (over || (loose && b->tries < TRIES)) {
        const double seen = (double)taken / (double)b->estimate, more = (b->ratio > 0 ? b->ratio : 1) * 1.1;
        b->ratio = over && seen < more ? more : seen;
        b->tries++;
    }
}
