/* join.c - sums of products: each product is added in one rounding.
 *
 * Processors multiply and add in one instruction, which rounds once. Compilers use it wherever a product
 * meets a sum, and that depends on what else stands in the loop: made in two loops, a value could differ in
 * its last bit, nothing would equal the maximum of its own row, and the gradient of the maximum be 0 / 0. So
 * compilers are told to leave it (-ffp-contract=off, --fmad=false): an elementwise value has the same bits
 * whichever kernel makes it, fused or not. What is left are the accumulators of reductions, where it saves
 * most, and which are rounded by the order of their loop anyway. */
#include "value.h"

static bool is_product(const fu_value *v)
{
    return v->kind == FU_OP && (v->op == TN_OP_mul || v->op == TN_OP_square);
}

bool fu_accumulate_product(fu_em *e, const fu_value *v, const char *acc)
{
    const fu_value *product = &e->p->value[v->arg[0]];
    const bool narrow =
        !v->wide || (e->lane && e->lane->local && !e->p->second); /* as fu_unrolled_body declares it */
    if (v->op != TN_OP_reduce_sum || !narrow || product->dtype != v->dtype) return false;
    if (!is_product(product) || !fu_full(e->p, product) || !tn_dtype_is_float(v->dtype)) return false;
    const char *x = fu_ask(e, product->arg[0]), *y = fu_ask(e, product->arg[product->n_arg - 1]);
    fu_line(&e->t, "%s = tn_fma_%s(%s, %s, %s);", acc, v->dtype == TN_F64 ? "f64" : "f32", x, y, acc);
    return true;
}
