/* saved.c - the function model_save of a file that trains on: a checkpoint of what it has come to, in the
 * format of tn_save. Who saves training runs tells what one begins with and what follows (tensor_export.h);
 * here that becomes text: lines of a string, and a copy of each part out of the struct.
 *
 * Start with ex_ask_what_is_saved. */
#include "export.h"

#include <string.h>

enum { LINE = 96, DIGITS = 20 };

int tn_export_checkpoint(tn_session *s, int (*tell)(tn_session *s))
{
    if (!s || !s->export) return 0;
    if (s->export->caught) return -1;
    s->export->tell = tell;
    return 1;
}

/* A text as strings of C, none longer than a compiler has to take. */
static void put_text(tn_growing *t, const char *text, size_t bytes)
{
    tn_put(t, "static const char *const saved[] = {");
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (i % LINE == 0) tn_put(t, "%s\n    \"", i ? "\"," : "");
        if (c >= ' ' && c < 127 && c != '"' && c != '\\' && c != '?')
            tn_put_bytes(t, text + i, 1);
        else
            tn_put(t, "\\%03o", c);
    }
    tn_put(t, "\"};\n\n");
}

int tn_export_saved(tn_session *s, const char *text, size_t bytes)
{
    static const char key[] = "\"draw\":\"";
    tn_export *x = s->export;
    size_t at = 8; /* behind the text's own length */
    while (at + sizeof key + DIGITS < bytes && memcmp(text + at, key, sizeof key - 1) != 0) at++;
    put_text(&x->save, text, bytes);
    ex_put(
        x, &x->save,
        "static size_t put(void *to, size_t room, size_t at, const void *from, size_t bytes)\n{\n"
        "    unsigned char *t = (unsigned char *)to;\n%s    return at + bytes;\n}\n\n"
        "size_t @_save(const @ *m, void *to, size_t room%s)\n{\n    size_t at = 0;\n"
        "    int64_t number, steps;\n    if (!m) return 0;\n"
        "%s    put(&steps, sizeof steps, 0, &m->steps, sizeof steps);\n"
        "    for (; at < %zu; at += %d) put(to, room, at, saved[at / %d], %zu - at < %d ? %zu - at : %d);\n"
        "    at = %zu;\n",
        x->cuda ? "    const size_t left = t && at < room ? room - at : 0;\n"
                  "    if (left) cudaMemcpy(t + at, from, left < bytes ? left : bytes, cudaMemcpyDefault);\n"
                : "    const unsigned char *f = (const unsigned char *)from;\n"
                  "    for (size_t i = 0; t && i < bytes && at + i < room; i++) t[at + i] = f[i];\n",
        ex_stream(x), x->cuda ? "    cudaStreamSynchronize(stream);\n" : "", bytes, LINE, LINE, bytes, LINE,
        bytes, LINE, bytes);
    if (x->draws)
        tn_put(&x->save,
               "    uint64_t drawn;\n    put(&drawn, sizeof drawn, 0, &m->draw, sizeof drawn);\n    for "
               "(size_t i = %zu; i-- > %zu; drawn /= 10) {\n"
               "        const char digit = (char)('0' + drawn %% 10);\n        put(to, room, i, &digit, "
               "1);\n    }\n",
               at + sizeof key - 1 + DIGITS, at + sizeof key - 1);
    return x->save.failed;
}

int tn_export_saved_tensor(tn_tensor *t, int64_t first, int64_t count)
{
    tn_session *s = tn_slot_session(t);
    const tn_tensor *n = tn_resolve_or_fail(t, "export_end");
    if (!n) return s ? s->graph.error.status : TN_E_NULL;
    const size_t size = tn_dtype_size(n->dtype);
    tn_export *x = s->export;
    const char *low;
    const int r = ex_region_of(x, n, &low);
    if (r < 0) return ex_fail(x, TN_E_NOMEM, "no memory for a list of tensors");
    const ex_region *in = &x->region[r];
    x->region[r].read = true;
    tn_put(&x->save, "    at = put(to, room, at, ");
    ex_put_region(x, in, &x->save);
    tn_put(&x->save, " + %zu, %zu);\n", (size_t)(low - in->low) / size + (size_t)first, (size_t)count * size);
    return x->save.failed;
}

int tn_export_saved_number(tn_session *s, int64_t number, bool counts)
{
    tn_growing *t = &s->export->save;
    tn_put(t, "    number = %lld%s;\n    at = put(to, room, at, &number, 8);\n", (long long)number,
           counts ? " + steps" : "");
    return t->failed;
}

int ex_ask_what_is_saved(tn_export *x)
{
    const int status = x->tell(x->s);
    tn_put(&x->save, "    return at;\n}\n");
    return status ? status : x->save.failed;
}
