/* memory.c - where the values of a plan live that die with it: one arena, offsets fixed when the plan is
 * made.
 *
 * A value lives from the step that writes it first to the one that reads it last. Two values may share bytes
 * when their lives do not meet. Values are placed largest first, each at the lowest offset that is free
 * during its whole life (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
 * Inference", 2020, section 5). Start with tn_plan_memory.
 */
#include <stdlib.h>

#include "flush.h"

enum { ALIGN = 256 };

typedef struct span {
    size_t offset, bytes;
    int first, last, value;
} span;

static int by_size(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->value > y->value) - (x->value < y->value);
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

/* The lowest offset where s fits between the first n spans, which are in their places. */
static size_t lowest(const span *s, span *placed, int n, span **meeting)
{
    int k = 0;
    size_t at = 0;
    for (int i = 0; i < n; i++)
        if (lives_meet(s, &placed[i])) meeting[k++] = &placed[i];
    if (k) qsort(meeting, (size_t)k, sizeof *meeting, by_offset);
    for (int i = 0; i < k; i++) {
        if (meeting[i]->offset >= at + s->bytes) break;
        size_t end = meeting[i]->offset + meeting[i]->bytes;
        if (end > at) at = end;
    }
    return at;
}

/* The most that is alive during one step: no placement needs less. */
static size_t most_alive(const tn_plan *p, const span *s, int n)
{
    size_t most = 0;
    for (int i = 0; i < p->n_step; i++) {
        size_t now = 0;
        for (int k = 0; k < n; k++) now += s[k].first <= i && i <= s[k].last ? s[k].bytes : 0;
        most = now > most ? now : most;
    }
    return most;
}

int tn_plan_memory(tn_plan *p)
{
    span *s = tn_malloc((size_t)(p->n_value + 1) * sizeof *s), **meeting = NULL;
    if (s) meeting = tn_malloc((size_t)(p->n_value + 1) * sizeof *meeting);
    if (!meeting) {
        tn_free_mem(s);
        return TN_E_NOMEM;
    }
    int n = 0;
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *v = &p->value[i];
        if (v->root || v->keep || v->alias >= 0) continue;
        size_t bytes = (v->elems * tn_dtype_size(v->dtype) + ALIGN - 1) / ALIGN * ALIGN;
        s[n++] = (span){.bytes = bytes ? bytes : ALIGN, .first = v->first, .last = v->last, .value = i};
    }
    if (n) qsort(s, (size_t)n, sizeof *s, by_size);
    p->arena_bytes = p->naive_bytes = 0;
    for (int i = 0; i < n; i++) {
        s[i].offset = lowest(&s[i], s, i, meeting);
        p->value[s[i].value].offset = s[i].offset;
        p->naive_bytes += s[i].bytes;
        if (s[i].offset + s[i].bytes > p->arena_bytes) p->arena_bytes = s[i].offset + s[i].bytes;
    }
    p->least_bytes = most_alive(p, s, n);
    tn_free_mem(meeting);
    tn_free_mem(s);
    return TN_OK;
}
