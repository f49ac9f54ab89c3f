/* optim.c - making an optimizer, parameter groups, learning rates.
 *
 * An optimizer is a list of entries, one per parameter: lr factor, weight decay, number of updates; and the
 * row of its method (optimizers.c). What it keeps from step to step is optim_state.c, the update
 * optim_step.c. Read tn_nn_optim_new first. */
#include "optim.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *tn_nn_state_name(const tn_optim *o, int which)
{
    return which == NN_SUM ? "gradient_sum" : o->method->state[which];
}

static void destroy(void *p)
{
    tn_optim *o = p;
    for (int i = 0; i < NN_ROWS; i++) tn_nn_row_free(&o->rows[i], false);
    tn_free_mem(o->entries);
    tn_free_mem(o->before[0].entry);
}

tn_params tn_all_params(tn_session *s)
{
    (void)s;
    return (tn_params){-1, NULL};
}

/* ---- making one ---- */

bool tn_nn_bad_number(double x) { return !(x - x == 0) || x < 0; }

/* Finds the entry's place in the slab. */
static int place(tn_optim *o, nn_optim_entry *e, int i)
{
    tn_session *s = o->s;
    const char *op = o->method->name;
    if (!e->param) return tn_fail(s, TN_E_NULL, op, "parameter %d is NULL", i);
    if (!tn_session_of(e->param))
        return tn_fail(
            s, TN_E_STALE, op,
            "parameter %d is a tensor that is no more: what was given to tn_param goes, and what it "
            "returns is the parameter",
            i);
    const char *name = tn_name(e->param);
    if (tn_session_of(e->param) != s)
        return tn_fail(s, TN_E_SESSION, op,
                       "parameter %d, '%.64s', belongs to another session: each has its own optimizers, and "
                       "tn_all_params(s) are all of its own",
                       i, name);
    if (tn_param_segment(e->param, &e->first, &e->count))
        return tn_fail(s, TN_E_ARG, op, "tensor %d, '%.64s', is not a parameter: tn_param makes one of it", i,
                       name);
    e->row = tn_dtype_of(e->param) == o->rows[1].dtype;
    return TN_OK;
}

static int by_place(const void *a, const void *b)
{
    const nn_optim_entry *x = *(nn_optim_entry *const *)a, *y = *(nn_optim_entry *const *)b;
    if (x->row != y->row) return x->row - y->row;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count); /* an empty one begins where the next does */
}

/* A parameter that is listed twice would be updated once: say so. */
static int find_doubles(tn_optim *o)
{
    const nn_optim_entry **sorted = tn_malloc((size_t)o->n * sizeof(*sorted));
    int status = TN_OK;
    if (!sorted) return tn_fail(o->s, TN_E_NOMEM, o->method->name, "no memory for %d parameters", o->n);
    for (int i = 0; i < o->n; i++) sorted[i] = &o->entries[i];
    qsort(sorted, (size_t)o->n, sizeof(*sorted), by_place);
    for (int i = 1; i < o->n && !status; i++)
        if (sorted[i]->count && !by_place(&sorted[i - 1], &sorted[i]))
            status =
                tn_fail(o->s, TN_E_ARG, o->method->name, "'%s' is listed twice", tn_name(sorted[i]->param));
    tn_free_mem(sorted);
    return status;
}

static int fill(tn_optim *o, tn_params params, double weight_decay)
{
    int status = TN_OK;
    struct nn_count *counts = o->before[0].entry = tn_calloc((size_t)o->n, NN_LATE * sizeof(*counts));
    for (int k = 0; counts && k < NN_LATE; k++) o->before[k].entry = counts + (size_t)k * (size_t)o->n;
    if (!counts || !(o->entries = tn_calloc((size_t)o->n, sizeof(*o->entries))))
        return tn_fail(o->s, TN_E_NOMEM, o->method->name, "no memory for %d parameters", o->n);
    for (int i = 0; i < o->n && !status; i++) {
        nn_optim_entry *e = &o->entries[i];
        e->param = params.n < 0 ? tn_param_at(o->s, i) : params.list[i];
        e->lr_factor = 1;
        e->weight_decay = weight_decay;
        e->part = -1;
        status = place(o, e, i);
    }
    return status ? status : find_doubles(o);
}

tn_optim *tn_nn_optim_new(tn_session *s, const nn_method *method, tn_params params, double lr,
                          double weight_decay, int accumulate, bool shard, const double *number)
{
    const char *op = method->name;
    int n = params.n < 0 ? tn_param_count(s) : params.n;
    if (tn_error(s)) return NULL;
    if (tn_nn_bad_number(lr) || tn_nn_bad_number(weight_decay) || accumulate < 0)
        return tn_nn_fail(s, TN_E_ARG, op,
                          "lr %g, weight_decay %g and accumulate %d must be finite and not below 0", lr,
                          weight_decay, accumulate);
    if (n < 1 || (params.n >= 0 && !params.list))
        return tn_nn_fail(s, TN_E_ARG, op, "%s",
                          params.n < 0 ? "the session has no parameters yet: make the layers first"
                                       : "there are no parameters to optimize: the list is empty");
    tn_optim *o = tn_nn_own(s, sizeof(*o), destroy, op);
    if (!o) return NULL;
    o->s = s;
    o->method = method;
    o->n = n;
    o->lr = lr != 0 ? lr : 1e-3;
    o->accumulate = accumulate ? accumulate : 1;
    o->shard = shard;
    memcpy(o->number, number, sizeof(o->number));
    o->rows[0].dtype = TN_F32;
    o->rows[1].dtype = TN_F64;
    if (fill(o, params, weight_decay)) {
        tn_nn_drop(s, o);
        return NULL;
    }
    nn_state *st = tn_nn_state(s);
    tn_nn_scale_begin(s, st);
    *st->last_optim = o;
    st->last_optim = &o->next;
    return o;
}

TN_DEFINE(int, optim_group_with, o ? o->s : NULL, (o, pattern, options), tn_optim *o, const char *pattern,
          const tn_group_options *options)
{
    NN_OPTIONS(tn_group_options, g, options);
    static const char op[] = "optim_group";
    int matched = 0;
    if (!o) return TN_E_NULL;
    if (!pattern && !g->match) return tn_fail(o->s, TN_E_NULL, op, "neither a pattern nor .match is given");
    if (tn_nn_bad_number(g->lr_factor) || tn_nn_bad_number(g->weight_decay))
        return tn_fail(o->s, TN_E_ARG, op, "lr_factor %g and weight_decay %g must be finite and not below 0",
                       g->lr_factor, g->weight_decay);
    for (int i = 0; i < o->n; i++) {
        nn_optim_entry *e = &o->entries[i];
        if (g->match ? !g->match(e->param, g->user) : fnmatch(pattern, tn_name(e->param), 0)) continue;
        e->lr_factor = g->lr_factor != 0 ? g->lr_factor : 1;
        e->weight_decay = g->weight_decay;
        matched++;
    }
    if (!matched)
        return tn_fail(o->s, TN_E_ARG, op, "no parameter matches '%s'", pattern ? pattern : ".match");
    return matched;
}

TN_DEFINE(int, freeze, s, (s, pattern, frozen), tn_session *s, const char *pattern, bool frozen)
{
    int matched = 0, status = TN_OK;
    if (!s) return TN_E_NULL;
    if (!pattern) return tn_fail(s, TN_E_NULL, "freeze", "pattern is NULL");
    for (int i = 0; i < tn_param_count(s) && !status; i++) {
        if (fnmatch(pattern, tn_name(tn_param_at(s, i)), 0)) continue;
        status = tn_requires_grad(tn_param_at(s, i), !frozen);
        matched++;
    }
    if (!matched) return tn_fail(s, TN_E_ARG, "freeze", "no parameter matches '%s'", pattern);
    return status ? status : matched;
}

TN_DEFINE(int, optim_set_lr, o ? o->s : NULL, (o, lr), tn_optim *o, double lr)
{
    if (!o) return TN_E_NULL;
    if (tn_nn_bad_number(lr))
        return tn_fail(o->s, TN_E_ARG, "optim_set_lr", "lr %g must be finite and not below 0", lr);
    o->lr = lr;
    return TN_OK;
}

double tn_optim_lr(const tn_optim *o) { return o ? o->lr : NAN; }
