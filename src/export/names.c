/* names.c - the functions that copy a parameter or a buffer, by its name, out of a model and into it. Start
 * with ex_put_names. */
#include "export.h"

const char *ex_stream(const tn_export *x) { return x->cuda ? ", cudaStream_t stream" : ""; }

static void put_entry(const tn_export *x, tn_growing *t, const tn_tensor *p)
{
    tn_storage *holder = NULL;
    const char *at = tn_node_home(p, &holder);
    TN_EACH(r, x->region, x->n_region) {
        if (p->dtype != TN_F32 || r->dtype != TN_F32 || r->weights || !(r->written || r->read) ||
            at < r->low || at >= r->low + r->bytes)
            continue;
        tn_put(t, "    if (same(name, \"%s\")) return %s{%lld, ", p->name ? p->name : "",
               x->cuda ? "" : "(count_at)", (long long)tn_node_numel(p));
        ex_put_region(x, r, t);
        tn_put(t, " + %zu};\n", (size_t)(at - r->low) / 4);
    }
}

void ex_put_names(const tn_export *x, tn_growing *t)
{
    static const char copy_c[] =
        "static void copy(float *restrict to, const float *restrict from, int64_t n)\n{\n"
        "    for (int64_t i = 0; i < n; i++) to[i] = from[i];\n}\n\n";
    static const char copy_cuda[] =
        "static void copy(float *to, const float *from, int64_t n, cudaStream_t stream)\n{\n"
        "    if (n > 0) cudaMemcpyAsync(to, from, (size_t)n * sizeof *to, cudaMemcpyDefault, stream);\n"
        "    cudaStreamSynchronize(stream);\n}\n\n";
    const char *stream = x->cuda ? ", stream" : "";
    tn_growing entries = {0};
    for (int i = 0; i < x->s->n_params; i++) put_entry(x, &entries, x->s->params[i]);
    for (int i = 0; i < x->s->n_buffers; i++) put_entry(x, &entries, x->s->buffers[i]);
    ex_put(x, t,
           "typedef struct count_at {\n    int64_t count;\n    const float *at;\n} count_at;\n\n"
           "%s%sstatic count_at find(const @ *m, const char *name)\n{\n"
           "    const count_at none = {-1, NULL};\n    if (!m || !name) return none;\n%s",
           entries.n ? "static int same(const char *a, const char *b)\n{\n    while (*a && *a == *b) {\n"
                       "        a++;\n        b++;\n    }\n    return *a == *b;\n}\n\n"
                     : "",
           x->cuda ? copy_cuda : copy_c, entries.n ? entries.p : "");
    if (entries.failed) t->failed = entries.failed;
    tn_growing_free(&entries);
    ex_put(x, t,
           "    return none;\n}\n\n"
           "int64_t @_get(const @ *m, const char *name, float *to, int64_t room%s)\n{\n"
           "    const count_at from = find(m, name);\n"
           "    if (to && from.at) copy(to, from.at, room < from.count ? room : from.count%s);\n"
           "    return from.count;\n}\n",
           ex_stream(x), stream);
    if (x->trains || x->cuda)
        ex_put(x, t,
               "\nint64_t @_set(@ *m, const char *name, const float *from, int64_t count%s)\n{\n"
               "    const count_at found = find(m, name);\n"
               "    float *to = (float *)(void *)((unsigned char *)m + ((const unsigned char *)found.at - "
               "(const unsigned char *)m));\n"
               "    if (from && found.at && count == found.count) copy(to, from, count%s);\n"
               "    return found.count;\n}\n",
               ex_stream(x), stream);
}
