/* optim_step.c - the update, and clipping by the global norm (torch/nn/utils/clip_grad.py).
 *
 * An update of a row is one framework operator: a few tensor operators over whole flat tensors, which the
 * fuser makes one kernel of. What differs between parameters (lr factor, weight decay, number of updates) is
 * a number where all agree, and else a column [blocks, 1] that broadcasts along the blocks; where not all of
 * the row takes part, a bool column says which blocks do. All numbers are run-time scalars, so that every
 * step is the same graph (optim_factor.c).
 *
 * Read update_row first, then tn_optim_step. */
#include "optim.h"

#include <tensor_export.h>
#include <tensor_extend.h>

#include <string.h>

enum { IDLE_STEPS = 10 }; /* without a gradient, then the log says so */

tn_tensor *tn_nn_times(tn_tensor *x, double v) { return tn_mul_scalar(x, tn_number_f(v)); }

/* ---- one row ---- */

/* The tensors and numbers of one update, made before the operator begins, so that nothing but the update is
 * in it. */
struct nn_update {
    tn_optim *o;
    nn_row *r;
    tn_tensor *fresh, *due; /* masks; NULL: the whole row */
    tn_tensor *fine;        /* a bool: the update takes place; NULL: it does */
    bool some_fresh;
    nn_factor lr, decay, gain;
};

tn_tensor *tn_nn_gained(const nn_update *u, tn_tensor *x) { return tn_nn_scaled_by(x, &u->gain); }

/* After begin, the columns outside the caches, which have to be freed by hand outside a step. */
static void end_update(nn_update *u)
{
    const nn_factor *all[] = {&u->lr, &u->decay, &u->gain};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int k = 0; k < all[i]->columns; k++) {
            const nn_row *r = u->r;
            tn_tensor *c = all[i]->column[k];
            if (c && c != r->spread[NN_LR_FACTOR].vector && c != r->spread[NN_DECAY].vector) tn_free(c);
        }
}

static int begin_gradient(tn_optim *o, nn_row *r, nn_update *u)
{
    *u = (nn_update){.o = o, .r = r};
    int64_t fresh = tn_nn_blocks_with(o, r, NN_FRESH);
    u->some_fresh = fresh > 0;
    if (fresh && fresh < r->blocks && !(u->fresh = tn_nn_column(o, r, NN_FRESH))) return tn_error(o->s);
    return TN_OK;
}

static tn_tensor *unscaled(const nn_update *u)
{
    tn_tensor *g = u->r->gradients;
    return u->o->unscale != 1 ? tn_nn_times(g, u->o->unscale) : g;
}

/* This step's gradients, zero where there are none. Inside an operator. */
static tn_tensor *fresh_gradient(const nn_update *u)
{
    tn_tensor *g = unscaled(u);
    return u->fresh ? tn_where(u->fresh, g, tn_zeros(u->o->s, u->r->dtype, TN_SCALAR)) : g;
}

/* The gradients an update now would use, the mean over ranks, of the row's own blocks; zero, or not to be
 * looked at, where a parameter is not due. */
static tn_tensor *mean_gradient(const nn_update *u, bool zeros)
{
    const nn_row *r = u->r;
    const int k = u->o->accumulate;
    const bool shared = tn_ranks(u->o->s) > 1 && !u->o->method->follows;
    tn_tensor *g = k == 1          ? zeros || shared ? fresh_gradient(u) : unscaled(u)
                            : !r->summed ? fresh_gradient(u)
                   : u->some_fresh ? tn_add(r->state[NN_SUM], fresh_gradient(u))
                                   : r->state[NN_SUM];
    if (shared) g = tn_nn_is_sharded(r) ? tn_reduce_scatter(g) : tn_mean_over_ranks(g);
    return k == 1 ? g : tn_nn_times(g, 1.0 / k);
}

static bool takes_part(const tn_optim *o, const nn_row *r)
{
    return r->blocks && tn_nn_blocks_with(o, r, NN_DUE) > 0;
}

static int assign_where(const nn_update *u, tn_tensor *target, tn_tensor *value)
{
    return tn_assign(target, tn_nn_where(u->fine, tn_nn_where(u->due, value, target), target));
}

/* p: of the own blocks; those of other ranks come from them. */
static int assign_values(const nn_update *u, tn_tensor *p)
{
    const nn_row *r = u->r;
    p = tn_nn_where(u->fine, tn_nn_where(u->due, p, r->own_values), r->own_values);
    return tn_assign(r->values, tn_nn_is_sharded(r) ? tn_all_gather(p, r->blocks) : p);
}

/* p - step, after decoupled decay */
static tn_tensor *moved(const nn_update *u, tn_tensor *step)
{
    tn_tensor *p = u->r->own_values;
    if (u->o->method->decoupled && !tn_nn_is_zero(&u->decay)) p = tn_sub(p, tn_nn_scaled_by(p, &u->decay));
    return tn_sub(p, step);
}

static int begin_update(tn_optim *o, nn_row *r, nn_update *u)
{
    int status = begin_gradient(o, r, u);
    if (status) return status;
    if (tn_nn_blocks_with(o, r, NN_DUE) < r->blocks && !(u->due = tn_nn_column(o, r, NN_DUE)))
        return tn_error(o->s);
    u->decay = o->method->decoupled ? FACTOR(o, r, o->lr, NN_LR_FACTOR, NN_DECAY) : FACTOR(o, r, 1, NN_DECAY);
    u->lr = FACTOR(o, r, o->lr, NN_LR_FACTOR, NN_RATE);
    u->gain = FACTOR(o, r, 1, NN_GAIN);
    u->lr.rate = true;
    u->decay.rate = o->method->decoupled;
    tn_nn_say_how(o, &u->lr, o->method->rate != NULL, o->method->rate_as);
    tn_nn_say_how(o, &u->gain, o->method->gain != NULL, o->method->gain_as);
    for (int k = 0; k < NN_MOMENTS; k++)
        if (o->method->state[k]) tn_nn_optim_state(o, r, k);
    return tn_error(o->s);
}

/* min(1, max_norm / (norm + 1e-6)) */
static tn_tensor *clip_factor(const tn_optim *o)
{
    tn_tensor *f = tn_rdiv_scalar(tn_add_scalar(o->norm, tn_number_f(1e-6)), tn_number_f(o->max_norm));
    return tn_minimum_scalar(f, tn_number_f(1));
}

/* The method's step. Inside an operator. */
static int apply(const nn_update *u, tn_tensor *g)
{
    const nn_method *m = u->o->method;
    tn_tensor *state[NN_MOMENTS];
    memcpy(state, u->r->state, sizeof(state));
    tn_tensor *d = m->step(u, u->o->number, m->follows ? u->r->own_values : g, state), *p = NULL;
    int status = TN_OK;
    if (!m->follows) p = moved(u, tn_nn_scaled_by(d, &u->lr));
    for (int k = 0; k < NN_MOMENTS && !status; k++)
        if (m->state[k]) status = assign_where(u, u->r->state[k], state[k]);
    return status || m->follows ? status : assign_values(u, p);
}

/* Of a step with a scaled loss: whether the gradients of the update are finite, of all rows. */
static tn_tensor *look_for_overflow(tn_optim *o)
{
    tn_tensor *fine = NULL;
    for (int i = 0; i < NN_ROWS; i++) {
        nn_update u;
        if (!takes_part(o, &o->rows[i]) || begin_gradient(o, &o->rows[i], &u)) continue;
        tn_tensor *row = tn_nn_finite(mean_gradient(&u, true));
        if (tn_nn_is_sharded(u.r)) /* of all ranks' blocks */
            row = tn_eq_scalar(tn_mean_over_ranks(tn_cast(row, TN_F32)), tn_number_f(1));
        fine = fine ? tn_logical_and(fine, row) : row;
    }
    return fine;
}

/* Tells the scaler, and notes for tn_nn_optim_settle, what becomes *fine; NULL where it is not asked for. */
static int check_overflow(tn_optim *o, tn_tensor **fine)
{
    *fine = NULL;
    if (o->method->follows && !tn_nn_scale_told(o->s)) return TN_OK; /* what others have found in this step */
    if (!tn_nn_scaled(o->s)) return TN_OK;
    if (!tn_nn_flag(o->s, &o->fine)) return tn_error(o->s);
    tn_tensor *found = o->method->follows ? tn_nn_scale_told(o->s) : look_for_overflow(o);
    if (!found) return tn_error(o->s);
    int status = tn_assign(o->fine, found);
    if (!status && !o->method->follows) status = tn_nn_scale_note(o->s, o->fine);
    o->flagged = true;
    *fine = o->fine;
    return status;
}

static int update_row(tn_optim *o, nn_row *r, tn_tensor *fine)
{
    nn_update u;
    int status = begin_update(o, r, &u);
    u.fine = fine;
    if (!status) status = tn_op_begin(o->s, o->method->name);
    if (status) {
        end_update(&u);
        return status;
    }
    tn_tensor *g = mean_gradient(&u, false);
    if (o->norm) g = tn_mul(g, clip_factor(o));
    if (!o->method->decoupled && !tn_nn_is_zero(&u.decay))
        g = tn_add(g, tn_nn_scaled_by(r->own_values, &u.decay));
    status = apply(&u, g);
    int ended = tn_op_end(o->s);
    end_update(&u);
    return status ? status : ended;
}

/* ---- over several steps ---- */

/* met: where there are several ranks, a zero that all have come to. */
static int gather_row(tn_optim *o, nn_row *r, tn_tensor *met)
{
    nn_update u;
    int status = begin_gradient(o, r, &u);
    if (status || !u.some_fresh) return status;
    tn_tensor *sum = tn_nn_optim_state(o, r, NN_SUM);
    if (!sum) return tn_error(o->s);
    status = tn_op_begin(o->s, "accumulate");
    if (status) return status;
    tn_tensor *g = fresh_gradient(&u);
    if (met) g = tn_where(tn_eq_scalar(met, tn_number_f(0)), g, tn_zeros(o->s, r->dtype, TN_SCALAR));
    status = tn_assign(sum, r->summed ? tn_add(sum, g) : g);
    int ended = tn_op_end(o->s);
    if (!status) status = ended;
    if (!status) r->summed = true;
    return status;
}

/* Nothing is sent but one number, by which ranks meet: a step that one of them refuses adds to no rank's sum. */
static int gather(tn_optim *o)
{
    tn_tensor *met = NULL;
    int status = TN_OK;
    if (tn_ranks(o->s) > 1) {
        status = tn_op_begin(o->s, "accumulate");
        if (!status) {
            met = tn_mean_over_ranks(tn_zeros(o->s, TN_F32, TN_SCALAR));
            status = tn_op_end(o->s);
        }
    }
    for (int i = 0; i < NN_ROWS && !status; i++)
        if (o->rows[i].blocks) status = gather_row(o, &o->rows[i], met);
    for (int i = 0; i < o->n && !status; i++)
        if (o->entries[i].fresh) o->entries[i].summed = true;
    if (!status) o->gathered++;
    return status;
}

/* ---- a step ---- */

/* Notes which parameters have a gradient now, and makes rows that cover them. */
static int look(tn_optim *o)
{
    for (int i = 0; i < o->n; i++)
        o->entries[i].fresh = o->method->follows || tn_has_gradient(o->entries[i].param);
    return tn_nn_optim_cover(o);
}

/* Parameters that should have gradients and go without are a mistake more often than not. */
static void note_idle(tn_optim *o)
{
    char names[256] = "";
    size_t at = 0;
    int n = 0;
    for (int i = 0; i < o->n; i++) {
        nn_optim_entry *e = &o->entries[i];
        e->idle = e->fresh || !tn_wants_gradient(e->param) ? 0 : e->idle + 1;
        if (e->idle != IDLE_STEPS) continue;
        if (n++ < 4 && at < sizeof(names))
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", n > 1 ? ", " : "",
                                   tn_name(e->param));
    }
    if (n)
        tn_warn(o->s, "%s: %d parameter%s had no gradient in %d steps running and stay%s as %s: %s%s",
                o->method->name, n, n > 1 ? "s" : "", (int)IDLE_STEPS, n > 1 ? "" : "s",
                n > 1 ? "they are" : "it is", names, n > 4 ? ", .." : "");
}

/* Gradients end with their step. Who calls tn_backward in several steps and tn_optim_step in the last of them
 * means their sum, as it is in PyTorch, and is told how to have that. */
static void note_unused(tn_optim *o)
{
    enum { TIMES = 3 }; /* once may be a loss that was looked at and thrown away */
    nn_state *st = tn_nn_state(o->s);
    const tn_stats now = tn_nn_stats(o->s);
    if (!st || st->used.step == now.steps + 1) return;
    const uint64_t unused =
        st->used.step && now.backward_steps > st->used.walks ? now.backward_steps - st->used.walks : 0;
    st->used.running = unused ? st->used.running + 1 : 0;
    if (st->used.running == TIMES)
        tn_warn(
            o->s,
            "%s: before each of the last %d updates came %llu step%s with a tn_backward and no "
            "tn_optim_step: gradients end with their step, so that these were never used. For the mean over "
            "%llu steps make the optimizer with .accumulate = %llu and call tn_optim_step in each",
            o->method->name, (int)TIMES, (unsigned long long)unused, unused > 1 ? "s" : "",
            (unsigned long long)unused + 1, (unsigned long long)unused + 1);
    st->used.step = now.steps + 1;
    st->used.walks = now.backward_steps + 1;
}

static int update_rows(tn_optim *o)
{
    tn_tensor *fine;
    int status = check_overflow(o, &fine);
    const bool all = o->norm || o->shard || o->method->follows || tn_nn_scaled(o->s); /* are looked at */
    const bool apart = o->accumulate == 1 && !all;
    for (int i = 0; i < NN_ROWS && !status; i++) {
        nn_row *r = &o->rows[i];
        if (!takes_part(o, r)) continue;
        status = tn_nn_optim_split(o, r, apart);
        if (!status && !r->n_part) status = update_row(o, r, fine);
        for (int k = 0; k < r->n_part && !status; k++)
            if (takes_part(o, &r->part[k])) status = update_row(o, &r->part[k], fine);
    }
    if (status) return status;
    for (int i = 0; i < o->n; i++) {
        o->entries[i].steps += tn_nn_is_due(&o->entries[i]);
        o->entries[i].summed = false;
    }
    for (int i = 0; i < NN_ROWS; i++) o->rows[i].summed = false;
    o->gathered = 0;
    return TN_OK;
}

/* While averages stand in the place of weights, an update would move those and keep the weights as averages. */
static int check_swapped(const tn_optim *o)
{
    const nn_state *st = tn_nn_state(o->s);
    for (tn_optim *a = st ? st->optims : NULL; a; a = a->next) {
        if (a->swapped) tn_nn_optim_settle(a);
        for (int i = 0; a->swapped && i < a->n; i++)
            for (int k = 0; k < o->n; k++)
                if (o->entries[k].param == a->entries[i].param)
                    return tn_fail(o->s, TN_E_STATE, o->method->name,
                                   "'%s' has the value of its average since tn_ema_swap, which is called "
                                   "again before training goes on",
                                   tn_name(o->entries[k].param));
    }
    return tn_error(o->s);
}

TN_DEFINE(int, optim_step, o ? o->s : NULL, (o), tn_optim *o)
{
    if (!o) return TN_E_NULL;
    int status = check_swapped(o);
    const int exported = tn_export_checkpoint(o->s, tn_nn_tell_export);
    if (exported >= 0) o->exported = exported;
    if (!status) status = tn_make_room(o->s);
    if (!status && o->flagged && tn_nn_optim_waits(o))
        status = tn_flush(o->s); /* whether it has taken place counts */
    o->unscale = o->method->follows ? 1 : tn_nn_unscale(o->s) * tn_rank_weight(o->s);
    if (!status && !tn_nn_optim_waits(o)) status = tn_nn_optim_remember(o);
    if (o->norm && (o->norm_step != tn_nn_stats(o->s).steps || tn_numel(o->norm) != 1)) o->norm = NULL;
    if (!status) {
        tn_no_grad_begin(o->s);
        status = look(o);
        if (!status && !tn_nn_optim_waits(o)) status = tn_nn_optim_remember(o); /* moving state has run it */
        if (o->accumulate > 1)
            tn_export_refuse(o->s, o->method->name, "with .accumulate steps are of two kinds");
        if (!status) status = o->gathered + 1 < o->accumulate ? gather(o) : update_rows(o);
        tn_no_grad_end(o->s);
    }
    o->norm = NULL;
    if (!status) note_idle(o);
    if (!status) note_unused(o);
    return status;
}

/* ---- averages in the weights' place ---- */

static int swap_row(tn_optim *o, nn_row *r)
{
    nn_update u;
    int status = begin_update(o, r, &u);
    if (!status) status = tn_op_begin(o->s, "ema_swap");
    if (!status) {
        tn_tensor *p = tn_nn_times(tn_nn_where(u.due, r->state[0], r->own_values),
                                   1); /* as it is before the assignment */
        tn_tensor *average = tn_nn_times(tn_nn_where(u.due, r->own_values, r->state[0]), 1);
        status = tn_assign(r->values, tn_nn_is_sharded(r) ? tn_all_gather(p, r->blocks) : p);
        if (!status) status = tn_assign(r->state[0], average);
        int ended = tn_op_end(o->s);
        if (!status) status = ended;
    }
    end_update(&u);
    return status;
}

TN_DEFINE(int, ema_swap, o ? o->s : NULL, (o), tn_optim *o)
{
    if (!o) return TN_E_NULL;
    if (!o->method->follows)
        return tn_fail(o->s, TN_E_ARG, "ema_swap", "the optimizer is '%s', must be one of tn_ema",
                       o->method->name);
    int status =
        o->swapped ? tn_error(o->s) : check_swapped(o); /* two may not take turns with the same weights */
    if (!status) status = tn_make_room(o->s);
    if (!status && !tn_nn_optim_waits(o)) status = tn_nn_optim_remember(o);
    for (int i = 0; i < o->n; i++) o->entries[i].fresh = o->entries[i].steps > 0;
    tn_no_grad_begin(o->s);
    for (int i = 0; i < NN_ROWS && !status; i++)
        if (takes_part(o, &o->rows[i])) status = swap_row(o, &o->rows[i]);
    if (!status) o->swapped = !o->swapped;
    tn_no_grad_end(o->s);
    return status;
}

/* ---- clipping ---- */

/* Each rank adds up its share, sharded or not: so both come to the same bits. */
static tn_tensor *square_sum(tn_optim *o, nn_row *r)
{
    nn_update u;
    const int ranks = o->method->follows ? 1 : tn_ranks(o->s);
    int64_t first;
    if (begin_gradient(o, r, &u)) return NULL;
    tn_tensor *g = mean_gradient(&u, true);
    const bool share = ranks > 1 && r->blocks >= ranks;
    if (share && !tn_nn_is_sharded(r)) {
        const int64_t n = tn_rank_share(o->s, r->blocks, &first);
        g = tn_slice(g, 0, first, first + n, 1);
    }
    tn_tensor *sum = tn_sum(tn_square(g), TN_ALL, false);
    return share ? tn_mul_scalar(tn_mean_over_ranks(sum), tn_number_f(ranks)) : sum;
}

TN_DEFINE(tn_tensor *, clip_grad_norm, o ? o->s : NULL, (o, max_norm), tn_optim *o, double max_norm)
{
    static const char op[] = "clip_grad_norm";
    if (!o) return NULL;
    o->norm = NULL;
    if (!(max_norm >= 0 && max_norm - max_norm == 0))
        return tn_nn_fail(o->s, TN_E_ARG, op, "max_norm %g must be finite and not below 0", max_norm);
    if (tn_error(o->s)) return NULL;
    o->unscale = tn_nn_unscale(o->s) * tn_rank_weight(o->s);
    if (!tn_nn_optim_waits(o)) tn_nn_optim_settle(o);
    tn_tensor *sum = NULL, *norm = NULL;
    bool any = false;
    tn_no_grad_begin(o->s);
    if (!look(o)) {
        /* the masks are made before the operator begins: cached columns run on their own */
        nn_update u;
        for (int i = 0; i < NN_ROWS; i++)
            if (takes_part(o, &o->rows[i])) begin_gradient(o, &o->rows[i], &u);
        if (!tn_op_begin(o->s, op)) {
            for (int i = 0; i < NN_ROWS; i++) {
                if (!takes_part(o, &o->rows[i])) continue;
                tn_tensor *part = square_sum(o, &o->rows[i]);
                sum = any ? tn_add(sum, part) : part;
                any = true;
            }
            if (any) norm = tn_sqrt(sum);
            if (tn_op_end(o->s)) norm = NULL;
        }
    }
    tn_no_grad_end(o->s);
    if (!any && o->accumulate > 1 && !tn_error(o->s)) { /* those of a step to come may yet be clipped */
        tn_tensor *zero = tn_zeros(o->s, TN_F32, TN_SCALAR);
        norm = tn_sqrt(zero);
        tn_free(zero); /* made outside of steps it would stay */
    } else if (!any)
        tn_fail(o->s, TN_E_STATE, op, "no parameter has a gradient; call tn_backward first");
    o->norm = norm;
    if (norm && tn_in_step(o->s)) { /* a run before the update keeps what it reads, whoever reads the other */
        o->norm = tn_reshape(norm, TN_SHAPE(1));
        norm = tn_reshape(tn_reshape(norm, TN_SHAPE(1)), TN_SCALAR);
    }
    o->max_norm = max_norm;
    o->norm_step = tn_nn_stats(o->s).steps;
    return norm;
}
