/* emit_join.c - products and sums in one rounding.
 *
 * Processors multiply and add in one instruction, which rounds once. Compilers use it wherever a product
 * meets a sum, and that depends on what else stands in the loop: made in two loops, a value could differ in
 * its last bit, nothing would equal the minimum of its own row, and the minimum's gradient be 0 / 0. So
 * compilers are told to leave it (-ffp-contract=off, --fmad=false), and it is written out here, by a rule
 * that looks at the graph alone: a product that one sum takes, and nothing else, is joined to it. Whichever
 * kernel or phase makes the sum makes the same bits.
 *
 * Start with goes_into_a_sum.
 */
#include "emit.h"

#include <stdio.h>
#include <string.h>

/* The rows of ops.def are asked what they compute. */
static bool computes(const fu_value *v, const char *what)
{
    const char *text = v->kind == FU_OP ? tn_op_get(v->op)->text : NULL; /* copies and casts have none */
    return text && !strcmp(text, what);
}

static bool goes_into_a_sum(const fu_prog *p, int id, tn_dtype sum)
{
    const fu_value *v = &p->value[id];
    if (v->dtype != sum || (fu_compute_dtype(sum) != TN_F32 && sum != TN_F64)) return false;
    if (!computes(v, "x * y") && !computes(v, "x * x")) return false;
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].value == id) return false;
    if (v->node < 0) return false;
    const fu_node *n = &p->c->node[v->node];
    return n->n_user == 1 && !n->root;
}

/* The product `id`, or less it, plus z or less z. */
static void join(fu_em *e, int id, bool less, const char *sign, const char *z, char *out, size_t n)
{
    const fu_value *v = &e->p->value[id];
    const char *x = fu_ask(e, v->arg[0]), *y = fu_ask(e, v->arg[v->n_arg - 1]);
    snprintf(out, n, less ? "tn_fma_%s(-(%s), %s, %s%s)" : "tn_fma_%s(%s, %s, %s%s)",
             v->dtype == TN_F64 ? "f64" : "f32", x, y, sign, z);
}

bool fu_ask_joined(fu_em *e, const fu_value *v, char *out, size_t n)
{
    const bool less = computes(v, "x - y");
    if (!less && !computes(v, "x + y")) return false;
    if (e->p->value[v->arg[0]].node == e->p->value[v->arg[1]].node) return false; /* x - x is 0 */
    for (int k = 0; k < 2; k++) { /* one that varies as the sum does: others are made before its loop */
        const int id = v->arg[k];
        if (e->p->value[id].vary != v->vary || !goes_into_a_sum(e->p, id, v->dtype)) continue;
        const char *z = fu_ask(e, v->arg[!k]), *sign = !less || k ? "" : *z == '-' ? "- " : "-";
        join(e, id, less && k, sign, z, out, n);
        return true;
    }
    return false;
}

bool fu_accumulate_product(fu_em *e, const fu_value *v, const char *acc)
{
    const int id = v->arg[0];
    const bool narrow = !v->wide || (e->local && !e->p->second); /* as fu_unrolled_body declares it */
    if (v->op != TN_OP_reduce_sum || !narrow || !fu_full(e->p, &e->p->value[id])) return false;
    if (!goes_into_a_sum(e->p, id, v->dtype)) return false;
    char sum[400];
    join(e, id, false, "", acc, sum, sizeof sum);
    fu_line(&e->t, "%s = %s;", acc, sum);
    return true;
}
