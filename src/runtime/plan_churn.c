/* plan_churn.c - a program whose steps keep changing is told so, once: each change costs a plan, and what it
 * was is seldom meant: a shape that varies where it need not, an attribute that is a number of the step.
 *
 * Counted are plans that took the place of one that the step before ran at the same point; what a first step
 * or a step of another kind brings along is no change. Start with tn_plan_made. */
#include "log.h"

#include <string.h>

enum { MANY = 8, STEPS = 100 };

/* Returns the note of the plan that the step before ran at the same place, where this step runs the plan that
 * was just made. NULL: it ran none there. */
static const tn_note *before(const tn_session *s)
{
    const tn_explain_state *x = s->explain;
    const tn_step_log *l = x->trained.number > x->last.number ? &x->trained : &x->last;
    return x->now.n < l->n ? l->run[x->now.n].plan->note : NULL;
}

static bool same_value(const tn_note *a, const tn_note *b, int i)
{
    const tn_note_value *v = &a->value[i], *w = &b->value[i];
    bool same = v->op == w->op && v->dtype == w->dtype && v->ndim == w->ndim && v->n_in == w->n_in &&
                v->written == w->written && !memcmp(v->shape, w->shape, (size_t)v->ndim * sizeof *v->shape);
    for (int k = 0; k < v->n_in && same; k++) /* leaves are numbered behind the nodes */
        same = v->in[k] - (v->in[k] >= a->n_node ? a->n_node : 0) ==
               w->in[k] - (w->in[k] >= b->n_node ? b->n_node : 0);
    return same;
}

static void put_value(tn_growing *t, const tn_note *n, int i)
{
    const tn_note_value *v = &n->value[i];
    tn_put(t, "%s of %s %s", tn_op_get(v->op)->name, tn_dtype_name(v->dtype),
           TN_SHAPE_TEXT(v->ndim, v->shape));
    if (v->call >= 0) tn_put(t, " in %s", TN_NOTE_WHERE(&n->call[v->call]));
}

void tn_plan_made(tn_session *s, const tn_plan *p)
{
    tn_explain_state *x = s->explain;
    const tn_note *now = p->note, *was = s->in_step && tn_deferred(s) ? before(s) : NULL;
    if (!was || x->churn.told) return;
    if (s->stats.steps >= x->churn.first + STEPS) {
        x->churn.first = s->stats.steps;
        x->churn.made = 0;
    }
    if (++x->churn.made <= MANY) return;
    x->churn.told = true;
    int n = now->n_node < was->n_node ? now->n_node : was->n_node, i = 0;
    while (i < n && same_value(now, was, i)) i++;
    tn_growing t = {0};
    if (i < now->n_node) {
        put_value(&t, now, i);
        if (i < was->n_node) {
            tn_put(&t, ", which was ");
            put_value(&t, was, i);
        }
    } else if (i < was->n_node) {
        tn_put(&t, "what follows, which was ");
        put_value(&t, was, i);
    } else
        tn_put(&t, "an attribute, or the layout or identity of a tensor that is read");
    tn_warn(
        s,
        "%d plans made anew within %d steps: a step that is not like one before costs a plan (of few shapes "
        "each is planned once; where they are many, pad). The newest differs from the step before in %s",
        x->churn.made, STEPS, t.p ? t.p : "something");
    tn_growing_free(&t);
}
