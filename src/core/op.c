/* op.c - the op table, expanded from ops.def and the list in graph.h. Start with tn_op_get. */
#include <ctype.h>
#include <pthread.h>
#include <string.h>

#include "../device/device.h"
#include "graph.h"

static const tn_op_info table[TN_OP_COUNT] = {
#define TN_OTHER(id, k, n, needs, ...) [TN_OP_##id] = {.name = #id, .kind = TN_KIND_##k, .arity = n},
#define ELTWISE(id, n, t, expr, lo_, hi_, f, w, e, ...)                                                      \
    [TN_OP_##id] = {.name = #id,                                                                             \
                    .kind = TN_KIND_ELTWISE,                                                                 \
                    .arity = n,                                                                              \
                    .type = TN_TYPE_##t,                                                                     \
                    .text = expr,                                                                            \
                    .formula = f,                                                                            \
                    .back = {__VA_ARGS__},                                                                   \
                    .low = lo_,                                                                              \
                    .high = hi_,                                                                             \
                    .work = w,                                                                               \
                    .epilogue = TN_EPI_##e},
#define TN_UNARY(id, t, expr, dx, lo, hi, f, w, e)   ELTWISE(id, 1, t, #expr, lo, hi, f, w, e, #dx)
#define TN_BINARY(id, t, expr, dx, dy, lo, hi, f, w) ELTWISE(id, 2, t, #expr, lo, hi, f, w, NONE, #dx, #dy)
#define TN_TERNARY(id, t, expr, dx, dy, dz, lo, hi, f, w, names)                                             \
    ELTWISE(id, 3, t, #expr, lo, hi, f, w, NONE, #dx, #dy, #dz)
#define TN_SCAN(id, start_, by_, ...)                                                                        \
    [TN_OP_##id] = {.name = #id, .kind = TN_KIND_SCAN, .arity = 1, .start = start_, .by = #by_},
#include "ops.def"
};

const tn_op_info *tn_op_get(tn_op op) { return &table[op]; }

/* Returns true where `text`, C source, uses the identifier `word`. */
static bool uses(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p += n) {
        bool left = p == text || !(isalnum((unsigned char)p[-1]) || p[-1] == '_');
        bool right = !(isalnum((unsigned char)p[n]) || p[n] == '_');
        if (left && right) return true;
    }
    return false;
}

static unsigned eltwise_needs(const tn_op_info *o)
{
    static const char *const word[] = {"x", "y", "z", "out"};
    unsigned needs = 0;
    for (int i = 0; i < o->arity; i++)
        for (int w = 0; w < 4; w++)
            if (uses(o->back[i], word[w])) needs |= 1u << w;
    return needs;
}

/* Those of elementwise ones are derived once: the answer is asked for at every node of every step. */
static unsigned needs_of[TN_OP_COUNT] = {
#define TN_OTHER(id, k, n, needs, ...) [TN_OP_##id] = TN_NEEDS_##needs,
#include "ops.def"
};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void)
{
    for (int i = 0; i < TN_OP_COUNT; i++)
        if (table[i].kind == TN_KIND_ELTWISE) needs_of[i] = eltwise_needs(&table[i]);
}

unsigned tn_op_needs(tn_op op)
{
    pthread_once(&once, fill);
    return needs_of[op];
}
