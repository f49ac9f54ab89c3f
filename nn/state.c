/* state.c - what this room keeps for a session, from its first use to tn_close.
 *
 * The session knows nothing about layers or data sets: it calls `closing` when it closes, and hands the
 * state back to whoever asks with that function as the key. Nor does this file: what belongs to a session is
 * a block of memory with a function that frees what hangs on it. Read tn_nn_state first. */
#include "nn.h"

#include <string.h>
#include <time.h>

struct nn_block {
    struct nn_block *next;
    void (*destroy)(void *);
    max_align_t data[];
};

static void destroy(struct nn_block *b)
{
    if (b->destroy) b->destroy(b->data);
    tn_free_mem(b);
}

static void closing(void *arg)
{
    nn_state *st = arg;
    while (st->blocks) {
        struct nn_block *b = st->blocks;
        st->blocks = b->next;
        destroy(b);
    }
    tn_free_mem(st->scale.moved);
    tn_free_mem(st);
}

nn_state *tn_nn_state(tn_session *s)
{
    if (!s) return NULL;
    nn_state *st = tn_on_close_arg(s, closing);
    if (st) return st;
    st = tn_calloc(1, sizeof(*st));
    if (!st || tn_on_close(s, closing, st)) {
        tn_free_mem(st);
        tn_fail(s, TN_E_NOMEM, "nn", "no memory for the session's layers");
        return NULL;
    }
    st->last_dataset = &st->datasets;
    st->last_optim = &st->optims;
    return st;
}

void *tn_nn_own(tn_session *s, size_t bytes, void (*destroy_fn)(void *), const char *op)
{
    nn_state *st = tn_nn_state(s);
    if (!st) return NULL;
    struct nn_block *b = tn_calloc(1, sizeof(*b) + bytes);
    if (!b) return tn_nn_fail(s, TN_E_NOMEM, op, "no memory for %zu bytes", bytes);
    b->destroy = destroy_fn;
    b->next = st->blocks;
    st->blocks = b;
    return b->data;
}

void tn_nn_drop(tn_session *s, void *p)
{
    struct nn_block **at = &tn_nn_state(s)->blocks;
    while (*at && (*at)->data != p) at = &(*at)->next;
    struct nn_block *b = *at;
    if (!b) return;
    *at = b->next;
    destroy(b);
}

/* ---- small things ---- */

void *tn_nn_fail(tn_session *s, int status, const char *op, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    tn_vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tn_fail(s, status, op, "%s", text);
    return NULL;
}

double tn_nn_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool tn_nn_ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}
