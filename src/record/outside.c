/* outside.c - results of operators outside of steps. Each lives until the next step begins, or the scope ends
 * that it was made in, or until tn_free; a program that does none of these is told so when many have piled
 * up, and again where they have doubled since. Only the program can know which of them it still wants: it has
 * the handles.
 *
 * A result that is freed gives its memory back at once, unless a backward may still read it or the user holds
 * a view of it. Its node stays, as others depend on it, until none of the results is held any more: then
 * all are freed, as where a step begins. Start with tn_outside_made and tn_outside_free.
 *
 * A scope is what nodes there were when it began: as it ends, those behind go, and with them what they have
 * of the graph's arena. Nothing older points to them: no gradient is kept in a scope, or asked for, and each
 * assignment has run. */
#include <stdlib.h>
#include <string.h>

#include "../../include/tensor_extend.h"
#include "../runtime/log.h"

/* ---- freeing ---- */

static bool held(tn_tensor *b)
{
    bool view = b->flags & TN_F_USER;
    while (b->views && !(b->views->flags & TN_F_USER)) { /* freed */
        b->views->flags &= ~(uint32_t)TN_F_LISTED;
        b->views = b->views->views;
    }
    return view || b->views;
}

/* Gives back the memory of node b, unless a backward or the user may still read it. */
static void let_go(const tn_graph *g, tn_tensor *b)
{
    const bool wanted = b->flags & (TN_F_SAVED | TN_F_WANTED) || b->read == g->reads;
    if (tn_has_value(b) && !wanted && !held(b)) tn_node_drop_value(b);
}

void tn_outside_let_go(tn_session *s, const tn_tensor *p)
{
    const tn_graph *g = &s->graph;
    if (s->in_step || g->parked || g->call_depth || s->flushed < g->n_nodes) return;
    for (uint32_t i = 0; i < g->n_holders; i++)
        if (g->holder[i]->of == p || g->holder[i]->place == p) let_go(g, g->holder[i]);
}

void tn_outside_free(tn_session *s, tn_tensor *n)
{
    tn_graph *g = &s->graph;
    const bool gradient = n->call && n->call->backward;
    if (s->in_step || g->parked || g->call_depth || gradient || n->id >= g->n_nodes || g->nodes[n->id] != n)
        return;
    n->flags &= ~(uint32_t)TN_F_USER;
    n->generation++;
    n->was = TN_WAS_PERSISTENT;
    s->outside.freed++;
    tn_tensor *b = n->base;
    const tn_kind kind = tn_kind_of(b);
    const bool own = !(b->flags & TN_F_VERSION) && kind != TN_KIND_NUMBER && !tn_node_written(b);
    if (own) let_go(g, b);
    if (s->outside.freed < g->n_given || g->n_graded || s->n_watch) return;
    s->outside.freed = 0; /* as many again before the next look */
    for (uint32_t i = 0; i < g->n_given; i++)
        if (g->given[i]->flags & TN_F_USER) return;
    tn_end_scope(s);
}

/* ---- telling ---- */

typedef struct made {
    const tn_call *call;
    size_t bytes;
} made;

static int by_line(const void *a, const void *b)
{
    const tn_call *x = ((const made *)a)->call, *y = ((const made *)b)->call;
    const int file = strcmp(x->file ? x->file : "", y->file ? y->file : "");
    return file                 ? file
           : x->line != y->line ? (x->line > y->line) - (x->line < y->line)
                                : strcmp(x->name, y->name);
}

/* Looks through the tensors that operators outside of steps have made, and warns where they have piled up,
 * with the call that has made most of them. */
static void look(tn_session *s)
{
    enum { MANY = 8192, OF_ONE = 32 };
    static const size_t much = (size_t)64 << 20;
    const tn_graph *g = &s->graph;
    int n = 0, most = 0, of = 0;
    size_t bytes = 0, top = 0, sum = 0;
    made *list = tn_malloc(((size_t)g->n_given + 1) * sizeof *list);
    if (!list) return;
    for (uint32_t i = 0; i < g->n_given; i++) {
        const tn_tensor *t = g->given[i];
        if (!(t->flags & TN_F_USER) || !t->call) continue;
        list[n] = (made){t->call, t->base == t && t->buf ? t->buf->bytes : 0};
        bytes += list[n++].bytes;
    }
    if (n) qsort(list, (size_t)n, sizeof *list, by_line);
    for (int i = 0, first = 0; i < n; i++) {
        if (by_line(&list[first], &list[i])) {
            first = i;
            sum = 0;
        }
        sum += list[i].bytes;
        if (i - first + 1 < OF_ONE || (most && sum <= top)) continue;
        most = i - first + 1;
        top = sum;
        of = i;
    }
    const bool doubled = n >= 2 * s->outside.told || bytes >= 2 * s->outside.told_bytes;
    if (most && (n >= MANY || bytes >= much) && doubled) {
        tn_note_call call = {
            .name = list[of].call->name, .file = list[of].call->file, .line = list[of].call->line};
        s->outside.told = n;
        s->outside.told_bytes = bytes;
        tn_warn(s,
                "%d results of operators outside of steps have piled up, %zu bytes, %d of them by %s: they "
                "live until a step begins. Put tn_step_begin and tn_step_end, or tn_scope_begin and "
                "tn_scope_end, around what belongs together, such as a request, or tn_free each of them",
                n, bytes, most, TN_NOTE_WHERE(&call));
    }
    tn_free_mem(list);
}

void tn_outside_made(tn_session *s)
{
    enum { FIRST = 128 };
    if (++s->outside.calls < s->outside.next) return;
    if (s->outside.calls >= FIRST) look(s);
    s->outside.next = s->outside.calls < FIRST ? FIRST : 2 * s->outside.calls;
}

void tn_end_scope(tn_session *s)
{
    tn_graph_reset(&s->graph);
    s->flushed = 0;
    s->n_watch = 0;
    s->outside.calls = s->outside.next = s->outside.freed = 0;
    s->graph.scope.first = 0;
    for (int i = 0; i < s->n_scopes; i++) s->scope[i] = (struct tn_outer){.in_step = s->scope[i].in_step};
}

/* ---- scopes ---- */

TN_DEFINE(int, scope_begin, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    tn_graph *g = &s->graph;
    if (g->call_depth) return tn_fail(s, TN_E_STATE, "scope_begin", "between tn_op_begin and tn_op_end");
    if (!tn_reserve(&s->scope, &s->cap_scopes, s->n_scopes + 1, sizeof *s->scope))
        return tn_fail(s, TN_E_NOMEM, "scope_begin", "no memory for a scope");
    s->scope[s->n_scopes] =
        (struct tn_outer){g->scope.first, {NULL, 0}, s->outside.calls, s->outside.next, s->in_step};
    if (!s->in_step && !g->parked) { /* else what is recorded next is the first there is */
        s->scope[s->n_scopes].arena = tn_arena_here(&g->arena);
        g->scope.first = g->n_nodes;
    }
    s->n_scopes++;
    g->no_grad++;
    return g->error.status;
}

static void end_one(tn_session *s)
{
    tn_graph *g = &s->graph;
    const struct tn_outer *outer = &s->scope[s->n_scopes - 1];
    if (!outer->in_step && !g->parked) {
        const uint32_t first = g->scope.first;
        g->scope.ends = true;
        tn_graph_truncate(g, first);
        g->scope.ends = false;
        tn_arena_back_to(&g->arena, outer->arena);
        if (s->flushed > first) s->flushed = first;
        if (g->gradients_seen > first) g->gradients_seen = first;
        s->outside.calls = outer->calls;
        s->outside.next = outer->next;
    }
    g->scope.first = outer->first;
    s->n_scopes--;
    g->no_grad--;
}

TN_DEFINE(int, scope_end, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    tn_graph *g = &s->graph;
    if (!s->n_scopes) return tn_fail(s, TN_E_STATE, "scope_end", "without tn_scope_begin");
    if (g->call_depth) return tn_fail(s, TN_E_STATE, "scope_end", "between tn_op_begin and tn_op_end");
    if (s->in_step && !s->scope[s->n_scopes - 1].in_step)
        return tn_fail(s, TN_E_STATE, "scope_end", "a step that has begun in the scope has not ended");
    end_one(s);
    return g->error.status;
}

void tn_scopes_left(tn_session *s)
{
    if (!s->n_scopes || !s->scope[s->n_scopes - 1].in_step) return;
    tn_fail(s, TN_E_STATE, "step_end", "a tn_scope_begin has no tn_scope_end");
    while (s->n_scopes && s->scope[s->n_scopes - 1].in_step) end_one(s);
}
