/* peak.c - which values of forward are worth the time that making them again takes: those that are there when
 * most is, the most bytes for the time first, and not for more than a share of the step.
 *
 * Backward goes through forward from its end. Of what lies between products gradients are written over what
 * was kept for them, so that the worst moments are those of products. As backward is at product i, alive are
 * what is kept of before it, and gradients as large as what it writes and reads:
 *
 *   alive(i)  =  sum over j < i of kept(j)  +  bytes of i's result and of its largest operand
 *
 * A value that is made again is there for gradients of those that read it only: of the nodes up to its last
 * reader. So the peak comes down where a value has been read for the last time before it; then another moment
 * is the worst, and values are chosen for that. Where all of that spares little of what a step holds,
 * parameters and their gradients with it, nothing is made again. Start with tn_lower_peak. */
#include "../device/profile.h"
#include "wanted.h"

enum {
    TIME = 20,  /* of what a step is thought to take, at most the twentieth is spent */
    SHARE = 10, /* of what it holds at most, at least the tenth is spared */
    ROUNDS = 64 /* moments that are looked for */
};

typedef struct choice {
    const tn_wanted *w;
    const double *price;
    uint8_t *chosen;
    uint32_t *until; /* of each value: its last reader in forward */
    uint32_t *priced, n_priced;
    int64_t *alive; /* at each node: scratch */
} choice;

static int64_t bytes_of(const tn_tensor *n) { return tn_node_numel(n) * (int64_t)tn_dtype_size(n->dtype); }

/* Bytes of the gradients that are there while those of n's operands are made. */
static int64_t around(const tn_wanted *w, const tn_tensor *n)
{
    int64_t most = 0;
    for (int k = 0; k < n->n_in; k++) {
        const tn_tensor *b = n->in[k]->base;
        const bool has =
            b->flags & TN_F_REQUIRES_GRAD && tn_kind_of(b) != TN_KIND_LEAF && tn_wanted_has(w, b);
        if (has && bytes_of(b) > most) most = bytes_of(b);
    }
    return most + bytes_of(n);
}

/* The most that is alive, and where: *at. */
static int64_t peak(const choice *c, uint32_t *at)
{
    const tn_wanted *w = c->w;
    int64_t now = 0, most = 0;
    for (uint32_t i = w->begin; i <= w->end; i++) c->alive[i] = 0;
    for (uint32_t i = w->begin; i < w->end; i++) {
        c->alive[i] += w->bytes[i];
        if (c->chosen[i]) c->alive[c->until[i] + 1] -= w->bytes[i];
    }
    for (uint32_t i = *at = w->begin; i < w->end; i++) {
        const tn_tensor *n = w->g->nodes[i];
        const bool product = n->flags & TN_F_REQUIRES_GRAD && tn_product_ns(w->target, n) > 0;
        const int64_t all = product ? now + around(w, n) : 0;
        now += c->alive[i];
        if (all < most) continue;
        most = all;
        *at = i;
    }
    return most;
}

/* Nanoseconds that a step takes, about: products three times, and what gradients read written, read, and
 * another two like it. */
static double step_ns(const tn_wanted *w)
{
    const tn_target_profile *p = tn_target_rates(w->target);
    const double all = (double)tn_wanted_sum(w);
    double ns = 4 * all / tn_profile_at(p, all).copy;
    for (uint32_t i = w->begin; i < w->end; i++) ns += 3 * tn_product_ns(w->target, w->g->nodes[i]);
    return ns;
}

/* Bytes that every step holds: what is trained, and its gradients. */
static int64_t held(const tn_wanted *w)
{
    int64_t bytes = 0;
    for (uint32_t i = 0; i < w->end; i++) {
        const tn_tensor *n = w->g->nodes[i];
        if (tn_kind_of(n) == TN_KIND_LEAF && n->base == n && n->flags & TN_F_REQUIRES_GRAD)
            bytes += 2 * bytes_of(n);
    }
    return bytes;
}

/* Chooses of the values that are there at node `at` and are not read there until `bytes` are spared. */
static int64_t choose(choice *c, uint32_t at, int64_t bytes, double *left)
{
    int64_t spared = 0;
    while (spared < bytes) {
        uint32_t best = at;
        double most = 0;
        for (uint32_t k = 0; k < c->n_priced && c->priced[k] < at; k++) {
            const uint32_t i = c->priced[k];
            if (c->chosen[i] || c->until[i] >= at || c->price[i] > *left) continue;
            const double rate = (double)c->w->bytes[i] / c->price[i];
            if (rate > most) best = i, most = rate;
        }
        if (best == at) break;
        c->chosen[best] = 1;
        spared += c->w->bytes[best];
        *left -= c->price[best];
    }
    return spared;
}

bool tn_lower_peak(const tn_wanted *w, const double *price, uint8_t *chosen)
{
    choice c = {.w = w, .price = price, .chosen = chosen};
    c.until = tn_calloc(w->end + 1, sizeof *c.until);
    c.alive = tn_calloc(w->end + 2, sizeof *c.alive);
    c.priced = tn_calloc(w->end + 1, sizeof *c.priced);
    const bool ok = c.until && c.alive && c.priced;
    for (uint32_t i = w->begin; i < w->end && ok; i++) {
        const tn_tensor *n = w->g->nodes[i];
        if (price[i] > 0) c.priced[c.n_priced++] = i;
        for (int k = 0; k < n->n_in; k++)
            if (tn_wanted_has(w, n->in[k]->base)) c.until[n->in[k]->base->id] = i;
    }
    if (ok && c.n_priced) {
        uint32_t at;
        double left = step_ns(w) / TIME;
        int64_t before = peak(&c, &at), now = before;
        for (int i = 0; i < ROUNDS && choose(&c, at, now / ROUNDS, &left); i++) now = peak(&c, &at);
        const bool little = (before - now) * SHARE < before + held(w);
        for (uint32_t i = w->begin; i < w->end && little; i++) chosen[i] = 0;
    }
    if (!ok) tn_error_set(w->g, TN_E_NOMEM, "no memory for its plan");
    tn_free_mem(c.until);
    tn_free_mem(c.alive);
    tn_free_mem(c.priced);
    return ok;
}
