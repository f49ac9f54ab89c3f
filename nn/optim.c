/* optim.c - SGD, Adam, AdamW, parameter groups and clipping by the global norm.
 *
 * The formulas are PyTorch's single-tensor ones (torch/optim/sgd.py, adam.py, adamw.py;
 * torch/nn/utils/clip_grad.py); they stand in <tensor_nn.h>. An optimizer is a list of entries, one per
 * parameter: its moments (persistent tensors), lr factor, weight decay, number of updates. The update of one
 * entry is written in ordinary operators and assignments, in `update`: read that first. Learning rate and
 * bias corrections are run-time scalars, so every step is the same graph.
 */
#include "nn.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

const char *tn_nn_method_name(nn_method m)
{
    return m == NN_SGD ? "sgd" : m == NN_ADAM ? "adam" : "adamw";
}

const char *tn_nn_moment_name(nn_method m, int which)
{
    static const char *const adam[NN_MOMENTS] = {"exp_avg", "exp_avg_sq"};
    if (m == NN_SGD) return which ? NULL : "momentum_buffer";
    return adam[which];
}

void tn_nn_optims_destroy(tn_optim *first)
{
    while (first) {
        tn_optim *o = first;
        first = o->next;
        tn_free_mem(o->entries);
        tn_free_mem(o);
    }
}

tn_params tn_all_params(tn_session *s)
{
    (void)s;
    return (tn_params){-1, NULL};
}

/* ---- making one
 * -------------------------------------------------------------------------------------------- */

static bool bad_number(double x)
{
    return !(x - x == 0) || x < 0;
}

static tn_optim *create(tn_session *s, const char *op, tn_params params, const tn_optim *model,
                        double weight_decay, const char *file, int line)
{
    nn_state *st = tn_nn_state(s);
    int n = params.n < 0 ? tn_param_count(s) : params.n;
    if (!st || tn_error(s)) return NULL;
    if (bad_number(model->lr) || bad_number(weight_decay) || bad_number(model->eps) ||
        bad_number(model->momentum)) {
        tn_fail(s, TN_E_ARG, op,
                "lr %g, weight_decay %g, eps %g and momentum %g must be finite and not below 0 (%s:%d)",
                model->lr, weight_decay, model->eps, model->momentum, file ? file : "?", line);
        return NULL;
    }
    if (n < 1 || (params.n >= 0 && !params.list)) {
        tn_fail(s, TN_E_ARG, op, "there are no parameters to optimize (%s:%d)", file ? file : "?", line);
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
    /* From here on the session owns it, whatever happens. */
    *st->last_optim = o;
    st->last_optim = &o->next;
    bool moments = o->method != NN_SGD || o->momentum > 0;
    for (int i = 0; i < n; i++) {
        nn_optim_entry *e = &entries[i];
        e->param = params.n < 0 ? tn_param_at(s, i) : params.list[i];
        e->lr_factor = 1;
        e->weight_decay = weight_decay;
        if (!e->param || tn_session_of(e->param) != s) {
            tn_fail(s, e->param ? TN_E_SESSION : TN_E_NULL, op, "parameter %d of %d is %s (%s:%d)", i, n,
                    e->param ? "of another session" : "NULL", file ? file : "?", line);
            o->n = i; /* what a checkpoint may look at */
            return NULL;
        }
        int64_t shape[TN_MAX_DIMS];
        int ndim = tn_ndim(e->param);
        for (int k = 0; k < ndim; k++) shape[k] = tn_dim(e->param, k);
        for (int k = 0; moments && k < NN_MOMENTS && tn_nn_moment_name(o->method, k); k++) {
            tn_tensor *zero = tn_zeros_at(s, tn_dtype_of(e->param), ndim, shape, file, line);
            e->moment[k] = tn_keep(zero);
            tn_free(zero);
            if (!e->moment[k]) {
                o->n = i;
                return NULL;
            }
        }
    }
    return o;
}

tn_optim *tn_sgd_at(tn_session *s, tn_params params, const tn_sgd_options *options, const char *file,
                    int line)
{
    const tn_sgd_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    if (!s) return NULL;
    if (o->nesterov && (!(o->momentum > 0) || o->dampening != 0)) {
        tn_fail(s, TN_E_ARG, "tn_sgd", "nesterov needs momentum > 0 and no dampening (%s:%d)",
                file ? file : "?", line);
        return NULL;
    }
    const tn_optim model = {.method = NN_SGD,
                            .lr = o->lr != 0 ? o->lr : 1e-3,
                            .momentum = o->momentum,
                            .dampening = o->dampening,
                            .nesterov = o->nesterov};
    return create(s, "tn_sgd", params, &model, o->weight_decay, file, line);
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
                      .beta2 = o->beta2 != 0 ? o->beta2 : 0.999};
    if (model.beta1 < 0) model.beta1 = 0;
    if (model.beta2 < 0) model.beta2 = 0;
    if (!(model.beta1 < 1 && model.beta2 < 1)) {
        tn_fail(s, TN_E_ARG, op, "beta1 %g and beta2 %g must be below 1 (%s:%d)", model.beta1, model.beta2,
                file ? file : "?", line);
        return NULL;
    }
    return create(s, op, params, &model, o->weight_decay, file, line);
}

tn_optim *tn_adam_at(tn_session *s, tn_params params, const tn_adam_options *o, const char *file, int line)
{
    return adam(s, "tn_adam", NN_ADAM, params, o, file, line);
}

tn_optim *tn_adamw_at(tn_session *s, tn_params params, const tn_adam_options *o, const char *file, int line)
{
    return adam(s, "tn_adamw", NN_ADAMW, params, o, file, line);
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
    static const char op[] = "tn_optim_group";
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

int tn_optim_set_lr(tn_optim *o, double lr)
{
    if (!o) return TN_E_NULL;
    if (bad_number(lr))
        return tn_fail(o->s, TN_E_ARG, "tn_optim_set_lr", "lr %g must be finite and not below 0", lr);
    o->lr = lr;
    return TN_OK;
}

double tn_optim_lr(const tn_optim *o)
{
    return o ? o->lr : NAN;
}

/* ---- a step
 * ------------------------------------------------------------------------------------------------- */

static tn_tensor *times(tn_tensor *x, double v)
{
    return tn_mul_scalar(x, tn_number_f(v));
}

/* a * x + b * y */
static tn_tensor *blend(tn_tensor *x, double a, tn_tensor *y, double b)
{
    return tn_add(times(x, a), times(y, b));
}

static int update(tn_optim *o, nn_optim_entry *e, tn_tensor *g)
{
    tn_tensor *p = e->param;
    double lr = o->lr * e->lr_factor, decay = e->weight_decay;
    int64_t t = e->steps + 1;
    int status = TN_OK;
    if (decay > 0 && o->method != NN_ADAMW) g = tn_add(g, times(p, decay));
    if (o->method == NN_SGD) {
        if (e->moment[0]) {
            /* The buffer starts at 0, so that leaving out the dampening once makes it the gradient. */
            tn_tensor *b = blend(e->moment[0], o->momentum, g, t == 1 ? 1 : 1 - o->dampening);
            status = tn_assign(e->moment[0], b);
            g = o->nesterov ? tn_add(g, times(b, o->momentum)) : b;
        }
        p = tn_sub(p, times(g, lr));
    } else {
        double fix1 = 1 - pow(o->beta1, (double)t), fix2 = 1 - pow(o->beta2, (double)t);
        tn_tensor *m = tn_add(e->moment[0], times(tn_sub(g, e->moment[0]), 1 - o->beta1));
        tn_tensor *v = blend(e->moment[1], o->beta2, tn_square(g), 1 - o->beta2);
        tn_tensor *scale = tn_add_scalar(times(tn_sqrt(v), 1 / sqrt(fix2)), tn_number_f(o->eps));
        if (decay > 0 && o->method == NN_ADAMW) p = times(p, 1 - lr * decay);
        p = tn_sub(p, times(tn_div(m, scale), lr / fix1));
        status = tn_assign(e->moment[0], m);
        if (!status) status = tn_assign(e->moment[1], v);
    }
    if (!status) status = tn_assign(e->param, p);
    if (!status) e->steps = t;
    return status;
}

/* The factor of tn_clip_grad_norm if it was made in this step. */
static tn_tensor *take_clip(tn_optim *o)
{
    tn_tensor *clip = o->clip;
    o->clip = NULL;
    return clip && tn_ndim(clip) == 0 ? clip : NULL;
}

int tn_optim_step(tn_optim *o)
{
    if (!o) return TN_E_NULL;
    int status = tn_error(o->s);
    tn_tensor *clip = take_clip(o);
    if (status) return status;
    tn_no_grad_begin(o->s);
    for (int i = 0; i < o->n && !status; i++) {
        tn_tensor *g = tn_gradient(o->entries[i].param);
        if (g) status = update(o, &o->entries[i], clip ? tn_mul(g, clip) : g);
    }
    tn_no_grad_end(o->s);
    return status;
}

tn_tensor *tn_clip_grad_norm_at(tn_optim *o, double max_norm, const char *file, int line)
{
    if (!o) return NULL;
    if (bad_number(max_norm)) {
        tn_fail(o->s, TN_E_ARG, "tn_clip_grad_norm", "max_norm %g must be finite and not below 0 (%s:%d)",
                max_norm, file ? file : "?", line);
        return NULL;
    }
    tn_tensor *sum = NULL;
    bool any = false;
    tn_no_grad_begin(o->s);
    for (int i = 0; i < o->n; i++) {
        tn_tensor *g = tn_gradient(o->entries[i].param);
        if (!g) continue;
        tn_tensor *part = tn_sum_at(tn_square_at(g, file, line), TN_ALL, false, file, line);
        sum = any ? tn_add_at(sum, part, file, line) : part;
        any = true;
    }
    tn_tensor *norm = any ? tn_sqrt_at(sum, file, line) : NULL;
    tn_tensor *factor = tn_rdiv_scalar_at(tn_add_scalar_at(norm, tn_number_f(1e-6), file, line),
                                          tn_number_f(max_norm), file, line);
    o->clip = tn_minimum_scalar_at(factor, tn_number_f(1), file, line);
    tn_no_grad_end(o->s);
    if (!any)
        tn_fail(o->s, TN_E_STATE, "tn_clip_grad_norm",
                "no parameter has a gradient; call tn_backward first (%s:%d)", file ? file : "?", line);
    return norm;
}

tn_tensor *tn_clip_grad_norm(tn_optim *o, double max_norm)
{
    return tn_clip_grad_norm_at(o, max_norm, NULL, 0);
}
