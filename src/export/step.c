/* step.c - the body of the function that a user calls: a pointer to each value, and the plan's steps in
 * order, kernels (kernel.c), products and convolutions (src/device/cpu/kernels/product.h). Start with
 * ex_write_step.
 */
#include "export.h"

#include "../device/prelude/blocks.h"

#include "../../fuser/text/text.h"
#include "../core/print.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1024 };

/* ---- variables ---- */

static bool is_function(const tn_export *x, const char *name)
{
    char head[EXPORT_NAME + 24];
    snprintf(head, sizeof head, "static void %s(", name);
    return x->kernels.p && strstr(x->kernels.p, head);
}

/* name, or name_2 and so on where that is taken. */
static void unique_var(tn_export *x, const char *want, char *out)
{
    static const char *const own[] = {"m",
                                      "fault",
                                      "arena",
                                      "matmul",
                                      "conv2d",
                                      "tile",
                                      "row_tile",
                                      "whole_tile",
                                      "whole_columns",
                                      "part",
                                      "pixel",
                                      "next_pixel",
                                      "convolve",
                                      "conv2d_3x3",
                                      "conv2d_3x3_weight_grad",
                                      "spread_tile",
                                      "spread_data",
                                      "spread_gradient",
                                      "spread_weights",
                                      "join_pixels",
                                      "join_weights",
                                      "tiled",
                                      "tiles_of",
                                      "corner",
                                      "move",
                                      "place_of_tiles",
                                      "pixel_at",
                                      "room",
                                      "pack_f32",
                                      "pack_f16",
                                      "pack_bf16",
                                      "pack_int8",
                                      "finish",
                                      "least",
                                      "gather",
                                      "under",
                                      "over",
                                      "same",
                                      "find",
                                      "copy",
                                      "put",
                                      "saved",
                                      "convolution",
                                      "index_fault",
                                      "conv2d_data_grad",
                                      "conv2d_weight_grad"};
    fu_identifier(out, EXPORT_NAME - 8, want);
    const size_t n = strlen(out);
    for (int k = 2;; k++) {
        bool taken = false;
        for (int i = 0; i < x->n_slot && !taken; i++) taken = x->var[i] != out && !strcmp(x->var[i], out);
        for (int i = 0; i < x->n_mark && !taken; i++) taken = !strcmp(x->mark[i].name, out);
        for (int i = 0; i < x->n_region && !taken; i++) {
            const size_t m = strlen(x->region[i].name);
            taken = !strncmp(x->region[i].name, out, m) && !strcmp(out + m, "_scale");
        }
        for (size_t i = 0; i < sizeof own / sizeof *own && !taken; i++) taken = !strcmp(own[i], out);
        taken = taken || is_function(x, out);
        if (!taken) return;
        snprintf(out + n, EXPORT_NAME - n, "_%d", k);
    }
}

static void refuse_dtype(tn_export *x, const tn_tensor *t, tn_dtype d)
{
    char of[200] = "a value";
    if (t) tn_node_where(t, of, sizeof of);
    ex_fail(x, TN_E_UNSUPPORTED, "%s is of %s, for which C99 has no type: export a step in f32", of,
            tn_dtype_name(d));
}

/* The variable that points to what lies in a slot, declared when it is first asked for. */
static const char *var_of(tn_export *x, int slot)
{
    const ex_place *p = &x->place[slot];
    const char *type = p->kind == EX_REGION ? ex_region_type(&x->region[p->index]) : ex_type(p->dtype);
    const int size = (int)tn_dtype_size(p->dtype);
    tn_tensor *t = slot < x->f->node.n + x->f->leaf.n ? tn_node_at(x->f, slot) : NULL;
    char *v = x->var[slot];
    if (*v) return v;
    if (!type) {
        refuse_dtype(x, t, p->dtype);
        return "0";
    }
    if (p->kind == EX_MARK && !p->offset) {
        snprintf(v, EXPORT_NAME, "%s", x->mark[p->index].name);
        return v;
    }
    const char *name = !t ? "scratch" : t->name ? t->name : t->base->name ? t->base->name : NULL;
    if (!name && t->base->of) name = t->base->of->name;
    char of[120] = "", shape[80] = "", where[200] = "";
    if (!name && t) {
        const tn_call *c = t->call;
        snprintf(of, sizeof of, "%s%.60s", c && c->backward ? "d_" : "", c && c->name ? c->name : "value");
        name = of;
    }
    unique_var(x, name, v);
    if (t) tn_shape_text(shape, sizeof shape, t->ndim, t->shape);
    if (t && slot < x->f->node.n) tn_node_where(t, where, sizeof where);
    switch (p->kind) {
    case EX_ARENA:
        tn_put(&x->step, "    %s *const %s = (%s *)(void *)(arena + %zu);", type, v, type, p->offset);
        break;
    case EX_REGION: {
        ex_region *r = &x->region[p->index];
        r->read = true;
        tn_put(&x->step, "    %s%s *const %s = %s%s%s + %zu;", r->written ? "" : "const ", type, v,
               r->written ? "m->" : "", r->name, r->written ? "" : "_data", p->offset / (size_t)size);
        break;
    }
    case EX_MARK:
        tn_put(&x->step, "    const %s *const %s = %s + %zu;", type, v, x->mark[p->index].name,
               p->offset / (size_t)size);
        break;
    case EX_NOWHERE:
        ex_fail(x, TN_E_INTERNAL, "'%s' lies nowhere", v);
        break;
    }
    tn_put(&x->step, " /* %s%s%s */\n", shape, *shape && *where ? " " : "", where);
    return v;
}

static void operand(tn_export *x, const tn_step *st, int k, char *out, size_t n)
{
    if (st->buf[k] < 0)
        snprintf(out, n, "NULL");
    else if (st->offset[k])
        snprintf(out, n, "%s + %lld", var_of(x, st->buf[k]), (long long)st->offset[k]);
    else
        snprintf(out, n, "%s", var_of(x, st->buf[k]));
}

/* ---- numbers ---- */

static int power_of(tn_export *x, double base, double t)
{
    for (int i = 0; i < x->n_power; i++)
        if (x->base[i] == base && x->power[i] == pow(base, t)) return i;
    x->base[x->n_power] = base;
    x->power[x->n_power] = pow(base, t);
    return x->n_power++;
}

/* The expression of a kernel's scalar. */
static void scalar(tn_export *x, const struct tn_scalar_ref *r, char *out, size_t n)
{
    const tn_tensor *t = tn_node_at(x->f, r->slot);
    const ex_number *formula = NULL;
    if (r->what == TN_WORD_SEED) {
        snprintf(out, n, "m->seed");
        return;
    }
    if (r->what == TN_WORD_DRAW) {
        snprintf(out, n, "m->draw + %llu", (unsigned long long)(t->attr->draw - x->s->step_draw));
        return;
    }
    const tn_number v = t->base->attr->number;
    if (r->what == TN_WORD_I64) {
        snprintf(out, n, "%lld", (long long)(v.is_int ? v.i : tn_f64_to_i64(v.f)));
        return;
    }
    for (int i = 0; i < x->n_number; i++)
        if (x->number[i].number == t->base) formula = &x->number[i];
    double c = v.f;
    if (!isfinite(c)) {
        snprintf(out, n, "%s(double)%s", c < 0 ? "-" : "", isnan(c) ? "TN_NAN" : "TN_INF");
        return;
    }
    if (!formula || (!formula->rate && formula->base == 0)) {
        tn_snprintf(out, n, "%.17g", c);
        return;
    }
    char factor[80] = "";
    if (formula->base > 0) {
        const int k = power_of(x, formula->base, formula->t);
        c /= pow(1 - x->power[k], formula->exponent);
        if (formula->exponent == -1)
            snprintf(factor, sizeof factor, " / (1 - power%d)", k);
        else if (formula->exponent == -0.5)
            snprintf(factor, sizeof factor, " / tn_sqrt_f64(1 - power%d)", k);
        else
            ex_fail(x, TN_E_UNSUPPORTED, "no text for the exponent %g", formula->exponent);
    }
    tn_snprintf(out, n, "%s%.17g%s", formula->rate ? "m->rate * " : "", c, factor);
}

/* ---- calls ---- */

static void put_fault(tn_export *x, tn_growing *to)
{
    tn_put(to, "    if (fault) return %s;\n", x->returned >= 0 ? "TN_NAN" : "1");
}

static void put_call(tn_export *x, const tn_step *st, const ex_function *fn, tn_growing *to)
{
    char arg[LINE];
    const char *comma = "";
    tn_put(to, "    %s(", fn->name);
    for (int i = 0; i < fn->n; i++) {
        if (fn->param[i].same >= 0) continue;
        operand(x, st, fn->param[i].buf, arg, sizeof arg);
        tn_put(to, "%s%s", comma, arg);
        comma = ", ";
    }
    for (int i = 0; i < fn->n_scalar; i++) {
        scalar(x, &st->scalar[fn->scalar[i]], arg, sizeof arg);
        tn_put(to, "%s%s", comma, arg);
        comma = ", ";
    }
    tn_put(to, fn->faults ? "%s&fault);\n" : ");\n", comma);
    if (fn->faults) put_fault(x, to);
}

static void write_kernel(tn_export *x, const tn_step *st, tn_growing *calls)
{
    char begin[160];
    const char *text = st->source.text;
    for (int i = 0; i < st->n_nodes; i++) { /* those that are in no memory, too */
        const tn_tensor *t = x->f->node.at[x->plan->node_of[st->first_node + i]];
        if (t->dtype != TN_F16 && t->dtype != TN_BF16) continue;
        refuse_dtype(x, t, t->dtype);
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
        ex_put_function(x, st, &fn, name, second ? st->grid.finish_n : st->grid.n);
        put_call(x, st, &fn, calls);
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
static const char *scale_of(const tn_export *x, int slot, char out[EXPORT_NAME + 8])
{
    const ex_place *p = &x->place[slot];
    const bool scaled = p->kind == EX_REGION && x->region[p->index].weights == TN_EXPORT_INT8;
    snprintf(out, EXPORT_NAME + 8, "%s%s", scaled ? x->region[p->index].name : "NULL",
             scaled ? "_scale" : "");
    return out;
}

static void take_room(tn_export *x, int64_t floats)
{
    if ((size_t)floats * sizeof(float) > x->room_bytes) x->room_bytes = (size_t)floats * sizeof(float);
}

static void write_gemm(tn_export *x, const tn_step *st, tn_growing *to)
{
    const tn_gemm *g = &st->gemm;
    char a[LINE], b[LINE], bias[LINE], c[LINE], scale[EXPORT_NAME + 8];
    if (g->dtype != TN_F32) {
        refuse(x, st, "product", g->dtype);
        return;
    }
    operand(x, st, 0, a, sizeof a);
    operand(x, st, 1, b, sizeof b);
    operand(x, st, 2, bias, sizeof bias);
    operand(x, st, 3, c, sizeof c);
    int depth = 1;
    double times = 1;
    for (int i = 0; i < g->batch_ndim; i++) {
        times *= (double)g->batch[i];
        if (g->batch[i] == 1) continue;
        tn_put(to, "%*sfor (int64_t i%d = 0; i%d < %lld; i%d++)\n", 4 * depth++, "", i, i,
               (long long)g->batch[i], i);
        char *text[] = {a, b, c};
        const int64_t by[] = {g->a_batch[i], g->b_batch[i], g->c_batch[i]};
        for (int k = 0; k < 3; k++) {
            const size_t n = strlen(text[k]);
            if (by[k]) snprintf(text[k] + n, sizeof a - n, " + i%d * %lld", i, (long long)by[k]);
        }
    }
    tn_put(to,
           "%*smatmul(%lld, %lld, %lld, %s, %lld, %lld, &%s, %s, %lld, %lld, %s, %s, %d, %s, %lld, room);\n",
           4 * depth, "", (long long)g->m, (long long)g->n, (long long)g->k, a, (long long)g->a_row,
           (long long)g->a_col, ex_pack(x, st->buf[1]), b, (long long)g->b_row, (long long)g->b_col,
           scale_of(x, st->buf[1], scale), bias, g->epilogue == TN_EPI_RELU, c, (long long)g->c_row);
    take_room(x, matmul_room(g->k));
    x->macs += times * (double)g->m * (double)g->n * (double)g->k;
}

/* By Winograd's algorithm: where it can be, there is enough to do, and its room is no burden. */
static bool by_tiles(const tn_export *x, const tn_step *st, int64_t room)
{
    const tn_conv2d_desc *d = &st->conv;
    bool plain = d->kh == 3 && d->kw == 3 && d->groups == 1 && !strcmp(ex_pack(x, st->buf[1]), "pack_f32");
    for (int k = 0; k < 2; k++)
        plain = plain && d->stride[k] == 1 && d->dilation[k] == 1 && d->pad[2 * k] <= 2;
    return plain && d->c % COLUMNS == 0 && d->oc % COLUMNS == 0 && d->n * d->oh * d->ow >= 1024 &&
           (size_t)room * sizeof(float) <= x->plan->arena_bytes / 2;
}

/* The function and how it is called, and the room it takes. */
static const char *conv_function(tn_export *x, const tn_step *st, const char **back)
{
    static const char *const name[] = {[TN_CONV_FORWARD] = "conv2d",
                                       [TN_CONV_DATA_GRAD] = "conv2d_data_grad",
                                       [TN_CONV_WEIGHT_GRAD] = "conv2d_weight_grad"};
    const tn_conv2d_desc *d = &st->conv;
    const int64_t places = d->kh * d->kw, c = d->c / d->groups, oc = d->oc / d->groups;
    const int64_t tiled = conv2d_3x3_room(c, oc);
    if (by_tiles(x, st, tiled)) {
        take_room(x, tiled);
        *back = d->pass == TN_CONV_FORWARD ? "0, " : d->pass == TN_CONV_DATA_GRAD ? "1, " : "";
        return d->pass == TN_CONV_WEIGHT_GRAD ? "conv2d_3x3_weight_grad" : "conv2d_3x3";
    }
    switch (d->pass) {
    case TN_CONV_FORWARD:
        take_room(x, convolve_room(places * c, oc));
        break;
    case TN_CONV_DATA_GRAD:
        take_room(x, convolve_room(places * oc, c));
        break;
    case TN_CONV_WEIGHT_GRAD:
        take_room(x, conv2d_weight_grad_room(d->n * d->oh * d->ow, places * c));
        break;
    }
    return name[d->pass];
}

static void write_conv(tn_export *x, const tn_step *st, tn_growing *to)
{
    const tn_conv2d_desc *d = &st->conv;
    char in0[LINE], in1[LINE], bias[LINE], out[LINE], scale[EXPORT_NAME + 8];
    const char *back = NULL;
    if (d->dtype != TN_F32) {
        refuse(x, st, "convolution", d->dtype);
        return;
    }
    operand(x, st, 0, in0, sizeof in0);
    operand(x, st, 1, in1, sizeof in1);
    operand(x, st, 2, bias, sizeof bias);
    operand(x, st, 3, out, sizeof out);
    const char *name = conv_function(x, st, &back);
    tn_put(to,
           "    %s(&(const convolution){.n = %lld, .h = %lld, .w = %lld, .c = %lld, .oc = %lld, .kh = %lld, "
           ".kw = %lld,\n"
           "        .oh = %lld, .ow = %lld, .groups = %lld, .stride = {%lld, %lld}, .pad = {%lld, %lld}, "
           ".dilation = {%lld, %lld}},\n"
           "        %s%s, ",
           name, (long long)d->n, (long long)d->h, (long long)d->w, (long long)d->c, (long long)d->oc,
           (long long)d->kh, (long long)d->kw, (long long)d->oh, (long long)d->ow, (long long)d->groups,
           (long long)d->stride[0], (long long)d->stride[1], (long long)d->pad[0], (long long)d->pad[2],
           (long long)d->dilation[0], (long long)d->dilation[1], back ? back : "", in0);
    const int relu = d->epilogue == TN_EPI_RELU;
    if (back && d->pass != TN_CONV_WEIGHT_GRAD)
        tn_put(to, "%s, %s, %d", in1, bias, relu);
    else if (d->pass == TN_CONV_FORWARD)
        tn_put(to, "&%s, %s, %s, %s, %d", ex_pack(x, st->buf[1]), in1, scale_of(x, st->buf[1], scale), bias,
               relu);
    else
        tn_put(to, "%s", in1);
    tn_put(to, ", %s, room);\n", out);
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
    for (int i = 0; i < x->n_mark && x->trains; i++)
        if (x->mark[i].out && x->returned < 0 && x->mark[i].dtype == TN_F32 && x->mark[i].count == 1)
            x->returned = i;
    for (int i = 0; i < x->plan->n_step && !x->status; i++) {
        const tn_step *st = &x->plan->step[i];
        if (copies_over(x, st)) ex_fail(x, TN_E_INTERNAL, "an operand of %s lies nowhere", st->name);
        tn_put(&calls, "\n    /* ");
        ex_put_calls(x, st, &calls);
        tn_put(&calls, " */\n");
        switch (st->kind) {
        case TN_STEP_KERNEL:
            write_kernel(x, st, &calls);
            break;
        case TN_STEP_GEMM:
            write_gemm(x, st, &calls);
            break;
        case TN_STEP_CONV:
            write_conv(x, st, &calls);
            break;
        case TN_STEP_RANKS:
            ex_fail(x, TN_E_UNSUPPORTED, "%s is done by several ranks together", st->name);
            break;
        case TN_STEP_HOST:
            ex_fail(x, TN_E_UNSUPPORTED, "%s is a function of the program", st->name);
            break;
        }
        tn_put(&x->table, " *   %-40s %10lld bytes\n", st->name, (long long)st->bytes);
    }
    tn_put(&x->step, "%s", calls.p ? calls.p : "");
    const int failed = calls.failed ? calls.failed : x->kernels.failed ? x->kernels.failed : x->step.failed;
    tn_growing_free(&calls);
    if (failed && !x->status) return ex_fail(x, failed, "the text could not be written");
    x->arena_bytes = (x->plan->arena_bytes + 7) / 8 * 8;
    return x->status ? x->s->graph.error.status : TN_OK;
}
