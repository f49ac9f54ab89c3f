/* product.c - what goes on with a product as it is computed: the kernel that the library's product hands each
 * part of its result to (tn_gemm.then), while that is near at hand.
 *
 *     void matmul_gelu_256(const tn_args *a, int64_t begin, int64_t end)
 *     {
 *         const float *bias = a->buf[3];                      gelu(A B + bias)
 *         float *out = a->buf[4];
 *         const int64_t v0 = a->tile->first, w = a->tile->last - v0;
 *         for (int64_t row = begin; row < end; row++) {
 *             const float *const line = (const float *)a->tile->at + (row - begin) * a->tile->ld - v0;
 *             const int64_t i0 = row;
 *             for (int64_t j = 0; j < w; j++) {
 *                 const int64_t i1 = v0 + j;
 *                 ...line[i1] + bias[i1]...
 *                 out[i0 * 256 + i1] = mul;
 *             }
 *         }
 *     }
 *
 * The step's buffers are A, B, none, and then the kernel's own. Start with fu_emit_product. */
#include "../loops/tile.h"
#include "nest.h"

static void write_function(fu_em *e, const fu_group *g, tn_dtype d, int n_in)
{
    const char *type = e->lang->type[d];
    e->t.indent = 1;
    e->depth = 1;
    fu_put_operands(e, n_in, NULL);
    fu_put_constants(e, true);
    fu_line(&e->t, "const int64_t v0 = a->tile->first, w = a->tile->last - v0;");
    fu_scope_open(e, "for (int64_t row = begin; row < end; row++) {");
    fu_line(&e->t, "const %s *const line = (const %s *)a->tile->at + (row - begin) * a->tile->ld - v0;", type,
            type);
    fu_decode(&e->t, fu_bit(fu_vec(e->p)) - 1, e->p->extent, "row");
    fu_nest_pointwise(e, &(fu_range){.lo = "v0", .hi = "w", .count = -1});
    fu_scope_close(e);
    fu_count_traffic(e);
    fu_describe(e, g);
    fu_put_function(e, "void %s(const tn_args *a, int64_t begin, int64_t end)\n{\n", e->s->name);
}

static int emit(fu_em *e, const fu_group *g, int node)
{
    fu_ctx *c = e->c;
    const tn_tensor *t = c->node[node].t;
    tn_gemm product;
    int slot[2];
    int64_t offset[2];
    char name[64];
    int status = fu_gemm_of(c, node, &product, slot, offset);
    if (status) return status;
    fu_tile_name(c, g, node, product.n, name, sizeof name - 16);
    tn_step *s = e->s = fu_step_new(c, TN_STEP_GEMM, name);
    if (!s) return TN_E_NOMEM;
    s->gemm = product;
    for (int i = 0; i < 2; i++) fu_pointer_more(e, slot[i], offset[i], t->dtype, "operand");
    fu_pointer_more(e, -1, 0, t->dtype, "operand"); /* a bias is the kernel's */
    fu_turn_to(e, c->prog);
    fu_take_inputs(e, 0, NULL, false);
    const int n_in = e->n_pointer;
    fu_take_outputs(e);
    fu_prog *last[2] = {NULL, NULL};
    status = fu_take_buffers(e, n_in);
    if (!status) status = fu_note_over(e, last);
    if (status) return status;
    fu_count_gemm(s, t);
    write_function(e, g, t->dtype, n_in);
    return fu_finish_kernel(c, s, &e->head);
}

int fu_emit_product(fu_ctx *c, const fu_group *g)
{
    fu_tile_parts parts;
    const int node = fu_tile_conv(c, g->n, g->member);
    const fu_candidate k = fu_candidate_of(c, g);
    tn_cut_reason why = fu_tile_try(c, &k, &parts);
    if (why) return fu_fail(c, TN_E_INTERNAL, "matmul: %s", tn_cut_text(why));
    int status = fu_verify_program(c, c->prog);
    if (status) return status;
    fu_em *e = fu_em_new(c);
    return e ? emit(e, g, node) : TN_E_NOMEM;
}
