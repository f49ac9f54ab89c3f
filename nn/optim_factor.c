/* optim_factor.c - what may differ from parameter to parameter in an update: a number where all agree, else a
 * column [blocks, 1] that broadcasts along the row's blocks. Start with tn_nn_factor. */
#include "optim.h"

#include <tensor_export.h>

#include <string.h>

bool tn_nn_is_due(const nn_optim_entry *e) { return e->fresh || e->summed; }

_Static_assert((int)NN_SPREADS == (int)NN_RATE, "a row keeps the columns of what comes before");

static double value_of(const tn_optim *o, const nn_optim_entry *e, nn_quantity q)
{
    const double t = (double)e->steps + 1;
    switch (q) {
    case NN_LR_FACTOR: return e->lr_factor;
    case NN_DECAY: return e->weight_decay;
    case NN_RATE: return o->method->rate ? o->method->rate(o->number, t) : 1;
    case NN_GAIN: return o->method->gain ? o->method->gain(o->number, t) : 1;
    case NN_FRESH: return e->fresh;
    case NN_DUE: return tn_nn_is_due(e);
    }
    return 0;
}

/* A column of the row's own blocks, NN_FRESH of all: each entry's value in its blocks. Lives as long as the
 * step, or the open operator. */
static tn_tensor *make_column(const tn_optim *o, const nn_row *r, nn_quantity q)
{
    const int64_t first = r->first + (q == NN_FRESH ? 0 : r->own_first),
                  n = q == NN_FRESH ? r->blocks : r->own;
    const bool test = q == NN_FRESH || q == NN_DUE;
    const tn_dtype d = test ? TN_BOOL : r->dtype;
    const size_t size = tn_dtype_size(d);
    unsigned char *host = tn_calloc((size_t)n, size);
    if (!host)
        return tn_nn_fail(o->s, TN_E_NOMEM, o->method->name, "no memory for %lld blocks", (long long)n);
    for (int i = 0; i < o->n; i++) {
        const nn_optim_entry *e = &o->entries[i];
        int64_t b = e->first / NN_BLOCK - first, end = b + tn_nn_blocks(e);
        if (!tn_nn_has(r, e)) continue;
        if (b < 0) b = 0;
        if (end > n) end = n;
        double v = value_of(o, e, q);
        for (; b < end; b++)
            if (test)
                host[b] = v != 0;
            else if (d == TN_F64)
                memcpy(host + (size_t)b * size, &v, size);
            else
                memcpy(host + (size_t)b * size, &(float){(float)v}, size);
    }
    tn_tensor *column = tn_from(o->s, host, d, 2, (const int64_t[]){n, 1});
    tn_free_mem(host);
    return column;
}

/* The same, but a quantity that seldom changes is kept until one of its numbers does. */
tn_tensor *tn_nn_column(const tn_optim *o, nn_row *r, nn_quantity q)
{
    if (q >= NN_RATE) return make_column(o, r, q);
    nn_spread *c = &r->spread[q];
    bool same = c->vector != NULL;
    for (int i = 0; i < o->n && same; i++) same = c->value[i] == value_of(o, &o->entries[i], q);
    if (same) return c->vector;
    if (!c->value && !(c->value = tn_malloc((size_t)o->n * sizeof(*c->value))))
        return tn_nn_fail(o->s, TN_E_NOMEM, o->method->name, "no memory for %d numbers", o->n);
    tn_free(c->vector);
    tn_tensor *made = make_column(o, r, q);
    c->vector = tn_keep(made);
    tn_free(made);
    for (int i = 0; i < o->n; i++) c->value[i] = value_of(o, &o->entries[i], q);
    return c->vector;
}

/* Returns true where all parameters of the row that are due have the same value of q, which becomes
 * *value. */
static bool agree(const tn_optim *o, const nn_row *r, nn_quantity q, double *value)
{
    /* Where q depends on the number of updates alone, it is enough to compare these numbers. */
    bool counts = (q == NN_RATE && o->method->rate) || (q == NN_GAIN && o->method->gain);
    const nn_optim_entry *first = NULL;
    for (int i = 0; i < o->n; i++) {
        const nn_optim_entry *e = &o->entries[i];
        if (!tn_nn_has(r, e) || !tn_nn_is_due(e)) continue;
        if (!first) first = e;
        if (counts ? e->steps != first->steps : value_of(o, e, q) != value_of(o, first, q)) return false;
    }
    if (first) *value = value_of(o, first, q);
    return first;
}

/* Blocks of the row's parameters of which `fresh` (or due) holds. */
int64_t tn_nn_blocks_with(const tn_optim *o, const nn_row *r, nn_quantity q)
{
    int64_t n = 0;
    for (int i = 0; i < o->n; i++) {
        const nn_optim_entry *e = &o->entries[i];
        if (tn_nn_has(r, e) && value_of(o, e, q) != 0) n += tn_nn_blocks(e);
    }
    return n;
}

nn_factor tn_nn_factor(tn_optim *o, nn_row *r, double number, int n, const nn_quantity *q)
{
    nn_factor f = {.number = number};
    for (int i = 0; i < n; i++) {
        double v = 0;
        if (agree(o, r->whole ? r->whole : r, q[i], &v))
            f.number *= v;
        else if (agree(o, r, q[i], &v))
            f.alike[f.columns++] = v;
        else if ((f.column[f.columns] = tn_nn_column(o, r, q[i]))) {
            f.columns++;
            f.counts = f.counts || q[i] >= NN_RATE;
        } else
            f.failed = true;
    }
    return f;
}

tn_tensor *tn_nn_scaled_by(tn_tensor *x, const nn_factor *f)
{
    if (f->failed) return NULL;
    for (int i = 0; i < f->columns; i++)
        x = f->column[i] ? tn_mul(x, f->column[i]) : tn_mul_scalar(x, tn_number_f(f->alike[i]));
    x = tn_mul_scalar(x, tn_number_f(f->number));
    tn_export_number(x, f->rate, f->base, f->exponent, f->t);
    return x;
}

bool tn_nn_is_zero(const nn_factor *f) { return !f->columns && !f->failed && f->number == 0; }

/* For an export: how the factor's number depends on the count of updates. */
void tn_nn_say_how(const tn_optim *o, nn_factor *f, bool varies, nn_unbias as)
{
    if (varies && (as.exponent == 0 || f->counts))
        tn_export_refuse(o->s, o->method->name,
                         f->counts ? "its parameters have had different numbers of updates"
                                   : "its numbers depend on the count of updates in a way that has no text");
    f->base = varies ? o->number[as.number] : 0;
    f->exponent = as.exponent;
    for (int i = 0; i < o->n; i++)
        if (tn_nn_is_due(&o->entries[i])) f->t = (double)o->entries[i].steps + 1;
}
