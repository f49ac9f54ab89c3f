/* gemm.c - products and convolutions as library steps. Operands are taken by their strides; what the library
 * cannot read is copied first. Start with fu_emit_gemm. */
#include "raw.h"
#include "../loops/tile.h"

#include <stdio.h>

/* One matrix operand: its last two axes and the batch axes before them. */
typedef struct matrix {
    int slot;
    int64_t offset, row, col, batch[TN_MAX_DIMS];
} matrix;

static bool readable(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (rows > 1 && cols > 1) return (col == 1 && row >= cols) || (row == 1 && col >= rows);
    return (rows <= 1 || row > 0) && (cols <= 1 || col > 0) && (rows <= 1 || cols <= 1);
}

static int take(fu_ctx *c, const tn_tensor *t, bool copy, matrix *m)
{
    t = fu_value_of(c, t);
    int nb = t->ndim - 2;
    int64_t rows = t->shape[nb], cols = t->shape[nb + 1];
    bool number = tn_is_number(t);
    if (!copy && !number && readable(rows, cols, t->stride[nb], t->stride[nb + 1])) {
        if (!fu_place(c, t, &m->slot, &m->offset))
            return fu_fail(c, TN_E_INTERNAL, "an operand has no memory");
        m->row = t->stride[nb];
        m->col = t->stride[nb + 1];
        for (int i = 0; i < nb; i++) m->batch[i] = t->shape[i] == 1 ? 0 : t->stride[i];
    } else {
        m->offset = 0;
        m->slot = fu_emit_dense(c, t);
        if (m->slot < 0) return m->slot;
        m->row = cols;
        m->col = 1;
        int64_t s = rows * cols;
        for (int i = nb - 1; i >= 0; i--) {
            m->batch[i] = t->shape[i] == 1 ? 0 : s;
            s *= t->shape[i];
        }
    }
    /* an axis of one element may have any stride: name one the library takes */
    if (cols <= 1) m->col = m->row == 1 && rows > 1 ? rows : 1;
    if (cols <= 1 && m->row < 1) m->row = 1;
    if (rows <= 1) m->row = m->col == 1 ? cols : 1;
    return 0;
}

/* The batch axes of C, with the strides of each operand along them. */
typedef struct batches {
    int n;
    int64_t extent[TN_MAX_DIMS], a[TN_MAX_DIMS], b[TN_MAX_DIMS], c[TN_MAX_DIMS];
} batches;

/* Neighbouring axes that all three walk as one are one. Batches over one B, whose rows follow each other in A
 * and C, are more rows of A: g->m grows. */
static void merge_batches(const tn_tensor *t, const matrix *a, const matrix *b, const int64_t *c_batch,
                          tn_gemm *g, batches *out)
{
    int n = 0, axes = t->ndim - 2;
    g->m = t->shape[axes];
    for (int i = 0; i < axes; i++) {
        int64_t e = t->shape[i];
        if (e == 1) continue;
        bool one = n && out->a[n - 1] == a->batch[i] * e && out->b[n - 1] == b->batch[i] * e &&
                   out->c[n - 1] == c_batch[i] * e;
        if (one) e *= out->extent[--n];
        out->extent[n] = e;
        out->a[n] = a->batch[i];
        out->b[n] = b->batch[i];
        out->c[n++] = c_batch[i];
    }
    while (n && out->b[n - 1] == 0 && a->col == 1 && out->a[n - 1] == a->row * g->m &&
           out->c[n - 1] == g->c_row * g->m)
        g->m *= out->extent[--n];
    out->n = n;
}

int fu_gemm_of(fu_ctx *c, int node, tn_gemm *g, int *slot, int64_t *offset)
{
    const tn_tensor *t = c->node[node].t;
    const fu_node *own = &c->node[node];
    int nb = t->ndim - 2;
    *g = (tn_gemm){.dtype = t->dtype,
                   .n = t->shape[nb + 1],
                   .k = t->in[0]->shape[nb + 1],
                   .c_row = t->shape[nb + 1],
                   .epilogue = own->epilogue,
                   .tf32 = c->target->tf32};
    int64_t c_batch[TN_MAX_DIMS], dense = t->shape[nb] * g->n;
    for (int i = nb - 1; i >= 0; i--) {
        c_batch[i] = own->into < 0 ? dense : own->into_stride[i];
        dense *= t->shape[i];
    }
    if (own->into >= 0 && t->shape[nb] > 1) g->c_row = own->into_stride[nb];
    matrix a, b;
    batches batch = {0};
    for (int copied = 0; copied < 2; copied++) {
        int r = take(c, t->in[0], copied, &a);
        if (!r) r = take(c, t->in[1], copied, &b);
        if (r) return r;
        merge_batches(t, &a, &b, c_batch, g, &batch);
        if (batch.n <= TN_GEMM_BATCH_DIMS) break;
    }
    if (batch.n > TN_GEMM_BATCH_DIMS) return fu_fail(c, TN_E_UNSUPPORTED, "matmul over too many batch axes");
    g->batch_ndim = batch.n;
    for (int i = 0; i < batch.n; i++) {
        g->batch[i] = batch.extent[i];
        g->a_batch[i] = batch.a[i];
        g->b_batch[i] = batch.b[i];
        g->c_batch[i] = batch.c[i];
    }
    g->a_row = a.row;
    g->a_col = a.col;
    g->b_row = b.row;
    g->b_col = b.col;
    slot[0] = a.slot;
    slot[1] = b.slot;
    offset[0] = a.offset;
    offset[1] = b.offset;
    return 0;
}

/* Adds the product's own arithmetic and operands to what its step does. */
void fu_count_gemm(tn_step *s, const tn_tensor *t)
{
    s->flops += 2.0 * (double)tn_node_numel(t) * (double)t->in[0]->shape[t->ndim - 1];
    s->bytes +=
        (int64_t)tn_dtype_size(t->dtype) * (tn_node_numel(t->in[0]->base) + tn_node_numel(t->in[1]->base));
}

int fu_emit_gemm(fu_ctx *c, const fu_group *group)
{
    int node = group->member[0], slot[2];
    const tn_tensor *t = c->node[node].t;
    const fu_node *own = &c->node[node];
    tn_gemm g;
    int64_t offset[2];
    int status = fu_gemm_of(c, node, &g, slot, offset);
    if (status) return status;
    int bias = -1;
    int64_t bias_offset = 0;
    if (t->n_in > 2) {
        int r = fu_dense_operand(c, t->in[2], &bias, &bias_offset);
        if (r) return r;
    }
    tn_step *s = fu_step_new(c, TN_STEP_GEMM, "matmul");
    if (!s) return TN_E_NOMEM;
    s->gemm = g;
    if (fu_step_buf(c, s, slot[0], offset[0]) < 0 || fu_step_buf(c, s, slot[1], offset[1]) < 0 ||
        fu_step_buf(c, s, bias, bias_offset) < 0 ||
        fu_step_buf(c, s, own->into < 0 ? node : own->into, own->into < 0 ? 0 : own->into_offset) < 0)
        return TN_E_NOMEM;
    s->n_out = 1;
    fu_count_gemm(s, t);
    s->bytes += fu_bytes(t);
    return 0;
}

/* Few rows by a matrix: to arrange it for the multiplication takes a large part of the time. */
static bool may_share(const tn_step *s)
{
    enum { LEAST = 9, MOST = 128, ELEMENTS = 1 << 20 };
    const tn_gemm *g = &s->gemm;
    return s->kind == TN_STEP_GEMM && tn_dtype_is_float(g->dtype) && g->dtype != TN_F64 && !g->batch_ndim &&
           g->m >= LEAST && g->m <= MOST && g->n * g->k <= ELEMENTS;
}

static bool same_second(const tn_step *a, const tn_step *b)
{
    const tn_gemm *x = &a->gemm, *y = &b->gemm;
    return may_share(b) && a->buf[1] == b->buf[1] && a->offset[1] == b->offset[1] && x->n == y->n &&
           x->k == y->k && x->b_row == y->b_row && x->b_col == y->b_col;
}

/* A slot has one value as long as the plan runs. */
void fu_share_operands(tn_plan *p)
{
    enum { LEAST = 3 };
    int id = 0;
    for (int i = 0; i < p->n_step && id < TN_GEMM_SHARED; i++) {
        int times = 0;
        if (!may_share(&p->step[i]) || p->step[i].gemm.share) continue;
        for (int k = i; k < p->n_step; k++) times += same_second(&p->step[i], &p->step[k]);
        if (times < LEAST) continue;
        id++;
        for (int k = i; k < p->n_step; k++)
            if (same_second(&p->step[i], &p->step[k])) p->step[k].gemm.share = id;
    }
}

int fu_emit_conv(fu_ctx *c, const fu_group *group)
{
    int node = group->member[0];
    const tn_tensor *t = c->node[node].t, *x = t->in[0], *y = t->in[1];
    tn_conv2d_desc d;
    fu_conv_desc(c, node, &d);
    int slot[3] = {-1, -1, -1};
    int64_t offset[3] = {0};
    for (int i = 0; i < t->n_in; i++) {
        int r = fu_dense_operand(c, t->in[i], &slot[i], &offset[i]);
        if (r) return r;
    }
    static const char *const name[] = {"conv2d", "conv2d_data_grad", "conv2d_weight_grad"};
    tn_step *s = fu_step_new(c, TN_STEP_CONV, name[d.pass]);
    if (!s) return TN_E_NOMEM;
    if (fu_can(c->target)->tiles) /* which have the short names */
        snprintf(s->name, sizeof s->name, "%s_im2col", name[d.pass]);
    s->conv = d;
    s->conv.epilogue = c->node[node].epilogue;
    for (int i = 0; i < 3; i++)
        if (fu_step_buf(c, s, slot[i], offset[i]) < 0) return TN_E_NOMEM;
    if (fu_step_buf(c, s, c->node[node].into < 0 ? node : c->node[node].into, 0) < 0) return TN_E_NOMEM;
    s->n_out = 1;
    s->flops = 2.0 * (double)(d.n * d.oh * d.ow * d.oc) * (double)(d.kh * d.kw * d.c / d.groups);
    s->bytes = (int64_t)tn_dtype_size(d.dtype) * (tn_node_numel(x) + tn_node_numel(y) + tn_node_numel(t));
    return 0;
}
