/* step.c - the body of the function that a user calls: the plan's steps in order, kernels (kernel.c),
 * products and convolutions (src/device/cpu/kernels/product.h); of a .cu launches (cuda.c). Start with
 * ex_write_step. */
#include "export.h"

#include "../device/prelude/blocks.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 1024, TILED_STACK = 4096, MOST_PARTS = 16 };

/* ---- calls ---- */

static void put_fault(tn_export *x, tn_growing *to)
{
    tn_put(to, "    if (fault) return %s;\n", x->returned >= 0 ? "TN_NAN" : "1");
}

static void put_call(tn_export *x, const tn_step *st, const ex_function *fn, bool finish, tn_growing *to)
{
    tn_growing all = {0};
    char arg[LINE];
    const char *comma = "";
    for (int i = 0; i < fn->n; i++) {
        if (fn->param[i].same >= 0) continue;
        ex_operand(x, st, fn->param[i].buf, arg, sizeof arg);
        tn_put(&all, "%s%s", comma, arg);
        comma = ", ";
    }
    for (int i = 0; i < fn->n_scalar; i++) {
        ex_scalar(x, &st->scalar[fn->scalar[i]], arg, sizeof arg);
        tn_put(&all, "%s%s", comma, arg);
        comma = ", ";
    }
    if (x->options.threads) {
        tn_put(&all, "%s", comma);
        ex_put_kernel_call(x, st, fn, finish, all.p ? all.p : "", to);
    } else {
        tn_put(to, "    %s(%s%s%s);\n", fn->name, all.p ? all.p : "", fn->faults ? comma : "",
               fn->faults ? "&fault" : "");
    }
    tn_growing_free(&all);
    if (fn->faults) put_fault(x, to);
}

static void write_kernel(tn_export *x, const tn_step *st, tn_growing *calls)
{
    char begin[160];
    const char *text = st->source.text;
    for (int i = 0; i < st->n_nodes; i++) { /* those that are in no memory, too */
        const tn_tensor *t = x->f->node.at[x->plan->node_of[st->first_node + i]];
        if (t->dtype != TN_F16 && t->dtype != TN_BF16) continue;
        ex_refuse_dtype(x, t, t->dtype);
        return;
    }
    for (int second = 0; second < 2; second++) {
        ex_function fn;
        if (second && !st->grid.finish_n) break;
        snprintf(begin, sizeof begin, "void %s%s(const tn_args *a", st->source.entry,
                 second ? TN_FINISH : "");
        const char *at = strstr(text, begin);
        if (!at || !strstr(at, "\n{\n")) {
            ex_fail(x, TN_E_UNSUPPORTED, "the kernel %s has no form that stands alone", st->name);
            return;
        }
        ex_take_function(x, st, &fn, at);
        char name[160];
        snprintf(name, sizeof name, "%s%s", st->source.entry, second ? TN_FINISH : "");
        ex_put_function(x, st, &fn, name, second);
        put_call(x, st, &fn, second, calls);
    }
}

static void refuse(tn_export *x, const tn_step *st, const char *what, tn_dtype d)
{
    tn_growing calls = {0};
    ex_put_calls(x, st, &calls);
    ex_fail(x, TN_E_UNSUPPORTED, "%s: a %s of %s is not written as C99: compute it in f32",
            calls.p ? calls.p : st->name, what, tn_dtype_name(d));
    tn_growing_free(&calls);
}

/* The array of a weight's scales, or NULL. */
static void scale_of(const tn_export *x, int slot, char out[EXPORT_NAME + 8])
{
    const ex_place *p = &x->place[slot];
    const bool scaled = p->kind == EX_REGION && x->region[p->index].weights == TN_EXPORT_INT8;
    snprintf(out, EXPORT_NAME + 8, "%s%s", scaled ? x->region[p->index].name : "NULL",
             scaled ? "_scale" : "");
}

static void take_room(size_t *room, int64_t floats)
{
    if ((size_t)floats * sizeof(float) > *room) *room = (size_t)floats * sizeof(float);
}

static void put_numbers(tn_growing *to, const char *name, const int64_t *v, int n)
{
    tn_put(to, ", .%s = {", name);
    for (int i = 0; i < n; i++) tn_put(to, "%s%lld", i ? ", " : "", (long long)v[i]);
    tn_put(to, "}");
}

/* A call in what ex_write_step has begun. */
static void put_items(const tn_export *x, tn_growing *to, const char *function, int64_t items)
{
    if (x->options.threads && items > 1)
        tn_put(to, "        run(m, &%s, &call, room, %lld);\n", function, (long long)items);
    else
        tn_put(to, "        %s(&call, room, 0, %lld);\n", function, (long long)items);
}

/* The operands of a product or a convolution, and its weight's scales. */
typedef struct operands {
    char of[4][LINE], scale[EXPORT_NAME + 8];
} operands;

/* false: there are none of this dtype in C99, which is told. */
static bool take_operands(tn_export *x, const tn_step *st, const char *what, tn_dtype d, operands *o)
{
    if (d != TN_F32) {
        refuse(x, st, what, d);
        return false;
    }
    for (int i = 0; i < 4; i++) ex_operand(x, st, i, o->of[i], sizeof o->of[i]);
    scale_of(x, st->buf[1], o->scale);
    return true;
}

static void write_gemm(tn_export *x, const tn_step *st, tn_growing *to)
{
    const tn_gemm *g = &st->gemm;
    operands o;
    if (!take_operands(x, st, "product", g->dtype, &o)) return;
    int64_t times = 1;
    for (int i = 0; i < g->batch_ndim; i++) times *= g->batch[i];
    tn_put(to, "    {\n        const product call = {.m = %lld, .n = %lld, .k = %lld", (long long)g->m,
           (long long)g->n, (long long)g->k);
    if (times > 1) {
        put_numbers(to, "batch", g->batch, g->batch_ndim);
        put_numbers(to, "a_batch", g->a_batch, g->batch_ndim);
        put_numbers(to, "b_batch", g->b_batch, g->batch_ndim);
        put_numbers(to, "c_batch", g->c_batch, g->batch_ndim);
    }
    tn_put(to,
           ",\n            .a = %s, .a_row = %lld, .a_col = %lld, .b = %s, .b_row = %lld, .b_col = %lld, "
           ".pack = &%s,\n            .scale = %s, .bias = %s, .relu = %d, .c = %s, .c_row = %lld};\n",
           o.of[0], (long long)g->a_row, (long long)g->a_col, o.of[1], (long long)g->b_row,
           (long long)g->b_col, ex_pack(x, st->buf[1]), o.scale, o.of[2], g->epilogue == TN_EPI_RELU, o.of[3],
           (long long)g->c_row);
    put_items(x, to, "matmul", times * blocks_of(g->n, COLUMNS) * blocks_of(g->m, BLOCK));
    tn_put(to, "    }\n");
    take_room(&x->room_bytes, matmul_room(g->k));
    x->macs += (double)times * (double)g->m * (double)g->n * (double)g->k;
}

/* By Winograd's algorithm: where it can be, there is enough to do, and its room is no burden. */
static bool by_tiles(const tn_export *x, const tn_step *st, int64_t tiles, int64_t room)
{
    const tn_conv2d_desc *d = &st->conv;
    bool plain = d->kh == 3 && d->kw == 3 && d->groups == 1 && !strcmp(ex_pack(x, st->buf[1]), "pack_f32");
    for (int k = 0; k < 2; k++)
        plain = plain && d->stride[k] == 1 && d->dilation[k] == 1 && d->pad[2 * k] <= 2;
    return plain && d->c % COLUMNS == 0 && d->oc % COLUMNS == 0 && d->n * d->oh * d->ow >= 1024 &&
           6 * d->n * d->oh * d->ow > PLACES * tiles &&
           (size_t)room * sizeof(float) <= x->plan->arena_bytes / 2;
}

/* Sums of so many floats that the gradient of a weight is made of, for threads: however many there are. */
static int64_t parts_of(const tn_export *x, int64_t floats, int64_t most)
{
    const int64_t room = (int64_t)(x->plan->arena_bytes / 2 / sizeof(float)) / floats;
    const int64_t parts = x->options.threads ? least(least(most, room), MOST_PARTS) : 1;
    return parts > 1 ? blocks_of(most, blocks_of(most, parts)) : 1; /* none is empty */
}

/* The calls, and the room they take. */
static void put_conv_calls(tn_export *x, const tn_step *st, const char *out, tn_growing *to)
{
    const tn_conv2d_desc *d = &st->conv;
    const bool back = d->pass == TN_CONV_DATA_GRAD;
    const int64_t places = d->kh * d->kw, c = d->c / d->groups, oc = d->oc / d->groups;
    const int64_t h = back ? d->h : d->oh, w = back ? d->w : d->ow, pixels = d->n * h * w;
    const int64_t tiles = d->n * blocks_of(h, 4) * blocks_of(w, 4), weights = PLACES * c * oc,
                  tiled = conv2d_3x3_room(c, oc), blocks = blocks_of(tiles, TILES);
    const bool by = by_tiles(x, st, tiles, weights + tiled);
    int64_t parts = 1, sums = by ? weights : 0;
    if (d->pass == TN_CONV_WEIGHT_GRAD) {
        parts = parts_of(x, by ? weights : places * c * d->oc, by ? blocks : pixels / SUMMED);
        sums = by ? parts * weights : parts > 1 ? parts * places * c * d->oc : 0;
    }
    take_room(&x->shared_bytes, sums);
    if (by && x->stack_bytes < TILED_STACK) x->stack_bytes = TILED_STACK;
    take_room(&x->room_bytes, by                               ? tiled
                              : d->pass == TN_CONV_WEIGHT_GRAD ? conv2d_weight_grad_room(pixels, places * c)
                              : back                           ? convolve_room(places * oc, c)
                                                               : convolve_room(places * c, oc));
    tn_put(to, ".sums = %s, .parts = %lld};\n", sums ? "shared" : out, (long long)parts);
    if (d->pass == TN_CONV_WEIGHT_GRAD) {
        put_items(x, to, by ? "conv2d_3x3_weight_grad" : "conv2d_weight_grad", parts);
        if (sums) put_items(x, to, by ? "conv2d_3x3_weight_join" : "conv2d_weight_join", d->oc);
    } else if (by) {
        put_items(x, to, "conv2d_3x3_weights", (back ? d->c : d->oc) / COLUMNS);
        put_items(x, to, "conv2d_3x3", blocks);
    } else {
        put_items(x, to, "conv2d", blocks_of(pixels, PIXELS));
    }
}

static void write_conv(tn_export *x, const tn_step *st, tn_growing *to)
{
    const tn_conv2d_desc *d = &st->conv;
    operands o;
    if (!take_operands(x, st, "convolution", d->dtype, &o)) return;
    tn_put(to,
           "    {\n        const convolution call = {.n = %lld, .h = %lld, .w = %lld, .c = %lld, .oc = %lld, "
           ".kh = %lld, .kw = %lld,\n            .oh = %lld, .ow = %lld, .groups = %lld, .stride = {%lld, "
           "%lld}, .pad = {%lld, %lld}, .dilation = {%lld, %lld},\n            .back = %d, .relu = %d, .from "
           "= %s, ",
           (long long)d->n, (long long)d->h, (long long)d->w, (long long)d->c, (long long)d->oc,
           (long long)d->kh, (long long)d->kw, (long long)d->oh, (long long)d->ow, (long long)d->groups,
           (long long)d->stride[0], (long long)d->stride[1], (long long)d->pad[0], (long long)d->pad[2],
           (long long)d->dilation[0], (long long)d->dilation[1], d->pass == TN_CONV_DATA_GRAD,
           d->epilogue == TN_EPI_RELU, o.of[0]);
    if (d->pass == TN_CONV_WEIGHT_GRAD)
        tn_put(to, ".gy = %s, ", o.of[1]);
    else
        tn_put(to, ".weight = %s, .pack = &%s, .scale = %s, .bias = %s, ", o.of[1], ex_pack(x, st->buf[1]),
               o.scale, o.of[2]);
    tn_put(to, ".to = %s,\n            ", o.of[3]);
    put_conv_calls(x, st, o.of[3], to);
    tn_put(to, "    }\n");
    x->macs += (double)d->n * (double)d->oh * (double)d->ow * (double)d->oc * (double)d->kh * (double)d->kw *
               (double)d->c / (double)d->groups;
}

/* ---- the whole ---- */

static bool copies_over(const tn_export *x, const tn_step *st)
{
    for (int k = 0; k < st->n_buf; k++)
        if (st->buf[k] >= 0 && x->place[st->buf[k]].kind == EX_NOWHERE) return true;
    return false;
}

int ex_write_step(tn_export *x)
{
    tn_growing calls = {0};
    for (int i = 0; i < x->n_mark && x->trains && !x->cuda; i++)
        if (x->mark[i].out && x->returned < 0 && x->mark[i].dtype == TN_F32 && x->mark[i].count == 1)
            x->returned = i;
    for (int i = 0; i < x->plan->n_step && !x->status; i++) {
        const tn_step *st = &x->plan->step[i];
        if (copies_over(x, st)) ex_fail(x, TN_E_INTERNAL, "an operand of %s lies nowhere", st->name);
        tn_put(&calls, "\n    /* ");
        ex_put_calls(x, st, &calls);
        tn_put(&calls, " */\n");
        switch (st->kind) {
        case TN_STEP_KERNEL: (x->cuda ? ex_cuda_step : write_kernel)(x, st, &calls); break;
        case TN_STEP_GEMM: (x->cuda ? ex_cuda_step : write_gemm)(x, st, &calls); break;
        case TN_STEP_CONV: (x->cuda ? ex_cuda_step : write_conv)(x, st, &calls); break;
        case TN_STEP_RANKS:
            ex_fail(x, TN_E_UNSUPPORTED, "%s is done by several ranks together", st->name);
            break;
        case TN_STEP_HOST: ex_fail(x, TN_E_UNSUPPORTED, "%s is a function of the program", st->name); break;
        }
        if (!x->cuda) tn_put(&x->table, " *   %-40s %10lld bytes\n", st->name, (long long)st->bytes);
    }
    tn_put(&x->step, "%s", calls.p ? calls.p : "");
    const int failed = calls.failed ? calls.failed : x->kernels.failed ? x->kernels.failed : x->step.failed;
    tn_growing_free(&calls);
    if (failed && !x->status) return ex_fail(x, failed, "the text could not be written");
    x->arena_bytes = (x->plan->arena_bytes + TN_PLAN_ALIGN - 1) / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
    return x->status ? x->s->graph.error.status : TN_OK;
}
