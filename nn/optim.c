/* optim.c - SGD, Adam and AdamW: making them, parameter groups, learning rates.
 *
 * The formulas are PyTorch's single-tensor ones (torch/optim/sgd.py, adam.py, adamw.py); they stand in
 * <tensor_nn.h>. An optimizer is a list of entries, one per parameter: lr factor, weight decay, number of
 * updates. What it keeps from step to step is optim_state.c, the update optim_step.c. Read create first.
 */
#include "nn.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *tn_nn_method_name(nn_method m)
{
    return m == NN_SGD ? "sgd" : m == NN_ADAM ? "adam" : "adamw";
}

const char *tn_nn_state_name(nn_method m, int which)
{
    static const char *const adam[NN_STATES] = {"exp_avg", "exp_avg_sq", "gradient_sum"};
    static const char *const sgd[NN_STATES] = {"momentum_buffer", NULL, "gradient_sum"};
    return m == NN_SGD ? sgd[which] : adam[which];
}

void tn_nn_optims_destroy(tn_optim *first)
{
    while (first) {
        tn_optim *o = first;
        first = o->next;
        for (int i = 0; i < NN_ROWS; i++) tn_nn_row_free(&o->rows[i], false);
        tn_free_mem(o->entries);
        tn_free_mem(o);
    }
}

tn_params tn_all_params(tn_session *s)
{
    (void)s;
    return (tn_params){-1, NULL};
}

/* ---- making one ---- */

static bool bad_number(double x)
{
    return !(x - x == 0) || x < 0;
}

/* Finds the entry's place in the slab. */
static int place(tn_optim *o, nn_optim_entry *e, const char *op, int i, const char *file, int line)
{
    tn_session *s = o->s;
    if (!file) file = "?";
    if (!e->param) return tn_nn_fail(s, TN_E_NULL, op, file, line, "parameter %d is NULL", i);
    if (!tn_session_of(e->param))
        return tn_nn_fail(
            s, TN_E_STALE, op, file, line,
            "parameter %d is a tensor that is no more: what was given to tn_param goes, and what it "
            "returns is the parameter",
            i);
    const char *name = tn_name(e->param);
    if (tn_session_of(e->param) != s)
        return tn_nn_fail(
            s, TN_E_SESSION, op, file, line,
            "parameter %d, '%.64s', belongs to another session: each has its own optimizers, and "
            "tn_all_params(s) are all of its own",
            i, name);
    if (tn_param_segment(e->param, &e->first, &e->count))
        return tn_nn_fail(s, TN_E_ARG, op, file, line,
                          "tensor %d, '%.64s', is not a parameter: tn_param makes one of it", i, name);
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
static int find_doubles(tn_optim *o, const char *op, const char *file, int line)
{
    const nn_optim_entry **sorted = tn_malloc((size_t)o->n * sizeof(*sorted));
    int status = TN_OK;
    if (!sorted) return tn_fail(o->s, TN_E_NOMEM, op, "no memory for %d parameters", o->n);
    for (int i = 0; i < o->n; i++) sorted[i] = &o->entries[i];
    qsort(sorted, (size_t)o->n, sizeof(*sorted), by_place);
    for (int i = 1; i < o->n && !status; i++)
        if (sorted[i]->count && !by_place(&sorted[i - 1], &sorted[i]))
            status =
                tn_nn_fail(o->s, TN_E_ARG, op, file, line, "'%s' is listed twice", tn_name(sorted[i]->param));
    tn_free_mem(sorted);
    return status;
}

static tn_optim *create(tn_session *s, const char *op, tn_params params, const tn_optim *model,
                        double weight_decay, const char *file, int line)
{
    nn_state *st = tn_nn_state(s);
    int n = params.n < 0 ? tn_param_count(s) : params.n;
    if (!st || tn_error(s)) return NULL;
    if (bad_number(model->lr) || bad_number(weight_decay) || bad_number(model->eps) ||
        bad_number(model->momentum) || model->accumulate < 0) {
        tn_nn_fail(
            s, TN_E_ARG, op, file, line,
            "lr %g, weight_decay %g, eps %g, momentum %g and accumulate %d must be finite and not below "
            "0",
            model->lr, weight_decay, model->eps, model->momentum, model->accumulate);
        return NULL;
    }
    if (n < 1 || (params.n >= 0 && !params.list)) {
        tn_nn_fail(s, TN_E_ARG, op, file, line,
                   params.n < 0 ? "the session has no parameters yet: make the layers first"
                                : "there are no parameters to optimize: the list is empty");
        return NULL;
    }
    tn_optim *o = tn_malloc(sizeof(*o));
    nn_optim_entry *entries = tn_calloc((size_t)n, sizeof(*entries));
    if (!o || !entries) {
        tn_free_mem(o);
        tn_free_mem(entries);
        tn_fail(s, TN_E_NOMEM, op, "no memory for %d parameters", n);
        return NULL;
    }
    *o = *model;
    o->s = s;
    o->n = n;
    o->entries = entries;
    o->rows[0].dtype = TN_F32;
    o->rows[1].dtype = TN_F64;
    if (!o->accumulate) o->accumulate = 1;
    int status = TN_OK;
    for (int i = 0; i < n && !status; i++) {
        nn_optim_entry *e = &entries[i];
        e->param = params.n < 0 ? tn_param_at(s, i) : params.list[i];
        e->lr_factor = 1;
        e->weight_decay = weight_decay;
        status = place(o, e, op, i, file, line);
    }
    if (status || find_doubles(o, op, file, line)) {
        tn_free_mem(o);
        tn_free_mem(entries);
        return NULL;
    }
    *st->last_optim = o; /* from here on the session owns it */
    st->last_optim = &o->next;
    return o;
}

tn_optim *tn_sgd_at(tn_session *s, tn_params params, const tn_sgd_options *options, const char *file,
                    int line)
{
    const tn_sgd_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    if (!s) return NULL;
    if (o->nesterov && (!(o->momentum > 0) || o->dampening != 0)) {
        tn_nn_fail(s, TN_E_ARG, "sgd", file, line, "nesterov needs momentum > 0 and no dampening");
        return NULL;
    }
    const tn_optim model = {.method = NN_SGD,
                            .lr = o->lr != 0 ? o->lr : 1e-3,
                            .momentum = o->momentum,
                            .dampening = o->dampening,
                            .nesterov = o->nesterov,
                            .accumulate = o->accumulate};
    return create(s, "sgd", params, &model, o->weight_decay, file, line);
}

static tn_optim *adam(tn_session *s, const char *op, nn_method method, tn_params params,
                      const tn_adam_options *options, const char *file, int line)
{
    const tn_adam_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    if (!s) return NULL;
    tn_optim model = {.method = method,
                      .lr = o->lr != 0 ? o->lr : 1e-3,
                      .eps = o->eps != 0 ? o->eps : 1e-8,
                      .beta1 = o->beta1 != 0 ? o->beta1 : 0.9,
                      .beta2 = o->beta2 != 0 ? o->beta2 : 0.999,
                      .accumulate = o->accumulate};
    if (model.beta1 < 0) model.beta1 = 0;
    if (model.beta2 < 0) model.beta2 = 0;
    if (!(model.beta1 < 1 && model.beta2 < 1)) {
        tn_nn_fail(s, TN_E_ARG, op, file, line, "beta1 %g and beta2 %g must be below 1", model.beta1,
                   model.beta2);
        return NULL;
    }
    return create(s, op, params, &model, o->weight_decay, file, line);
}

tn_optim *tn_adam_at(tn_session *s, tn_params params, const tn_adam_options *o, const char *file, int line)
{
    return adam(s, "adam", NN_ADAM, params, o, file, line);
}

tn_optim *tn_adamw_at(tn_session *s, tn_params params, const tn_adam_options *o, const char *file, int line)
{
    return adam(s, "adamw", NN_ADAMW, params, o, file, line);
}

tn_optim *tn_sgd(tn_session *s, tn_params p, const tn_sgd_options *o)
{
    return tn_sgd_at(s, p, o, NULL, 0);
}
tn_optim *tn_adam(tn_session *s, tn_params p, const tn_adam_options *o)
{
    return tn_adam_at(s, p, o, NULL, 0);
}
tn_optim *tn_adamw(tn_session *s, tn_params p, const tn_adam_options *o)
{
    return tn_adamw_at(s, p, o, NULL, 0);
}

int tn_optim_group_with(tn_optim *o, const char *pattern, const tn_group_options *options)
{
    const tn_group_options none = {.size = sizeof(none)}, *g = options ? options : &none;
    static const char op[] = "optim_group";
    int matched = 0;
    if (!o) return TN_E_NULL;
    if (!pattern && !g->match) return tn_fail(o->s, TN_E_NULL, op, "neither a pattern nor .match is given");
    if (bad_number(g->lr_factor) || bad_number(g->weight_decay))
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

TN_PLACED(int, optim_group_with, o ? o->s : NULL, (o, pattern, options), tn_optim *o, const char *pattern,
          const tn_group_options *options)

int tn_optim_set_lr(tn_optim *o, double lr)
{
    if (!o) return TN_E_NULL;
    if (bad_number(lr))
        return tn_fail(o->s, TN_E_ARG, "optim_set_lr", "lr %g must be finite and not below 0", lr);
    o->lr = lr;
    return TN_OK;
}

TN_PLACED(int, optim_set_lr, o ? o->s : NULL, (o, lr), tn_optim *o, double lr)

double tn_optim_lr(const tn_optim *o)
{
    return o ? o->lr : NAN;
}
