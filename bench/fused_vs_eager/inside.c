/* inside.c - a look into a session's last plan, for benchmarks. Start with last_plan. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"
#include "src/runtime/flush.h"

void inside_stream(tn_session *s, bool stream)
{
    if (s->device->shares_host_memory) s->target.last_bytes = stream ? 1 : INT64_MAX;
}

/* The record of the last flush is still there: the cache knows its plan. */
static tn_plan *last_plan(const tn_session *s)
{
    const tn_flush_scratch *f = s->scratch;
    return f && f->n_key ? tn_plan_cache_find(s->plans, f->key, f->n_key, NULL, NULL) : NULL;
}

static int step_of(const tn_plan *p, int node)
{
    for (int i = 0; i < p->n_step; i++)
        for (int k = 0; k < p->step[i].n_nodes; k++)
            if (p->node_of[p->step[i].first_node + k] == node) return i;
    return -1;
}

void inside_print_plan(const tn_session *s, FILE *out)
{
    const tn_plan *p = last_plan(s);
    if (!p) return;
    for (int i = 0; i < p->n_step; i++) {
        const tn_step *st = &p->step[i];
        bool stream = st->kind == TN_STEP_KERNEL && strstr(st->source.text, "streaming stores");
        fprintf(out, "    %2d %-40s %9.3f MB %8.3f ms predicted, reads %d, writes %d%s\n", i, st->name,
                (double)st->bytes * 1e-6, st->predicted_ms, st->n_buf - st->n_out, st->n_out,
                stream ? ", streams" : "");
    }
    for (int i = 0; i < p->n_cut; i++) {
        int from = step_of(p, p->cut[i].from), to = step_of(p, p->cut[i].to);
        if (from == to) continue;
        bool told = false;
        for (int k = 0; k < i && !told; k++)
            told = p->cut[k].reason == p->cut[i].reason && step_of(p, p->cut[k].from) == from &&
                   step_of(p, p->cut[k].to) == to;
        if (!told) fprintf(out, "    %2d | %d: %s\n", from, to, tn_cut_text(p->cut[i].reason));
    }
}

double inside_kernel_bytes(const tn_session *s)
{
    const tn_plan *p = last_plan(s);
    double bytes = 0;
    for (int i = 0; p && i < p->n_step; i++)
        if (p->step[i].kind == TN_STEP_KERNEL) bytes += (double)p->step[i].bytes;
    return bytes;
}

double inside_predicted_ms(const tn_session *s)
{
    const tn_plan *p = last_plan(s);
    return p ? p->predicted_ms : 0;
}

/* ---- library calls ---- */

/* Elements from the first to the last of a matrix, all batches. */
static int64_t reach(const tn_gemm *g, int64_t rows, int64_t row, int64_t cols, int64_t col,
                     const int64_t *batch)
{
    int64_t last = (rows - 1) * row + (cols - 1) * col;
    for (int i = 0; i < g->batch_ndim; i++) last += (g->batch[i] - 1) * batch[i];
    return last + 1;
}

/* Bytes of the step's operands: in, in, bias, out. */
static void operand_bytes(const tn_step *st, size_t *bytes)
{
    if (st->kind == TN_STEP_GEMM) {
        const tn_gemm *g = &st->gemm;
        size_t e = tn_dtype_size(g->dtype);
        bytes[0] = (size_t)reach(g, g->m, g->a_row, g->k, g->a_col, g->a_batch) * e;
        bytes[1] = (size_t)reach(g, g->k, g->b_row, g->n, g->b_col, g->b_batch) * e;
        bytes[2] = (size_t)g->n * e;
        bytes[3] = (size_t)reach(g, g->m, g->c_row, g->n, 1, g->c_batch) * e;
    } else {
        const tn_conv2d_desc *c = &st->conv;
        size_t e = tn_dtype_size(c->dtype), x = (size_t)(c->n * c->h * c->w * c->c) * e;
        size_t y = (size_t)(c->n * c->oh * c->ow * c->oc) * e;
        size_t w = (size_t)(c->oc * c->kh * c->kw * (c->c / c->groups)) * e;
        bytes[0] = c->pass == TN_CONV_DATA_GRAD ? y : x;
        bytes[1] = c->pass == TN_CONV_WEIGHT_GRAD ? y : w;
        bytes[2] = (size_t)c->oc * e;
        bytes[3] = c->pass == TN_CONV_FORWARD ? y : c->pass == TN_CONV_DATA_GRAD ? x : w;
    }
    for (int i = 0; i < 4; i++) bytes[i] = (bytes[i] + 255) & ~(size_t)255;
}

static int call(tn_device *d, const tn_step *st, char *at)
{
    tn_errbuf err = {""};
    size_t bytes[4];
    operand_bytes(st, bytes);
    char *a = at, *b = a + bytes[0], *bias = b + bytes[1], *out = bias + bytes[2];
    if (st->kind == TN_STEP_GEMM) {
        tn_gemm g = st->gemm;
        g.a = a;
        g.b = b;
        g.bias = g.bias ? bias : NULL;
        g.c = out;
        g.then = NULL;
        return d->gemm(d, &g, &err);
    }
    tn_conv2d_desc c = st->conv;
    c.in0 = a;
    c.in1 = b;
    c.bias = c.bias ? bias : NULL;
    c.out = out;
    return d->conv2d(d, &c, &err);
}

int inside_library_calls(tn_session *s, void **room)
{
    const tn_plan *p = last_plan(s);
    size_t all = 256, bytes[4];
    for (int i = 0; p && i < p->n_step; i++) {
        if (p->step[i].kind == TN_STEP_KERNEL) continue;
        operand_bytes(&p->step[i], bytes);
        all += bytes[0] + bytes[1] + bytes[2] + bytes[3];
    }
    if (!p) return -1;
    if (!*room) { /* zeros: what the values are makes no difference to the time, denormals apart */
        if (!(*room = aligned_alloc(256, all))) return -1;
        memset(*room, 0, all);
    }
    char *at = *room;
    for (int i = 0; i < p->n_step; i++) {
        if (p->step[i].kind == TN_STEP_KERNEL) continue;
        if (call(s->device, &p->step[i], at)) return -1;
        operand_bytes(&p->step[i], bytes);
        at += bytes[0] + bytes[1] + bytes[2] + bytes[3];
    }
    return 0;
}
