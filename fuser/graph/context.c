/* context.c - what all passes ask of a build and note in it: which value stands for a tensor, where it lies,
 * what must have run before a node, why an edge was cut, and the error. Start with fu_value_of. */
#include "../../src/core/build.h"
#include "graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const fu_ability *fu_can(const tn_target *t)
{
    static const fu_ability row[] = {
        [TN_DIALECT_C] = {.then = true, .meet = true, .two_forms = true, .undo = true, .finishes = 2},
        [TN_DIALECT_CUDA] = {.grid = true, .tiles = true, .finishes = 1},
        [TN_DIALECT_C99] = {.meet = true, .finishes = 2},
    };
    return &row[t->dialect];
}

/* ---- who stands for what ---- */

static int index_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t s = t->slot;
    return s >= 0 && s < c->n_node && c->seg->node[s] == t ? (int)s : -1;
}

const tn_tensor *fu_value_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t v = FU_VIEW - t->slot;
    if (v >= 0) return v < c->n_view && c->view[v].of == t ? c->view[v].same : t;
    int i = index_of(c, t);
    return i < 0 ? t : c->node[i].same ? c->node[i].same : c->node[i].t;
}

int fu_node_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t s = t->base->slot;
    return s >= 0 && s < c->n_node && (c->node[s].t == t->base || c->seg->node[s] == t->base) ? (int)s : -1;
}

bool fu_place(const fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset)
{
    int64_t s = t->slot;
    *offset = 0;
    if (s >= c->n_node && s < c->n_node + c->n_leaf && c->seg->leaf[s - c->n_node] == t) {
        *slot = (int)s;
        return true;
    }
    s = t->base->slot;
    *offset = t->offset - t->base->offset;
    *slot = (int)s;
    return (s >= 0 && s < c->n_node && c->node[s].t == t->base) ||
           (s >= c->n_node && s < c->n_node + c->n_leaf && c->seg->leaf[s - c->n_node] == t->base);
}

bool fu_draws(const fu_ctx *c, const tn_tensor *t, int k)
{
    return fu_node_of(c, t->in[k]) >= 0 && tn_attention_draws(t, k);
}

bool fu_widens(const fu_node *n)
{
    return n->kind == TN_KIND_CAST && n->t->dtype == TN_F32 && tn_dtype_is_half(n->t->in[0]->dtype);
}

/* ---- notes ---- */

void *fu_grow(tn_arena *a, void *old, int n, int *cap, size_t size)
{
    if (n < *cap) return old;
    int more = *cap ? 2 * *cap : 16;
    void *p = tn_arena_alloc(a, (size_t)more * size);
    if (!p) return NULL;
    if (n) memcpy(p, old, (size_t)n * size);
    *cap = more;
    return p;
}

static bool push(fu_ctx *c, int **list, int *n, int *cap, int v)
{
    if (*n && (*list)[*n - 1] == v) return true;
    int *p = fu_grow(&c->arena, *list, *n, cap, sizeof *p);
    if (!p) return false;
    *list = p;
    p[(*n)++] = v;
    return true;
}

bool fu_note_user(fu_ctx *c, int node, int user)
{
    fu_node *n = &c->node[node];
    return push(c, &n->user, &n->n_user, &n->cap_user, user);
}

bool fu_note_copy(fu_ctx *c, int node, int group)
{
    fu_node *n = &c->node[node];
    c->n_copy++;
    return push(c, &n->copy, &n->n_copy, &n->cap_copy, group);
}

bool fu_note_after(fu_ctx *c, int node, int other)
{
    fu_node *n = &c->node[node];
    return push(c, &n->after, &n->n_after, &n->cap_after, other);
}

void fu_cut(fu_ctx *c, int from, int to, tn_cut_reason why)
{
    tn_plan *p = c->plan;
    tn_cut *list = fu_grow(&p->arena, p->cut, p->n_cut, &c->cap_cut, sizeof *list);
    if (!list) return; /* reasons are for the reader: a plan without one is still right */
    p->cut = list;
    p->cut[p->n_cut++] = (tn_cut){from, to, why, -1};
}

int fu_fail(fu_ctx *c, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (c->err && !c->err->text[0]) tn_vsnprintf(c->err->text, sizeof c->err->text, fmt, ap);
    va_end(ap);
    return status;
}

int fu_broken(fu_ctx *c, const char *pass, int node, const char *rule)
{
    if (node < 0 || node >= c->n_node) return fu_fail(c, TN_E_INTERNAL, "after %s: %s", pass, rule);
    const tn_tensor *t = c->seg->node[node];
    const tn_call *call = t->call && t->call->of ? t->call->of : t->call;
    const char *name = tn_op_get(t->op)->name;
    if (!call || !call->file)
        return fu_fail(c, TN_E_INTERNAL, "after %s: node %d (%s): %s", pass, node, name, rule);
    return fu_fail(c, TN_E_INTERNAL, "after %s: node %d (%s of %s at %s:%d): %s", pass, node, name,
                   call->name, call->file, call->line, rule);
}

void fu_hint(const char *name, char out[FU_HINT])
{
    const char *dot = name ? strrchr(name, '.') : NULL, *from = dot ? dot + 1 : name ? name : "";
    size_t n = strlen(from);
    while (n && strchr("0123456789", from[n - 1])) n--;
    snprintf(out, FU_HINT, "%.*s", (int)n, from);
}

tn_dtype fu_compute_dtype(tn_dtype d) { return d == TN_F16 || d == TN_BF16 ? TN_F32 : d; }
