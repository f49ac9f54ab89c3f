/* scale.c - loss scaling, without which small gradients of f16 are zeros: torch.amp.GradScaler.
 *
 * tn_backward asks for the factor of its loss (scaled); the optimizers' updates of that step divide by it,
 * and each tells by a tensor of one bool, `fine`, whether its gradients are finite (tn_nn_scale_note). What
 * is not fine is not assigned: weights and moments there, running statistics here, as they were before. So a
 * step stays one run. The host looks at what was told when the next step asks for the factor: then it grows,
 * or is halved, and what optimizers have counted for an update that was left out is taken back
 * (tn_nn_optim_settle). */
#include "optim.h"

#include <math.h>

enum { INTERVAL = 2000, LEFT_OUT = 10 }; /* steps until the factor grows; in a row, then the log says so */

struct nn_moved {
    tn_tensor *target, *before;
};

static uint64_t now(const tn_session *s) { return tn_nn_stats(s).steps + 1; }

void tn_nn_scale_settle(tn_session *s, nn_state *st)
{
    nn_scale *c = &st->scale;
    if (tn_error(s) || (c->told && tn_nn_stats(s).runs < c->run)) return;
    for (tn_optim *o = st->optims; o; o = o->next) tn_nn_optim_settle(o);
    if (!c->told) return;
    const bool failed = tn_run_failed(s, c->first_run);
    const double fine = failed ? NAN : tn_item(c->fine);
    if (!failed && isnan(fine))
        return; /* a device that tells late has told of an error; once that is cleared */
    c->told = false;
    if (failed) return;
    if (fine != 0) {
        c->in_a_row = 0;
        if (++c->good < c->interval) return;
        c->good = 0;
        if (isfinite((float)(2 * c->factor))) c->factor *= 2;
        return;
    }
    c->good = 0;
    c->skipped++;
    c->factor /= 2;
    if (++c->in_a_row == LEFT_OUT)
        tn_warn(s,
                "loss scaling: %d steps in a row had gradients that are infinite or NaN and changed nothing; "
                "the loss is multiplied by %g now",
                (int)LEFT_OUT, c->factor);
}

static tn_tensor *scaled(tn_tensor *loss, void *session)
{
    nn_state *st = tn_nn_state(session);
    if (!st) return NULL;
    nn_scale *c = &st->scale;
    if (c->step != now(session) || !tn_in_step(session)) tn_nn_scale_settle(session, st);
    c->on = true;
    c->step = now(session);
    if (tn_dtype_of(loss) == TN_F16) loss = tn_cast(loss, TN_F32);
    return tn_mul_scalar(loss, tn_number_f(c->factor));
}

void tn_nn_scale_begin(tn_session *s, nn_state *st)
{
    if (st->scale.factor > 0) return;
    st->scale.factor = 65536;
    st->scale.interval = INTERVAL;
    tn_on_backward(s, scaled, s);
}

bool tn_nn_scaled(tn_session *s)
{
    const nn_state *st = tn_nn_state(s);
    return st && st->scale.on && st->scale.step == now(s);
}

double tn_nn_unscale(tn_session *s) { return tn_nn_scaled(s) ? 1 / tn_nn_state(s)->scale.factor : 1; }

tn_tensor *tn_nn_finite(tn_tensor *g) { return tn_isfinite(tn_max(tn_abs(g), TN_ALL, false)); }

bool tn_nn_flag(tn_session *s, tn_tensor **flag)
{
    if (*flag) return true;
    tn_tensor *one = tn_full(s, 1, TN_BOOL, TN_SCALAR);
    *flag = tn_keep(one);
    tn_free(one);
    return *flag != NULL;
}

tn_tensor *tn_nn_scale_told(tn_session *s)
{
    const nn_scale *c = &tn_nn_state(s)->scale;
    return c->told && c->told_step == now(s) ? c->fine : NULL;
}

int tn_nn_scale_note(tn_session *s, tn_tensor *fine)
{
    nn_scale *c = &tn_nn_state(s)->scale;
    if (!fine || !tn_nn_flag(s, &c->fine)) return tn_error(s);
    const bool first = !tn_nn_scale_told(s) || tn_run_failed(s, c->first_run);
    int status = tn_assign(c->fine, first ? fine : tn_logical_and(c->fine, fine));
    if (tn_nn_stats(s).runs >= c->run) c->n_settled = c->n_noted;
    for (int i = c->n_settled; c->moved_step == now(s) && i < c->n_moved && !status; i++)
        status = tn_assign(c->moved[i].target, tn_where(fine, c->moved[i].target, c->moved[i].before));
    c->told = true;
    c->told_step = now(s);
    c->n_noted = c->n_moved;
    c->run = tn_nn_stats(s).runs + 1;
    if (first) c->first_run = c->run;
    return status;
}

bool tn_nn_scale_moves(tn_session *s, tn_tensor *target)
{
    if (!target || !tn_uses_f16(s) || !tn_is_training(s)) return true;
    nn_scale *c = &tn_nn_state(s)->scale;
    if (c->moved_step != now(s)) c->n_moved = c->n_noted = c->n_settled = 0;
    c->moved_step = now(s);
    if (c->n_moved == c->room) {
        const int room = c->room ? 2 * c->room : 32;
        struct nn_moved *grown = tn_realloc(c->moved, (size_t)room * sizeof(*grown));
        if (!grown)
            return !tn_fail(s, TN_E_NOMEM, "norm_forward", "no memory for %d running statistics", room);
        c->moved = grown;
        c->room = room;
    }
    tn_no_grad_begin(s);
    c->moved[c->n_moved++] = (struct nn_moved){target, tn_mul_scalar(target, tn_number_f(1))};
    tn_no_grad_end(s);
    return true;
}

/* ---- public ---- */

tn_scaling tn_loss_scaling(tn_session *s)
{
    nn_state *st = tn_nn_state(s);
    if (!st) return (tn_scaling){1, 0, 0};
    tn_nn_scale_settle(s, st);
    const nn_scale *c = &st->scale;
    return (tn_scaling){c->on ? c->factor : 1, c->good, c->skipped};
}

TN_DEFINE(int, set_loss_scale, s, (s, scale, interval), tn_session *s, double scale, int interval)
{
    if (!s) return TN_E_NULL;
    if (!(scale > 0 && isfinite((float)scale)) || interval < 0)
        return tn_fail(s, TN_E_ARG, "set_loss_scale",
                       "scale %g must be above 0 and an f32, interval %d not below 0", scale, interval);
    nn_state *st = tn_nn_state(s);
    if (!st) return tn_error(s);
    tn_nn_scale_begin(s, st);
    tn_nn_scale_settle(s, st);
    st->scale.factor = scale;
    st->scale.interval = interval ? interval : INTERVAL;
    st->scale.good = 0;
    return TN_OK;
}
