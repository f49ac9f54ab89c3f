/* random_shapes.h - the families of random_graphs.h whose results have shapes of their own: views, joins,
 * products, attention, images, indexing. Included there. */
#pragma once

/* -- views -- */

enum { RESHAPE, PERMUTE, SLICE, FLIP, PAD, EXPAND, SELECT, CONTIGUOUS };

/* Splits the elements into axes again: each divides what is left. */
static void draw_factors(rng *r, node *n, int64_t left)
{
    n->ndim = 0;
    while (n->ndim < 3 && left > 1) {
        int64_t f = draw_extent(r);
        n->shape[n->ndim++] = left % f == 0 ? f : left % 2 == 0 ? 2 : left % 3 == 0 ? 3 : left;
        left /= n->shape[n->ndim - 1];
    }
    n->shape[n->ndim++] = left;
}

static void draw_slice(rng *r, node *n, int axis)
{
    int64_t extent = n->shape[axis], count = 1 + rng_below(r, extent), step = 1 + rng_below(r, 3);
    while ((count - 1) * step >= extent) step--;
    int64_t start = rng_below(r, extent - (count - 1) * step);
    bool back = rng_below(r, 3) == 0;
    n->p[1] = back ? start + (count - 1) * step : start;
    n->p[2] = back ? (start ? start - 1 : TN_END) : start + (count - 1) * step + 1;
    n->p[3] = back ? -step : step;
    n->shape[axis] = count;
}

static bool draw_view(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, which == RESHAPE || which == CONTIGUOUS ? 0 : 1, which == EXPAND ? 4 : 5);
    if (n->in[0] < 0) return false;
    const node *x = &p->v[n->in[0]];
    shape_like(n, x);
    int axis = x->ndim ? (int)rng_below(r, x->ndim) : 0;
    n->p[0] = axis;
    if (which == RESHAPE) draw_factors(r, n, elements(x));
    if (which == PERMUTE) {
        for (int i = 0; i < x->ndim; i++) n->p[i] = i;
        for (int i = x->ndim - 1; i > 0; i--) {
            int64_t j = rng_below(r, i + 1), t = n->p[i];
            n->p[i] = n->p[j], n->p[j] = t;
        }
        for (int i = 0; i < x->ndim; i++) n->shape[i] = x->shape[n->p[i]];
    }
    if (which == SLICE) draw_slice(r, n, axis);
    if (which == PAD) {
        n->p[1] = rng_below(r, 3), n->p[2] = rng_below(r, 3);
        n->shape[axis] += n->p[1] + n->p[2];
    }
    if (which == EXPAND) { /* a new axis in front, repeated; and an extent of 1 where there is one */
        n->ndim++;
        n->shape[0] = 1 + rng_below(r, 4);
        for (int i = 0; i < x->ndim; i++) n->shape[i + 1] = x->shape[i] == 1 ? 3 : x->shape[i];
    }
    if (which == SELECT) {
        n->p[1] = rng_below(r, x->shape[axis]);
        n->ndim--;
        for (int i = axis; i < n->ndim; i++) n->shape[i] = x->shape[i + 1];
    }
    return true;
}

static tn_tensor *permuted(tn_tensor *x, const node *n)
{
    int order[5];
    for (int k = 0; k < 5; k++) order[k] = (int)n->p[k];
    return tn_permute(x, n->ndim, order);
}

enum { CONCAT, STACK };

static bool draw_join(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, 1, 4);
    if (n->in[0] < 0) return false;
    const node x = p->v[n->in[0]];
    shape_like(n, &x);
    int axis = (int)rng_below(r, x.ndim);
    int64_t other[5];
    memcpy(other, x.shape, sizeof other);
    if (which == CONCAT) other[axis] = 1 + rng_below(r, 4);
    n->in[1] = -1;
    for (int k = 0; k < p->n && n->in[1] < 0; k++) { /* an earlier node of that shape, else a leaf */
        const node *y = &p->v[k];
        if (k != n->in[0] && is_real(p, k) && y->ndim == x.ndim &&
            !memcmp(y->shape, other, (size_t)x.ndim * 8))
            n->in[1] = k;
    }
    if (n->in[1] < 0) n->in[1] = add_leaf(p, x.ndim, other);
    if (n->in[1] < 0) return false;
    n->p[0] = axis;
    n->mag = fmax(x.mag, p->v[n->in[1]].mag);
    if (which == CONCAT) {
        n->shape[axis] += other[axis];
    } else {
        for (int d = n->ndim++; d > axis; d--) n->shape[d] = n->shape[d - 1];
        n->shape[axis] = 2;
    }
    return true;
}

/* -- products: 0 x y, 1 x y^T, 2 x W^T + b -- */

static bool draw_matmul(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, 2, 4);
    if (n->in[0] < 0) return false;
    const node x = p->v[n->in[0]];
    shape_like(n, &x);
    int64_t k = x.shape[x.ndim - 1], m = 1 + rng_below(r, 12), shape[3];
    int nd = 0;
    if (which < 2 && x.ndim == 3 && rng_below(r, 2)) shape[nd++] = x.shape[0];
    shape[nd++] = which ? m : k;
    shape[nd++] = which ? k : m;
    n->in[1] = add_leaf(p, nd, shape);
    n->in[2] = which == 2 && rng_below(r, 3) ? add_leaf(p, 1, &m) : -1;
    if (n->in[1] < 0) return false;
    n->shape[x.ndim - 1] = m;
    n->mag = x.mag * 2 * (double)k + 2;
    return true;
}

/* -- attention, as one operator and written out -- */

enum { ATTENTION, WRITTEN_OUT };
enum { NO_MASK, CAUSAL, BOOLS, ADDED, N_MASKS };

/* q is an earlier node [.., tq, d]; k and v are new, or k is q itself: attention of rows to each other. Where
 * scores are large their rounding alone decides which key is seen. */
static bool draw_attention(program *p, rng *r, node *n, int which)
{
    (void)which;
    n->in[0] = pick_ndim(p, r, 2, 4);
    if (n->in[0] < 0) return false;
    const node q = p->v[n->in[0]];
    const bool self = !rng_below(r, 3);
    const double score = q.mag * (self ? q.mag : 2) * sqrt((double)q.shape[q.ndim - 1]);
    if (score > 50) return false;
    shape_like(n, &q);
    int64_t shape[5];
    memcpy(shape, q.shape, sizeof shape);
    if (!self) shape[q.ndim - 2] = draw_extent(r);
    n->in[1] = self ? n->in[0] : add_leaf(p, q.ndim, shape);
    if (!rng_below(r, 4)) shape[q.ndim - 1] = draw_extent(r);
    n->in[2] = add_leaf(p, q.ndim, shape);
    n->shape[q.ndim - 1] = shape[q.ndim - 1];
    n->p[0] = rng_below(r, N_MASKS);
    n->f[0] = rng_below(r, 2) ? 0 : rng_real(r, 0.1, 0.5);
    n->mag = 2;
    int64_t scores = shape[q.ndim - 2];
    for (int d = 0; d < q.ndim - 1; d++) scores *= q.shape[d];
    return n->in[1] >= 0 && n->in[2] >= 0 && scores <= MAX_ELEMENTS;
}

/* [tq, tk]: what is seen, of which the first key is always part, or what is added. */
static tn_tensor *mask_of(const program *p, int i, tn_session *s, int kind)
{
    const node *q = &p->v[p->v[i].in[0]], *k = &p->v[p->v[i].in[1]];
    const int64_t shape[] = {q->shape[q->ndim - 2], k->shape[k->ndim - 2]};
    static double data[MAX_ELEMENTS];
    rng r = {p->seed * 999983u + (uint64_t)i};
    for (int64_t row = 0, at = 0; row < shape[0]; row++)
        for (int64_t column = 0; column < shape[1]; column++, at++)
            data[at] = kind == CAUSAL  ? column <= row
                       : kind == BOOLS ? column == 0 || rng_below(&r, 3) > 0
                                       : rng_real(&r, -2, 2);
    return tensor_of(s, data, kind == ADDED ? p->dtype : TN_BOOL, 2, shape);
}

/* What is written out becomes the operator on a device, whose gradients take other sums than those of a
 * softmax: in the reference it is the operator, so that its noise is in these sums. */
static tn_tensor *run_attention(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    const node *n = &p->v[i];
    tn_tensor *q = v[n->in[0]], *k = v[n->in[1]], *x = v[n->in[2]];
    const int kind = (int)n->p[0];
    const double scale = which == WRITTEN_OUT && n->f[0] == 0 ? 0.25 : n->f[0];
    if (which == ATTENTION || s->device->is_reference)
        return tn_scaled_dot_product_attention(
            q, k, x, .causal = kind == CAUSAL,
            .mask = kind == BOOLS || kind == ADDED ? mask_of(p, i, s, kind) : NULL, .scale = scale);
    tn_tensor *score = tn_mul_scalar(tn_matmul(q, tn_transpose(k, -1, -2)), scale);
    if (kind == ADDED) score = tn_add(score, mask_of(p, i, s, kind));
    if (kind == CAUSAL || kind == BOOLS)
        score = tn_where(mask_of(p, i, s, kind), score, tn_full(s, -INFINITY, p->dtype, 0, NULL));
    return tn_matmul(tn_softmax(score, -1), x);
}

/* -- images -- */

enum { CONV, MAX_POOL, AVG_POOL };

static bool draw_image(program *p, rng *r, node *n, int which)
{
    int x = pick_ndim(p, r, 4, 4);
    if (x < 0 || p->v[x].shape[1] < 3 || p->v[x].shape[2] < 3) {
        x = add_leaf(p, 4,
                     (const int64_t[]){1 + rng_below(r, 2), 3 + rng_below(r, 5), 3 + rng_below(r, 5),
                                       1 + rng_below(r, 6)});
    }
    if (x < 0) return false;
    const node in = p->v[x];
    shape_like(n, &in);
    n->in[0] = x;
    int64_t k = 1 + rng_below(r, 3), stride = 1 + rng_below(r, 2), pad = rng_below(r, k / 2 + 1);
    n->p[0] = k, n->p[1] = stride, n->p[2] = pad;
    for (int d = 1; d < 3; d++) n->shape[d] = (in.shape[d] + 2 * pad - k) / stride + 1;
    if (which != CONV) return k > 1;
    int64_t weight[4] = {1 + rng_below(r, 8), k, k, in.shape[3]};
    n->in[1] = add_leaf(p, 4, weight);
    n->in[2] = rng_below(r, 2) ? add_leaf(p, 1, weight) : -1;
    n->shape[3] = weight[0];
    n->mag = in.mag * 2 * (double)(k * k * in.shape[3]) + 2;
    return n->in[1] >= 0;
}

/* -- indexing -- */

enum { INDEX_SELECT, GATHER, SCATTER_ADD, EMBEDDING };

static bool draw_index(program *p, rng *r, node *n, int which)
{
    n->in[0] = which == EMBEDDING ? pick_ndim(p, r, 2, 2) : pick_ndim(p, r, 1, 4);
    if (n->in[0] < 0) return false;
    const node x = p->v[n->in[0]];
    shape_like(n, &x);
    int axis = which == EMBEDDING ? 0 : (int)rng_below(r, x.ndim);
    int64_t count = 1 + rng_below(r, 9), shape[5], bound = x.shape[axis];
    n->p[0] = axis;
    memcpy(shape, x.shape, sizeof shape);
    shape[axis] = count;
    if (which == INDEX_SELECT) {
        n->in[1] = add_index(p, 1, &count, bound);
        n->shape[axis] = count;
    } else if (which == GATHER) {
        n->in[1] = add_index(p, x.ndim, shape, bound);
        n->shape[axis] = count;
    } else if (which == SCATTER_ADD) {
        n->in[1] = add_index(p, x.ndim, shape, bound);
        n->in[2] = add_leaf(p, x.ndim, shape);
        n->mag = x.mag + 2 * (double)count;
    } else {
        n->in[1] = add_index(p, 2, (const int64_t[]){count, 2}, bound);
        n->ndim = 3;
        n->shape[0] = count, n->shape[1] = 2, n->shape[2] = x.shape[1];
    }
    return n->in[1] >= 0 && (which != SCATTER_ADD || n->in[2] >= 0);
}
