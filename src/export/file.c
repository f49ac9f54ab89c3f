/* file.c - model.c and model.h as they stand: the opening with what there is, the struct, initial values, the
 * functions of step.c between what they call and the ones that a user calls. Start with ex_write_files.
 */
#include "export.h"

#include "../../include/tensor_extend.h"
#include "../core/print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static size_t elems(const ex_region *r)
{
    return r->bytes / tn_dtype_size(r->dtype);
}

static size_t scratch_bytes(const tn_export *x)
{
    return x->arena_bytes + x->shared_bytes + x->room_bytes;
}

static bool is_zero(const ex_region *r)
{
    const char *c = r->data;
    for (size_t i = 0; i < r->bytes; i++)
        if (c[i]) return false;
    return true;
}

/* ---- what the functions look like ---- */

static void put_parameters(const tn_export *x, tn_growing *t)
{
    tn_put(t, "%s *m", x->name);
    for (int out = 0; out < 2; out++)
        for (int i = 0; i < x->n_mark; i++)
            if (x->mark[i].out == (bool)out && i != x->returned)
                tn_put(t, ", %s%s *%s", out ? "" : "const ", ex_type(x->mark[i].dtype), x->mark[i].name);
}

static const char *action(const tn_export *x)
{
    return x->trains ? "step" : "forward";
}

static const char *result(const tn_export *x)
{
    return x->returned >= 0 ? "float" : "int";
}

/* ---- the header ---- */

static void put_struct(const tn_export *x, tn_growing *t)
{
    tn_put(
        t,
        "/* All of a model, and what it computes with: initialise it with %s_init. */\ntypedef struct %s {\n",
        x->name, x->name);
    for (int i = 0; i < x->n_region; i++)
        if (x->region[i].written)
            tn_put(t, "    %s %s[%zu];\n", ex_type(x->region[i].dtype), x->region[i].name,
                   elems(&x->region[i]));
    if (x->draws)
        tn_put(t, "    uint64_t seed, draw; /* random numbers: each step draws %llu */\n",
               (unsigned long long)x->draws);
    for (int i = 0; i < x->n_power; i++)
        tn_put(t, "    double power%d; /* %.17g to the count of updates */\n", i, x->base[i]);
    if (x->save.n) tn_put(t, "    int64_t steps; /* since %s_init */\n", x->name);
    if (x->trains)
        tn_put(t, "    double rate; /* factor of the learning rate that the session had; 1 at first */\n");
    tn_put(t, "    uint64_t arena[%zu]; /* what a call computes and does not keep */\n} %s;\n\n",
           scratch_bytes(x) / 8 + 1, x->name);
}

static void put_header(const tn_export *x, tn_growing *t)
{
    tn_put(t,
           "/* %s.h - what %s.c offers. */\n#ifndef %s_INCLUDED\n#define %s_INCLUDED\n\n#include "
           "<stddef.h>\n#include <stdint.h>\n\n",
           x->name, x->name, x->name, x->name);
    put_struct(x, t);
    tn_put(t, "size_t %s_bytes(void);\nvoid %s_init(%s *m);\n\n", x->name, x->name, x->name);
    for (int i = 0; i < x->n_mark; i++)
        tn_put(t, "/* %s: %s%lld elements */\n", x->mark[i].name, i == x->returned ? "is returned, " : "",
               (long long)x->mark[i].count);
    tn_put(t, x->returned >= 0
                  ? "/* A NaN: a pointer is NULL or not aligned, or an index is out of range; no parameter "
                    "has changed. */\n"
                  : "/* 1: a pointer is NULL or not aligned, or an index is out of range; else 0. */\n");
    tn_put(t, "%s %s_%s(", result(x), x->name, action(x));
    put_parameters(x, t);
    tn_put(t,
           ");\n\n/* Copies the parameter or buffer of that name: up to `room` elements. Its count, or -1 "
           "where there is none; with\n"
           " * to NULL the count alone. */\n"
           "int64_t %s_get(const %s *m, const char *name, float *to, int64_t room);\n",
           x->name, x->name);
    if (x->trains)
        tn_put(t,
               "/* The other way round, where count is its count; else nothing happens. */\n"
               "int64_t %s_set(%s *m, const char *name, const float *from, int64_t count);\n",
               x->name, x->name);
    if (x->save.n)
        tn_put(t,
               "/* The bytes of a checkpoint, safetensors that tn_load takes: up to `room` of them. How many "
               "there "
               "are. */\n"
               "size_t %s_save(const %s *m, void *to, size_t room);\n",
               x->name, x->name);
}

/* Of what both files say: a .c beside the .h of another export, as a second file that could not be written
 * leaves it, does not compile. FNV-1a; never 0, which is what #if takes for a macro that is not there. */
static unsigned long digest_of(const tn_growing *a, const tn_growing *b)
{
    uint32_t d = 2166136261u;
    for (int k = 0; k < 2; k++)
        for (const char *c = k ? b->p : a->p; c && *c; c++) d = (d ^ (unsigned char)*c) * 16777619u;
    return d ? d : 1;
}

/* ---- values ---- */

enum { VALUE = 48 };

static void f32_text(float v, char s[VALUE])
{
    if (!isfinite(v)) {
        snprintf(s, VALUE, "%s", isnan(v) ? "0.0f / 0.0f" : v < 0 ? "-1e39f * 1e39f" : "1e39f * 1e39f");
        return;
    }
    tn_snprintf(s, VALUE, "%.9g", (double)v);
    if (!strpbrk(s, ".e")) strcat(s, ".0");
    strcat(s, "f");
}

static void value_text(const ex_region *r, size_t i, char s[VALUE])
{
    if (r->weights) {
        ex_put_codes(r, (int64_t)i, s, VALUE);
        return;
    }
    switch (r->dtype) {
    case TN_F32:
        f32_text(((const float *)r->data)[i], s);
        break;
    case TN_F64:
        tn_snprintf(s, VALUE, "%.17g", ((const double *)r->data)[i]);
        break;
    case TN_I32:
        snprintf(s, VALUE, "%ld", (long)((const int32_t *)r->data)[i]);
        break;
    case TN_I64:
        snprintf(s, VALUE, "%lldLL", (long long)((const int64_t *)r->data)[i]);
        break;
    default:
        snprintf(s, VALUE, "%d", ((const uint8_t *)r->data)[i]);
        break;
    }
}

static void put_values(tn_growing *t, const ex_region *r, size_t n, bool scales)
{
    size_t line = 0;
    for (size_t i = 0; i < n; i++) {
        char s[VALUE];
        if (scales)
            f32_text(r->scale[i], s);
        else
            value_text(r, i, s);
        const size_t k = strlen(s) + 2;
        if (line + k > 118) {
            tn_put_bytes(t, "\n", 1);
            line = 0;
        }
        tn_put_bytes(t, line ? " " : "    ", line ? 1 : 4);
        tn_put_bytes(t, s, k - 2);
        tn_put_bytes(t, ",", 1);
        line += line ? k : k + 3;
    }
    tn_put(t, "\n");
}

static void put_arrays(const tn_export *x, tn_growing *t)
{
    for (int i = 0; i < x->n_region; i++) {
        const ex_region *r = &x->region[i];
        if (r->written ? r->zero || is_zero(r) : !r->read) continue;
        tn_put(t, "static const %s %s%s[%zu] = {\n", ex_region_type(r), r->name,
               r->written ? "_at_first" : "_data", elems(r));
        put_values(t, r, elems(r), false);
        tn_put(t, "};\n\n");
        if (r->weights != TN_EXPORT_INT8) continue;
        tn_put(t, "static const float %s_scale[%lld] = {\n", r->name, (long long)r->outputs);
        put_values(t, r, (size_t)r->outputs, true);
        tn_put(t, "};\n\n");
    }
}

static void put_init(const tn_export *x, tn_growing *t)
{
    tn_put(t, "size_t %s_bytes(void)\n{\n    return sizeof(%s);\n}\n\nvoid %s_init(%s *m)\n{\n", x->name,
           x->name, x->name, x->name);
    if (!x->trains && !x->draws) tn_put(t, "    (void)m;\n");
    for (int i = 0; i < x->n_region; i++) {
        const ex_region *r = &x->region[i];
        if (!r->written) continue;
        tn_put(t, "    for (size_t i = 0; i < %zu; i++) m->%s[i] = ", elems(r), r->name);
        if (r->zero || is_zero(r))
            tn_put(t, "0;\n");
        else
            tn_put(t, "%s_at_first[i];\n", r->name);
    }
    if (x->draws)
        tn_put(t, "    m->seed = %lluu;\n    m->draw = %lluu;\n", (unsigned long long)x->s->graph.seed,
               (unsigned long long)x->s->graph.draw);
    for (int i = 0; i < x->n_power; i++) tn_put(t, "    m->power%d = %.17g;\n", i, x->power[i]);
    if (x->save.n) tn_put(t, "    m->steps = 0;\n");
    if (x->trains) tn_put(t, "    m->rate = 1;\n");
    tn_put(t, "}\n\n");
}

/* ---- the function that a user calls ---- */

static void put_action(const tn_export *x, tn_growing *t)
{
    const char *bad = x->returned >= 0 ? "TN_NAN" : "1";
    tn_put(t, "%s %s_%s(", result(x), x->name, action(x));
    put_parameters(x, t);
    tn_put(t, ")\n{\n    if (!m || (uintptr_t)m %% 8) return %s;\n", bad);
    for (int i = 0; i < x->n_mark; i++)
        if (i != x->returned)
            tn_put(t, "    if (!%s || (uintptr_t)%s %% sizeof *%s) return %s;\n", x->mark[i].name,
                   x->mark[i].name, x->mark[i].name, bad);
    const char *body = x->step.p ? x->step.p : "";
    if (x->room_bytes || strstr(body, "(arena +"))
        tn_put(t, "    unsigned char *const arena = (unsigned char *)m->arena;\n");
    if (x->shared_bytes)
        tn_put(t, "    float *const shared = (float *)(void *)(arena + %zu);\n", x->arena_bytes);
    if (x->room_bytes)
        tn_put(t, "    float *const room = (float *)(void *)(arena + %zu);\n",
               x->arena_bytes + x->shared_bytes);
    for (int i = 0; i < x->n_power; i++)
        tn_put(t, "    const double power%d = m->power%d * %.17g;\n", i, i, x->base[i]);
    if (strstr(body, "&fault")) tn_put(t, "    int fault = 0;\n");
    if (x->returned >= 0) tn_put(t, "    float %s[1] = {0};\n", x->mark[x->returned].name);
    tn_put(t, "%s\n", body);
    for (int i = 0; i < x->n_power; i++) tn_put(t, "    m->power%d = power%d;\n", i, i);
    if (x->draws) tn_put(t, "    m->draw += %llu;\n", (unsigned long long)x->draws);
    if (x->save.n) tn_put(t, "    m->steps++;\n");
    tn_put(t, "    return %s%s;\n}\n\n", x->returned >= 0 ? "*" : "0",
           x->returned >= 0 ? x->mark[x->returned].name : "");
}

/* ---- names ---- */

static void put_entry(const tn_export *x, tn_growing *t, const tn_tensor *p)
{
    tn_storage *holder = NULL;
    const char *at = tn_node_home(p, &holder);
    for (int i = 0; i < x->n_region; i++) {
        const ex_region *r = &x->region[i];
        if (p->dtype != TN_F32 || r->dtype != TN_F32 || r->weights || !(r->written || r->read) ||
            at < r->low || at >= r->low + r->bytes)
            continue;
        tn_put(t, "    if (same(name, \"%s\")) return (count_at){%lld, %s%s%s + %zu};\n",
               p->name ? p->name : "", (long long)tn_node_numel(p), r->written ? "m->" : "", r->name,
               r->written ? "" : "_data", (size_t)(at - r->low) / 4);
    }
}

static void put_names(const tn_export *x, tn_growing *t)
{
    tn_growing entries = {0};
    for (int i = 0; i < x->s->n_params; i++) put_entry(x, &entries, x->s->params[i]);
    for (int i = 0; i < x->s->n_buffers; i++) put_entry(x, &entries, x->s->buffers[i]);
    tn_put(t,
           "typedef struct count_at {\n    int64_t count;\n    const float *at;\n} count_at;\n\n"
           "%s"
           "static void copy(float *restrict to, const float *restrict from, int64_t n)\n{\n    for (int64_t "
           "i = 0; i < n; i++) to[i] = from[i];\n}\n\n"
           "static count_at find(const %s *m, const char *name)\n{\n    (void)m;\n%s%s",
           entries.n ? "static int same(const char *a, const char *b)\n{\n    while (*a && *a == *b) {\n"
                       "        a++;\n        b++;\n    }\n    return *a == *b;\n}\n\n"
                     : "",
           x->name, entries.n ? "" : "    (void)name;\n", entries.n ? entries.p : "");
    if (entries.failed) t->failed = entries.failed;
    tn_growing_free(&entries);
    tn_put(t,
           "    return (count_at){-1, NULL};\n}\n\n"
           "int64_t %s_get(const %s *m, const char *name, float *to, int64_t room)\n{\n"
           "    const count_at from = m && name ? find(m, name) : (count_at){-1, NULL};\n"
           "    if (to && from.at) copy(to, from.at, room < from.count ? room : from.count);\n"
           "    return from.count;\n}\n",
           x->name, x->name);
    if (x->trains)
        tn_put(t,
               "\nint64_t %s_set(%s *m, const char *name, const float *from, int64_t count)\n{\n"
               "    const count_at found = m && name ? find(m, name) : (count_at){-1, NULL};\n"
               "    float *to = (float *)(void *)((unsigned char *)m + ((const unsigned char *)found.at - "
               "(const unsigned char *)m));\n"
               "    if (from && found.at && count == found.count) copy(to, from, count);\n"
               "    return found.count;\n}\n",
               x->name, x->name);
}

/* ---- the whole ---- */

static void put_opening(const tn_export *x, unsigned long digest, tn_growing *t)
{
    double weights = 0, state = (double)scratch_bytes(x);
    for (int i = 0; i < x->n_region; i++)
        if (x->region[i].written)
            state += (double)x->region[i].bytes;
        else if (x->region[i].read)
            weights += (double)ex_region_bytes(&x->region[i]);
    tn_put(t,
           "/* %s.c - written by libtensor: %s. C99 that needs no library.\n *\n"
           " *   constants          %.0f bytes\n *   %s             %.0f bytes, %zu of them for what a call "
           "computes\n"
           " *   stack              about %zu bytes\n *   multiply-adds      %.0f in products and "
           "convolutions\n *\n",
           x->name, x->trains ? "a training step" : "a forward pass", weights, x->name, state,
           scratch_bytes(x), x->stack_bytes + 512, x->macs);
    if (x->options.weights) {
        tn_put(t, " * Weights that were rounded:\n *\n");
        ex_put_rounding(x, t);
        tn_put(t, " *\n");
    }
    tn_put(t,
           " * What %s_%s calls, in order, and the bytes each reads and writes:\n *\n%s *\n"
           " * Read first: %s_%s, at the end.\n */\n",
           x->name, action(x), x->table.p ? x->table.p : "", x->name, action(x));
    tn_put(t,
           "#include \"%s.h\"\n\n#if %s_PAIR != 0x%08lxu\n#error \"this %s.h is of another export than this "
           "%s.c\"\n#endif\n\n"
           "#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__)\n#pragma GCC optimize("
           "\"no-tree-pre\", \"no-trapping-math\") /* else gcc leaves loops of comparisons scalar */\n"
           "#pragma GCC optimize(\"no-tree-loop-distribute-patterns\") /* nor calls memmove for a loop "
           "*/\n#endif\n\n"
           "#define bool  _Bool\n#define true  1\n#define false 0\n#if "
           "defined(__clang__)\n#pragma STDC FP_CONTRACT "
           "OFF\n#endif\n\n",
           x->name, x->name, digest, x->name, x->name);
}

static int write_text(FILE *f, void *user)
{
    const tn_growing *t = user;
    return fwrite(t->p, 1, t->n, f) == t->n ? TN_OK : TN_E_IO;
}

static int write_file(tn_export *x, const char *path, tn_growing *t)
{
    const char *why = "";
    int status = t->failed ? t->failed : tn_write_whole(path, write_text, t, &why);
    if (status)
        status =
            tn_fail(x->s, status, "export_end", "%s: %s", path, status == TN_E_NOMEM ? "out of memory" : why);
    return status;
}

int ex_write_files(tn_export *x)
{
    tn_growing h = {0}, c = {0}, own = {0};
    char missing[EXPORT_NAME];
    put_arrays(x, &own);
    tn_put(&own, "%s", x->kernels.p ? x->kernels.p : "");
    put_init(x, &own);
    put_action(x, &own);
    put_names(x, &own);
    if (x->save.n) tn_put_bytes(&own, x->save.p, x->save.n);
    put_header(x, &h);
    const unsigned long digest = digest_of(&own, &h);
    tn_put(&h, "\n#define %s_PAIR 0x%08lxu /* as in %s.c: they are of one export */\n\n#endif\n", x->name,
           digest, x->name);
    put_opening(x, digest, &c);
    const bool all = ex_pick(&c, own.p ? own.p : "", missing);
    if (own.p && strstr(own.p, "index_fault("))
        tn_put(&c, "/* An index that is out of range: the call ends behind the kernel that met it. */\n"
                   "static void index_fault(int *fault, int64_t where, int64_t value)\n{\n    (void)where;\n "
                   "   (void)value;\n    *fault = 1;\n}\n\n");
    tn_put(&c, "%s", own.p ? own.p : "");
    if (own.failed && !c.failed) c.failed = own.failed;
    int status = all ? write_file(x, x->path, &c)
                     : ex_fail(x, TN_E_UNSUPPORTED, "%s has no text that needs no library", missing);
    if (!status) {
        x->path[strlen(x->path) - 1] = 'h';
        status = write_file(x, x->path, &h);
    }
    tn_growing_free(&h);
    tn_growing_free(&c);
    tn_growing_free(&own);
    return status;
}
