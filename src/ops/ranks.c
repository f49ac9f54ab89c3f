/* ranks.c - what is computed of the values of all ranks. */
#include "ops.h"

tn_tensor *tn_mean_over_ranks_at(tn_tensor *x, const char *file, int line)
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
PLAIN(mean_over_ranks, (tn_tensor * x), (x, NULL, 0))
