/* cuda_tile.c - a convolution's or product's own kernel: the text of kernels/conv2d.cu with what the
 * group does besides written into its functions.
 *
 *     TN_FN void tn_epilogue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[2])
 *     {
 *         const float *const bias = (const float *)a.buf[2];          conv2d + bias, relu, channels last
 *         float *const relu_out = (float *)a.buf[3];
 *         const int64_t v0 = column, i0 = row;
 *         float bias_i_pack[2];
 *         tn_load(bias_i_pack, bias + (v0));
 *         float relu_piece[2];
 *         for (int l = 0; l < 2; l++) {...v[l] + bias_i...}
 *         tn_store(relu_out + (i0 * 64 + v0), relu_piece);
 *     }
 *     TN_FN void tn_prologue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[4])
 *     {
 *         ...what the convolution is of, from v...
 *     }
 *     TN_FN void tn_statistics(const tn_cuda_args &a, int32_t column, float mean, float m2, int64_t count)
 *     {
 *         ...running statistics, 1 / deviation...
 *     }
 *
 * Start with fu_emit_tile.
 */
#include "../loops/conv_tile.h"
#include "cuda.h"
#include "raw.h"
#include "../loops/tile.h"

#include <stdio.h>

/* One of the convolution's operands. A view that does not begin
 * at a multiple of `align` bytes is copied. */
static int take_operand(fu_em *e, const tn_tensor *t, int align, const char *name)
{
    int64_t offset;
    int slot, status = fu_dense_operand(e->c, t, &slot, &offset);
    if (status) return status;
    if (fu_position(e->c, slot, offset) * (int64_t)tn_dtype_size(t->dtype) % align) {
        offset = 0;
        slot = fu_emit_dense(e->c, fu_value_of(e->c, t));
        if (slot < 0) return slot;
    }
    fu_pointer_more(e, slot, offset, t->dtype, name);
    return 0;
}

/* The other operand: of a product its B, which is known to lie as a weight does (fu_tile_mark_products). */
static int take_weight(fu_em *e, const tn_tensor *t, int node, int align)
{
    if (e->c->node[node].kind == TN_KIND_CONV) return take_operand(e, t->in[1], align, "weight");
    int slot;
    int64_t offset;
    const int status = fu_take(e->c, fu_value_of(e->c, t->in[1]), true, &slot, &offset);
    if (!status) fu_pointer_more(e, slot, offset, t->dtype, "weight");
    return status;
}

/* The statements of the function for program e->p. `leave`: a value that v takes for the statistics, or -1.
 */
static void write_body(fu_em *e, int n_in, int leave)
{
    fu_prog *p = e->p;
    static const char *const own[] = {"a", "row", "column", "v", "v0", "l", "mean", "m2", "count"};
    char name[40];
    e->helpers = 0;
    e->t.indent = 1;
    e->depth = 1;
    e->phase = 0;
    fu_put_operands(e, n_in, NULL);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) fu_unique(e, own[i], name, sizeof name);
    fu_line(&e->t, "const int64_t v0 = column;");
    fu_cuda_decode(e, fu_all_atoms(p) & ~fu_bit(fu_vec(p)), "row", 1);
    fu_scope_open(e, "{");
    fu_hoist(e, 0, false);
    fu_cuda_pack(e, &(fu_pack){.phase = 0, .n = p->pack, .leave = leave + 1});
    fu_scope_close(e);
    fu_count_traffic(e);
}

/* Takes over the text of a function that was just written. */
static void put_function(fu_em *e, const fu_group *g, int n, const int *member, const char *head)
{
    if (g) fu_describe(e, g);
    fu_put_function(e, "TN_FN void %s\n{\n%s", head, fu_cuda_guard(e->c, n, member, false));
}

/* Writes the function that computes the image's elements: its program has one store, whose value is left in
 * v. */
static void write_prologue(fu_em *e, int n_in, const fu_tile_parts *parts)
{
    fu_prog *p = e->c->prog3;
    char head[160];
    fu_turn_to(e, p);
    p->n_store = 0;
    snprintf(head, sizeof head,
             "tn_prologue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[%d])", p->pack);
    write_body(e, n_in, p->store[0].value);
    put_function(e, NULL, parts->n_before, parts->before, head);
}

static int emit(fu_em *e, const fu_group *g, int conv, const fu_tile_parts *parts)
{
    fu_ctx *c = e->c;
    const tn_tensor *t = c->node[conv].t;
    fu_prog *p = c->prog, *last = parts->n_sum ? c->prog2 : NULL;
    tn_conv2d_desc d;
    struct fu_conv_tile *tile = tn_arena_alloc(&c->plan->arena, sizeof *tile);
    if (!tile) return TN_E_NOMEM;
    fu_conv_desc(c, conv, &d);
    if (!(parts->n_before ? fu_conv_tile_loading : fu_conv_tile_tuned)(&d, c->target, last != NULL, tile))
        return fu_fail(c, TN_E_INTERNAL, "%s: no tile", tn_op_get(t->op)->name);
    int status = take_operand(e, parts->n_before ? parts->from : t->in[0], tile->align[0], "x");
    if (!status) status = take_weight(e, t, conv, tile->align[1]);
    if (status) return status;
    char name[64];
    fu_tile_name(c, g, conv, tile->columns, name, sizeof name - 16);
    e->s = fu_step_new(c, TN_STEP_KERNEL, name);
    if (!e->s) return TN_E_NOMEM;
    tn_step *s = e->s;
    for (int i = 0; i < tile->n_dim; i++) fu_dim(e, tile->dim[i]);

    int written[FU_MAX_STORES];
    for (int i = 0; i < p->n_store; i++) written[i] = p->store[i].slot;
    fu_prog *const program[] = {p, last, parts->n_before ? c->prog3 : NULL};
    for (int i = 0; i < 3; i++) {
        if (!program[i]) continue;
        fu_turn_to(e, program[i]);
        fu_take_inputs(e, p->n_store, written, false);
    }
    int n_in = e->n_pointer, partials = n_in;
    if (tile->scratch) {
        int slot = fu_scratch_slot(c, (tile->scratch + 3) / 4, TN_F32);
        if (slot < 0) return slot;
        partials = fu_pointer(e, slot, 0, TN_F32, "partials");
    }
    fu_turn_to(e, p);
    fu_take_outputs(e);
    if (last) {
        fu_turn_to(e, last);
        fu_take_inputs(e, p->n_store, written, true);
        fu_take_outputs(e);
    }
    if ((status = fu_take_buffers(e, n_in))) return status;
    s->grid = tile->grid;
    s->tile = tile;
    s->conv = d;

    int leave = -1;
    for (int i = 0; i < p->n_value && last; i++)
        if (p->value[i].node == conv) leave = i;
    tn_put(&e->head, "%s#define ENTRY %s\n#define PARTIALS %d\n%s%s", tile->defines, s->name, partials,
           parts->n_before ? "#define PROLOGUE\n" : "", tile->before);
    fu_turn_to(e, p);
    char head[160];
    snprintf(head, sizeof head,
             "tn_epilogue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[%d])", p->pack);
    write_body(e, n_in, leave);
    put_function(e, g, parts->n_each, parts->each, head);
    if (last) {
        fu_turn_to(e, last);
        write_body(e, n_in, -1);
        put_function(
            e, NULL, parts->n_last, parts->last,
            "tn_statistics(const tn_cuda_args &a, int32_t column, float mean, float m2, int64_t count)");
    }
    if (parts->n_before) write_prologue(e, n_in, parts);
    tn_put(&e->head, "%s", tile->text);
    const tn_tensor *in[2] = {t->in[0], t->in[1]};
    for (int i = 0; i < 2; i++) {
        s->traffic[i].bytes += fu_bytes(in[i]);
        s->bytes += fu_bytes(in[i]);
    }
    s->flops = 2.0 * (double)(d.n * d.oh * d.ow * d.oc) * (double)(d.kh * d.kw * d.c / d.groups);
    return fu_finish_kernel(c, s, &e->head);
}

int fu_emit_tile(fu_ctx *c, const fu_group *g)
{
    fu_tile_parts parts;
    int conv = fu_tile_conv(c, g->n, g->member);
    const struct fu_conv_tile *tile = c->node[conv].tile[0];
    /* the library's instructions for products with one rounding are faster than ours */
    if (g->n == 1 && tile->product && tile->products == 1) return fu_emit_conv(c, g);
    const fu_candidate k = fu_candidate_of(c, g);
    tn_cut_reason why = fu_tile_try(c, &k, &parts);
    if (why)
        return fu_fail(c, TN_E_INTERNAL, "%s: %s", tn_op_get(c->node[conv].t->op)->name, tn_cut_text(why));
    int status = fu_verify_program(c, c->prog);
    if (!status && parts.n_sum) status = fu_verify_program(c, c->prog2);
    if (!status && parts.n_before) status = fu_verify_program(c, c->prog3);
    if (status) return status;
    fu_em *e = fu_em_new(c);
    return e ? emit(e, g, conv, &parts) : TN_E_NOMEM;
}
