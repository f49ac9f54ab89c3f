/* operands.c - what a kernel reads and writes: which buffers its programs need, under which names, and how
 * many bytes that comes to. A kernel has one program, or more where it has a finish; each is turned to in
 * turn. Start with fu_turn_to. */
#include "../loops/cost.h"
#include "nest.h"

#include <stdio.h>
#include <string.h>

static void mark_hot(fu_em *e, int id)
{
    if (e->hot[id]) return;
    e->hot[id] = true;
    for (int i = 0; i < e->p->value[id].n_arg; i++) mark_hot(e, e->p->value[id].arg[i]);
}

fu_em *fu_em_new(fu_ctx *c)
{
    fu_em *e = tn_arena_alloc(&c->arena, sizeof *e);
    if (!e) return fu_fail(c, TN_E_NOMEM, "no memory for a plan"), NULL;
    e->c = c;
    e->lang = fu_language(c->target);
    return e;
}

/* Turns to another program of the same kernel. */
void fu_turn_to(fu_em *e, fu_prog *p)
{
    e->p = p;
    memset(e->hot, 0, sizeof e->hot);
    memset(e->defined, 0, sizeof e->defined);
    for (int i = 0; i < p->n_value; i++) e->where[i] = -1;
    for (int i = 0; i < p->n_store; i++)
        if (!p->split || fu_store_full(p, &p->store[i])) {
            mark_hot(e, p->store[i].value);
            if (p->store[i].mask >= 0) mark_hot(e, p->store[i].mask);
        }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_REDUCE) mark_hot(e, i);
}

bool fu_loads(const fu_em *e, int id)
{
    return e->hot[id] && (e->p->value[id].kind == FU_LOAD || e->p->value[id].kind == FU_PICK);
}

void fu_take_inputs(fu_em *e, int n, const int *slot, bool listed)
{
    for (int i = 0; i < e->p->n_value; i++) {
        fu_value *v = &e->p->value[i];
        if (!fu_loads(e, i)) continue;
        if ((fu_find(n, slot, v->slot) >= 0) == listed)
            v->buf = fu_pointer(e, v->slot, v->offset, v->dtype, *v->hint ? v->hint : "in");
    }
}

void fu_take_outputs(fu_em *e)
{
    fu_prog *p = e->p;
    TN_EACH(s, p->store, p->n_store) {
        s->buf = -1;
        if (p->split && !fu_store_full(p, s)) continue;
        const tn_tensor *t = s->node < 0 ? NULL : e->c->node[s->node].t;
        const bool in_place = t && tn_kind_of(t) == TN_KIND_ASSIGN;
        const fu_value *v = &p->value[s->value];
        char name[FU_HINT], text[FU_HINT + 8];
        fu_hint(in_place && t->in[0]->name ? t->in[0]->name : t ? t->name : NULL, name);
        if (!*name && !in_place && v->kind == FU_OP && *v->hint)
            snprintf(text, sizeof text, "%s", v->hint);
        else
            snprintf(text, sizeof text, "%s%sout", name, *name ? "_" : "");
        s->buf = fu_pointer(e, s->slot, s->offset, s->dtype, text);
    }
}

int fu_take_buffers(fu_em *e, int n_in)
{
    for (int i = 0; i < e->n_pointer; i++) {
        const int at = fu_step_buf(e->c, e->s, e->pointer_slot[i], e->pointer_offset[i]);
        if (at < 0) return at;
    }
    e->s->n_out = e->n_pointer - n_in;
    return 0;
}

void fu_put_function(fu_em *e, const char *head, ...)
{
    va_list ap;
    va_start(ap, head);
    tn_put_v(&e->head, head, ap);
    va_end(ap);
    tn_put(&e->head, "%s}\n", e->t.p ? e->t.p : "");
    if (!e->head.failed) e->head.failed = e->t.failed;
    tn_growing_free(&e->t);
}

void fu_put_operands(fu_em *e, int n_in, const int *scratch)
{
    const fu_prog *p = e->p;
    bool mine[FU_MAX_BUFS] = {false};
    for (int i = 0; i < p->n_value; i++) {
        if (fu_loads(e, i)) mine[p->value[i].buf] = true;
        if (!p->second && fu_is_partial(p, i)) mine[scratch[i]] = true;
    }
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].buf >= 0) mine[p->store[i].buf] = true;
    e->n_name = e->n_pointer; /* names of values are the function's own */
    e->ready = 0;
    for (int i = 0; i < e->n_pointer; i++)
        if (mine[i])
            fu_put_pointer(&e->t, e->lang, (tn_dtype)e->pointer_dtype[i], e->pointer[i], i, i < n_in);
}

void fu_describe(fu_em *e, const fu_group *g)
{
    const fu_prog *p = e->p;
    static const char *const form[] = {"pointwise", "row", "column"};
    tn_growing *t = &e->head;
    tn_put(t, "/* %s%s:", e->s->name, p->second ? ", when all parts are done" : "");
    for (int i = 0; i < g->n && !p->second; i++) {
        const tn_tensor *n = e->c->node[g->member[i]].t;
        char name[FU_HINT];
        fu_hint(n->name, name);
        tn_put(t, "%s%s%s%s", i % 8 ? " " : "\n *   ", tn_op_get(n->op)->name, *name ? ":" : "", name);
    }
    tn_put(t, "\n * %s schedule over [", form[p->form]);
    for (int i = 0; i < p->n_atom; i++) {
        const char *sep = i ? ", " : "";
        if (fu_runtime(p, i))
            tn_put(t, "%sn%s", sep, p->red >> i & 1 ? " reduced" : "");
        else
            tn_put(t, "%s%lld%s", sep, (long long)p->extent[i], p->red >> i & 1 ? " reduced" : "");
    }
    tn_put(t, "]");
    if (p->n_phase > 1) tn_put(t, ", %d phases", p->n_phase);
    if (p->split) tn_put(t, ", partial results per part");
    if (p->cross) tn_put(t, ", sums over the rows per part");
    if (p->stream) tn_put(t, ", streaming stores");
    if (p->second) tn_put(t, ", combines the parts in order");
    tn_put(t, " */\n");
}

/* Counts the bytes that this function of the kernel reads and writes, each operand once. */
void fu_count_traffic(fu_em *e)
{
    const fu_prog *p = e->p;
    const double work = fu_prog_work(p, e->c->target);
    for (int i = 0; i < e->n_pointer; i++) {
        int64_t most = 0;
        for (int k = 0; k < p->n_value; k++) {
            const fu_value *v = &p->value[k];
            if ((v->kind == FU_LOAD || v->kind == FU_PICK) && v->buf == i && e->hot[k]) {
                int64_t m = v->n_arg && v->kind == FU_LOAD ? v->extent : fu_elements(p, v->stride, v->vary);
                if (m > most) most = m;
            }
        }
        for (int k = 0; k < p->n_store; k++)
            if (p->store[k].buf == i) {
                const fu_store *s = &p->store[k];
                int64_t m =
                    s->mask < 0 ? fu_elements(p, s->stride, s->dom) : tn_node_numel(e->c->node[s->node].t);
                if (m > most) most = m;
                e->s->traffic[i].past = e->s->traffic[i].past || p->store[k].stream;
            }
        int64_t bytes = most * (int64_t)tn_dtype_size((tn_dtype)e->pointer_dtype[i]);
        e->s->traffic[i].bytes += bytes;
        e->s->bytes += bytes;
        e->s->finish.bytes += p->second ? bytes : 0;
    }
    e->s->work += work;
    e->s->finish.work += p->second ? work : 0;
}
