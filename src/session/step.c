/* step.c - a step begins and ends. Start with tn_step_begin. */
#include "../../include/tensor_extend.h"
#include "../check/check.h"
#include "../runtime/ranks.h"

enum { GROWTH_TOLD = 64 << 10 }; /* bytes; less is what an optimizer has of a parameter that it meets late */

/* Device memory that is higher at the end of each of three steps running, and of as many more as it takes for
 * the least of them to come to something, is a leak in the making; not where a step was planned anew, as its
 * shapes are others and memory as well. */
static void watch_growth(tn_session *s)
{
    const size_t now = s->device->stats.bytes_now;
    const bool planned = s->stats.plans != s->growth_plans;
    const size_t more = now > s->live_high && s->live_high && !planned ? now - s->live_high : 0;
    s->growth_plans = s->stats.plans;
    if (!s->growing || more < s->growth_least) s->growth_least = more;
    s->growing = more ? s->growing + 1 : 0;
    if (now > s->live_high) s->live_high = now; /* never less: lengths that come and go are no leak */
    if (s->growing < 3 || s->growth_least < GROWTH_TOLD / (size_t)s->growing) return;
    s->growth_least = 0; /* once, as long as it goes on */
    tn_say(
        &s->options, TN_LOG_WARN,
        "device memory has grown in %d steps running, now %zu bytes: tensors made outside of steps, and by "
        "tn_keep wherever that is, live until tn_free",
        s->growing, now);
}

/* A tn_op_begin without its end: whatever is called from there on would count as part of it. */
static void close_op(tn_session *s, const char *here)
{
    if (!s->graph.call_depth) return;
    tn_tape_end(s);
    const char *name = s->graph.call ? s->graph.call->name : "";
    s->graph.call_depth = s->tape.region = 0;
    s->graph.call = NULL;
    tn_fail(s, TN_E_STATE, here, "the operator '%s' was begun (tn_op_begin) and not ended (tn_op_end)", name);
}

TN_DEFINE(int, step_begin, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (s->in_step) return tn_fail(s, TN_E_STATE, "step_begin", "the step before was not ended");
    close_op(s, "step_begin");
    if (!s->graph.parked) tn_end_scope(s);
    s->graph.outside = false;
    if (s->graph.aside.there) tn_graph_take_back(&s->graph);
    if (s->graph.parked && s->mode == TN_EAGER)
        tn_end_scope(s); /* the mode was changed: nothing is replayed */
    tn_ranks_equal(s);
    tn_step_log_begin(s);
    s->step_runs = s->stats.runs;
    s->drawn = s->step_draw = s->graph.draw;
    s->in_step = true;
    s->graph.salt = tn_ranks_salt(s);
    s->checkpoints = 0;
    s->graph.region = s->graph.n_regions = 0;
    s->went_back = false;
    s->went_back_outside = 0;
    tn_tape_begin(s);
    return s->graph.error.status;
}

static int no_step(tn_session *s, const char *file, int line)
{
    tn_place_begin(s, file, line);
    tn_fail(s, TN_E_STATE, "step_end", "no step was begun");
    tn_place_end(s);
    return TN_E_STATE;
}

TN_AT(int, step_end, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (!s->in_step) return no_step(s, file, line);
    tn_require_left_open(s);
    if (s->graph.call_depth) {
        tn_place_begin(s, file, line);
        close_op(s, "step_end");
        tn_place_end(s);
    }
    if (s->checkpoints) {
        tn_place_begin(s, file, line);
        tn_fail(s, TN_E_STATE, "step_end", "a tn_checkpoint_begin has no tn_checkpoint_end");
        tn_place_end(s);
        s->checkpoints = 0;
    }
    tn_place_begin(s, file, line);
    tn_scopes_left(s);
    tn_place_end(s);
    s->graph.region = 0;
    s->ending = true;
    tn_flush_at(s, file, line);
    /* A step that failed has drawn no random numbers either: when it is tried again it draws the same
     * ones. */
    if (s->graph.error.status) s->graph.draw = s->drawn;
    tn_ranks_tell(s);
    tn_watch_collect(s);
    int n_watched = s->n_watch;
    s->ending = false;
    tn_budget_learn(s);
    tn_step_log_end(s);
    if (!tn_tape_park(s)) tn_end_scope(s);
    s->flushed = 0;
    s->n_watched = n_watched;
    s->n_watch = 0;
    s->in_step = false;
    s->graph.salt = 0;
    s->graph.outside = true;
    s->stats.steps++;
    s->stats.backward_steps += s->went_back;
    watch_growth(s);
    return s->graph.error.status;
}

void tn_clear_error(tn_session *s)
{
    if (!s) return;
    if (s->graph.error.status && s->in_step) tn_tape_end(s);
    tn_ranks_tell(s);
    if (s->device->take_fault && !s->device->sync(s->device)) tn_check_fault(s); /* it goes with the error */
    s->graph.error = (tn_error_state){0};
    tn_ranks_tell(s);
    s->fault = (tn_fault){0};
}
