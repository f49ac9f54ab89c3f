/* spans.c - a tree of address ranges (spans.h). Start with tn_spans_meet. */
#include "spans.h"

#include "hash.h"

struct tn_span {
    uintptr_t low, high, top; /* top: the highest address of the subtree */
    uint32_t first, last;     /* ids in the subtree */
    uint32_t id, weight;
    struct tn_tensor *node;
    tn_span *left, *right; /* those that begin lower, or there with a smaller id; the others */
};

void tn_spans_clear(tn_spans *s)
{
    tn_arena_reset(&s->arena);
    s->root = NULL;
    s->stale = false;
}

void tn_spans_free(tn_spans *s)
{
    tn_arena_free(&s->arena);
    *s = (tn_spans){0};
}

static tn_span *update(tn_span *s)
{
    const tn_span *below[] = {s->left, s->right};
    s->top = s->high;
    s->first = s->last = s->id;
    for (int i = 0; i < 2; i++) {
        const tn_span *b = below[i];
        if (!b) continue;
        if (b->top > s->top) s->top = b->top;
        if (b->first < s->first) s->first = b->first;
        if (b->last > s->last) s->last = b->last;
    }
    return s;
}

static bool before(const tn_span *a, const tn_span *b)
{
    return a->low != b->low ? a->low < b->low : a->id < b->id;
}

/* s in two: what is before `at`, and the rest. */
static void split(tn_span *s, const tn_span *at, tn_span **left, tn_span **right)
{
    if (!s)
        *left = *right = NULL;
    else if (before(s, at)) {
        split(s->right, at, &s->right, right);
        *left = update(s);
    } else {
        split(s->left, at, left, &s->left);
        *right = update(s);
    }
}

static tn_span *insert(tn_span *s, tn_span *n)
{
    if (!s || n->weight > s->weight) {
        split(s, n, &n->left, &n->right);
        return update(n);
    }
    if (before(n, s))
        s->left = insert(s->left, n);
    else
        s->right = insert(s->right, n);
    return update(s);
}

void tn_spans_add(tn_spans *s, struct tn_tensor *n, uint32_t id, uintptr_t low, uintptr_t high)
{
    tn_span *span = s->stale ? NULL : tn_arena_alloc(&s->arena, sizeof *span);
    s->stale = !span;
    if (!span) return;
    *span = (tn_span){.low = low, .high = high, .id = id, .node = n};
    span->weight = (uint32_t)tn_hash_mix(id ^ 0x9e3779b97f4a7c15u, 0xd1b54a32d192ed03u);
    s->root = insert(s->root, span);
}

/* All of a before all of b. */
static tn_span *join(tn_span *a, tn_span *b)
{
    if (!a || !b) return a ? a : b;
    if (a->weight > b->weight) {
        a->right = join(a->right, b);
        return update(a);
    }
    b->left = join(a, b->left);
    return update(b);
}

typedef struct query {
    uintptr_t low, high;
    uint32_t from, end;
    tn_span_fn *fn;
    void *arg;
} query;

static tn_span *visit(tn_span *s, const query *q)
{
    if (!s || s->top <= q->low || s->last < q->from || s->first >= q->end) return s;
    s->left = visit(s->left, q);
    if (s->low < q->high) {
        const bool meets = s->high > q->low && s->id >= q->from && s->id < q->end;
        const bool stays = !meets || q->fn(s->node, q->arg);
        s->right = visit(s->right, q);
        if (!stays) return join(s->left, s->right);
    }
    return update(s);
}

void tn_spans_meet(tn_spans *s, uintptr_t low, uintptr_t high, uint32_t from, uint32_t end, tn_span_fn *fn,
                   void *arg)
{
    const query q = {low, high, from, end, fn, arg};
    s->root = visit(s->root, &q);
}
