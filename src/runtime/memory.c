/* memory.c - where the values of a plan live that die with it: one arena, offsets fixed when the plan is
 * made.
 *
 * A value lives from the step that writes it first to the one that reads it last. Two values may share bytes
 * when their lives do not meet, or meet in one step only that may write the younger over the older
 * (tn_step.over). Values are placed one by one, each over one it may replace or be replaced by, else at the
 * lowest offset that is free during its whole life: the largest first, or those first that live when most is
 * alive (greedy by size and by breadth: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
 * Inference", 2020, section 5); the better of the two stays. Start with tn_plan_memory.
 */
#include <stdlib.h>

#include "flush.h"

typedef struct span {
    size_t offset, bytes;
    int first, last, value;
    size_t crowd; /* the most that is alive with it */
    bool partner; /* of the one now placed: the two may lie over each other */
    bool end[2];  /* in the step looked at, it is written over, writes over another */
} span;

typedef struct pair {
    int from, to; /* spans; the last step of one is the first of the other, and overwrites it */
} pair;

typedef struct planner {
    tn_plan *p;
    int n, n_pair;
    span *s;
    pair *pair;
    span **meeting;
    int *of_slot; /* span, or -1 */
} planner;

static int by_size(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->value > y->value) - (x->value < y->value);
}

static int by_crowd(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return x->crowd == y->crowd ? by_size(a, b) : x->crowd < y->crowd ? 1 : -1;
}

static int by_offset(const void *a, const void *b)
{
    const span *x = *(span *const *)a, *y = *(span *const *)b;
    if (x->offset != y->offset) return x->offset > y->offset ? 1 : -1;
    return (x->value > y->value) - (x->value < y->value);
}

static bool lives_meet(const span *a, const span *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Whether s can lie where partner q does: nothing else there lives when s does. */
static bool fits_over(const span *s, const span *q, span *const *meeting, int n)
{
    for (int i = 0; i < n; i++) {
        const span *o = meeting[i];
        if (o != q && o->offset < q->offset + s->bytes && q->offset < o->offset + o->bytes) return false;
    }
    return true;
}

/* Where span k goes, those before it being in their places: over a partner, or the lowest offset that is
 * free. */
static size_t place(planner *m, int k)
{
    span *s = &m->s[k];
    int n = 0;
    size_t at = 0;
    for (int i = 0; i < k; i++) {
        m->s[i].partner = false;
        if (lives_meet(s, &m->s[i])) m->meeting[n++] = &m->s[i];
    }
    if (n) qsort(m->meeting, (size_t)n, sizeof *m->meeting, by_offset);
    for (int i = 0; i < m->n_pair; i++) {
        if (m->pair[i].from == k) m->s[m->pair[i].to].partner = true;
        if (m->pair[i].to == k) m->s[m->pair[i].from].partner = true;
    }
    for (int i = 0; i < n; i++)
        if (m->meeting[i]->partner && fits_over(s, m->meeting[i], m->meeting, n))
            return m->meeting[i]->offset;
    for (int i = 0; i < n; i++) {
        if (m->meeting[i]->offset >= at + s->bytes) break;
        size_t end = m->meeting[i]->offset + m->meeting[i]->bytes;
        if (end > at) at = end;
    }
    return at;
}

/* The most that has to be there during one step: no placement needs less. What a step writes over counts
 * once, and no more of it than there is to overwrite, or to overwrite it with. */
static size_t most_alive(planner *m)
{
    size_t most = 0;
    for (int i = 0; i < m->p->n_step; i++) {
        size_t now = 0, spared[2] = {0};
        for (int j = 0; j < m->n_pair; j++) {
            bool here = m->s[m->pair[j].to].first == i;
            m->s[m->pair[j].from].end[0] |= here;
            m->s[m->pair[j].to].end[1] |= here;
        }
        for (int k = 0; k < m->n; k++) {
            span *s = &m->s[k];
            now += s->first <= i && i <= s->last ? s->bytes : 0;
            for (int j = 0; j < 2; j++) {
                spared[j] += s->end[j] ? s->bytes : 0;
                s->end[j] = false;
            }
        }
        now -= spared[0] < spared[1] ? spared[0] : spared[1];
        most = now > most ? now : most;
    }
    return most;
}

/* Pairs whose two live in the arena, one after the other. */
static void find_pairs(planner *m)
{
    const tn_plan *p = m->p;
    for (int i = 0; i < p->n_step; i++)
        for (int k = 0; k < p->step[i].n_over; k++) {
            int from = m->of_slot[p->step[i].over[k].from], to = m->of_slot[p->step[i].over[k].to];
            if (from < 0 || to < 0) continue;
            if (m->s[from].last == i && m->s[to].first == i && m->s[to].bytes <= m->s[from].bytes)
                m->pair[m->n_pair++] = (pair){from, to};
        }
}

/* How much of the arena it takes in this order. */
static size_t place_all(planner *m, int (*order)(const void *, const void *))
{
    const tn_plan *p = m->p;
    size_t bytes = 0;
    qsort(m->s, (size_t)m->n, sizeof *m->s, order);
    for (int i = 0; i < m->n; i++) m->of_slot[p->value[m->s[i].value].slot] = i;
    m->n_pair = 0;
    find_pairs(m);
    for (int i = 0; i < m->n; i++) {
        span *s = &m->s[i];
        s->offset = place(m, i);
        if (s->offset + s->bytes > bytes) bytes = s->offset + s->bytes;
    }
    return bytes;
}

static void plan_memory(planner *m)
{
    tn_plan *p = m->p;
    for (int i = 0; i < p->n_step; i++) {
        size_t now = 0;
        for (int k = 0; k < m->n; k++) now += m->s[k].first <= i && i <= m->s[k].last ? m->s[k].bytes : 0;
        for (int k = 0; k < m->n; k++)
            if (m->s[k].first <= i && i <= m->s[k].last && m->s[k].crowd < now) m->s[k].crowd = now;
    }
    p->arena_bytes = place_all(m, by_size);
    p->least_bytes = most_alive(m);
    if (p->arena_bytes > p->least_bytes) {
        size_t other = place_all(m, by_crowd);
        p->arena_bytes = other <= p->arena_bytes ? other : place_all(m, by_size);
    }
    for (int i = 0; i < m->n; i++) {
        p->value[m->s[i].value].offset = m->s[i].offset;
        p->naive_bytes += m->s[i].bytes;
    }
    for (int i = 0; i < m->n_pair; i++) {
        const span *from = &m->s[m->pair[i].from], *to = &m->s[m->pair[i].to];
        if (from->offset == to->offset) p->value[from->value].taken = true;
    }
}

int tn_plan_memory(tn_plan *p)
{
    int n_pair = 0, n_slot = 0;
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].slot >= n_slot) n_slot = p->value[i].slot + 1;
    for (int i = 0; i < p->n_step; i++)
        for (int k = 0; k < p->step[i].n_over; k++, n_pair++) /* leaves too, which are no values */
            if (p->step[i].over[k].from >= n_slot) n_slot = p->step[i].over[k].from + 1;
    planner m = {.p = p,
                 .s = tn_malloc((size_t)(p->n_value + 1) * sizeof *m.s),
                 .pair = tn_malloc((size_t)(n_pair + 1) * sizeof *m.pair),
                 .meeting = tn_malloc((size_t)(p->n_value + 1) * sizeof *m.meeting),
                 .of_slot = tn_malloc((size_t)(n_slot + 1) * sizeof *m.of_slot)};
    bool ready = m.s && m.pair && m.meeting && m.of_slot;
    p->arena_bytes = p->naive_bytes = p->least_bytes = 0;
    for (int i = 0; i < p->n_value && ready; i++) {
        const tn_plan_value *v = &p->value[i];
        if (v->root || v->keep || v->alias >= 0) continue;
        size_t bytes =
            (v->elems * tn_dtype_size(v->dtype) + TN_PLAN_ALIGN - 1) / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
        m.s[m.n++] =
            (span){.bytes = bytes ? bytes : TN_PLAN_ALIGN, .first = v->first, .last = v->last, .value = i};
    }
    for (int i = 0; i < n_slot && ready; i++) m.of_slot[i] = -1;
    if (ready && m.n) plan_memory(&m);
    tn_free_mem(m.s);
    tn_free_mem(m.pair);
    tn_free_mem(m.meeting);
    tn_free_mem(m.of_slot);
    return ready ? TN_OK : TN_E_NOMEM;
}
