/* plan.c - the driver: a segment becomes a plan. Start with tn_plan_build. */
#include "tile.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct reason {
    bool removable;
    const char *text, *remedy;
} reason[] = {
#define TN_X(name, removable, text, remedy) {removable, text, remedy},
    TN_CUT_REASONS(TN_X)
#undef TN_X
};

static const struct reason *reason_of(tn_cut_reason r)
{
    return &reason[(size_t)r < sizeof reason / sizeof *reason ? r : TN_CUT_NONE];
}

const char *tn_cut_text(tn_cut_reason r)
{
    return reason_of(r)->text;
}

const char *tn_cut_remedy(tn_cut_reason r)
{
    return reason_of(r)->remedy;
}

bool tn_cut_removable(tn_cut_reason r)
{
    return reason_of(r)->removable;
}

int fu_fail(fu_ctx *c, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (c->err && !c->err->text[0]) vsnprintf(c->err->text, sizeof c->err->text, fmt, ap);
    va_end(ap);
    return status;
}

/* ---- steps ---- */

static void *grow(tn_arena *a, void *old, int n, int *cap, size_t size)
{
    if (n < *cap) return old;
    int more = *cap ? 2 * *cap : 16;
    void *p = tn_arena_alloc(a, (size_t)more * size);
    if (!p) return NULL;
    if (n) memcpy(p, old, (size_t)n * size);
    *cap = more;
    return p;
}

void fu_cut(fu_ctx *c, int from, int to, tn_cut_reason why)
{
    tn_plan *p = c->plan;
    tn_cut *list = grow(&p->arena, p->cut, p->n_cut, &c->cap_cut, sizeof *list);
    if (!list) return; /* reasons are for the reader: a plan without one is still right */
    p->cut = list;
    p->cut[p->n_cut++] = (tn_cut){from, to, why, -1};
}

tn_step *fu_step_new(fu_ctx *c, tn_step_kind kind, const char *name)
{
    tn_plan *p = c->plan;
    tn_step *list = grow(&p->arena, p->step, p->n_step, &c->cap_step, sizeof *list);
    if (!list) {
        fu_fail(c, TN_E_NOMEM, "no memory for a plan");
        return NULL;
    }
    p->step = list;
    tn_step *s = &list[p->n_step++];
    memset(s, 0, sizeof *s);
    s->kind = kind;
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

int fu_step_buf(fu_ctx *c, tn_step *s, int slot, int64_t offset)
{
    if (!s->buf) {
        s->buf = tn_arena_alloc(&c->plan->arena, FU_MAX_BUFS * sizeof *s->buf);
        s->offset = tn_arena_alloc(&c->plan->arena, FU_MAX_BUFS * sizeof *s->offset);
        s->traffic = tn_arena_alloc(&c->plan->arena, FU_MAX_BUFS * sizeof *s->traffic);
        if (!s->buf || !s->offset || !s->traffic) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    }
    if (s->n_buf == FU_MAX_BUFS) {
        c->over_limit = true;
        return fu_fail(c, TN_E_UNSUPPORTED, "a kernel of too many operands");
    }
    s->buf[s->n_buf] = slot;
    s->offset[s->n_buf] = offset;
    return s->n_buf++;
}

int fu_scratch_slot(fu_ctx *c, int64_t elems, tn_dtype dtype)
{
    void *p = grow(&c->arena, c->scratch, c->plan->n_scratch, &c->cap_scratch, sizeof *c->scratch);
    if (!p) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    c->scratch = p;
    c->scratch[c->plan->n_scratch] = (struct fu_scratch){elems, dtype};
    return c->n_node + c->n_leaf + c->plan->n_scratch++;
}

int fu_finish_kernel(fu_ctx *c, tn_step *s, fu_text *t)
{
    char *text = t->failed || !t->p ? NULL : tn_arena_strdup(&c->plan->arena, t->p);
    bool failed = t->failed;
    fu_text_free(t);
    if (!text)
        return fu_fail(c, failed && c->over_limit ? TN_E_UNSUPPORTED : TN_E_NOMEM, "no text for kernel %s",
                       s->name);
    s->source.text = text;
    s->source.entry = tn_arena_strdup(&c->plan->arena, s->name);
    return s->source.entry ? 0 : fu_fail(c, TN_E_NOMEM, "no memory for a plan");
}

void fu_kernel_name(const fu_ctx *c, const fu_group *g, int64_t width, char *out, size_t n)
{
    if (!g->n) {
        if (width > 1)
            snprintf(out, n, "copy_%lld", (long long)width);
        else
            snprintf(out, n, "copy_elements");
        return;
    }
    /* the call that most of the group's nodes come from */
    const tn_call *best = NULL;
    int most = 0;
    for (int i = 0; i < g->n; i++) {
        const tn_call *call = c->node[g->member[i]].t->call;
        int k = 0;
        for (int j = 0; j < g->n; j++) k += c->node[g->member[j]].t->call == call;
        if (call && k > most) {
            most = k;
            best = call;
        }
    }
    char want[64], id[40];
    if (best)
        snprintf(want, sizeof want, "%.20s%s", best->of ? best->of->name : best->name,
                 best->of ? "_bwd" : "");
    else
        snprintf(want, sizeof want, "%.24s", tn_op_get((tn_op)c->node[g->member[g->n - 1]].t->op)->name);
    fu_identifier(id, sizeof id, want);
    if (width > 1)
        snprintf(out, n, "%s_%lld", id, (long long)width);
    else
        snprintf(out, n, "%s_elements", id);
}

/* ---- groups in order ---- */

/* A loop group that stands alone because its source overlaps its target: through scratch. */
static int emit_overlapping_assign(fu_ctx *c, const fu_group *g)
{
    int slot = fu_emit_dense(c, fu_value_of(c, c->node[g->member[0]].t->in[1]), g->member[0]);
    if (slot < 0) return slot;
    c->assign_from = slot;
    tn_cut_reason why = fu_try(c, g->n, g->member);
    int r = why ? fu_fail(c, TN_E_UNSUPPORTED, "assign: %s", tn_cut_text(why)) : fu_emit(c, g, c->prog);
    c->assign_from = -1;
    return r;
}

int fu_emit_group(fu_ctx *c, const fu_group *g)
{
    bool empty = true; /* nothing has elements */
    for (int i = 0; i < g->n; i++) empty = empty && tn_node_numel(c->node[g->member[i]].t) == 0;
    if (empty) return 0;
    switch (g->room) {
    case FU_GEMM:
        return fu_emit_gemm(c, g);
    case FU_CONV:
        return fu_emit_conv(c, g);
    case FU_TILE:
        return fu_emit_tile(c, g);
    case FU_WINDOW:
        return fu_emit_window(c, g);
    case FU_SCATTER:
        return fu_emit_scatter(c, g);
    case FU_SCAN:
        return fu_emit_scan(c, g);
    case FU_CONCAT:
        return fu_emit_concat(c, g);
    case FU_ATTENTION:
        return fu_emit_attention(c, g);
    case FU_NOTHING:
        return 0;
    case FU_LOOPS:
        break;
    }
    c->try_a = c->try_b = (int)(g - c->group);
    tn_cut_reason why = fu_try(c, g->n, g->member);
    if (!why && !c->prog->n_store && !c->prog->n_after) return 0; /* others compute all of it again */
    if (why == TN_CUT_ALIAS && g->n == 1) return emit_overlapping_assign(c, g);
    if (why) {
        const tn_tensor *t = c->node[g->member[0]].t;
        return fu_fail(c, TN_E_UNSUPPORTED, "%s: %s", tn_op_get((tn_op)t->op)->name, tn_cut_text(why));
    }
    return fu_emit(c, g, c->prog);
}

int fu_emit_all(fu_ctx *c)
{
    tn_plan *p = c->plan;
    int *waits = tn_arena_alloc(&c->arena, (size_t)(c->n_group + 1) * sizeof *waits);
    bool *done = tn_arena_alloc(&c->arena, (size_t)c->n_group + 1);
    p->node_of = tn_arena_alloc(&p->arena, (size_t)(2 * c->n_node + 1) * sizeof *p->node_of);
    if (!waits || !done || !p->node_of) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    int listed = 0, left = 0;
    for (int g = 0; g < c->n_group; g++) left += !c->group[g].dead;
    while (left) {
        /* the ready group with the oldest last node: values stay short-lived */
        int best = -1;
        for (int g = 0; g < c->n_group; g++) {
            const fu_group *a = &c->group[g];
            if (a->dead || done[g]) continue;
            if (best >= 0 && a->member[a->n - 1] > c->group[best].member[c->group[best].n - 1]) continue;
            bool ready = true;
            for (int i = 0; i < a->n && ready; i++)
                for (int k = 0; k < c->node[a->member[i]].n_after && ready; k++) {
                    int d = fu_group_of(c, c->node[a->member[i]].after[k]);
                    ready = d == g || done[d];
                }
            if (ready) best = g;
        }
        if (best < 0)
            return fu_fail(c, TN_E_UNSUPPORTED, "values before and after an assignment are both needed");
        const fu_group *g = &c->group[best];
        int before = p->n_step;
        int r = fu_emit_group(c, g);
        if (r) return r < 0 ? r : TN_E_UNSUPPORTED;
        for (int s = before; s < p->n_step; s++) {
            p->step[s].first_node = listed;
            p->step[s].n_nodes = g->n;
        }
        for (int i = 0; i < g->n; i++) p->node_of[listed++] = g->member[i];
        done[best] = true;
        left--;
    }
    return 0;
}

/* ---- lifetimes ---- */

int fu_list_values(fu_ctx *c)
{
    tn_plan *p = c->plan;
    int n_slot = c->n_node + c->n_leaf + p->n_scratch;
    tn_plan_value *of = tn_arena_alloc(&c->arena, (size_t)(n_slot + 1) * sizeof *of);
    p->value = tn_arena_alloc(&p->arena, (size_t)(n_slot + 1) * sizeof *p->value);
    if (!of || !p->value) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < n_slot; i++) of[i].first = -1;
    for (int s = 0; s < p->n_step; s++)
        for (int b = 0; b < p->step[s].n_buf; b++) {
            int slot = p->step[s].buf[b];
            if (slot < 0) continue;
            if (of[slot].first < 0) of[slot].first = s;
            of[slot].last = s;
        }
    for (int i = 0; i < n_slot; i++) {
        bool leaf = i >= c->n_node && i < c->n_node + c->n_leaf;
        bool root = i < c->n_node && c->node[i].root;
        if (leaf || (of[i].first < 0 && !root)) continue;
        tn_plan_value *v = &p->value[p->n_value++];
        *v = of[i];
        v->slot = i;
        v->root = root;
        v->keep = i < c->n_node && c->seg->root && c->seg->root[i] & TN_SEG_KEEP;
        v->alias = -1;
        if (v->first < 0) v->first = v->last = 0; /* no elements: nothing computes it */
        if (i < c->n_node) {
            const tn_tensor *t = c->node[i].t;
            v->dtype = (tn_dtype)t->dtype;
            v->elems = (size_t)tn_node_numel(t);
            if (t->op == TN_OP_assign) {
                int64_t offset;
                if (!fu_place(c, t->in[0], &v->alias, &offset))
                    return fu_fail(c, TN_E_UNSUPPORTED,
                                   "the target of an assignment is not among the leaves");
            }
        } else {
            v->dtype = c->scratch[i - c->n_node - c->n_leaf].dtype;
            v->elems = (size_t)c->scratch[i - c->n_node - c->n_leaf].elems;
        }
    }
    return 0;
}

/* ---- the whole ---- */

int fu_begin(fu_ctx *c)
{
    const tn_segment *seg = c->seg;
    c->n_node = seg->n_node;
    c->n_leaf = seg->n_leaf;
    c->assign_from = -1;
    c->node = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->node);
    c->prog = tn_arena_alloc(&c->arena, sizeof *c->prog);
    c->prog2 = tn_arena_alloc(&c->arena, sizeof *c->prog2);
    c->prog3 = tn_arena_alloc(&c->arena, sizeof *c->prog3);
    c->domain = tn_arena_alloc(&c->arena, sizeof *c->domain);
    if (!c->node || !c->prog || !c->prog2 || !c->prog3 || !c->domain)
        return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < c->n_leaf; i++) seg->leaf[i]->slot = c->n_node + i;
    for (int i = 0; i < c->n_node; i++) {
        tn_tensor *t = seg->node[i];
        t->slot = i;
        c->node[i] = (fu_node){.t = t,
                               .kind = tn_op_get((tn_op)t->op)->kind,
                               .root = seg->root && seg->root[i] & TN_SEG_ROOT,
                               .into = -1,
                               .group = -1};
    }
    return 0;
}

static int build(fu_ctx *c)
{
    int r = fu_begin(c);
    if (!r) r = fu_simplify(c);
    if (!r) r = fu_verify_graph(c, "simplify");
    if (!r) {
        fu_fold(c);
        r = fu_verify_graph(c, "fold");
    }
    if (!r) r = fu_group_all(c);
    if (!r) r = fu_verify_groups(c);
    if (r) return fu_fail(c, r, "no memory for a plan");
    /* an edge refused at first may have ended up inside one group */
    int kept = 0;
    for (int i = 0; i < c->plan->n_cut; i++) {
        tn_cut cut = c->plan->cut[i];
        if (!fu_has(&c->group[fu_group_of(c, cut.to)], cut.from)) c->plan->cut[kept++] = cut;
    }
    c->plan->n_cut = kept;
    if (!(r = fu_emit_all(c))) r = fu_list_values(c);
    return r ? r : fu_verify_steps(c);
}

int tn_plan_build(const tn_segment *seg, const tn_target *target, tn_plan **out, tn_errbuf *err)
{
    fu_ctx c = {.seg = seg, .target = target, .err = err};
    *out = NULL;
    if (err) err->text[0] = 0;
    c.plan = tn_calloc(1, sizeof *c.plan);
    if (!c.plan) return fu_fail(&c, TN_E_NOMEM, "no memory for a plan");
    int r = build(&c);
    tn_arena_free(&c.arena);
    if (r) {
        tn_plan_free(c.plan);
        return r;
    }
    *out = c.plan;
    return 0;
}

bool tn_plan_serves(const tn_plan *p, tn_tensor *const *leaf)
{
    for (int i = 0; i < p->n_guard; i++) {
        const tn_number *a = &p->guard[i].number, *b = &leaf[p->guard[i].leaf]->base->attr->number;
        if (a->is_int != b->is_int || a->i != b->i || memcmp(&a->f, &b->f, sizeof a->f)) return false;
    }
    return true;
}

void tn_plan_free(tn_plan *p)
{
    if (!p || p->refs-- > 0) return;
    if (p->run) p->run_free(p->run);
    tn_arena_free(&p->arena);
    tn_free_mem(p);
}
