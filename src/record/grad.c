/* grad.c - the public side of differentiation: backward, grad, gradient, requires_grad.
 * Start with tn_backward_at; the walk itself is autograd/walk.c. */
#include <stdio.h>

#include "../../autograd/autograd.h"
#include "../../include/tensor_extend.h"
#include "../runtime/log.h"

static bool one_element(tn_scope *sc, const tn_tensor *loss)
{
    if (sc->g->session->n_scopes)
        tn_error_set(sc->g, TN_E_STATE,
                     "called between tn_scope_begin and tn_scope_end, where no gradient is kept");
    else if (tn_node_numel(loss) != 1)
        tn_error_set(sc->g, TN_E_SHAPE, "the loss must be one element, shape is %s", TN_TENSOR_TEXT(loss));
    else if (!(loss->flags & TN_F_REQUIRES_GRAD))
        tn_error_set(sc->g, TN_E_GRAD, "the loss depends on nothing that requires a gradient%s",
                     sc->g->no_grad ? " (it was made, or this is called, under tn_no_grad_begin)" : "");
    else
        return true;
    return false;
}

/* A loop that trains without steps works, and is not what was meant. */
static void note_outside(tn_session *s, const char *file, int line)
{
    enum { TIMES = 3 };
    char at[160] = "";
    if (s->in_step || ++s->went_back_outside != TIMES) return;
    if (file) snprintf(at, sizeof at, " at %s:%d", file, line);
    tn_warn(
        s,
        "backward%s: called %d times outside of steps: their gradients add up, and what operators have made "
        "stays in memory, until tn_step_begin; put tn_step_begin and tn_step_end around each iteration",
        at, (int)TIMES);
}

static int look_at(tn_session *s, tn_tensor *loss)
{
    return s->explain->looks.loss ? s->explain->looks.loss(s, loss) : TN_OK;
}

/* The loss, times the factor that keeps gradients of f16 above 0. */
static tn_tensor *scaled(tn_tensor *loss, const char *file, int line)
{
    tn_session *s = tn_slot_session(loss);
    if (!s || !s->f16 || !s->scale.fn || s->graph.error.status) return loss;
    tn_place_begin(s, file, line);
    loss = s->scale.fn(loss, s->scale.arg);
    tn_place_end(s);
    return loss;
}

TN_AT(int, backward, (loss), tn_tensor *loss)
{
    loss = scaled(loss, file, line);
    const tn_session *of = tn_slot_session(loss);
    const int chosen =
        of ? 2 * of->budget.tries + of->device->no_compiler : 0; /* what is made again differs */
    tn_scope sc = tn_enter_as(TN_ATTR(chosen), "backward", file, line, 1, 0, &loss);
    if (!sc.g) return TN_E_NULL;
    sc.g->session->went_back = true;
    note_outside(sc.g->session, file, line);
    if (sc.entry) return TN_OK;
    int status = sc.g->error.status;
    if (sc.ok && !status && one_element(&sc, loss) && !(status = look_at(sc.g->session, loss)) &&
        tn_budget_choose(sc.g->session, loss)) {
        status = tn_walk(loss, &(tn_walk_options){.run = tn_deferred(sc.g->session) ? NULL : tn_run});
        sc.g->reads++; /* what was read for this one is not needed any more: assigning may overwrite it */
        if (!status) tn_tape_done(sc.g->session, sc.note, 0, NULL);
    }
    tn_call_end(sc.g);
    return status ? status : sc.g->error.status;
}

/* Notes where tn_grad gave a NULL gradient, for the error of an operator that is given this NULL later. */
static void note_independent(tn_session *s, int i, const tn_tensor *x, const char *file, int line)
{
    char at[80] = "";
    if (file) snprintf(at, sizeof at, " at %s:%d", tn_short_file(file), line);
    snprintf(s->no_gradient, sizeof s->no_gradient,
             "; tn_grad%s gave NULL for inputs[%d] %s: the loss does not depend on it", at, i,
             TN_TENSOR_TEXT(x));
}

TN_AT(int, grad, (loss, n, inputs, grads), tn_tensor *loss, int n, tn_tensor *const *inputs,
      tn_tensor **grads)
{
    enum { MANY = 256 };
    bool fits = n >= 0 && n <= MANY;
    if (!fits || (n && (!inputs || !grads))) {
        tn_session *s = tn_slot_session(loss);
        tn_place_begin(s, file, line);
        if (fits)
            tn_fail(s, TN_E_NULL, "grad", "%s is NULL", inputs ? "grads" : "inputs");
        else
            tn_fail(s, TN_E_ARG, "grad", "%d inputs; 0 to %d are possible", n, MANY);
        tn_place_end(s);
        return fits ? TN_E_NULL : TN_E_ARG;
    }
    tn_tensor *x[MANY + 1] = {loss};
    for (int i = 0; i < n; i++) {
        x[i + 1] = inputs[i];
        grads[i] = NULL;
    }
    tn_scope sc = tn_enter_list_as(TN_NO_ATTR, "grad", file, line, "loss, inputs[]", n + 1, x);
    if (!sc.g) return TN_E_NULL;
    if (sc.entry) return tn_leave_many(&sc, n, grads);
    int status = sc.g->error.status;
    for (int i = 1; i <= n && sc.ok && !status; i++)
        if (x[i] && x[i]->flags & TN_F_INSIDE)
            tn_error_set(
                sc.g, status = TN_E_UNSUPPORTED,
                "inputs[%d] stands inside of attention that was written out and is computed as a whole: "
                "hand the second product tn_mul_scalar(probabilities, 1), or use eager mode",
                i - 1);
    if (sc.ok && !status && n && one_element(&sc, x[0]))
        status = tn_walk(x[0], &(tn_walk_options){.run = tn_deferred(sc.g->session) ? NULL : tn_run,
                                                  .keep = true,
                                                  .n_wanted = n,
                                                  .wanted = x + 1,
                                                  .grads = grads});
    if (sc.ok && !sc.g->error.status) tn_tape_done(sc.g->session, sc.note, n, grads);
    for (int i = 0; i < n; i++) {
        if (sc.ok && !status && !grads[i]) note_independent(sc.g->session, i, x[i + 1], file, line);
        grads[i] = tn_handle(grads[i]);
    }
    tn_call_end(sc.g);
    return status ? status : sc.g->error.status;
}

tn_tensor *tn_own_gradient(tn_tensor *x)
{
    tn_tensor *n = x ? tn_resolve(x) : NULL;
    if (!n || !n->grad || n->grad_step != n->graph->generation) return NULL;
    n->graph->session->went_back = false; /* not in vain */
    tn_ask_gradient(n);
    return tn_handle(n->grad);
}

tn_tensor *tn_gradient(tn_tensor *x)
{
    tn_tensor *g = tn_own_gradient(x);
    if (!g || tn_ranks(tn_slot_session(g)) == 1) return g;
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "gradient", NULL, 0, 1, 0, &g);
    return tn_leave(&sc, sc.ok ? tn_mk_ranks_mean(g) : NULL);
}

bool tn_has_gradient(const tn_tensor *param)
{
    const tn_tensor *n = param ? tn_resolve(param) : NULL;
    return n && n->grad && n->grad_step == n->graph->generation;
}

bool tn_wants_gradient(const tn_tensor *x)
{
    const tn_tensor *n = x ? tn_resolve(x) : NULL;
    return n && n->flags & TN_F_REQUIRES_GRAD;
}

TN_DEFINE(int, requires_grad, tn_slot_session(x), (x, on), tn_tensor *x, bool on)
{
    tn_tensor *n = x ? tn_resolve_or_fail(x, "requires_grad") : NULL;
    if (!n) return x ? TN_E_STALE : TN_E_NULL;
    tn_session *s = n->graph->session;
    const bool leaf = n->op == TN_OP_leaf || n->flags & TN_F_WISHED;
    if (!leaf && n->flags & TN_F_REQUIRES_GRAD)
        return tn_fail(
            s, TN_E_STATE, "requires_grad",
            "it is an operator's result that passes its gradient on to what it is made of: tn_grad gives "
            "that gradient, and tn_detach the value without one");
    if (!tn_dtype_is_float(n->dtype))
        return tn_fail(s, TN_E_DTYPE, "requires_grad", "%s has no gradient", tn_dtype_name(n->dtype));
    if (!(n->flags & TN_F_PERSISTENT) && tn_deferred(s)) tn_tape_end(s);
    const uint32_t told = TN_F_REQUIRES_GRAD | (n->op == TN_OP_leaf ? 0u : TN_F_WISHED);
    n->flags = on ? n->flags | told : n->flags & ~told;
    if (n->flags & TN_F_PERSISTENT) n->of = NULL; /* from here on another version, with the new flag */
    return TN_OK;
}

TN_DEFINE(int, checkpoint_begin, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (!s->in_step) return tn_fail(s, TN_E_STATE, "checkpoint_begin", "outside of a step");
    if (!s->checkpoints++ && tn_deferred(s)) s->graph.region = ++s->graph.n_regions;
    return TN_OK;
}

TN_DEFINE(int, checkpoint_end, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (!s->checkpoints) return tn_fail(s, TN_E_STATE, "checkpoint_end", "without tn_checkpoint_begin");
    if (!--s->checkpoints) s->graph.region = 0;
    return TN_OK;
}
