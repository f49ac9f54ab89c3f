/* sparse.c - tables of which a step reads some rows and updates these alone, as torch.nn.Embedding(sparse =
 * True) with SparseAdam or SGD: a table of 200,000 rows costs what its 256 rows cost.
 *
 * Such a table is a buffer, as a parameter's gradient is as long as the parameter. The rows that forward
 * looks up are what backward stops at; the layer keeps them, with their indices, until the update of the
 * step. There the gradients of a row that was looked up several times are added up: indices are sorted, equal
 * ones get one number, and each place its number's sum; where a row is written several times it is with the
 * same values. Read tn_embedding_step first. */
#include "layers.h"
#include "optim.h"

#include <math.h>

tn_tensor *tn_nn_sparse_lookup(tn_embed *e, tn_tensor *index)
{
    tn_session *s = tn_session_of(e->weight);
    const int64_t flat[] = {-1};
    tn_tensor *rows = tn_embedding(e->weight, tn_reshape(index, 1, flat));
    if (!rows || !tn_is_training(s)) return rows;
    if (e->step != tn_nn_stats(s).steps) e->lookups = 0;
    e->step = tn_nn_stats(s).steps;
    if (e->lookups == TN_LOOKUPS)
        return tn_nn_fail(s, TN_E_STATE, "embedding_forward",
                          "'%s' is looked up more than %d times in a step", tn_name(e->weight),
                          (int)TN_LOOKUPS);
    if (tn_requires_grad(rows, true)) return NULL;
    e->index[e->lookups] = index;
    e->rows[e->lookups++] = rows;
    return rows;
}

/* The indices of the step in a row, [n], and the gradients beside them, [n, features]; false: there are none.
 */
static bool gather(const tn_embed *e, tn_tensor **index, tn_tensor **g)
{
    const int64_t flat[] = {-1};
    tn_tensor *at[TN_LOOKUPS], *of[TN_LOOKUPS];
    int n = 0;
    for (int i = 0; i < e->lookups; i++) {
        if (!(of[n] = tn_own_gradient(e->rows[i]))) continue;
        at[n++] = tn_cast(tn_reshape(e->index[i], 1, flat), TN_I64);
    }
    *index = n > 1 ? tn_concat(n, at, 0) : n ? at[0] : NULL;
    *g = n > 1 ? tn_concat(n, of, 0) : n ? of[0] : NULL;
    return n > 0;
}

/* x [n, ..] of all ranks, one behind the other: other places of a sum over ranks are zeros. */
static tn_tensor *of_all_ranks(tn_session *s, tn_tensor *x)
{
    const int64_t n = tn_dim(x, 0), ranks = tn_ranks(s), rank = tn_rank(s);
    return tn_mul_scalar(tn_mean_over_ranks(tn_pad(x, 0, rank * n, (ranks - 1 - rank) * n, 0)),
                         tn_number_f((double)ranks));
}

/* The rows of all ranks, whose tables stay the same: their losses' mean is what is learnt from. */
static void share(tn_session *s, tn_tensor **index, tn_tensor **g)
{
    if (tn_ranks(s) == 1) return;
    *index = tn_cast(tn_round(of_all_ranks(s, tn_cast(*index, TN_F64))), TN_I64);
    *g = of_all_ranks(s, tn_mul_scalar(*g, tn_number_f(tn_rank_weight(s) / tn_ranks(s))));
}

/* For each place the sum of the gradients of all places with its index. */
static tn_tensor *summed(tn_session *s, tn_tensor *index, tn_tensor *g)
{
    const int64_t n = tn_dim(g, 0), d = tn_dim(g, 1);
    tn_tensor *sorted = NULL, *order = NULL;
    if (tn_sort(index, 0, false, &sorted, &order)) return NULL;
    tn_tensor *other = tn_ne(tn_slice(sorted, 0, 1, n, 1), tn_slice(sorted, 0, 0, n - 1, 1));
    tn_tensor *number = tn_cumsum(tn_pad(tn_cast(other, TN_I64), 0, 1, 0, 0), 0);
    number = tn_index_select(number, 0, tn_argsort(order, 0, false)); /* back in the order of places */
    tn_tensor *each = tn_expand(tn_unsqueeze(number, 1), TN_SHAPE(n, d));
    return tn_index_select(tn_scatter_add(tn_zeros(s, TN_F32, TN_SHAPE(n, d)), 0, each, g), 0, number);
}

/* torch.optim.SparseAdam: the factor of the learning rate depends on the number of updates, which stands in a
 * buffer. */
static int adam(tn_embed *e, tn_tensor *index, tn_tensor *g, tn_tensor *p, tn_tensor *fine,
                const tn_adam_options *o)
{
    const double beta1 = o->beta1 < 0   ? 0
                         : o->beta1 > 0 ? o->beta1
                                        : 0.9,
                 beta2 = o->beta2 < 0   ? 0
                         : o->beta2 > 0 ? o->beta2
                                        : 0.999,
                 eps = o->eps > 0 ? o->eps : 1e-8;
    tn_tensor *m0 = tn_embedding(e->exp_avg, index), *v0 = tn_embedding(e->exp_avg_sq, index);
    tn_tensor *m = tn_add(m0, tn_mul_scalar(tn_sub(g, m0), tn_number_f(1 - beta1)));
    tn_tensor *v = tn_add(v0, tn_mul_scalar(tn_sub(tn_square(g), v0), tn_number_f(1 - beta2)));
    tn_tensor *t = tn_add_scalar(e->updates, tn_number_f(1));
    tn_tensor *root = tn_sqrt(tn_neg(tn_expm1(tn_mul_scalar(t, tn_number_f(log(beta2))))));
    tn_tensor *rate = tn_div(root, tn_neg(tn_expm1(tn_mul_scalar(t, tn_number_f(log(beta1))))));
    rate = tn_cast(tn_mul_scalar(rate, tn_number_f(o->lr > 0 ? o->lr : 1e-3)), TN_F32);
    tn_tensor *moved = tn_sub(p, tn_mul(tn_div(m, tn_add_scalar(tn_sqrt(v), tn_number_f(eps))), rate));
    int status = tn_assign_rows(e->weight, 0, index, tn_nn_where(fine, moved, p));
    if (!status) status = tn_assign_rows(e->exp_avg, 0, index, tn_nn_where(fine, m, m0));
    if (!status) status = tn_assign_rows(e->exp_avg_sq, 0, index, tn_nn_where(fine, v, v0));
    return status ? status : tn_assign(e->updates, tn_nn_where(fine, t, e->updates));
}

TN_DEFINE(int, embedding_step, e ? tn_session_of(e->weight) : NULL, (e, options), tn_embed *e,
          const tn_adam_options *options)
{
    static const char op[] = "embedding_step";
    NN_OPTIONS(tn_adam_options, o, options);
    if (!e) return TN_E_NULL;
    tn_session *s = tn_session_of(e->weight);
    if (e->sparse == TN_DENSE)
        return tn_fail(s, TN_E_ARG, op, "'%s' was not made with .sparse: an optimizer updates it",
                       tn_name(e->weight));
    if (!(o->lr >= 0) || o->weight_decay != 0 || o->accumulate > 1 || !(o->beta1 < 1) || !(o->beta2 < 1))
        return tn_fail(
            s, TN_E_ARG, op,
            "lr %g must not be below 0, beta1 %g and beta2 %g below 1, weight_decay %g and accumulate %d "
            "are for whole tables",
            o->lr, o->beta1, o->beta2, o->weight_decay, o->accumulate);
    int status = tn_error(s);
    if (!status) status = tn_make_room(s);
    tn_tensor *index, *g;
    tn_no_grad_begin(s);
    const bool any = !status && e->step == tn_nn_stats(s).steps && gather(e, &index, &g);
    tn_tensor *fine = NULL;
    if (any) share(s, &index, &g);
    if (any && tn_nn_scaled(s)) {
        g = tn_mul_scalar(g, tn_number_f(tn_nn_unscale(s)));
        status = tn_nn_scale_note(s, fine = tn_nn_finite(g));
    }
    if (any && !status) status = tn_op_begin(s, op);
    if (any && !status) {
        g = summed(s, index, g);
        tn_tensor *p = tn_embedding(e->weight, index);
        if (e->sparse == TN_SPARSE_ADAM)
            status = adam(e, index, g, p, fine, o);
        else
            status = tn_assign_rows(
                e->weight, 0, index,
                tn_nn_where(fine, tn_sub(p, tn_mul_scalar(g, tn_number_f(o->lr > 0 ? o->lr : 1e-3))), p));
        int ended = tn_op_end(s);
        if (!status) status = ended;
    }
    tn_no_grad_end(s);
    e->lookups = 0;
    if (!any && !status)
        status =
            tn_fail(s, TN_E_STATE, op, "no row of '%s' has a gradient in this step; call tn_backward first",
                    tn_name(e->weight));
    return status;
}
