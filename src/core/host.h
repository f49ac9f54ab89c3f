/* host.h - functions of the user's as nodes of a graph: tn_define_host. Start with tn_mk_host. */
#pragma once

#include "build.h"
#include "fail.h"
#include "../../include/tensor_own.h"

/* What the user gave; outlives every graph. */
typedef struct tn_host {
    tn_host_fn *forward, *gradient;
    tn_host_shape_fn *shape;
    void *user;
} tn_host;

/* Of operands of floating dtype d, or integers: the result, of what h says is its shape. */
tn_tensor *tn_mk_host(const tn_host *h, int n, tn_tensor *const *x, const double *number, tn_dtype d);
/* The gradients of `out`, such a result, whose own is g, one behind the other in a row: of operand i where
 * bit i of `wanted` says so. */
tn_tensor *tn_mk_host_gradient(tn_tensor *out, tn_tensor *g, uint32_t wanted);

/* Calls the function. Operands and result are in the host's memory, dense, of the dtypes that the nodes have.
 */
int tn_host_run(const tn_tensor *node, const void *const *in, void *out, tn_errbuf *err);
