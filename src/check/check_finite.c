/* check_finite.c - checked mode's look for numbers that are not finite: where the first came from, and
 * whether the loss is one, which is the error TN_E_NONFINITE before anything that comes after it has run.
 *
 * Each slot of the plan that runs has a grade: 0 all finite, 1 there are infinities, 2 there are NaN. Leaves
 * are graded before the first kernel, results as their kernel has run. A kernel whose results are graded
 * higher than everything it read is where such numbers come from; the first of each grade in a step is
 * remembered in words. An infinity alone says little, as masks are made of them, so nothing is said before
 * the loss is asked.
 *
 * Start with tn_finite_after. */
#include <math.h>
#include <string.h>

#include "../core/convert.h"
#include "check.h"

enum { FINITE, INFINITE, NOT_A_NUMBER };

static int grade_of(const tn_session *s, const tn_tensor *t, const char *data, const int64_t *stride)
{
    tn_dtype d = t->dtype;
    int64_t at[TN_MAX_DIMS] = {0};
    int worst = FINITE;
    if (!data || !tn_dtype_is_float(d) || !s->device->shares_host_memory) return FINITE;
    for (int64_t k = 0, n = tn_node_numel(t); k < n && worst < NOT_A_NUMBER; k++) {
        int64_t from = 0;
        for (int i = 0; i < t->ndim; i++) from += at[i] * stride[i];
        double v = tn_load_f64(data + from * (int64_t)tn_dtype_size(d), d, 0);
        worst = isnan(v) ? NOT_A_NUMBER : isinf(v) ? INFINITE : worst;
        for (int i = t->ndim - 1; i >= 0 && ++at[i] == t->shape[i]; i--) at[i] = 0;
    }
    return worst;
}

static int writers(const tn_plan *p, int slot)
{
    int n = 0;
    TN_EACH(st, p->step, p->n_step)
        for (int b = st->n_buf - st->n_out; b < st->n_buf; b++) n += st->buf[b] == slot;
    return n;
}

/* What step st has written to its buffer b: all of the value, but of a joined one that several steps write the
 * operand that goes where this one's begins. The rest is not there yet, or not any more. */
static int grade_of_result(const tn_session *s, const tn_flush_scratch *f, const tn_plan *p,
                           const tn_step *st, int b)
{
    const int slot = st->buf[b];
    const tn_tensor *t = f->node.at[slot], *to = tn_node_written(t), *part = t;
    const char *data = f->address[slot];
    int64_t dense[TN_MAX_DIMS], at = st->offset[b];
    tn_dense_strides(t->ndim, t->shape, dense);
    if (t->op != TN_OP_concat || to || writers(p, slot) < 2)
        return grade_of(s, t, data, to ? to->stride : dense);
    for (int i = 0; i < t->n_in && part == t; at -= t->in[i++]->shape[t->attr->axis] * dense[t->attr->axis])
        if (!at && tn_node_numel(t->in[i])) part = t->in[i];
    return part == t ? FINITE
                     : grade_of(s, part, data + st->offset[b] * (int64_t)tn_dtype_size(t->dtype), dense);
}

static void remember_leaf(tn_session *s, int grade, const tn_tensor *t)
{
    char *origin = s->explain->origin[grade];
    if (!*origin)
        snprintf(origin, sizeof s->explain->origin[0], "%s, which was there before, holds such already",
                 TN_TENSOR_TEXT(t));
}

/* The calls that a kernel does the work of: "log at train.c:41, mean at train.c:42". */
static void remember_kernel(tn_session *s, int grade, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    char *origin = s->explain->origin[grade];
    const size_t size = sizeof s->explain->origin[0];
    const tn_step *st = &p->step[step];
    const tn_call *last = NULL;
    if (*origin) return;
    size_t n = (size_t)snprintf(origin, size, "the first such value came out of");
    for (int i = 0; i < st->n_nodes && n < size; i++) {
        const tn_call *c = f->node.at[p->node_of[st->first_node + i]]->call;
        if (!c || c == last) continue;
        const tn_call *named = c->of ? c->of : c;
        n += (size_t)snprintf(origin + n, size - n, "%s %s%s", last ? "," : "", named->name,
                              c->of ? " backward" : "");
        if (named->file && n < size)
            n += (size_t)snprintf(origin + n, size - n, " at %s:%d", tn_short_file(named->file), named->line);
        last = c;
    }
}

int tn_finite_begin(tn_session *s, const tn_flush_scratch *f)
{
    tn_explain_state *x = s->explain;
    int n = f->node.n + f->leaf.n;
    if (!tn_reserve(&x->grade, &x->cap_grade, n + 1, sizeof *x->grade)) return tn_fail_memory(s);
    memset(x->grade, FINITE, (size_t)n);
    for (int i = 0; i < f->leaf.n; i++) {
        const tn_tensor *t = f->leaf.at[i];
        bool number = tn_is_number(t);
        int grade = number ? FINITE : grade_of(s, t, tn_node_data(t), t->stride);
        x->grade[f->node.n + i] = (uint8_t)grade;
        for (int k = INFINITE; k <= grade; k++) remember_leaf(s, k, t);
    }
    return TN_OK;
}

static int loss_error(tn_session *s, const tn_tensor *loss, double v)
{
    const char *origin = s->explain->origin[isnan(v) ? NOT_A_NUMBER : INFINITE];
    return tn_error_of(&s->graph, loss->call, TN_E_NONFINITE, "the loss is %g%s%s", v, *origin ? "; " : "",
                       origin);
}

int tn_finite_after(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    tn_explain_state *x = s->explain;
    const tn_step *st = &p->step[step];
    int read = FINITE, n = f->node.n + f->leaf.n;
    for (int b = 0; b < st->n_buf - st->n_out; b++)
        if (st->buf[b] >= 0 && st->buf[b] < n && x->grade[st->buf[b]] > read) read = x->grade[st->buf[b]];
    for (int b = st->n_buf - st->n_out; b < st->n_buf; b++) {
        int slot = st->buf[b];
        if (slot < 0 || slot >= f->node.n) continue;
        const int grade = grade_of_result(s, f, p, st, b);
        if (grade > x->grade[slot]) x->grade[slot] = (uint8_t)grade;
        for (int k = read + 1; k <= grade; k++) remember_kernel(s, k, f, p, step);
    }
    for (int b = st->n_buf - st->n_out; b < st->n_buf; b++) {
        int slot = st->buf[b];
        if (slot < 0 || slot >= f->node.n || !(f->node.at[slot]->flags & TN_F_LOSS)) continue;
        const tn_tensor *t = f->node.at[slot];
        double raw = 0, v;
        if (s->device->download(s->device, &raw, f->address[slot], tn_dtype_size(t->dtype))) continue;
        v = tn_load_f64(&raw, t->dtype, 0);
        if (!isfinite(v)) return loss_error(s, t, v);
    }
    return TN_OK;
}

int tn_finite_loss(tn_session *s, tn_tensor *loss)
{
    tn_tensor *b = loss->base;
    if (!s->explain->check || tn_node_numel(b) != 1) return TN_OK;
    if (!tn_has_value(b)) {
        b->flags |= TN_F_LOSS;
        loss->flags |= TN_F_WATCHED; /* so that it is stored whatever else becomes of it */
        return TN_OK;
    }
    double raw = 0;
    tn_dtype stored = tn_stored_dtype(&s->graph, b->dtype);
    if (s->device->download(s->device, &raw, tn_node_data(b), tn_dtype_size(stored))) return TN_OK;
    double v = tn_load_f64(&raw, stored, 0);
    return isfinite(v) ? TN_OK : loss_error(s, b, v);
}
