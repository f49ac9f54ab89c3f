/* memory.c - where the values of a plan live that die with it: one arena, offsets fixed when the plan is
 * made. Ahead of it lie bytes that are lent (lend.c): taken from the start, but for the steps before a
 * gradient is written there.
 *
 * A value lives from the step that writes it first to the one that reads it last. Two values may share bytes
 * when their lives do not meet, or meet in one step only that may write the younger over the older
 * (tn_step.over); parts of a value may live shorter than the whole (tn_plan_part). Values are placed one by
 * one, each over one it may replace or be replaced by, else at the lowest offset that is free as long as its
 * parts live: the largest first, or those first that live when most is
 * alive (greedy by size and by breadth: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
 * Inference", 2020, section 5). While that takes more than is alive at once, the largest of the values that
 * reach higher is placed ahead of all others, and the best of all turns stays. Start with tn_plan_memory.
 */
#include "../core/int64.h"
#include <stdlib.h>
#include <string.h>

#include "../core/range_max.h"
#include "flush.h"

typedef struct span {
    size_t offset, bytes;
    int first, last, value;
    size_t crowd;   /* the most that is alive with it */
    int ahead;      /* not 0: it goes first, the largest number ahead of all */
    int over[2];    /* the first pair it is `from` of, and `to` of; or -1 */
    int counted[2]; /* the last step that counted it as written over, as writing over another; or -1 */
} span;

typedef struct pair {
    int from, to; /* spans; the last step of one is the first of the other, and overwrites it */
    int next[2];  /* of the same `from`, of the same `to`; or -1 */
} pair;

/* Bytes of the arena that are taken: pieces in order, with gaps between them. */
typedef struct cover {
    struct piece {
        size_t low, high;
    } * at;
    int n, cap;
} cover;

/* The bytes of the arena that are taken during a range of steps: all of them, half of them, a quarter, and
 * so on. */
typedef struct stretch {
    cover whole; /* by spans that live in all of its steps */
    cover any;   /* by those that live in one of them */
} stretch;

typedef struct planner {
    tn_plan *p;
    int n, n_pair;
    span *s;
    pair *pair;
    int *of_slot;    /* span, or -1 */
    int n_step;      /* a power of two */
    stretch *during; /* all steps at 1, the halves of i at 2i and 2i + 1 */
    size_t *alive;   /* bytes, in each step */
    tn_arena arena;
    bool failed; /* no memory */
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
    if (x->ahead != y->ahead) return x->ahead < y->ahead ? 1 : -1;
    return x->crowd == y->crowd ? by_size(a, b) : x->crowd < y->crowd ? 1 : -1;
}

/* Part k of s, or all of it: a span in its place. */
static span part_of(const tn_plan *p, const span *s, int k)
{
    const tn_plan_value *v = &p->value[s->value];
    if (!v->n_part) return *s;
    const tn_plan_part *part = &p->part[v->part + k];
    const size_t end = k + 1 < v->n_part ? part->high : s->bytes;
    return (span){
        .offset = s->offset + part->low, .bytes = end - part->low, .first = part->first, .last = part->last};
}

static int parts_of(const tn_plan *p, const span *s)
{
    const int n = p->value[s->value].n_part;
    return n ? n : 1;
}

static bool lives_meet(const span *a, const span *b) { return a->first <= b->last && b->first <= a->last; }

/* ---- what is taken ---- */

/* The first piece that ends at or behind `at`. */
static int piece_at(const cover *c, size_t at)
{
    int low = 0, high = c->n;
    TN_BISECT(low, high, c->at[middle].high < at)
    return low;
}

static void take(planner *m, cover *c, size_t low, size_t high)
{
    int i = piece_at(c, low), end = i;
    for (; end < c->n && c->at[end].low <= high; end++) {
        low = c->at[end].low < low ? c->at[end].low : low;
        high = c->at[end].high > high ? c->at[end].high : high;
    }
    if (c->n == c->cap && end == i) {
        const int cap = c->cap ? 2 * c->cap : 4;
        struct piece *more = tn_arena_alloc(&m->arena, (size_t)cap * sizeof *more);
        if (!more) {
            m->failed = true;
            return;
        }
        if (c->n) memcpy(more, c->at, (size_t)c->n * sizeof *more);
        c->at = more;
        c->cap = cap;
    }
    memmove(c->at + i + 1, c->at + end, (size_t)(c->n - end) * sizeof *c->at);
    c->n += 1 - (end - i);
    c->at[i] = (struct piece){low, high};
}

/* Returns the lowest offset from `at` on where `bytes` bytes are free. */
static size_t free_from(const cover *c, size_t at, size_t bytes)
{
    for (int i = piece_at(c, at + 1); i < c->n && c->at[i].low < at + bytes; i++) at = c->at[i].high;
    return at;
}

static void take_during(planner *m, int node, int low, int high, const span *s)
{
    if (s->last < low || high < s->first) return;
    stretch *d = &m->during[node];
    take(m, &d->any, s->offset, s->offset + s->bytes);
    if (s->first <= low && high <= s->last) {
        take(m, &d->whole, s->offset, s->offset + s->bytes);
        return;
    }
    take_during(m, 2 * node, low, (low + high) / 2, s);
    take_during(m, 2 * node + 1, (low + high) / 2 + 1, high, s);
}

/* All that is taken during [first, last], as covers. */
static int covers_of(planner *m, int node, int low, int high, int first, int last, cover **out)
{
    if (last < low || high < first || !m->during[node].any.n) return 0;
    if (first <= low && high <= last) {
        *out = &m->during[node].any;
        return 1;
    }
    int n = 0;
    if (m->during[node].whole.n) out[n++] = &m->during[node].whole;
    n += covers_of(m, 2 * node, low, (low + high) / 2, first, last, out + n);
    return n + covers_of(m, 2 * node + 1, (low + high) / 2 + 1, high, first, last, out + n);
}

enum { MOST_COVERS = 4 * 32 };

/* The lowest offset, from `at` on, of `bytes` that are free during [first, last]. */
static size_t lowest_free(planner *m, int first, int last, size_t at, size_t bytes)
{
    cover *c[MOST_COVERS];
    const int n = first <= last ? covers_of(m, 1, 0, m->n_step - 1, first, last, c) : 0;
    size_t before;
    do {
        before = at;
        for (int i = 0; i < n; i++) at = free_from(c[i], at, bytes);
    } while (at != before);
    return at;
}

/* ---- placing ---- */

/* The lowest offset where each part of s is free as long as it lives. */
static size_t lowest_for(planner *m, span *s)
{
    size_t before;
    s->offset = 0;
    do {
        before = s->offset;
        for (int k = 0; k < parts_of(m->p, s); k++) {
            const span part = part_of(m->p, s, k);
            if (part.bytes)
                s->offset += lowest_free(m, part.first, part.last, part.offset, part.bytes) - part.offset;
        }
    } while (s->offset != before);
    return before;
}

static bool overlap(const span *a, size_t low, size_t high)
{
    return a->offset < high && low < a->offset + a->bytes;
}

/* Returns true where span k can lie over its partner q: nothing else in that place lives at the same time. In
 * the step that the two share, only partners of q can lie where q does. */
static bool fits_over(planner *m, int k, int q, bool overwrites)
{
    const span *s = &m->s[k], *a = &m->s[q];
    const int step = overwrites ? s->first : s->last;
    const size_t low = a->offset, high = low + s->bytes, end = low + a->bytes;
    span here = *s;
    here.offset = low;
    for (int i = 0; i < parts_of(m->p, s); i++) {
        const span part = part_of(m->p, &here, i);
        const int first = overwrites && part.first <= step ? step + 1 : part.first,
                  last = !overwrites && part.last >= step ? step - 1 : part.last;
        if (part.bytes && lowest_free(m, first, last, part.offset, part.bytes) != part.offset) return false;
    }
    if (high > end && lowest_free(m, step, step, end, high - end) != end) return false;
    for (int side = 0; side < 2; side++)
        for (int i = a->over[side]; i >= 0; i = m->pair[i].next[side]) {
            const int o = side ? m->pair[i].from : m->pair[i].to;
            if (o < k && lives_meet(&m->s[o], s) && overlap(&m->s[o], low, high)) return false;
        }
    return true;
}

/* Returns the offset of span k, those before it being in their places: over the lowest of its partners that
 * it can lie over, or else the lowest offset that is free. */
static size_t place(planner *m, int k)
{
    span *s = &m->s[k];
    const span *best = NULL;
    for (int side = 0; side < 2; side++)
        for (int i = s->over[side]; i >= 0; i = m->pair[i].next[side]) {
            const int q = side ? m->pair[i].from : m->pair[i].to;
            const bool lower = q < k && (!best || m->s[q].offset < best->offset);
            if (lower && fits_over(m, k, q, side)) best = &m->s[q];
        }
    return best ? best->offset : lowest_for(m, s);
}

/* The most that has to be there during one step beside what is lent: no placement needs less. What a step
 * writes over counts once, and no more of it than there is to overwrite, or to overwrite it with. */
static size_t most_alive(planner *m)
{
    size_t most = 0;
    for (int i = 0, j = 0; i < m->p->n_step; i++) {
        size_t now = m->alive[i], spared[2] = {0};
        for (; j < m->n_pair && m->s[m->pair[j].to].first == i; j++) {
            span *end[2] = {&m->s[m->pair[j].from], &m->s[m->pair[j].to]};
            for (int k = 0; k < 2; k++) {
                spared[k] += end[k]->counted[k] == i ? 0 : end[k]->bytes;
                end[k]->counted[k] = i;
            }
        }
        now -= spared[0] < spared[1] ? spared[0] : spared[1];
        for (int k = 0; k < m->p->n_lent; k++) {
            const tn_lent *l = &m->p->lent[k];
            if (i < l->until) now -= now < l->high - l->low ? now : l->high - l->low;
        }
        most = now > most ? now : most;
    }
    return most;
}

/* Returns true where no part of s is dead in the step, or not there yet: others may lie in such a one. */
static bool all_live(const tn_plan *p, const span *s, int step)
{
    bool all = true;
    for (int k = 0; k < parts_of(p, s); k++) {
        const span part = part_of(p, s, k);
        all = all && part.first <= step && step <= part.last;
    }
    return all;
}

/* Pairs whose two live in the arena, one after the other; by the steps they share. */
static void find_pairs(planner *m)
{
    const tn_plan *p = m->p;
    m->n_pair = 0;
    for (int i = 0; i < m->n; i++)
        m->s[i].over[0] = m->s[i].over[1] = m->s[i].counted[0] = m->s[i].counted[1] = -1;
    for (int i = 0; i < p->n_step; i++)
        for (int k = 0; k < p->step[i].n_over; k++) {
            int from = m->of_slot[p->step[i].over[k].from], to = m->of_slot[p->step[i].over[k].to];
            if (from < 0 || to < 0) continue;
            span *a = &m->s[from], *b = &m->s[to];
            if (b->bytes > a->bytes || !all_live(p, a, i) || !all_live(p, b, i) || a->last != i ||
                b->first != i)
                continue;
            m->pair[m->n_pair] = (pair){from, to, {a->over[0], b->over[1]}};
            a->over[0] = b->over[1] = m->n_pair++;
        }
}

static void take_bytes(planner *m, size_t low, size_t high, int first)
{
    const span s = {.offset = low, .bytes = high - low, .first = first, .last = m->n_step - 1};
    if (low < high && first < m->n_step) take_during(m, 1, 0, m->n_step - 1, &s);
}

/* Takes what is not lent, and a gap behind, so that nothing lies in both. */
static void take_lent(planner *m)
{
    size_t at = 0;
    for (int i = 0; i < m->p->n_lent; i++) {
        const tn_lent *l = &m->p->lent[i];
        take_bytes(m, at, l->low, 0);
        take_bytes(m, l->low, l->high, l->until);
        at = l->high;
    }
    take_bytes(m, at, m->p->lent_bytes, 0);
}

/* Places all spans in this order. Returns the bytes of the arena that takes. */
static size_t place_all(planner *m, int (*order)(const void *, const void *))
{
    const tn_plan *p = m->p;
    size_t bytes = p->lent_bytes;
    qsort(m->s, (size_t)m->n, sizeof *m->s, order);
    for (int i = 0; i < m->n; i++) m->of_slot[p->value[m->s[i].value].slot] = i;
    for (int i = 0; i < 2 * m->n_step; i++) m->during[i].whole.n = m->during[i].any.n = 0;
    find_pairs(m);
    take_lent(m);
    for (int i = 0; i < m->n; i++) {
        span *s = &m->s[i];
        s->offset = place(m, i);
        for (int k = 0; k < parts_of(p, s); k++) {
            const span part = part_of(p, s, k);
            if (part.bytes) take_during(m, 1, 0, m->n_step - 1, &part);
        }
        if (s->offset + s->bytes > bytes) bytes = s->offset + s->bytes;
    }
    return bytes - p->lent_bytes;
}

static bool count_alive(planner *m)
{
    tn_range_max crowd;
    const int n_step = m->p->n_step;
    if (!tn_range_max_open(&crowd, n_step)) return false;
    for (int i = 0; i < m->n; i++) /* differences first: what is born, and what has died */
        for (int k = 0; k < parts_of(m->p, &m->s[i]); k++) {
            const span part = part_of(m->p, &m->s[i], k);
            m->alive[part.first] += part.bytes;
            m->alive[part.last + 1] -= part.bytes;
        }
    for (int i = 1; i < n_step; i++) m->alive[i] += m->alive[i - 1];
    for (int i = 0; i < n_step; i++) tn_range_raise(&crowd, i, i, m->alive[i], i);
    for (int i = 0; i < m->n; i++) m->s[i].crowd = tn_range_most(&crowd, m->s[i].first, m->s[i].last, NULL);
    tn_range_max_close(&crowd);
    return true;
}

/* The largest of the spans that reach higher than what is alive at once would, and were not put ahead yet; or
 * else the one that reaches highest. */
static span *too_high(planner *m)
{
    const size_t most = m->p->lent_bytes + m->p->least_bytes;
    span *top = m->s, *best = NULL;
    for (int i = 0; i < m->n; i++) {
        span *s = &m->s[i];
        if (s->offset + s->bytes > top->offset + top->bytes) top = s;
        if (s->offset + s->bytes > most && !s->ahead && (!best || s->bytes > best->bytes)) best = s;
    }
    return best ? best : top;
}

/* Values lie where they have been placed. */
static void settle(planner *m)
{
    for (int i = 0; i < m->n; i++) m->p->value[m->s[i].value].offset = m->s[i].offset;
}

enum {
    TURNS = 12,
    VALUES = 12 << 10, /* placed anew in these turns together: a few percent of what planning takes */
    CLOSE = 256        /* less than a 256th above what is alive is close enough */
};

static void plan_memory(planner *m)
{
    tn_plan *p = m->p;
    if (p->n_lent) p->lent_bytes = (p->lent[p->n_lent - 1].high / TN_PLAN_ALIGN + 2) * TN_PLAN_ALIGN;
    p->arena_bytes = place_all(m, by_size);
    p->least_bytes = most_alive(m);
    settle(m);
    const int turns = m->n > VALUES ? 1 : VALUES / m->n < TURNS ? VALUES / m->n : TURNS;
    for (int i = 1; i <= turns && p->arena_bytes > p->least_bytes + p->least_bytes / CLOSE; i++) {
        const size_t other = place_all(m, by_crowd);
        if (other <= p->arena_bytes) settle(m);
        p->arena_bytes = other < p->arena_bytes ? other : p->arena_bytes;
        too_high(m)->ahead = i;
    }
    for (int i = 0; i < m->n; i++) p->naive_bytes += m->s[i].bytes;
    for (int i = 0; i < m->n_pair; i++) {
        tn_plan_value *from = &p->value[m->s[m->pair[i].from].value];
        if (from->offset == p->value[m->s[m->pair[i].to].value].offset) from->taken = true;
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
    planner m = {.p = p, .n_step = 1};
    while (m.n_step < p->n_step) m.n_step *= 2;
    m.s = tn_arena_alloc(&m.arena, (size_t)(p->n_value + 1) * sizeof *m.s);
    m.pair = tn_arena_alloc(&m.arena, (size_t)(n_pair + 1) * sizeof *m.pair);
    m.of_slot = tn_arena_alloc(&m.arena, (size_t)(n_slot + 1) * sizeof *m.of_slot);
    m.during = tn_arena_alloc(&m.arena, 2 * (size_t)m.n_step * sizeof *m.during);
    m.alive = tn_arena_alloc(&m.arena, (size_t)(p->n_step + 2) * sizeof *m.alive);
    m.failed = !m.s || !m.pair || !m.of_slot || !m.during || !m.alive;
    p->arena_bytes = p->naive_bytes = p->least_bytes = p->lent_bytes = 0;
    for (int i = 0; i < p->n_value && !m.failed; i++) {
        const tn_plan_value *v = &p->value[i];
        if (v->root || v->keep || v->alias >= 0) continue;
        size_t bytes =
            (v->elems * tn_dtype_size(v->dtype) + TN_PLAN_ALIGN - 1) / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
        m.s[m.n++] =
            (span){.bytes = bytes ? bytes : TN_PLAN_ALIGN, .first = v->first, .last = v->last, .value = i};
    }
    for (int i = 0; i < n_slot && !m.failed; i++) m.of_slot[i] = -1;
    m.failed = m.failed || !count_alive(&m);
    if (!m.failed && m.n) plan_memory(&m);
    tn_arena_free(&m.arena);
    return m.failed ? TN_E_NOMEM : TN_OK;
}
