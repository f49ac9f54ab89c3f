/* state.c - what this room keeps for a session, from its first use to tn_close.
 *
 * The session knows nothing about layers or data sets: it calls `closing` when it closes, and hands the
 * state back to whoever asks with that function as the key. Read tn_nn_state first.
 */
#include "nn.h"

#include <stdarg.h>
#include <string.h>

struct nn_block {
    struct nn_block *next;
    max_align_t data[];
};

static void closing(void *arg)
{
    nn_state *st = arg;
    while (st->blocks) {
        struct nn_block *b = st->blocks;
        st->blocks = b->next;
        tn_free_mem(b);
    }
    tn_nn_optims_destroy(st->optims);
    tn_nn_datasets_destroy(st->datasets);
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
    st->s = s;
    st->last_dataset = &st->datasets;
    st->last_optim = &st->optims;
    return st;
}

void *tn_nn_own(tn_session *s, size_t bytes, const char *op)
{
    nn_state *st = tn_nn_state(s);
    if (!st) return NULL;
    struct nn_block *b = tn_calloc(1, sizeof(*b) + bytes);
    if (!b) {
        tn_fail(s, TN_E_NOMEM, op, "no memory for %zu bytes", bytes);
        return NULL;
    }
    b->next = st->blocks;
    st->blocks = b;
    return b->data;
}

int tn_nn_fail(tn_session *s, int status, const char *op, const char *file, int line, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    tn_vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tn_place_begin(s, file, line);
    tn_fail(s, status, op, "%s", text);
    tn_place_end(s);
    return status;
}

int tn_nn_why(nn_why *why, int status, const char *fmt, ...)
{
    if (!why->status) {
        va_list args;
        va_start(args, fmt);
        tn_vsnprintf(why->text, sizeof(why->text), fmt, args);
        va_end(args);
        why->status = status;
    }
    return status;
}
