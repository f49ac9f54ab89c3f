/* file.c - model.c and model.h as they stand: the opening with what there is, the struct, initial values, the
 * functions of step.c between what they call and the ones that a user calls. Start with ex_write_files.
 */
#include "export.h"

#include "../../include/tensor_extend.h"
#include "../core/print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *result(const tn_export *x)
{
    return x->returned >= 0 ? "float" : "int";
}

/* ---- the header ---- */

static void put_struct(const tn_export *x, tn_growing *t)
{
    if (x->options.threads)
        tn_put(t,
               "/* Computes items [begin, end) of what it is given; room: to pack into. */\n"
               "typedef int %s_part(const void *what, float *room, int64_t begin, int64_t end);\n"
               "struct %s_pool;\n\n",
               x->name, x->name);
    tn_put(
        t,
        "/* All of a model, and what it computes with: initialise it with %s_init. */\ntypedef struct %s {\n",
        x->name, x->name);
    ex_put_members(x, t);
    if (x->options.threads)
        tn_put(
            t,
            "    struct %s_pool *pool; /* of %s_threads.c */\n"
            "    int (*run)(struct %s_pool *pool, %s_part *part_of, const void *what, float *room, int64_t "
            "items);\n",
            x->name, x->name, x->name, x->name);
    tn_put(t, "    uint64_t arena[%zu]; /* what a call computes and does not keep */\n} %s;\n\n",
           ex_scratch_bytes(x) / 8 + 1, x->name);
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
    tn_put(t, "%s %s_%s(", result(x), x->name, ex_action(x));
    ex_put_parameters(x, t);
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

static void put_init(const tn_export *x, tn_growing *t)
{
    tn_put(t, "size_t %s_bytes(void)\n{\n    return sizeof(%s);\n}\n\nvoid %s_init(%s *m)\n{\n", x->name,
           x->name, x->name, x->name);
    if (!x->trains && !x->draws && !x->options.threads) tn_put(t, "    (void)m;\n");
    if (x->options.threads) tn_put(t, "    m->pool = NULL;\n    m->run = NULL;\n");
    for (int i = 0; i < x->n_region; i++) {
        const ex_region *r = &x->region[i];
        if (!r->written) continue;
        tn_put(t, "    for (size_t i = 0; i < %zu; i++) m->%s[i] = ", ex_elems(r), r->name);
        if (ex_begins_as_zero(r))
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
    tn_put(t, "%s %s_%s(", result(x), x->name, ex_action(x));
    ex_put_parameters(x, t);
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
    if (strstr(body, "(fault)")) tn_put(t, "    int fault = 0;\n");
    if (x->returned >= 0) tn_put(t, "    float %s[1] = {0};\n", x->mark[x->returned].name);
    tn_put(t, "%s\n", body);
    for (int i = 0; i < x->n_power; i++) tn_put(t, "    m->power%d = power%d;\n", i, i);
    if (x->draws) tn_put(t, "    m->draw += %llu;\n", (unsigned long long)x->draws);
    if (x->save.n) tn_put(t, "    m->steps++;\n");
    tn_put(t, "    return %s%s;\n}\n\n", x->returned >= 0 ? "*" : "0",
           x->returned >= 0 ? x->mark[x->returned].name : "");
}

/* ---- the whole ---- */

static void put_opening(const tn_export *x, unsigned long digest, tn_growing *t)
{
    double weights, state;
    ex_add_up(x, &weights, &state);
    tn_put(t,
           "/* %s.c - written by libtensor: %s. C99 that needs no library.\n *\n"
           " *   constants          %.0f bytes\n *   %s             %.0f bytes, %zu of them for what a call "
           "computes\n"
           " *   stack              about %zu bytes\n *   multiply-adds      %.0f in products and "
           "convolutions\n *\n",
           x->name, x->trains ? "a training step" : "a forward pass", weights, x->name, state,
           ex_scratch_bytes(x), x->stack_bytes + 512, x->macs);
    if (x->options.weights) {
        tn_put(t, " * Weights that were rounded:\n *\n");
        ex_put_rounding(x, t);
        tn_put(t, " *\n");
    }
    tn_put(t,
           " * What %s_%s calls, in order, and the bytes each reads and writes:\n *\n%s *\n"
           " * Read first: %s_%s, at the end.\n */\n",
           x->name, ex_action(x), x->table.p ? x->table.p : "", x->name, ex_action(x));
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

static int write_threads(tn_export *x, unsigned long digest)
{
    tn_growing path = {0}, text = {0};
    ex_put_threads(x, digest, &text);
    tn_put(&path, "%.*s_threads.c", (int)strlen(x->path) - 2, x->path);
    const int status = path.failed ? path.failed : write_file(x, path.p, &text);
    tn_growing_free(&path);
    tn_growing_free(&text);
    return status;
}

int ex_write_files(tn_export *x)
{
    tn_growing h = {0}, c = {0}, own = {0};
    char missing[EXPORT_NAME];
    ex_put_arrays(x, &own);
    tn_put(&own, "%s", x->kernels.p ? x->kernels.p : "");
    if (x->cuda) {
        ex_cuda_functions(x, &own);
    } else {
        put_init(x, &own);
        ex_put_run(x, &own);
        put_action(x, &own);
    }
    ex_put_names(x, &own);
    if (x->save.n) tn_put_bytes(&own, x->save.p, x->save.n);
    (x->cuda ? ex_cuda_header : put_header)(x, &h);
    const unsigned long digest = digest_of(&own, &h);
    ex_put_threads_header(x, &h);
    tn_put(&h, "\n#define %s_PAIR 0x%08lxu /* as in %s.%s: they are of one export */\n\n#endif\n", x->name,
           digest, x->name, x->cuda ? "cu" : "c");
    (x->cuda ? ex_cuda_opening : put_opening)(x, digest, &c);
    if (x->cuda) ex_cuda_prelude(&c);
    const bool all = x->cuda || ex_pick(&c, own.p ? own.p : "", missing);
    if (!x->cuda && own.p && strstr(own.p, "index_fault("))
        tn_put(&c, "/* An index that is out of range: the call ends behind the kernel that met it. */\n"
                   "static void index_fault(int *fault, int64_t where, int64_t value)\n{\n    (void)where;\n "
                   "   (void)value;\n    *fault = 1;\n}\n\n");
    tn_put(&c, "%s", own.p ? own.p : "");
    if (x->cuda) ex_cuda_parts(x, &c);
    if (own.failed && !c.failed) c.failed = own.failed;
    int status = all ? write_file(x, x->path, &c)
                     : ex_fail(x, TN_E_UNSUPPORTED, "%s has no text that needs no library", missing);
    if (!status) {
        strcpy(strrchr(x->path, '.'), ".h");
        status = write_file(x, x->path, &h);
    }
    if (!status && x->options.threads) status = write_threads(x, digest);
    tn_growing_free(&h);
    tn_growing_free(&c);
    tn_growing_free(&own);
    return status;
}
