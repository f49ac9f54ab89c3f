/* random_more.h - how operators of random graphs are drawn whose operands stand beside each other, are
 * halved, sampled or go step by step. Read first: draw_beside. */
#pragma once

#include "random_graphs.h"

/* A leaf beside x: one number for each column, or a tensor alike, whose rows give one number each. */
enum { PRELU, COSINE, TRIPLET };

static bool draw_beside(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, 1, 4);
    if (n->in[0] < 0) return false;
    const node x = p->v[n->in[0]];
    shape_like(n, &x);
    n->in[1] = which == PRELU ? add_leaf(p, 1, &x.shape[x.ndim - 1]) : add_leaf(p, x.ndim, x.shape);
    if (which != PRELU) n->ndim--;
    n->mag = which == COSINE    ? 1
             : which == TRIPLET ? (x.mag + 2) * (double)x.shape[x.ndim - 1] + 1
                                : 2 * x.mag;
    return n->in[1] >= 0;
}

static bool draw_top(program *p, rng *r, node *n, int which)
{
    (void)which;
    n->in[0] = pick_ndim(p, r, 1, 4);
    if (n->in[0] < 0) return false;
    shape_like(n, &p->v[n->in[0]]);
    n->p[0] = rng_below(r, n->ndim);
    n->p[1] = rng_below(r, 2);
    n->shape[n->p[0]] = 1 + rng_below(r, n->shape[n->p[0]]);
    return true;
}

static tn_tensor *top_values(tn_tensor *x, const node *n)
{
    tn_tensor *values = NULL, *indices = NULL;
    tn_topk(x, n->shape[n->p[0]], (int)n->p[0], n->p[1] != 0, &values, &indices);
    return values;
}

/* The halves of an axis, pairs in rows, and what lies on one side of the diagonal. */
enum { GLU, ROTARY, TRIANGLE };

static bool draw_even(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, which == GLU ? 1 : 2, 4);
    if (n->in[0] < 0) return false;
    shape_like(n, &p->v[n->in[0]]);
    n->p[0] = which == GLU ? rng_below(r, n->ndim) : n->ndim - 1;
    n->p[1] = which == TRIANGLE ? rng_below(r, 5) - 2 : rng_below(r, 9);
    n->p[2] = rng_below(r, 2);
    if (which == ROTARY) n->mag *= 2;
    if (which == TRIANGLE) return true;
    if (n->shape[n->p[0]] % 2) return false;
    if (which == GLU) n->shape[n->p[0]] /= 2;
    return true;
}

static bool draw_einsum(program *p, rng *r, node *n, int which)
{
    (void)which;
    n->in[0] = pick_ndim(p, r, 3, 3);
    if (n->in[0] < 0) return false;
    const node x = p->v[n->in[0]];
    shape_like(n, &x);
    const int64_t other[] = {1 + rng_below(r, 9), x.shape[2]};
    n->in[1] = add_leaf(p, 2, other);
    n->shape[1] = other[0], n->shape[2] = x.shape[1];
    n->mag = x.mag * 2 * (double)x.shape[2];
    return n->in[1] >= 0;
}

/* Images of another size, and convolutions that draw_image does not draw. */
enum { RESIZE, CONV1D, BACK1D, BACK2D };

static bool draw_sampled(program *p, rng *r, node *n, int which)
{
    const int ndim = which == CONV1D || which == BACK1D ? 3 : 4, last = ndim - 1;
    int at = pick_ndim(p, r, ndim, ndim);
    if (at < 0 || p->v[at].shape[1] < 3 || p->v[at].shape[ndim - 2] < 3)
        at = add_leaf(p, ndim,
                      ndim == 3
                          ? (const int64_t[]){1 + rng_below(r, 3), 3 + rng_below(r, 7), 1 + rng_below(r, 6)}
                          : (const int64_t[]){1 + rng_below(r, 2), 3 + rng_below(r, 3), 3 + rng_below(r, 3),
                                              1 + rng_below(r, 5)});
    if (at < 0) return false;
    const node x = p->v[at];
    shape_like(n, &x);
    n->in[0] = at;
    const int64_t k = 1 + rng_below(r, 3), stride = 1 + rng_below(r, 2), pad = rng_below(r, k / 2 + 1);
    n->p[0] = k, n->p[1] = stride, n->p[2] = pad, n->p[3] = rng_below(r, 2);
    for (int d = 1; d < last; d++)
        n->shape[d] = which == RESIZE   ? 1 + rng_below(r, 9)
                      : which == CONV1D ? (x.shape[d] + 2 * pad - k) / stride + 1
                                        : (x.shape[d] - 1) * stride - 2 * pad + k;
    if (which == RESIZE) return true;
    const int64_t in = x.shape[last], out = 1 + rng_below(r, 6);
    const int64_t weight[] = {which == CONV1D ? out : in, k, ndim == 4 ? k : which == CONV1D ? in : out, out};
    n->in[1] = add_leaf(p, ndim, weight);
    n->in[2] = rng_below(r, 2) ? add_leaf(p, 1, &out) : -1;
    n->shape[last] = out;
    n->mag = x.mag * 2 * (double)(k * (ndim == 4 ? k : 1) * in) + 2;
    return n->in[1] >= 0;
}

/* Some steps of a cell with so many gates; its last state is among the results. */
static bool draw_recurrent(program *p, rng *r, node *n, int gates)
{
    const int64_t t = 1 + rng_below(r, 4), rows = 1 + rng_below(r, 4), h = 1 + rng_below(r, 9);
    const int64_t x[] = {t, rows, gates * h}, w[] = {gates * h, h};
    n->in[0] = add_leaf(p, 3, x);
    n->in[1] = add_leaf(p, 2, w);
    n->in[2] = rng_below(r, 2) ? add_leaf(p, 1, x + 2) : -1;
    n->ndim = 3;
    n->shape[0] = t + (gates == 4 ? 2 : 1), n->shape[1] = rows, n->shape[2] = h;
    n->mag = (double)t + 1;
    return n->in[0] >= 0 && n->in[1] >= 0;
}
