/* outside.c - results of operators outside of steps. Each lives until the next step begins, or until tn_free;
 * a program that does neither is told so when many have piled up, and again where they have doubled since.
 * Only the program can know which of them it still wants: it has the handles.
 *
 * A result that is freed gives its memory back at once, unless a backward may still read it or the user holds
 * a view of it. Its node stays, as others depend on it, until none of the results is held any more: then
 * all are freed, as where a step begins. Start with tn_outside_made and tn_outside_free.
 */
#include <stdlib.h>
#include <string.h>

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

void tn_outside_free(tn_session *s, tn_tensor *n)
{
    enum { FOR_BACKWARD = TN_F_SAVED | TN_F_WANTED };
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
    const bool own = kind != TN_KIND_LEAF && kind != TN_KIND_NUMBER && !tn_node_written(b);
    const bool wanted = b->flags & FOR_BACKWARD || b->read == g->reads;
    if (own && tn_has_value(b) && !wanted && !held(b)) tn_node_drop_value(b);
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
                "live until a "
                "step begins. Put tn_step_begin and tn_step_end around what belongs together, such as a "
                "request, or "
                "tn_free each of them",
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
}
