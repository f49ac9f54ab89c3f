/* steps.c - the steps of a plan as they are written: each has operands by slot, and its kernel a name and a
 * text. Start with fu_step_new. */
#include "text.h"

#include <stdio.h>
#include <string.h>

tn_step *fu_step_new(fu_ctx *c, tn_step_kind kind, const char *name)
{
    tn_plan *p = c->plan;
    tn_step *list = fu_grow(&p->arena, p->step, p->n_step, &c->cap_step, sizeof *list);
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
    if (s->n_buf == FU_MAX_BUFS) return fu_fail(c, TN_E_INTERNAL, "a kernel of too many operands");
    s->buf[s->n_buf] = slot;
    s->offset[s->n_buf] = offset;
    return s->n_buf++;
}

int fu_step_dim(fu_ctx *c, tn_step *s, int64_t value)
{
    if (!s->dim && !(s->dim = tn_arena_alloc(&c->plan->arena, TN_MAX_KERNEL_DIMS * sizeof *s->dim)))
        return TN_E_NOMEM;
    if (s->n_dim == TN_MAX_KERNEL_DIMS) return TN_E_UNSUPPORTED;
    s->dim[s->n_dim] = value;
    return s->n_dim++;
}

int fu_scratch_slot(fu_ctx *c, int64_t elems, tn_dtype dtype)
{
    void *p = fu_grow(&c->arena, c->scratch, c->plan->n_scratch, &c->cap_scratch, sizeof *c->scratch);
    if (!p) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    c->scratch = p;
    c->scratch[c->plan->n_scratch] = (struct fu_scratch){elems, dtype};
    return c->n_node + c->n_leaf + c->plan->n_scratch++;
}

int fu_finish_kernel(fu_ctx *c, tn_step *s, tn_growing *t)
{
    char *text = t->failed || !t->p ? NULL : tn_arena_strdup(&c->plan->arena, t->p);
    const int status = t->failed ? t->failed : TN_E_NOMEM;
    tn_growing_free(t);
    if (!text) return fu_fail(c, status, "no text for kernel %s", s->name);
    s->source.text = text;
    s->source.entry = tn_arena_strdup(&c->plan->arena, s->name);
    return s->source.entry ? 0 : fu_fail(c, TN_E_NOMEM, "no memory for a plan");
}

/* The call that most of the group's nodes come from, but for those of one call and its gradient. */
static const tn_call *main_call(const fu_ctx *c, const fu_group *g, const tn_call *but)
{
    const tn_call *best = NULL;
    int most = 0;
    for (int i = 0; i < g->n; i++) {
        const tn_call *call = c->node[g->member[i]].t->call;
        int k = 0;
        for (int j = 0; j < g->n; j++) k += c->node[g->member[j]].t->call == call;
        if (!call || (but && (call == but || call->of == but)) || k <= most) continue;
        most = k;
        best = call;
    }
    return best;
}

void fu_kernel_name(const fu_ctx *c, const fu_group *g, const fu_prog *p, char *out, size_t n)
{
    const int64_t width = p->outer == fu_vec(p) ? 0 : p->extent[fu_vec(p)];
    if (p->checks) {
        const char *what = c->node[p->checks->node].t->attr->indexed_by;
        char id[40];
        fu_identifier(id, sizeof id, what ? what : "index");
        if (width > 1)
            snprintf(out, n, "check_%s_%lld", id, (long long)width);
        else
            snprintf(out, n, "check_%s", id);
        return;
    }
    if (!g->n) {
        if (width > 1)
            snprintf(out, n, "copy_%lld", (long long)width);
        else
            snprintf(out, n, "copy_elements");
        return;
    }
    const tn_call *best = main_call(c, g, NULL);
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

void fu_tile_name(const fu_ctx *c, const fu_group *g, int conv, int64_t columns, char *out, size_t n)
{
    const tn_call *best = main_call(c, g, c->node[conv].t->call);
    char id[40] = "";
    if (best) fu_identifier(id, sizeof id, best->of ? best->of->name : best->name);
    snprintf(out, n, "%s%s%.20s%s_%lld", tn_op_get(c->node[conv].t->op)->name, best ? "_" : "", id,
             best && best->of ? "_bwd" : "", (long long)columns);
}
