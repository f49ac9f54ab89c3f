/* attention.c - attention as one kernel forward and one backward, whose scores are in memory at no time.
 *
 * The nodes of one direction that have the same operands are one group: what forward is asked for of o and
 * lse, backward of dq, dk and dv. Operands are read by their strides, as slices of one projection have them,
 * and results are written where fold.c says, so that no copy stands around the kernel. The text stands in
 * src/device/cpu/kernels; what goes in front of it is written here.
 *
 * Start with fu_emit_attention.
 */
#include "attention.h"

#include <stdio.h>
#include <string.h>

#include "../../src/core/build.h"
#include "../../src/device/embed.h"
#include "attention_cuda.h"
#include "../loops/cost.h"
#include "raw.h"

static bool has_flash(const tn_target *t, const fu_attention_size *s);

/* ---- whether ---- */

enum { EXP_WORK = 22, FORWARD = 2, BACKWARD = 5 }; /* instructions for a probability; products */

/* The share of the tiles of scores that a causal mask leaves. */
static double seen(const fu_attention_size *s)
{
    double rows = (double)s->tq, keys = (double)s->tk, tile = 16;
    if (!s->causal) return 1;
    double part = rows < keys ? (rows + tile) / 2 / keys : 1 - (keys - tile) / 2 / rows;
    return part < 1 ? part : 1;
}

static double kernel_work(const fu_attention_size *s, int products)
{
    double scores = (double)s->heads * (double)s->tq * (double)s->tk * seen(s);
    double padded = (double)((s->d + 15) / 16 * 16);
    return scores * (products * padded * 1.25 + EXP_WORK);
}

bool fu_attention_pays(const tn_target *t, const fu_attention_size *s)
{
    const bool known = s->dtype == TN_F16 || s->dtype == TN_BF16 || s->dtype == TN_F32;
    return fu_can(t)->grid ? has_flash(t, s) : known && s->d <= FU_ATTENTION_WIDEST;
}

/* ---- operands ---- */

typedef struct operand {
    int slot;
    int64_t offset, stride[4]; /* batch, head, row, column */
    tn_dtype dtype;
    int64_t bytes;
} operand;

static void set_strides(operand *o, const tn_tensor *t, const int64_t *stride)
{
    for (int i = 0; i < 4; i++) {
        int axis = t->ndim - 4 + i;
        o->stride[i] = axis < 0 || t->shape[axis] == 1 ? 0 : stride[axis];
    }
}

static int take(fu_ctx *c, const tn_tensor *t, bool any_column, operand *o)
{
    t = fu_value_of(c, t);
    int last = t->ndim - 1;
    const bool lies = !tn_is_number(t) && (any_column || t->shape[last] == 1 || t->stride[last] == 1);
    int64_t stride[TN_MAX_DIMS];
    *o = (operand){.dtype = t->dtype};
    o->bytes = tn_node_numel(t) * (int64_t)tn_dtype_size(o->dtype);
    tn_dense_strides(t->ndim, t->shape, stride);
    set_strides(o, t, lies ? t->stride : stride);
    for (int i = 0; i < t->ndim && lies; i++)
        if (!t->stride[i] && t->shape[i]) o->bytes /= t->shape[i];
    return fu_take(c, t, lies, &o->slot, &o->offset);
}

/* Returns the place that a node's own value is written to. */
static operand result(const fu_ctx *c, int node)
{
    const fu_node *n = &c->node[node];
    operand o = {.slot = n->into < 0 ? node : n->into, .offset = n->into < 0 ? 0 : n->into_offset};
    int64_t stride[TN_MAX_DIMS];
    tn_dense_strides(n->t->ndim, n->t->shape, stride);
    set_strides(&o, n->t, n->into < 0 ? stride : n->into_stride);
    if (n->t->op == TN_OP_attention && n->t->attr->attention.rows) { /* [batch, row, head, column] */
        int64_t row = o.stride[1];
        o.stride[1] = o.stride[2];
        o.stride[2] = row;
    }
    o.dtype = n->t->dtype;
    o.bytes = tn_node_numel(n->t) * (int64_t)tn_dtype_size(o.dtype);
    return o;
}

/* Memory of that many f32 that a kernel writes and reads. */
static int take_scratch(fu_ctx *c, int64_t elems, operand *o)
{
    *o = (operand){.slot = fu_scratch_slot(c, elems, TN_F32), .bytes = 2 * elems * 4};
    return o->slot < 0 ? o->slot : 0;
}

/* ---- the kernel ---- */

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_O, IN_LSE, IN_GO, INPUTS };

/* What a direction computes, in the order of its kernels' buffers. */
static const struct {
    tn_op op;
    const char *name;
    int dim, n_stride;
} results[2][3] = {
    {{TN_OP_attention, "O", FU_AT_O, 3}, {TN_OP_attention_lse, "LSE", 0, 0}, {TN_OP_COUNT, NULL, 0, 0}},
    {{TN_OP_attention_dq, "DQ", FU_AT_DQ, 3},
     {TN_OP_attention_dk, "DK", FU_AT_DK, 3},
     {TN_OP_attention_dv, "DV", FU_AT_DV, 3}}};

typedef struct kernel {
    fu_ctx *c;
    tn_step *s;
    tn_growing t;
} kernel;

static void add_buf(kernel *k, const operand *o, int dim, int n_stride)
{
    int at = fu_step_buf(k->c, k->s, o->slot, o->offset);
    if (at < 0)
        k->t.failed = at;
    else
        k->s->traffic[at].bytes = o->bytes;
    for (int i = 0; i < n_stride; i++) k->s->dim[dim + i] = o->stride[i];
    k->s->bytes += o->bytes;
}

static void add_input(kernel *k, const operand *o, int i)
{
    static const int dim[INPUTS] = {FU_AT_Q, FU_AT_K, FU_AT_V, FU_AT_MASK, FU_AT_O, 0, FU_AT_GO};
    add_buf(k, o, dim[i], i == IN_LSE ? 0 : i == IN_MASK ? 4 : 3);
}

/* A run-time number of the kernel. */
static void add_scalar(kernel *k, const char *name, int64_t slot, int what, const char *member)
{
    enum { MOST = 4 };
    tn_step *s = k->s;
    if (!s->scalar) s->scalar = tn_arena_alloc(&k->c->plan->arena, MOST * sizeof *s->scalar);
    if (!s->scalar || s->n_scalar == MOST) {
        k->t.failed = TN_E_NOMEM;
        return;
    }
    s->scalar[s->n_scalar].slot = (int)slot;
    s->scalar[s->n_scalar].what = what;
    fu_line(&k->t, "#define %s (%sscalar[%d].%s)", name, fu_language(k->c->target)->args, s->n_scalar++,
            member);
}

static void add_number(kernel *k, const char *name, const tn_tensor *x)
{
    const tn_tensor *n = fu_value_of(k->c, x)->base;
    const tn_number *v = &n->attr->number;
    if (n->op == TN_OP_constant)
        fu_line(&k->t, "#define %s %.17g", name, v->is_int ? (double)v->i : v->f);
    else
        add_scalar(k, name, n->slot, TN_WORD_F64, "f");
}

static void add_scale(kernel *k, const tn_attention *a)
{
    add_number(k, a->divided ? "DIVISOR" : "SCALE", a->scale);
    if (a->divided) fu_line(&k->t, "#define SCALE (1 / (DIVISOR))");
}

static void add_dropout(kernel *k, const tn_attention *a)
{
    add_number(k, "DROP_P", a->chance);
    add_scalar(k, "SEED", a->keep->slot, TN_WORD_SEED, "u");
    add_scalar(k, "DRAW", a->keep->slot, TN_WORD_DRAW, "u");
}

static bool computes(const fu_ctx *c, const fu_group *g, tn_op op, int *node)
{
    for (int i = 0; i < g->n; i++) {
        *node = g->member[i];
        if (c->node[*node].t->op == op) return true;
    }
    return false;
}

static fu_attention_size size_of(const tn_attention *a)
{
    fu_attention_size s = {.dtype = a->q->dtype, .causal = a->causal};
    int nd = a->q->ndim;
    s.heads = tn_extent(a->q->shape, 0, nd - 2);
    s.tq = a->q->shape[nd - 2];
    s.tk = a->k->shape[nd - 2];
    s.d = a->q->shape[nd - 1];
    return s;
}

static int64_t tile_of(const fu_attention_size *s)
{
    return s->d <= 128 ? FU_ATTENTION_TILE : FU_ATTENTION_TILE / 2;
}

/* Few heads are cut into parts of their keys, so that there is work for several threads. Each part adds up a
 * dq of its own, so parts are few. */
static int64_t parts_of(const fu_attention_size *s)
{
    enum { ITEMS = 16, MOST = 4 };
    const int64_t tile = tile_of(s), tiles = (s->tk + tile - 1) / tile;
    int64_t parts = s->heads < ITEMS ? (ITEMS + s->heads - 1) / s->heads : 1;
    if (parts > MOST) parts = MOST;
    return parts < tiles ? parts : tiles;
}

/* Of a CPU's tile. All of a tile is packed and cleared, however few keys there are; texts for few are few
 * too, so that a sequence that grows compiles little. */
static int64_t keys_of(const fu_attention_size *s)
{
    int64_t keys = 16;
    while (keys < tile_of(s) && keys < s->tk) keys *= 2;
    return keys;
}

static void put_text(kernel *k, const fu_attention_size *s, const tn_attention *a, int64_t rows)
{
    fu_line(&k->t, "#define ENTRY %s", k->s->name);
    fu_line(&k->t, "#define FINISH %s%s", k->s->name, TN_FINISH);
    fu_line(&k->t, "#define DTYPE %d", s->dtype == TN_F16 ? 2 : s->dtype == TN_BF16 ? 3 : 0);
    fu_line(&k->t, "#define HEAD %lld", (long long)s->d);
    fu_line(&k->t, "#define ROWS %lld", (long long)rows);
    fu_line(&k->t, "#define KEYS %lld", (long long)keys_of(s));
    fu_line(&k->t, "#define CAUSAL %d", a->causal);
    fu_line(&k->t, "#define STRICT %d", a->strict);
    fu_line(&k->t, "#define MASK %d", !a->mask ? 0 : a->mask->dtype == TN_BOOL ? 1 : 2);
    add_scale(k, a);
    fu_line(&k->t, "#define DROPOUT %d", a->keep != NULL);
    if (a->keep) add_dropout(k, a);
}

/* Sets the sentence that reports show the user for the kernel; `what` names what is computed from the
 * probabilities, `by` the instructions where there are several. */
static void describe(kernel *k, const fu_attention_size *s, const tn_attention *a, const char *what,
                     const char *by)
{
    const double scores = (double)s->heads * (double)s->tq * (double)s->tk;
    char text[320];
    tn_snprintf(
        text, sizeof text,
        "q k^T, scale%s%s, softmax%s, %s in one kernel%s: the %lld x %lld scores of %lld heads are never "
        "written, which saves %.2f MB written and as much read",
        a->causal ? ", causal mask" : "", a->mask ? ", mask" : "", a->keep ? ", dropout" : "", what, by,
        (long long)s->tq, (long long)s->tk, (long long)s->heads,
        scores * (double)tn_dtype_size(s->dtype) * 1e-6);
    k->s->does = tn_arena_strdup(&k->c->plan->arena, text);
    if (!k->s->does) k->t.failed = TN_E_NOMEM;
}

static int open_kernel(kernel *k, fu_ctx *c, const fu_attention_size *s, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%lld", what, (long long)s->d);
    *k = (kernel){.c = c, .s = fu_step_new(c, TN_STEP_KERNEL, name)};
    if (!k->s) return TN_E_NOMEM;
    k->s->dim = tn_arena_alloc(&c->plan->arena, FU_AT_DIMS * sizeof *k->s->dim);
    k->s->n_dim = FU_AT_DIMS;
    return k->s->dim ? 0 : fu_fail(c, TN_E_NOMEM, "no memory for a plan");
}

static void set_sizes(kernel *k, const tn_tensor *q, const fu_attention_size *s)
{
    int64_t batch = q->ndim > 3 ? q->shape[0] : 1;
    const int64_t size[] = {batch, s->heads / batch, s->tq, s->tk};
    memcpy(k->s->dim, size, sizeof size);
}

static int64_t blocks_of(const fu_attention_size *s, int64_t rows)
{
    return s->heads * ((s->tq + rows - 1) / rows);
}

/* Of an item of the CPU's forward kernel: the more the less often k and v are packed; but what a thread has
 * of q and o stays in its second cache, and there is work for several threads. */
static int64_t rows_of(const fu_attention_size *s)
{
    enum { ITEMS = 32, FEWEST = 64 };
    int64_t rows = s->d <= 64 ? 4 * FEWEST : s->d <= 128 ? 2 * FEWEST : FEWEST;
    while (rows > FEWEST && blocks_of(s, rows) < ITEMS) rows /= 2;
    return rows;
}

/* ---- on tensor cores ---- */

static fu_flash_desc flash_of(const tn_target *t, const fu_attention_size *s, fu_flash_pass pass)
{
    return (fu_flash_desc){.pass = pass,
                           .dtype = s->dtype,
                           .tf32 = t->tf32,
                           .causal = s->causal,
                           .head = s->d <= INT32_MAX ? (int)s->d : 0,
                           .batch = 1,
                           .heads = s->heads,
                           .tq = s->tq,
                           .tk = s->tk};
}

static bool has_flash(const tn_target *t, const fu_attention_size *s)
{
    struct fu_flash_tile tile;
    for (int pass = 0; pass < FU_FLASH_PASSES; pass++) {
        fu_flash_desc d = flash_of(t, s, (fu_flash_pass)pass);
        if (!fu_flash_tile(&d, t, &tile)) return false;
    }
    return true;
}

/* Instructions that take as long as the pass. */
static double flash_work(const tn_target *t, const struct fu_flash_tile *tile)
{
    const tn_target_profile *r = tn_target_rates(t);
    double rate = tn_profile_gflops(r->gemm, r->n_gemm, tile->flops),
           share = tile->share > 0 ? tile->share : 1;
    if (tile->wgmma) share *= 2; /* of mma.sync's rate */
    return tile->flops / (rate * share) / (r->instruction_ps * 1e-3);
}

static fu_flash_desc flash_of_all(const fu_ctx *c, const tn_attention *a, const fu_attention_size *size,
                                  fu_flash_pass pass, const bool *wanted)
{
    fu_flash_desc d = flash_of(c->target, size, pass);
    d.dropout = a->keep && pass != FU_FLASH_DELTA; /* which knows nothing of it */
    d.strict = a->strict;
    d.mask = !a->mask                    ? FU_FLASH_NO_MASK
             : a->mask->dtype == TN_BOOL ? FU_FLASH_BOOL_MASK
                                         : FU_FLASH_ADDED_MASK;
    d.whole = wanted[0] && wanted[1] && wanted[2];
    return d;
}

/* One launch. What a pass does not touch of what stands between its operands is any memory: of out, in the
 * order o, lse or dq, dk, dv, it writes those that are wanted. sums: of backward's warpgroups, with `counts`
 * words in front; or no slot. */
static int emit_flash(fu_ctx *c, const tn_attention *a, const fu_attention_size *size, const operand *from,
                      fu_flash_pass pass, const operand *delta, const operand *sums, int64_t counts,
                      const operand *out, const bool *wanted)
{
    static const char *const name[FU_FLASH_PASSES] = {"attention", "attention_delta", "attention_dk_dv",
                                                      "attention_dq"};
    static const char *const does[FU_FLASH_PASSES] = {"v", NULL, "the gradients of k and v",
                                                      "the gradient of q"};
    static const char *const all = "the gradients of q, k and v";
    const bool back = pass != FU_FLASH_FORWARD, small = pass == FU_FLASH_DELTA;
    const fu_flash_desc d = flash_of_all(c, a, size, pass, wanted);
    struct fu_flash_tile tile;
    char defines[1024];
    kernel k;
    if (!fu_flash_tile(&d, c->target, &tile)) return fu_fail(c, TN_E_INTERNAL, "no tile for an attention");
    const bool whole = pass == FU_FLASH_DKV && tile.wgmma;
    int r = open_kernel(&k, c, size, whole ? "attention_dq_dk_dv" : name[pass]);
    if (r) return r;
    set_sizes(&k, a->q, size);
    fu_flash_defines(&d, &tile, defines, sizeof defines);
    if (does[pass]) describe(&k, size, a, whole ? all : does[pass], tile.wgmma ? " by wgmma" : "");
    tn_put(&k.t, "%s", tn_embed_text(TN_EMBED_PTX_CUH));
    fu_line(&k.t, "#define ENTRY %s", k.s->name);
    add_scale(&k, a);
    if (a->keep && !small) add_dropout(&k, a);
    for (int i = 0; i < (back ? INPUTS : IN_O); i++) {
        if (i == IN_MASK && !a->mask) continue;
        operand o = from[i];
        if (small ? i < IN_O : i == IN_O) o.bytes = 0; /* stands there, and is not read */
        add_input(&k, &o, i);
    }
    if (!back) {
        add_buf(&k, &out[0], FU_AT_O, 3);
        if (wanted[1]) add_buf(&k, &out[1], 0, 0);
        fu_line(&k.t, "#define LSE %d", wanted[1]);
        k.s->n_out = 1 + wanted[1] + (tile.splits > 1);
        k.s->dim[FU_AT_SPLITS] = tile.splits;
        if (tile.splits > 1) {
            operand parts;
            if ((r = take_scratch(c, tile.parts, &parts))) return r;
            add_buf(&k, &parts, 0, 0);
        }
    } else {
        add_buf(&k, delta, 0, 0);
        k.s->n_out = small;
    }
    for (int i = 0; back && !small && i < 3; i++) {
        const bool writes = wanted[i] && (whole || (pass == FU_FLASH_DQ) == (i == 0));
        operand o = writes ? out[i] : from[IN_Q];
        if (pass == FU_FLASH_DQ && i) break;
        fu_line(&k.t, "#define %s %d", results[1][i].name, writes); /* left out it would be 1 */
        if (i == 2 && !writes) break;
        if (!writes) o.bytes = 0;
        add_buf(&k, &o, results[1][i].dim, 3);
        k.s->n_out += writes;
    }
    if ((small || whole) && sums->slot >= 0) {
        operand o = *sums;
        if (small) o.bytes = counts * 4;
        add_buf(&k, &o, 0, 0);
        k.s->dim[FU_AT_SPLITS] = counts;
        k.s->n_out++;
    }
    tn_put(&k.t, "%s%s", defines, fu_flash_text(pass, &tile));
    k.s->grid = (tn_grid){.n = tile.blocks, .chunk = 1, .threads = tile.threads, .shared = tile.shared};
    k.s->flops = tile.flops;
    k.s->work = flash_work(c->target, &tile);
    return fu_finish_kernel(c, k.s, &k.t);
}

static int emit_flashes(fu_ctx *c, const tn_attention *a, const fu_attention_size *size, const operand *from,
                        operand *out, const bool *wanted)
{
    const bool back = a->go != NULL;
    if (!back && !wanted[0]) { /* the kernel makes it anyway */
        out[0] = (operand){.slot = fu_scratch_slot(c, size->heads * size->tq * size->d, size->dtype)};
        if (out[0].slot < 0) return out[0].slot;
        out[0].stride[0] = size->tq * size->d * (a->q->ndim > 3 ? a->q->shape[1] : size->heads);
        out[0].stride[1] = size->tq * size->d;
        out[0].stride[2] = size->d;
    }
    operand sums = {.slot = -1}, delta;
    if (!back) return emit_flash(c, a, size, from, FU_FLASH_FORWARD, NULL, &sums, 0, out, wanted);
    int r = take_scratch(c, size->heads * size->tq, &delta);
    if (r) return r;
    delta.bytes /= 2; /* of either kernel */
    const fu_flash_desc d = flash_of_all(c, a, size, FU_FLASH_DKV, wanted);
    struct fu_flash_tile tile = {0};
    const bool whole = fu_flash_tile(&d, c->target, &tile) && tile.wgmma;
    if (whole && (r = take_scratch(c, tile.parts, &sums))) return r;
    static const fu_flash_pass pass[] = {FU_FLASH_DELTA, FU_FLASH_DKV, FU_FLASH_DQ};
    const bool runs[] = {true, wanted[1] || wanted[2], wanted[0] && !whole};
    for (int i = 0; i < 3 && !r; i++)
        if (runs[i]) r = emit_flash(c, a, size, from, pass[i], &delta, &sums, tile.counts, out, wanted);
    return r;
}

int fu_emit_attention(fu_ctx *c, const fu_group *g)
{
    const tn_tensor *t = c->node[g->member[0]].t;
    tn_attention a = tn_attention_of(t);
    fu_attention_size size = size_of(&a);
    const tn_tensor *in[] = {a.q, a.k, a.v, a.mask, a.o, a.lse, a.go};
    operand from[INPUTS], out[3] = {{0}};
    bool back = a.go != NULL, wanted[3];
    int node;
    for (int i = 0; i < INPUTS; i++) { /* first, since a copy is a step of its own */
        int r = in[i] ? take(c, in[i], in[i] == a.mask, &from[i]) : 0;
        if (r) return r;
    }
    for (int i = 0; i < 3; i++)
        if ((wanted[i] = computes(c, g, results[back][i].op, &node))) out[i] = result(c, node);
    if (fu_can(c->target)->grid) return emit_flashes(c, &a, &size, from, out, wanted);
    kernel k;
    int r = open_kernel(&k, c, &size, back ? "attention_bwd" : "attention");
    if (r) return r;
    set_sizes(&k, a.q, &size);
    const int64_t rows = back ? tile_of(&size) : rows_of(&size);
    put_text(&k, &size, &a, rows);
    describe(&k, &size, &a, back ? "the gradients of q, k and v" : "v", "");
    for (int i = 0; i < INPUTS; i++)
        if (in[i]) add_input(&k, &from[i], i);
    int64_t parts = back ? parts_of(&size) : 1;
    if (back && wanted[0] && (parts > 1 || size.dtype != TN_F32)) {
        operand scratch;
        r = take_scratch(c, size.heads * parts * size.tq * ((size.d + 15) / 16 * 16), &scratch);
        if (r) return r;
        add_buf(&k, &scratch, 0, 0);
        k.s->n_out++;
        k.s->grid.finish_n = blocks_of(&size, rows);
        k.s->grid.finish_chunk = 1;
    }
    if (back) fu_line(&k.t, "#define SPLIT %lld", (long long)parts);
    fu_line(&k.t, "#define FINE %d", (back ? a.lse->dtype : out[1].dtype) == TN_F64);
    for (int i = 0; i < 3 && results[back][i].name; i++) {
        fu_line(&k.t, "#define %s %d", results[back][i].name, wanted[i]);
        if (!wanted[i]) continue;
        add_buf(&k, &out[i], results[back][i].dim, results[back][i].n_stride);
        k.s->n_out++;
    }
    k.s->grid.n = back ? size.heads * parts : blocks_of(&size, rows);
    k.s->grid.chunk = 1;
    k.s->work = kernel_work(&size, back ? BACKWARD : FORWARD);
    k.s->flops = 2.0 * (back ? BACKWARD : FORWARD) * (double)size.heads * (double)size.tq * (double)size.tk *
                 (double)size.d * seen(&size);
    tn_put(&k.t, "%s", tn_embed_text(back ? TN_EMBED_ATTENTION_BACKWARD_C : TN_EMBED_ATTENTION_C));
    return fu_finish_kernel(c, k.s, &k.t);
}
