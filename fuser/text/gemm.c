/* gemm.c - products and convolutions as library steps. Operands are taken by their strides; what the library
 * cannot read is copied first. Start with fu_emit_gemm. */
#include "../../src/core/library.h"
#include "../loops/tile.h"
#include "raw.h"

#include <stdio.h>

static int take(fu_ctx *c, const tn_tensor *t, bool copy, tn_matrix *m, int *slot, int64_t *offset)
{
    t = fu_value_of(c, t);
    const bool lies = !copy && !tn_is_number(t) && tn_matrix_of(t, false, m);
    if (!lies) tn_matrix_of(t, true, m);
    return fu_take(c, t, lies, slot, offset);
}

int fu_gemm_of(fu_ctx *c, int node, tn_gemm *g, int *slot, int64_t *offset)
{
    const fu_node *own = &c->node[node];
    const tn_tensor *t = own->t;
    const int axes = t->ndim - 2;
    tn_matrix a, b, to;
    bool fits = false;
    tn_matrix_of(t, true, &to);
    for (int i = 0; i < axes && own->into >= 0; i++) to.batch[i] = own->into_stride[i];
    if (own->into >= 0 && t->shape[axes] > 1) to.row = own->into_stride[axes];
    for (int copied = 0; copied < 2 && !fits;
         copied++) { /* axes that do not join do so once they are dense */
        int r = take(c, t->in[0], copied, &a, &slot[0], &offset[0]);
        if (!r) r = take(c, t->in[1], copied, &b, &slot[1], &offset[1]);
        if (r) return r;
        fits = tn_gemm_of(t, &a, &b, &to, g);
    }
    if (!fits) return fu_fail(c, TN_E_UNSUPPORTED, "matmul over too many batch axes");
    g->epilogue = own->epilogue;
    g->tf32 = c->target->tf32;
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
