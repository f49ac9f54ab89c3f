/* host.c - a function of the user's, on elements that are doubles here: it gets them in the dtypes that it
 * was defined for. Start with tn_ref_host. */
#include "internal.h"
#include "../../core/convert.h"
#include "../../core/host.h"

static void *copy(const tn_tensor *x, const double *from)
{
    const size_t n = (size_t)tn_node_numel(x);
    void *p = tn_malloc(n * tn_dtype_size(x->dtype) + 1);
    if (p && from) tn_convert(p, x->dtype, from, tn_dtype_widest(x->dtype), n);
    return p;
}

int tn_ref_host(const tn_ref_args *a)
{
    const tn_tensor *t = a->node;
    void *in[TN_MAX_ARGS + 2] = {NULL}, *out = copy(t, NULL);
    bool fine = out != NULL;
    for (int i = 0; i < t->n_in && fine; i++) fine = (in[i] = copy(t->in[i], a->in[i])) != NULL;
    int status = fine ? tn_host_run(t, (const void *const *)in, out, a->err)
                      : tn_err(a->err, TN_E_NOMEM, "no memory for the operands of a function");
    if (!status) tn_convert(a->out, tn_dtype_widest(t->dtype), out, t->dtype, (size_t)tn_node_numel(t));
    for (int i = 0; i < t->n_in; i++) tn_free_mem(in[i]);
    tn_free_mem(out);
    return status;
}
