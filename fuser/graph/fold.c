/* fold.c - kernels that a producer spares: it writes its result where, or as, the next one would have.
 *
 *   product -> permute -> reshape
 *       the heads of an attention back into rows: the product's rows and batches are written with the
 *       strides that they have in the reshaped tensor
 *   a, b, c -> concat
 *       each part is written into its window of the whole
 *   parts -> concat -> permute, copy
 *       both at once
 *   product or convolution -> relu
 *       what a library applies as it writes (tn_epilogue)
 *
 * A node that is written into another's memory says where (fu_node.into, with an offset and a stride for each
 * of its axes); the copy that is spared keeps its place in the order and becomes no kernel (FU_NOTHING). The
 * producer's value must have no other reader. Start with fu_fold. */
#include <string.h>

#include "graph.h"

/* The place that elements of a tensor are to be written to: an offset in a node's memory and a stride for
 * each axis. */
typedef struct target {
    int node;
    int64_t offset, stride[TN_MAX_DIMS];
} target;

/* x looks at all of p's dense memory, in another order and with other axes; `to` says where x's elements go.
 * Sets where p's go, or returns false: an axis of p would have to be cut into several strides. */
static bool through_view(const tn_tensor *p, const tn_tensor *x, const target *to, target *out)
{
    int order[TN_MAX_DIMS], n = 0;
    if (x->offset != p->offset || tn_node_numel(x) != tn_node_numel(p) || x->dtype != p->dtype) return false;
    for (int i = 0; i < x->ndim; i++) {
        if (x->shape[i] == 1) continue;
        int k = n++;
        for (; k && x->stride[order[k - 1]] > x->stride[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    *out = (target){.node = to->node, .offset = to->offset};
    int k = 0;
    int64_t dense = 1;
    for (int i = p->ndim - 1; i >= 0; i--) {
        int64_t filled = 1, expect = 0;
        while (filled < p->shape[i]) {
            if (k == n) return false;
            int a = order[k++];
            if (x->stride[a] != dense * filled) return false;
            if (filled == 1)
                out->stride[i] = to->stride[a];
            else if (to->stride[a] != expect)
                return false;
            filled *= x->shape[a];
            expect = to->stride[a] * x->shape[a];
        }
        if (filled != p->shape[i]) return false;
        dense *= p->shape[i];
    }
    return k == n;
}

/* Row-major positions of x's elements: where a dense copy of it has them. */
static target as_copied(int node, const tn_tensor *x)
{
    target t = {.node = node};
    tn_dense_strides(x->ndim, x->shape, t.stride);
    return t;
}

/* The node behind x, if nothing but `reader` reads it. */
static int only_for(const fu_ctx *c, const tn_tensor *x, int reader)
{
    int p = fu_node_of(c, x);
    if (p < 0) return -1;
    const fu_node *n = &c->node[p];
    bool free = n->live && !n->root && !n->same && n->n_user == 1 && n->user[0] == reader &&
                !tn_node_written(n->t) && n->into < 0 && !n->spared;
    return free ? p : -1;
}

static bool unit_rows(const tn_tensor *p, const target *t)
{
    int last = p->ndim - 1;
    return p->ndim > 0 && (p->shape[last] == 1 || t->stride[last] == 1);
}

/* Returns true where p's kernel can write its result with the strides of t, of which the last is 1; `loops`:
 * kernels of loops may do so too. */
static bool can_write(const fu_ctx *c, int p, const target *t, bool loops)
{
    const tn_tensor *n = c->node[p].t;
    const tn_kind kind = c->node[p].kind;
    if (!unit_rows(n, t)) return false;
    if (kind == TN_KIND_GEMM) {
        int rows = n->ndim - 2;
        return n->shape[rows] == 1 || t->stride[rows] >= n->shape[rows + 1];
    }
    /* an attention's sum of exponentials has no rows */
    if (kind == TN_KIND_ATTENTION) return n->op != TN_OP_attention_lse;
    return loops && (kind == TN_KIND_ELTWISE || kind == TN_KIND_CAST);
}

static void set(fu_ctx *c, int p, const target *t)
{
    fu_node *n = &c->node[p];
    n->into = t->node;
    n->into_offset = t->offset;
    memcpy(n->into_stride, t->stride, sizeof n->into_stride);
}

/* The parts of concat k, each into its window of `to`; all of them or none. */
static bool fold_parts(fu_ctx *c, int k, const target *to)
{
    const tn_tensor *t = c->node[k].t;
    int axis = t->attr->axis;
    for (int pass = 0; pass < 2; pass++) {
        target at = *to;
        for (int i = 0; i < t->n_in; i++) {
            const tn_tensor *x = fu_value_of(c, t->in[i]);
            int p = pass ? fu_node_of(c, x) : only_for(c, x, k);
            target own;
            if (p < 0 || !through_view(c->node[p].t, x, &at, &own)) return false;
            if (!pass && !can_write(c, p, &own, true)) return false;
            for (int m = 0; m < i && !pass; m++)
                if (fu_node_of(c, fu_value_of(c, t->in[m])) == p) return false;
            if (pass) set(c, p, &own);
            at.offset += x->shape[axis] * at.stride[axis];
        }
    }
    c->node[k].spared = true;
    return true;
}

static bool is_copy(const fu_ctx *c, int v)
{
    const tn_tensor *t = c->node[v].t;
    return t->op == TN_OP_reshape || t->op == TN_OP_contiguous;
}

static void fold_copy(fu_ctx *c, int v)
{
    const tn_tensor *x = fu_value_of(c, c->node[v].t->in[0]);
    int p = only_for(c, x, v);
    if (p < 0 || tn_node_written(c->node[v].t)) return;
    target copied = as_copied(v, x), to;
    if (!through_view(c->node[p].t, x, &copied, &to)) return;
    if (c->node[p].t->op == TN_OP_concat)
        c->node[v].spared = fold_parts(c, p, &to);
    else if (can_write(c, p, &to, false)) {
        set(c, p, &to);
        c->node[v].spared = true;
    }
}

/* The epilogue that a library can apply to its result as it writes it, where t's op is one. */
static tn_epilogue epilogue_of(const fu_ctx *c, const tn_tensor *t)
{
    const bool can = t->dtype == TN_F32 || (tn_dtype_is_half(t->dtype) && fu_can(c->target)->then);
    return can ? (tn_epilogue)tn_op_get(t->op)->epilogue : TN_EPI_NONE;
}

static void fold_epilogue(fu_ctx *c, int v)
{
    fu_node *n = &c->node[v];
    tn_epilogue e = epilogue_of(c, n->t);
    const tn_tensor *x = fu_value_of(c, n->t->in[0]);
    int p = e && !tn_node_written(n->t) ? only_for(c, x, v) : -1;
    if (p < 0 || x != c->node[p].t) return;
    bool library =
        c->node[p].kind == TN_KIND_GEMM || (c->node[p].t->op == TN_OP_conv2d && !c->node[p].tile[0]);
    if (!library) return;
    target own = as_copied(v, x);
    set(c, p, &own);
    c->node[p].epilogue = e;
    n->spared = true;
}

void fu_fold(fu_ctx *c)
{
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live && c->node[i].kind == TN_KIND_ELTWISE) fold_epilogue(c, i);
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live && is_copy(c, i)) fold_copy(c, i);
    for (int i = 0; i < c->n_node; i++) {
        const fu_node *n = &c->node[i];
        if (!n->live || n->spared || n->t->op != TN_OP_concat || tn_node_written(n->t)) continue;
        target whole = as_copied(i, n->t);
        fold_parts(c, i, &whole);
    }
}
