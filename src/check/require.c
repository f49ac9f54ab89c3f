/* require.c - tn_require_fused: what is recorded between the two calls becomes one kernel in each
 * direction, or the step fails before anything of it runs. Start with check_required. */
#include "../../include/tensor_extend.h"
#include "check.h"

static int check_required(tn_session *s, const tn_flush_scratch *f, const tn_plan *p);

static tn_require *newest(tn_session *s) { return &s->explain->require[s->explain->n_require - 1]; }

/* The id of the next node, also in a step that repeats the one before. */
static uint32_t next_id(const tn_session *s)
{
    const tn_tape *t = &s->tape;
    return t->active && t->cursor < t->n ? t->entry[t->cursor].first : s->graph.n_nodes;
}

static int open_at(tn_session *s, const char *file, int line)
{
    tn_explain_state *x = s->explain;
    if (!s->in_step) return tn_fail(s, TN_E_STATE, "require_fused", "outside a step");
    if (x->require_open) return tn_fail(s, TN_E_STATE, "require_fused", "within another one");
    if (!tn_reserve(&x->require, &x->cap_require, x->n_require + 1, sizeof *x->require))
        return tn_fail(s, TN_E_NOMEM, "require_fused", "no memory");
    x->require[x->n_require++] = (tn_require){next_id(s), UINT32_MAX, file, line, 0};
    x->require_open = true;
    x->looks.required = check_required;
    return TN_OK;
}

TN_AT(int, require_fused, (s), tn_session *s)
{
    tn_place_begin(s, file, line);
    int status = s ? open_at(s, file, line) : TN_E_NULL;
    tn_place_end(s);
    return status;
}

TN_DEFINE(int, require_end, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    tn_explain_state *x = s->explain;
    if (!x->require_open) return tn_fail(s, TN_E_STATE, "require_end", "without tn_require_fused");
    newest(s)->end = next_id(s);
    x->require_open = false;
    return TN_OK;
}

void tn_require_left_open(tn_session *s)
{
    tn_explain_state *x = s->explain;
    if (!x->require_open) return;
    x->require_open = false;
    tn_place_begin(s, newest(s)->file, newest(s)->line);
    tn_fail(s, TN_E_STATE, "require_fused", "the step ends without tn_require_end");
    tn_place_end(s);
}

/* ---- looking at a plan ---- */

/* 0: not concerned. 1: recorded between the two. 2: part of the gradient of something that was. */
static int part(const tn_require *q, const tn_tensor *n)
{
    const tn_call *c = n->call;
    if (c && c->backward) return c->of && c->of->first >= q->first && c->of->first < q->end ? 2 : 0;
    return n->id >= q->first && n->id < q->end;
}

/* Returns true where the step stores nothing but gradients of parameters. */
static bool for_parameters(const tn_flush_scratch *f, const tn_step *st)
{
    bool any = false;
    for (int i = st->n_buf - st->n_out; i < st->n_buf; i++) {
        int slot = st->buf[i];
        if (slot < 0 || slot >= f->node.n) continue; /* partial sums */
        if (!f->node.at[slot]->place) return false;
        any = true;
    }
    return any;
}

static int refuse(tn_session *s, const tn_require *q, const tn_flush_scratch *f, const tn_plan *p, int a,
                  int b)
{
    const char *why = "no value goes from one to the other";
    TN_EACH(c, p->cut, p->n_cut) {
        if (part(q, f->node.at[c->from]) != part(q, f->node.at[a]) ||
            part(q, f->node.at[c->to]) != part(q, f->node.at[a]))
            continue;
        if (p->note->value[c->from].step == p->note->value[c->to].step) continue;
        a = c->from;
        b = c->to;
        why = tn_cut_text(c->reason);
        break;
    }
    tn_call here = {.name = "require_fused", .file = q->file, .line = q->line};
    return tn_error_of(&s->graph, &here, TN_E_STATE, "%s and %s are not one kernel: %s",
                       TN_NODE_WHERE(f->node.at[a]), TN_NODE_WHERE(f->node.at[b]), why);
}

static bool one_group(const tn_plan *p, int a, int b)
{
    return p->step[a].first_node == p->step[b].first_node && p->step[a].n_nodes == p->step[b].n_nodes;
}

static int check_one(tn_session *s, tn_require *q, const tn_flush_scratch *f, const tn_plan *p)
{
    int first[3] = {-1, -1, -1};
    for (int i = 0; i < f->node.n; i++) {
        int way = part(q, f->node.at[i]), step = p->note->value[i].step;
        if (!way || step < 0 || (way == 2 && for_parameters(f, &p->step[step]))) continue;
        if (first[way] < 0) first[way] = i;
        if (!one_group(p, p->note->value[first[way]].step, step)) return refuse(s, q, f, p, first[way], i);
    }
    if (first[1] < 0) return TN_OK;
    if (q->segment) {
        const tn_run_log *r = &s->explain->now.run[q->segment - 1];
        return tn_fail(s, TN_E_STATE, "require_fused",
                       "%s ran apart from what was recorded before it: %s%s%s at %s:%d stands between",
                       TN_NODE_WHERE(f->node.at[first[1]]), r->ender, r->what[0] ? " of " : "", r->what,
                       tn_short_file(r->file), r->line);
    }
    q->segment = s->explain->now.n + 1;
    return TN_OK;
}

static int check_required(tn_session *s, const tn_flush_scratch *f, const tn_plan *p)
{
    int status = TN_OK;
    if (!tn_deferred(s)) return TN_OK;
    for (int i = 0; i < s->explain->n_require && !status; i++)
        status = check_one(s, &s->explain->require[i], f, p);
    return status;
}
