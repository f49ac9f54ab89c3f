/* host.c - calling the user's functions, for shapes as a node is made and for values as it runs. host.h says
 * what for. Start with tn_host_run. */
#include "host.h"

#include <string.h>

typedef struct call {
    tn_host_array in[TN_MAX_ARGS + 2], out[TN_MAX_ARGS];
    char why[TN_HOST_WHY];
    tn_host_call given;
} call;

static tn_host_array array_of(const tn_tensor *x, const void *data)
{
    return (tn_host_array){
        .data = (void *)(uintptr_t)data, .dtype = x->dtype, .ndim = x->ndim, .shape = x->shape};
}

static void open(call *c, const tn_host *h, const double *number)
{
    memset(c, 0, sizeof *c);
    c->given = (tn_host_call){.in = c->in, .out = c->out, .number = number, .user = h->user, .why = c->why};
}

/* A status that the session can have. */
static int status_of(call *c, int returned)
{
    c->why[TN_HOST_WHY - 1] = 0;
    if (!c->why[0]) tn_snprintf(c->why, sizeof c->why, "the function returned %d", returned);
    return returned < 0 ? returned : TN_E_ARG;
}

tn_tensor *tn_mk_host(const tn_host *h, int n, tn_tensor *const *x, const double *number, tn_dtype d)
{
    tn_graph *g = x[0]->graph;
    int ndim = x[0]->ndim, status = 0;
    int64_t shape[TN_MAX_DIMS] = {0};
    call c;
    memcpy(shape, x[0]->shape, sizeof shape);
    open(&c, h, number);
    for (int i = 0; i < n; i++) c.in[c.given.n_in++] = array_of(x[i], NULL);
    if (h->shape && (status = h->shape(&c.given, &ndim, shape)) != 0) {
        status = status_of(&c, status);
        return tn_error_set(g, status, "its shape: %s", c.why);
    }
    if (ndim < 0 || ndim > TN_MAX_DIMS)
        return tn_error_set(g, TN_E_SHAPE, "its shape has %d axes, 0 to %d are possible", ndim, TN_MAX_DIMS);
    int64_t left = INT64_MAX / 8;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || (shape[i] && (left /= shape[i]) == 0))
            return tn_error_set(g, TN_E_SHAPE, "its shape %s is none", TN_SHAPE_TEXT(ndim, shape));
    tn_tensor *t = tn_node_new(g, TN_OP_host, d, ndim, shape, n, x);
    tn_attr *a = t ? tn_node_attr(t) : NULL;
    if (!a) return NULL;
    a->host.host = h;
    memcpy(a->host.number, number, sizeof a->host.number);
    return t;
}

tn_tensor *tn_mk_host_gradient(tn_tensor *out, tn_tensor *g, uint32_t wanted)
{
    tn_tensor *in[TN_MAX_ARGS + 2];
    int64_t n = 0;
    memcpy(in, out->in, (size_t)out->n_in * sizeof *in);
    in[out->n_in] = out;
    in[out->n_in + 1] = g;
    for (int i = 0; i < out->n_in; i++) n += wanted >> i & 1 ? tn_node_numel(out->in[i]) : 0;
    tn_tensor *t = tn_node_new(out->graph, TN_OP_host, out->dtype, 1, &n, out->n_in + 2, in);
    tn_attr *a = t ? tn_node_attr(t) : NULL;
    if (!a) return NULL;
    a->host = out->attr->host;
    a->host.wanted = wanted;
    return t;
}

int tn_host_run(const tn_tensor *node, const void *const *in, void *out, tn_errbuf *err)
{
    const tn_host_attr *a = &node->attr->host;
    const size_t size = tn_dtype_size(node->dtype);
    char *at = out;
    call c;
    open(&c, a->host, a->number);
    for (int i = 0; i < node->n_in; i++) c.in[c.given.n_in++] = array_of(node->in[i], in[i]);
    if (!tn_node_numel(node)) return TN_OK;
    memset(out, 0, (size_t)tn_node_numel(node) * size);
    if (!a->wanted) c.out[c.given.n_out++] = array_of(node, out);
    for (int i = 0; a->wanted && i < node->n_in - 2; i++) {
        const bool asked = a->wanted >> i & 1;
        c.out[c.given.n_out++] = array_of(node->in[i], asked ? at : NULL);
        if (asked) at += (size_t)tn_node_numel(node->in[i]) * size;
    }
    const int status = (a->wanted ? a->host->gradient : a->host->forward)(&c.given);
    return status ? tn_err(err, status_of(&c, status), "%s%s", a->wanted ? "its gradient: " : "", c.why)
                  : TN_OK;
}
