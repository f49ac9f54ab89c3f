/* wanted.c - see wanted.h. */
#include "wanted.h"

#include "../device/profile.h"

static void want(tn_wanted *w, const tn_tensor *x)
{
    const tn_tensor *b = x ? x->base : NULL;
    if (!b || !tn_wanted_has(w, b) || !tn_is_open(b) || tn_is_number(b)) return;
    w->bytes[b->id] = tn_node_numel(b) * (int64_t)tn_dtype_size(b->dtype);
}

/* What n's gradient reads: of a composite with a rule the rule's arguments and what it saves. */
static void want_for(tn_wanted *w, const tn_tensor *n)
{
    if (!(n->flags & TN_F_REQUIRES_GRAD)) return;
    for (int i = 0; n->rule && i < TN_MAX_ARGS; i++) {
        if (i < n->rule->n_args) want(w, n->rule->args[i]);
        want(w, n->rule->saved[i]);
    }
    for (int i = 0; n->rule && i < n->rule->n_list; i++) want(w, n->rule->list[i]);
    if (n->rule || n->inside) return;
    const unsigned needs = tn_op_needs(n->op);
    for (int i = 0; i < n->n_in && i < 3; i++)
        if (needs >> i & 1) want(w, n->in[i]);
    if (needs & TN_NEEDS_OUT) want(w, n);
}

bool tn_wanted_open(tn_wanted *w, tn_session *s, const tn_tensor *loss)
{
    *w = (tn_wanted){.g = &s->graph, .end = loss->base->id + 1, .target = &s->target};
    for (uint32_t *i = &w->g->n_decided; *i < w->end && !s->budget.bytes; ++*i) {
        const tn_tensor *n = w->g->nodes[*i];
        const bool decided = n->flags & (TN_F_DONE | TN_F_WALKED) || tn_has_value(n) || tn_is_number(n);
        if (!decided && !(n->call && n->call->backward)) break;
    }
    w->begin = w->g->n_decided < w->end ? w->g->n_decided : 0;
    w->bytes = tn_calloc(w->end + 1, sizeof *w->bytes);
    if (!w->bytes) return tn_error_set(w->g, TN_E_NOMEM, "no memory for its plan") != NULL;
    for (uint32_t i = w->begin; i < w->end; i++) { /* of a step before, whose backward is recorded anew */
        tn_tensor *n = w->g->nodes[i];
        if (n->region & TN_REGION_CHOSEN && !(n->flags & TN_F_WALKED)) n->region = 0;
    }
    for (uint32_t i = w->begin; i < w->end; i++) want_for(w, w->g->nodes[i]);
    return true;
}

void tn_wanted_close(tn_wanted *w) { tn_free_mem(w->bytes); }

int64_t tn_wanted_sum(const tn_wanted *w)
{
    int64_t all = 0;
    for (uint32_t i = w->begin; i < w->end; i++) all += w->bytes[i];
    return all;
}

double tn_filter_size(const tn_tensor *w)
{
    return w->shape[0] ? (double)(tn_node_numel(w) / w->shape[0]) : 0;
}

double tn_product_terms(const tn_tensor *n)
{
    if (tn_kind_of(n) == TN_KIND_GEMM) return 2.0 * (double)n->in[0]->shape[n->in[0]->ndim - 1];
    return n->op == TN_OP_conv2d ? 2.0 * tn_filter_size(n->in[1]) : 0;
}

double tn_product_ns(const tn_target *t, const tn_tensor *n)
{
    const tn_target_profile *p = tn_target_rates(t);
    const bool conv = tn_kind_of(n) == TN_KIND_CONV;
    double flops = tn_product_terms(n) * (double)tn_node_numel(n);
    if (tn_kind_of(n) == TN_KIND_ATTENTION)
        flops = 4.0 * (double)tn_node_numel(n) * (double)n->in[1]->shape[n->in[1]->ndim - 2];
    else if (n->op == TN_OP_conv2d_data_grad)
        flops = 2.0 * (double)tn_node_numel(n->in[0]) * tn_filter_size(n->in[1]);
    if (flops <= 0) return 0;
    return flops / (conv ? tn_profile_gflops(p->conv, p->n_conv, flops)
                         : tn_profile_gflops(p->gemm, p->n_gemm, flops));
}
