/* rematerialize.c - values of forward that gradients make again from what is kept for them anyway.
 *
 *   h = gelu(x @ v)           gelu's gradient reads x @ v, and the weight's that of w reads h
 *   y = h @ w
 *
 * From x @ v, in memory in any case, h can be made in backward by the kernel that makes gelu's gradient:
 * one more value written there, and h is not in memory between its two uses. The same holds of what norms,
 * activations, dropout and sums of them hand to a product or a convolution: of two values for each layer
 * that forward would keep, one is left. What a kernel of the fuser's reads needs no choice here
 * (fuser/group/recompute.c): this is for values that a library, or a product's own kernel, reads from memory.
 *
 * An elementwise value can be made again where all large values that it comes from, SOURCES at most, are kept
 * for other gradients, and where that is little arithmetic; that of a product of few terms, such as a
 * convolution of one channel, is no more. Where what reads it computes much for each of its elements, it is
 * made again: products and convolutions take so long that one more write beside them does not count. Else
 * that has a price, and is done where it lowers what a step holds at most (peak.c).
 * How gradients come to read the second value is autograd/again.c's matter. Start with tn_rematerialize.
 * (The idea: Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, section 4.) */
#include "../device/profile.h"
#include "wanted.h"

enum {
    SOURCES = 2,
    MOST_NODES = 24,  /* of a value and what lies between it and its sources */
    MOST_WORK = 128,  /* of these, in instructions for an element */
    FEWEST = 1 << 12, /* elements */
    SMALL = 4,        /* of which the fourth part is no large value beside it */
    PRODUCT = 64,     /* operations for each element, in a product that reads it */
    SHARE = 6,        /* of all that gradients read, at least the sixth part is spared, or nothing, */
    TIME = 500        /* unless that takes less than this part of the products' time */
};

enum { KEPT = 1, READ = 2, AGAIN = 4, HANDED = 8 }; /* HANDED: to some product */

/* Of what a value is made. */
typedef struct origin {
    int64_t size;
    const tn_tensor *source[SOURCES];
    int n_source, nodes;
    double work, product_ns;
} origin;

static bool is_elementwise(const tn_tensor *n)
{
    const tn_kind k = tn_kind_of(n);
    return k == TN_KIND_ELTWISE || k == TN_KIND_CAST || k == TN_KIND_IOTA || k == TN_KIND_RANDOM;
}

/* Returns true where making x again computes the node, rather than reads it. */
static bool is_made(const tn_wanted *w, const uint8_t *how, const tn_tensor *n)
{
    if (!tn_wanted_has(w, n) || !tn_is_open(n) || how[n->id] & KEPT) return false;
    return is_elementwise(n) ||
           (!w->bytes[n->id] && tn_product_terms(n) > 0 && tn_product_terms(n) <= MOST_WORK);
}

static bool comes_of(const tn_wanted *w, const uint8_t *how, const tn_tensor *x, origin *o)
{
    const tn_tensor *b = x->base;
    if (tn_is_number(b)) return true;
    if (is_made(w, how, b)) {
        o->work += is_elementwise(b) ? tn_op_get(b->op)->work : tn_product_terms(b);
        if (!is_elementwise(b)) o->product_ns += tn_product_ns(w->target, b);
        if (++o->nodes > MOST_NODES || o->work > MOST_WORK) return false;
        for (int i = 0; i < b->n_in; i++)
            if (!comes_of(w, how, b->in[i], o)) return false;
        return true;
    }
    if (tn_node_numel(b) * SMALL < o->size) return true;
    for (int i = 0; i < o->n_source; i++)
        if (o->source[i] == b) return true;
    if (o->n_source == SOURCES || (tn_wanted_has(w, b) && tn_is_open(b) && !w->bytes[b->id])) return false;
    o->source[o->n_source++] = b;
    return true;
}

/* Operations that n, a product, does with each element of its operand k, at least; 0: it is none. */
static double intensity(const tn_tensor *n, int k)
{
    const tn_kind kind = tn_kind_of(n);
    const int64_t x = tn_node_numel(n->in[k]), y = tn_node_numel(n);
    if ((kind != TN_KIND_GEMM && kind != TN_KIND_CONV && kind != TN_KIND_ATTENTION) || !x) return 0;
    if (kind == TN_KIND_CONV) { /* window and channels of each filter, at as many places as the smaller has */
        return k ? 0 : 2.0 * (double)(y < x ? y : x) / (double)x * tn_filter_size(n->in[1]);
    }
    const tn_tensor *other = n->in[!k];
    const int last = other->ndim - 1;
    return 2.0 * (double)other->shape[kind == TN_KIND_GEMM && !k ? last : last - 1];
}

/* Notes which values products read, and of these what one reads that takes long enough. */
static void note_readers(const tn_wanted *w, uint8_t *how, bool all)
{
    for (uint32_t i = w->begin; i < w->end; i++) {
        const tn_tensor *n = w->g->nodes[i];
        for (int k = 0; k < n->n_in && k < 2; k++) {
            const double work = intensity(n, k);
            if (work > 0 && tn_wanted_has(w, n->in[k]->base))
                how[n->in[k]->base->id] |= work >= PRODUCT || all ? READ | HANDED : HANDED;
        }
    }
}

/* Returns true where it changes what a step takes, or costs nothing: else less than a share of all that
 * gradients read is left alone. */
static bool is_worth(const tn_wanted *w, const uint8_t *how)
{
    int64_t all = 0, again = 0;
    double products = 0; /* nanoseconds, forward and backward */
    for (uint32_t i = w->begin; i < w->end; i++) {
        all += w->bytes[i];
        again += how[i] & AGAIN ? w->bytes[i] : 0;
        products += 3 * tn_product_ns(w->target, w->g->nodes[i]);
    }
    const double writes = (double)again / tn_profile_at(tn_target_rates(w->target), (double)all).copy;
    return again && (again * SHARE >= all || writes * TIME <= products);
}

/* Marks what is made again, with what it is made of up to its sources, and views of that. */
static void mark(tn_wanted *w, uint8_t *how)
{
    for (uint32_t i = w->end; i-- > w->begin;) {
        tn_tensor *n = w->g->nodes[i];
        if (!(how[i] & AGAIN)) continue;
        n->region = TN_REGION_AGAIN;
        w->bytes[i] = 0;
        for (int k = 0; k < n->n_in; k++) {
            const tn_tensor *b = n->in[k]->base;
            if (!tn_is_number(b) && is_made(w, how, b) && tn_kind_of(b) != TN_KIND_RANDOM)
                how[b->id] |= AGAIN;
        }
    }
    for (uint32_t i = w->begin; i < w->end; i++) {
        tn_tensor *n = w->g->nodes[i];
        if (n->base != n && !n->region && n->base->region == TN_REGION_AGAIN) n->region = TN_REGION_AGAIN;
    }
}

/* Decides of node i, an elementwise value that gradients read, of `far` bytes in all; those before it have been decided
 * of. Returns the nanoseconds for making it again, or 0. */
static double decide(const tn_wanted *w, uint8_t *how, uint32_t i, double far, bool all)
{
    const tn_tensor *n = w->g->nodes[i];
    const double bytes = (double)w->bytes[i];
    origin o = {.size = tn_node_numel(n), .work = tn_op_get(n->op)->work};
    bool can = o.size >= FEWEST;
    for (int k = 0; k < n->n_in && can; k++) can = comes_of(w, how, n->in[k], &o);
    if (!can || (!o.n_source && o.product_ns <= 0)) {
        how[i] |= KEPT;
        return 0;
    }
    if (all ? how[i] & HANDED : how[i] & READ && o.product_ns <= 0) how[i] |= AGAIN;
    if (!(how[i] & HANDED) || how[i] & AGAIN) return 0;
    return bytes / tn_profile_at(tn_target_rates(w->target), far).copy + o.product_ns;
}

bool tn_rematerialize(tn_wanted *w, bool all)
{
    uint8_t *how = tn_calloc(w->end + 1, sizeof *how), *more = tn_calloc(w->end + 1, 1); /* of each node */
    double *price = tn_calloc(w->end + 1, sizeof *price);
    bool ok = how && more && price;
    if (!ok) tn_error_set(w->g, TN_E_NOMEM, "no memory for its plan");
    if (ok) note_readers(w, how, all);
    const double far = (double)tn_wanted_sum(w);
    for (uint32_t i = w->begin; i < w->end && ok; i++) {
        const tn_tensor *n = w->g->nodes[i];
        if (n->base == n && is_elementwise(n) && tn_is_open(n) && w->bytes[i])
            price[i] = decide(w, how, i, far, all);
    }
    if (ok && (all || is_worth(w, how))) mark(w, how);
    if (ok && !all && (ok = tn_lower_peak(w, price, more))) {
        for (uint32_t i = w->begin; i < w->end; i++) how[i] = more[i] ? AGAIN : how[i] & KEPT;
        mark(w, how);
    }
    tn_free_mem(how);
    tn_free_mem(more);
    tn_free_mem(price);
    return ok;
}
