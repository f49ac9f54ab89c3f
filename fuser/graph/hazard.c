/* hazard.c - order through memory: what an assignment, or a value written to a place of its own, overwrites.
 *
 * Most nodes depend on each other through values. A *writer* also changes memory that leaves look into: a
 * version of a parameter recorded before it must have been read by then, one recorded after it must not be
 * read until then. Which of the two follows from the ids: the record is the program's order.
 *
 *   fu_list_writers    the writers, and the memory they write, cut into pieces: all of one has the same
 *                      writers
 *   fu_order_writers   adds the order to the nodes' dependences: of a reader to the writer before it and the
 *                      one after, and of the writers of a piece to each other
 *   fu_reads           whether an operand looks into memory that a writer overwrites, before or after it
 *
 * Within one kernel a writer may overwrite only what the kernel has read at the same element: program.c. */
#include "../../src/core/int64.h"
#include <stdlib.h>

#include "graph.h"

fu_sight fu_reads(const fu_ctx *c, const tn_tensor *x, const tn_tensor *writer)
{
    const tn_tensor *to = tn_node_written(writer);
    x = fu_value_of(c, x);
    const tn_tensor *b = x->base;
    if (!to || b == writer || tn_is_number(b)) return FU_UNSEEN;
    if (fu_node_of(c, x) >= 0 && !tn_node_written(b)) return FU_UNSEEN; /* a value of the plan's own */
    if (!tn_node_overlap(x, to)) return FU_UNSEEN;
    return b->id < writer->id ? FU_OLD : FU_NEW;
}

/* ---- the memory that is written ---- */

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* The pieces that are not below the address, from the first on. */
static int piece_at(const fu_written *m, uintptr_t at)
{
    int low = 0, high = m->n_edge;
    TN_BISECT(low, high, m->edge[middle] < at)
    return low;
}

/* The pieces [first, end) that x looks into. */
static bool pieces_of(const fu_written *m, const tn_tensor *x, int *first, int *end)
{
    uintptr_t low, high;
    *first = *end = 0;
    if (!m->n_edge || !tn_node_bytes(x, &low, &high)) return false;
    *first = piece_at(m, low + 1) - 1; /* it may begin within one */
    *end = piece_at(m, high);
    if (*first < 0) *first = 0;
    if (*end >= m->n_edge) *end = m->n_edge - 1; /* behind the last edge is none */
    return *first < *end;
}

int fu_list_writers(fu_ctx *c)
{
    fu_written *m = &c->written;
    int n = 0, all = 0, first, end;
    c->writer = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->writer);
    if (!c->writer) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++)
        if (tn_node_written(c->node[i].t)) c->writer[c->n_writer++] = i;
    m->edge = tn_arena_alloc(&c->arena, 2 * (size_t)(c->n_writer + 1) * sizeof *m->edge);
    if (!m->edge) return TN_E_NOMEM;
    for (int w = 0; w < c->n_writer; w++)
        n += 2 * tn_node_bytes(tn_node_written(c->node[c->writer[w]].t), &m->edge[n], &m->edge[n + 1]);
    if (n) qsort(m->edge, (size_t)n, sizeof *m->edge, by_address);
    for (int i = 0; i < n; i++)
        if (!i || m->edge[i] != m->edge[m->n_edge - 1]) m->edge[m->n_edge++] = m->edge[i];
    m->begin = tn_arena_alloc(&c->arena, (size_t)(m->n_edge + 2) * sizeof *m->begin);
    if (!m->begin) return TN_E_NOMEM;
    for (int w = 0; w < c->n_writer; w++) {
        pieces_of(m, tn_node_written(c->node[c->writer[w]].t), &first, &end);
        for (int i = first; i < end; i++) m->begin[i]++;
    }
    for (int i = 0; i <= m->n_edge; i++) m->begin[i] = all += m->begin[i]; /* ends, for now */
    m->by = tn_arena_alloc(&c->arena, (size_t)(all + 1) * sizeof *m->by);
    for (int w = c->n_writer; m->by && w-- > 0;) {
        pieces_of(m, tn_node_written(c->node[c->writer[w]].t), &first, &end);
        for (int i = first; i < end; i++) m->by[--m->begin[i]] = c->writer[w];
    }
    return m->by ? 0 : TN_E_NOMEM;
}

bool fu_written_pieces(const fu_ctx *c, const tn_tensor *x, int *first, int *end)
{
    const tn_tensor *b = x->base;
    *first = *end = 0;
    if (tn_is_number(b)) return false;
    if (fu_node_of(c, x) >= 0 && !tn_node_written(b)) return false; /* a value of the plan's own */
    return pieces_of(&c->written, x, first, end);
}

int fu_writer_near(const fu_ctx *c, int piece, uint32_t id, bool later)
{
    const fu_written *m = &c->written;
    int low = m->begin[piece], high = m->begin[piece + 1], end = later ? high : low - 1;
    TN_BISECT(low, high, c->node[m->by[middle]].t->id <= id) /* the first that is later than id */
    for (int i = later ? low : low - 1; i != end; i += later ? 1 : -1)
        if (c->node[m->by[i]].live) return m->by[i];
    return -1;
}

bool fu_lasting(const fu_ctx *c, const tn_tensor *x)
{
    int i = fu_node_of(c, x), first, end;
    if (i >= 0) return !tn_node_written(c->node[i].t);
    pieces_of(&c->written, x, &first, &end);
    return c->written.begin[first] == c->written.begin[end];
}

/* ---- order ---- */

/* Orders node i, which reads x: behind the newest writer of that memory up to x, and ahead of the oldest one
 * after it. */
static int order_reads(fu_ctx *c, int i, const tn_tensor *x)
{
    int first, end;
    x = fu_value_of(c, x);
    fu_written_pieces(c, x, &first, &end);
    for (int k = first; k < end; k++) {
        const int before = fu_writer_near(c, k, x->base->id, false),
                  after = fu_writer_near(c, k, x->base->id, true);
        if (before >= 0 && before != i && c->node[before].t != x->base && !fu_note_after(c, i, before))
            return TN_E_NOMEM;
        if (after >= 0 && after != i && !fu_note_after(c, after, i)) return TN_E_NOMEM;
    }
    return 0;
}

int fu_order_writers(fu_ctx *c)
{
    const fu_written *m = &c->written;
    int status = 0;
    for (int i = 0; i < c->n_node && !status && m->n_edge; i++) {
        const tn_tensor *t = c->node[i].t;
        for (int k = tn_kind_of(t) == TN_KIND_ASSIGN ? 1 : 0; c->node[i].live && k < t->n_in && !status; k++)
            status = order_reads(c, i, t->in[k]);
    }
    for (int k = 0; k + 1 < m->n_edge; k++)
        for (int i = m->begin[k], before = -1; i < m->begin[k + 1]; i++) {
            const int w = m->by[i];
            if (!c->node[w].live) continue;
            if (before >= 0 && !fu_note_after(c, w, before)) return TN_E_NOMEM;
            before = w;
        }
    return status;
}
