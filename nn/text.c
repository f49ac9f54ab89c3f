/* text.c - a text as a data set: characters in, characters that follow out.
 *
 * A part of the file is kept as one byte a character, its place in the vocabulary (nn_corpus, in nn.h); a
 * window's labels are the same characters one further on (tn_nn_window, in dataset.c). Which windows a
 * training pass has is loader.c's business (tn_nn_places). Read tn_dataset_text_with first.
 */
#include "nn.h"

#include <string.h>

enum { MOST_CTX = 1 << 24 };

/* The bytes [from, to) of a file as tokens of the whole file's vocabulary. */
static nn_corpus *make_corpus(const unsigned char *file, size_t size, size_t from, size_t to)
{
    nn_corpus *c = tn_calloc(1, sizeof(*c) + (to - from));
    uint8_t token_of[256] = {0};
    bool seen[256] = {false};
    if (!c) return NULL;
    for (size_t i = 0; i < size; i++) seen[file[i]] = true;
    for (int b = 0; b < 256; b++) {
        if (!seen[b]) continue;
        token_of[b] = (uint8_t)c->size;
        c->byte_of[c->size++] = (uint8_t)b;
    }
    c->n = (int64_t)(to - from);
    for (size_t i = from; i < to; i++) c->tokens[i - from] = token_of[file[i]];
    return c;
}

static int read_part(const char *path, tn_part part, int64_t ctx, nn_corpus **out, nn_why *why)
{
    unsigned char *file = NULL;
    size_t size = 0;
    int status = tn_nn_slurp(path, INT32_MAX, &file, &size, why);
    if (status) return status;
    size_t split = size / 10 * 9 + size % 10 * 9 / 10; /* 9/10 without overflow */
    if (split < 2 || size - split < 2 || split <= (size_t)ctx)
        status = tn_nn_why(why, TN_E_FORMAT,
                           "%s: %zu characters are too few: 90 %% must be more than a window of %lld", path,
                           size, (long long)ctx);
    else if (!(*out = make_corpus(file, size, part == TN_TEST ? split : 0, part == TN_TEST ? size : split)))
        status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %zu characters", path, size);
    tn_free_mem(file);
    return status;
}

TN_DEFINE(tn_dataset *, dataset_text_with, s, (s, path, part, options), tn_session *s, const char *path,
          tn_part part, const tn_text_options *options)
{
    NN_OPTIONS(tn_text_options, o, options);
    static const char op[] = "dataset_text";
    int64_t ctx = o->ctx ? o->ctx : 64;
    nn_corpus *corpus = NULL;
    nn_why why = {0};
    if (!s) return NULL;
    if (!path || (part != TN_TRAIN && part != TN_TEST) || ctx < 1 || ctx > MOST_CTX) {
        tn_fail(s, path ? TN_E_ARG : TN_E_NULL, op,
                "path %s, part %d, ctx %lld: needs a file, TN_TRAIN or TN_TEST, and ctx from 1 to %d",
                path ? path : "NULL", (int)part, (long long)ctx, MOST_CTX);
        return NULL;
    }
    if (read_part(path, part, ctx, &corpus, &why)) {
        tn_fail(s, why.status, op, "%s", why.text);
        return NULL;
    }
    /* Every character but the first is a label once. */
    tn_dataset *d = tn_nn_dataset_new(s, (corpus->n - 1 + ctx - 1) / ctx, false, 1, &ctx, op);
    if (!d) {
        tn_free_mem(corpus);
        return NULL;
    }
    d->corpus = corpus;
    d->labels_each = ctx;
    return d;
}

int tn_text_vocabulary(const tn_dataset *d)
{
    return d && d->corpus ? d->corpus->size : 0;
}

int tn_text_token(const tn_dataset *d, int byte)
{
    for (int i = 0; i < tn_text_vocabulary(d); i++)
        if (d->corpus->byte_of[i] == byte) return i;
    return -1;
}

int tn_text_byte(const tn_dataset *d, int64_t token)
{
    return token >= 0 && token < tn_text_vocabulary(d) ? d->corpus->byte_of[token] : -1;
}
