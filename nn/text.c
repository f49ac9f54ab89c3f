/* text.c - a text as a data set: tokens in, tokens that follow out.
 *
 * A part of a text is kept as one byte a character, its place in the vocabulary (nn_corpus, in nn.h); a file
 * of tokens is mapped as it is. A window's labels are the same tokens one further on. Which windows a
 * training pass has is loader.c's business (tn_nn_places). Read tn_dataset_text_with first. */
#include "nn.h"

#include <string.h>

enum { MOST_CTX = 1 << 24 };

/* The token at place i, or -1 where a file has one that is not below the vocabulary's size. */
static int32_t token(const nn_corpus *c, int64_t i)
{
    const unsigned char *p = c->tokens + i * c->width;
    const uint32_t v =
        c->width == 1   ? p[0]
        : c->width == 2 ? (uint32_t)p[0] | (uint32_t)p[1] << 8
                        : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    return v > INT32_MAX || (c->size && v >= c->size) ? -1 : (int32_t)v;
}

void tn_nn_window(const tn_dataset *d, int64_t from, int32_t *x, int32_t *y)
{
    const nn_corpus *c = d->corpus;
    for (int64_t i = 0; i < d->array[0].item; i++) {
        const bool inside = from + i + 1 < c->n;
        x[i] = inside ? token(c, from + i) : 0;
        y[i] = inside ? token(c, from + i + 1) : NN_NO_LABEL;
    }
}

static int window(const tn_dataset *d, int64_t from, const nn_draw *draw, void *const *out, nn_why *why)
{
    (void)draw;
    const nn_corpus *c = d->corpus;
    tn_nn_window(d, from, out[0], out[1]);
    for (int64_t i = 0; !c->bytes && i <= d->array[0].item && from + i < c->n; i++)
        if (token(c, from + i) < 0)
            return tn_nn_why(why, TN_E_FORMAT, "%s: token %lld is not below %lld", c->path,
                             (long long)(from + i), c->size ? (long long)c->size : (long long)INT32_MAX + 1);
    return TN_OK;
}

static void drop(void *of)
{
    nn_corpus *c = of;
    tn_nn_unmap(&c->file);
    tn_free_mem(c);
}

/* Every token but the first is a label once. */
static tn_dataset *windows(tn_session *s, nn_corpus *c, int64_t ctx, const nn_why *why, const char *op)
{
    tn_dataset made = {.n = (c->n - 1 + ctx - 1) / ctx, .make = window, .of = c, .drop = drop, .corpus = c};
    tn_nn_dataset_array(&made, TN_I32, NN_AS_IS, 1, &ctx);
    tn_nn_dataset_array(&made, TN_I32, NN_AS_IS, 1, &ctx);
    return tn_nn_dataset_new(s, &made, why, op);
}

/* ---- texts ---- */

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
    c->width = 1;
    c->bytes = true;
    unsigned char *tokens = (unsigned char *)(c + 1);
    for (size_t i = from; i < to; i++) tokens[i - from] = token_of[file[i]];
    c->tokens = tokens;
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
    if (!path || (part != TN_TRAIN && part != TN_TEST) || ctx < 1 || ctx > MOST_CTX)
        return tn_nn_fail(
            s, path ? TN_E_ARG : TN_E_NULL, op,
            "path %s, part %d, ctx %lld: needs a file, TN_TRAIN or TN_TEST, and ctx from 1 to %d",
            path ? path : "NULL", (int)part, (long long)ctx, MOST_CTX);
    if (read_part(path, part, ctx, &corpus, &why)) return tn_nn_fail(s, why.status, op, "%s", why.text);
    return windows(s, corpus, ctx, &why, op);
}

/* ---- tokens ---- */

TN_DEFINE(tn_dataset *, dataset_tokens_with, s, (s, path, options), tn_session *s, const char *path,
          const tn_tokens_options *options)
{
    NN_OPTIONS(tn_tokens_options, o, options);
    static const char op[] = "dataset_tokens";
    const int64_t ctx = o->ctx ? o->ctx : 64;
    const int bits = o->bits ? o->bits : 16;
    nn_why why = {0};
    if (!s) return NULL;
    if (!path || (bits != 16 && bits != 32) || ctx < 1 || ctx > MOST_CTX || o->vocabulary < 0 ||
        o->vocabulary > INT32_MAX)
        return tn_nn_fail(
            s, path ? TN_E_ARG : TN_E_NULL, op,
            "path %s, bits %d, ctx %lld, vocabulary %lld: needs a file, 16 or 32, ctx from 1 to %d, and no "
            "vocabulary below 0 or above %d",
            path ? path : "NULL", bits, (long long)ctx, (long long)o->vocabulary, MOST_CTX, INT32_MAX);
    nn_corpus *c = tn_calloc(1, sizeof(*c) + strlen(path) + 1);
    if (!c) return tn_nn_fail(s, TN_E_NOMEM, op, "no memory for %s", path);
    c->width = bits / 8;
    c->size = o->vocabulary;
    c->path = strcpy((char *)(c + 1), path);
    const int status = tn_nn_map(path, &c->file, &why);
    c->tokens = c->file.data;
    c->n = (int64_t)(c->file.size / (size_t)c->width);
    if (!status && (c->file.size % (size_t)c->width || c->n <= ctx || c->n > UINT32_MAX))
        tn_nn_why(&why, TN_E_FORMAT,
                  "%s: %zu bytes are not tokens of %d bits, more than a window of %lld and fewer than 2^32",
                  path, c->file.size, bits, (long long)ctx);
    return windows(s, c, ctx, &why, op);
}

int tn_text_vocabulary(const tn_dataset *d) { return d && d->corpus ? (int)d->corpus->size : 0; }

int tn_text_token(const tn_dataset *d, int byte)
{
    for (int i = 0; i < tn_text_vocabulary(d) && d->corpus->bytes; i++)
        if (d->corpus->byte_of[i] == byte) return i;
    return -1;
}

int tn_text_byte(const tn_dataset *d, int64_t token)
{
    return token >= 0 && token < tn_text_vocabulary(d) && d->corpus->bytes ? d->corpus->byte_of[token] : -1;
}
