/* attention_rig.h - what the tests of attention share: a case, its operands, called or written out, and what
 * its plan has.
 *
 * Read first: struct at, then attend. */
#pragma once

#include "tests/check.h"

#include "tests/rig.h"

#include "src/runtime/flush.h"

enum mask_kind { NO_MASK, BOOLS, ADDED, BY_BATCH, TRIANGLE };

/* One attention. */
typedef struct at {
    const char *name;
    int64_t batch, heads, tq, tk, d;
    bool causal, packed; /* q, k, v are slices of one projection [batch, t, 3, heads, d] */
    enum mask_kind mask;
    double dropout;
    tn_dtype dtype;
    int variant; /* 1: written out; 2: divided, and what is hidden named instead of what is seen */
} at;

static tn_tensor *drawn(tn_session *s, uint64_t seed, tn_dtype d, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    double *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    rng r = {seed};
    for (int64_t i = 0; i < n; i++) v[i] = rng_real(&r, -1.5, 1.5);
    tn_tensor *t = tensor_of(s, v, d, ndim, shape);
    free(v);
    assert_non_null(t);
    return t;
}

/* Every query sees its first key, and of a triangle all up to itself. */
static tn_tensor *bools(tn_session *s, bool triangle, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    double *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    rng r = {5};
    for (int64_t i = 0, last = shape[ndim - 1]; i < n; i++)
        v[i] = triangle ? i % last <= i / last : i % last == 0 || rng_below(&r, 3) > 0;
    tn_tensor *t = tensor_of(s, v, TN_BOOL, ndim, shape);
    free(v);
    return t;
}

static tn_tensor *mask_of(tn_session *s, const at *c)
{
    switch (c->mask) {
    case BOOLS: return bools(s, false, 2, (int64_t[]){c->tq, c->tk});
    case ADDED: return drawn(s, 9, c->dtype, 3, (int64_t[]){c->heads, c->tq, c->tk});
    case TRIANGLE: return bools(s, true, 2, (int64_t[]){c->tq, c->tk});
    case BY_BATCH: return bools(s, false, 4, (int64_t[]){c->batch, 1, 1, c->tk});
    case NO_MASK: break;
    }
    return NULL;
}

/* Leaves that want a gradient, and q, k, v made of them. */
static int operands(tn_session *s, const at *c, tn_tensor **leaf, tn_tensor **x)
{
    if (!c->packed) {
        for (int i = 0; i < 3; i++) {
            const int64_t shape[] = {c->batch, c->heads, i ? c->tk : c->tq, c->d};
            x[i] = leaf[i] = drawn(s, 1 + (uint64_t)i, c->dtype, 4, shape);
            tn_requires_grad(leaf[i], true);
        }
        return 3;
    }
    const int64_t shape[] = {c->batch, c->tq, 3, c->heads, c->d};
    leaf[0] = drawn(s, 1, c->dtype, 5, shape);
    tn_requires_grad(leaf[0], true);
    tn_tensor *p = tn_permute(leaf[0], 5, (const int[]){2, 0, 3, 1, 4});
    for (int i = 0; i < 3; i++) x[i] = tn_select(p, 0, i);
    return 1;
}

static tn_tensor *written(tn_session *s, const at *c, tn_tensor **x, tn_tensor *mask, tn_tensor **p)
{
    (void)s;
    tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], 2, 3));
    t = c->variant == 2 ? tn_div_scalar(t, sqrt((double)c->d)) : tn_mul_scalar(t, 1 / sqrt((double)c->d));
    if (mask && tn_dtype_of(mask) == TN_BOOL && c->variant == 2)
        t = tn_where(tn_logical_not(mask), tn_full(s, -INFINITY, c->dtype, 0, NULL), t);
    else if (mask && tn_dtype_of(mask) == TN_BOOL)
        t = tn_where(mask, t, tn_full(s, -INFINITY, c->dtype, 0, NULL));
    else if (mask)
        t = tn_add(t, mask);
    *p = tn_softmax(t, 3);
    return tn_matmul(c->dropout > 0 ? tn_dropout(*p, c->dropout) : *p, x[2]);
}

static tn_tensor *attend(tn_session *s, const at *c, tn_tensor **x)
{
    tn_tensor *mask = mask_of(s, c), *p;
    if (c->variant) return written(s, c, x, mask, &p);
    return tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = c->causal, .mask = mask,
                                           .dropout = c->dropout);
}

/* ---- what a plan has ---- */

typedef struct seen {
    int kernels, attentions;
    int64_t most, all; /* elements of the largest value, and of all, in memory that the plan makes */
} seen;

/* What waits in the step, as its end would run it. */
static seen look(tn_session *s)
{
    tn_flush_scratch f = {0};
    for (uint32_t i = 0; i < s->graph.n_nodes; i++) {
        tn_tensor *n = s->graph.nodes[i];
        bool done = n->base->flags & TN_F_DONE || tn_is_number(n);
        bool asked = tn_node_written(n) || (n->flags & (TN_F_USER | TN_F_CONSUMED)) == TN_F_USER;
        if (!done && asked) assert_true(tn_list_push(&f.seed, n));
    }
    s->ending = true;
    assert_int_equal(tn_segment_collect(s, &f), 0);
    s->ending = false;
    tn_segment seg = {.graph = &s->graph,
                      .node = f.node.at,
                      .n_node = f.node.n,
                      .leaf = f.leaf.at,
                      .n_leaf = f.leaf.n,
                      .root = f.root};
    tn_plan *p;
    tn_errbuf err = {""};
    seen v = {0};
    if (tn_plan_build(&seg, &s->target, &p, &err)) fail_msg("%s", err.text);
    v.kernels = p->n_step;
    for (int i = 0; i < p->n_step; i++) v.attentions += !strncmp(p->step[i].name, "attention", 9);
    for (int i = 0; i < p->n_value; i++) {
        int64_t n = (int64_t)p->value[i].elems;
        v.all += n;
        v.most = n > v.most ? n : v.most;
    }
    tn_plan_free(p);
    tn_flush_scratch_free(&f);
    return v;
}

static tn_session *open_session(tn_mode mode, int threads)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .threads = threads, .seed = 77, .log = quiet);
    assert_non_null(s);
    return s;
}

/* A step of a new session, in which a case's operands stand; `leave` closes it, without an error. */
static tn_session *enter(tn_mode mode, const at *c, tn_tensor **leaf, tn_tensor **x)
{
    tn_session *s = open_session(mode, 2);
    tn_step_begin(s);
    operands(s, c, leaf, x);
    return s;
}

static void leave(tn_session *s)
{
    tn_step_end(s);
    close_clean(s);
}
