/* ranks.c - what is computed of the values of all ranks. */
#include "../../include/tensor_extend.h"
#include "ops.h"

TN_AT(tn_tensor *, mean_over_ranks, (x), tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "mean_over_ranks", file, line, 1, 0, &x);
    x = sc.ok ? floating(x) : NULL;
    if (!x) return tn_leave(&sc, NULL);
    const tn_dtype d = (tn_dtype)x->dtype;
    if (tn_ranks(sc.g->session) == 1) return tn_leave(&sc, tn_mk_reshape(x, x->ndim, x->shape));
    if (tn_dtype_is_half(d)) x = tn_mk_cast(x, TN_F32);
    x = x ? tn_mk_ranks_mean(x) : NULL;
    return tn_leave(&sc, x ? tn_mk_cast(x, d) : NULL);
}

tn_tensor *tn_reduce_scatter(tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "reduce_scatter", NULL, 0, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    const tn_session *s = sc.g->session;
    if (!x->ndim || (x->dtype != TN_F32 && x->dtype != TN_F64))
        return tn_leave_error(&sc, TN_E_SHAPE, "x must have lines of f32 or f64, is %s", TN_TENSOR_TEXT(x));
    if (tn_ranks(s) == 1) return tn_leave(&sc, tn_mk_reshape(x, x->ndim, x->shape));
    return tn_leave(&sc, tn_mk_ranks_lines(TN_OP_ranks_scatter, x, tn_rank_share(s, x->shape[0], NULL)));
}

tn_tensor *tn_all_gather(tn_tensor *x, int64_t lines)
{
    tn_scope sc = tn_enter_as(TN_ATTR(lines), "all_gather", NULL, 0, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    const tn_session *s = sc.g->session;
    if (!x->ndim || lines < 0 || x->shape[0] != tn_rank_share(s, lines, NULL))
        return tn_leave_error(&sc, TN_E_SHAPE, "x must have %lld of %lld lines, is %s",
                              (long long)tn_rank_share(s, lines, NULL), (long long)lines, TN_TENSOR_TEXT(x));
    if (tn_ranks(s) == 1) return tn_leave(&sc, tn_mk_reshape(x, x->ndim, x->shape));
    return tn_leave(&sc, tn_mk_ranks_lines(TN_OP_ranks_gather, x, lines));
}
