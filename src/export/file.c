/* file.c - model.c and model.h as they stand: the opening with what there is, the struct, initial values, the
 * functions of step.c between what they call and the ones that a user calls. Start with ex_write_files. */
#include "export.h"

#include "../../include/tensor_extend.h"

#include <stdio.h>
#include <string.h>

static const char *result(const tn_export *x) { return x->returned >= 0 ? "float" : "int"; }

/* ---- the header ---- */

static void put_struct(const tn_export *x, tn_growing *t)
{
    if (x->options.threads)
        ex_put(x, t,
               "/* Computes items [begin, end) of what it is given; room: to pack into. */\n"
               "typedef int @_part(const void *what, float *room, int64_t begin, int64_t end);\n"
               "struct @_pool;\n\n");
    ex_put(x, t,
           "/* All of a model, and what it computes with: initialise it with @_init. */\n"
           "typedef struct @ {\n");
    ex_put_members(x, t);
    if (x->options.threads)
        ex_put(x, t,
               "    struct @_pool *pool; /* of @_threads.c */\n"
               "    int (*run)(struct @_pool *pool, @_part *part_of, const void *what, float *room, int64_t "
               "items);\n");
    ex_put(x, t, "    uint64_t arena[%zu]; /* what a call computes and does not keep */\n} @;\n\n",
           ex_scratch_bytes(x) / 8 + 1);
}

static void put_header(const tn_export *x, tn_growing *t)
{
    ex_put(x, t,
           "/* @.h - what @.c offers. */\n#ifndef @_INCLUDED\n#define @_INCLUDED\n\n"
           "#include <stddef.h>\n#include <stdint.h>\n\n");
    put_struct(x, t);
    ex_put(x, t, "size_t @_bytes(void);\nvoid @_init(@ *m);\n\n");
    for (int i = 0; i < x->n_mark; i++)
        tn_put(t, "/* %s: %s%lld elements */\n", x->mark[i].name, i == x->returned ? "is returned, " : "",
               (long long)x->mark[i].count);
    tn_put(t, x->returned >= 0
                  ? "/* A NaN: a pointer is NULL or not aligned, or an index is out of range; no parameter "
                    "has changed. */\n"
                  : "/* 1: a pointer is NULL or not aligned, or an index is out of range; else 0. */\n");
    ex_put(x, t, "%s @_%s(", result(x), ex_action(x));
    ex_put_parameters(x, t);
    ex_put(x, t,
           ");\n\n"
           "/* Copies the parameter or buffer of that name: up to `room` elements. Its count, or -1 where "
           "there is none; with\n * to NULL the count alone. */\n"
           "int64_t @_get(const @ *m, const char *name, float *to, int64_t room);\n");
    if (x->trains)
        ex_put(x, t,
               "/* The other way round, where count is its count; else nothing happens. */\n"
               "int64_t @_set(@ *m, const char *name, const float *from, int64_t count);\n");
    if (x->save.n)
        ex_put(x, t,
               "/* The bytes of a checkpoint, safetensors that tn_load takes: up to `room` of them. How many "
               "there are. */\nsize_t @_save(const @ *m, void *to, size_t room);\n");
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
    ex_put(x, t, "size_t @_bytes(void)\n{\n    return sizeof(@);\n}\n\nvoid @_init(@ *m)\n{\n");
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
    ex_put_first_numbers(x, t);
    tn_put(t, "}\n\n");
}

/* ---- the function that a user calls ---- */

static void put_action(const tn_export *x, tn_growing *t)
{
    const char *bad = x->returned >= 0 ? "TN_NAN" : "1";
    ex_put(x, t, "%s @_%s(", result(x), ex_action(x));
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

static void put_opening(const tn_export *x, tn_growing *t)
{
    double weights, state;
    ex_add_up(x, &weights, &state);
    ex_put(x, t,
           "/* @.c - written by libtensor: %s. C99 that needs no library.\n *\n"
           " *   constants          %.0f bytes\n"
           " *   @             %.0f bytes, %zu of them for what a call computes\n"
           " *   stack              about %zu bytes\n"
           " *   multiply-adds      %.0f in products and convolutions\n *\n",
           x->trains ? "a training step" : "a forward pass", weights, state, ex_scratch_bytes(x),
           x->stack_bytes + 512, x->macs);
    if (x->options.weights) {
        tn_put(t, " * Weights that were rounded:\n *\n");
        ex_put_rounding(x, t);
        tn_put(t, " *\n");
    }
    ex_put(x, t,
           " * What @_%s calls, in order, and the bytes each reads and writes:\n *\n%s *\n"
           " * Read first: @_%s, at the end.\n */\n",
           ex_action(x), x->table.p ? x->table.p : "", ex_action(x));
}

/* What compilers of C are told. */
static const char compilers[] = "#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__)\n"
                                "#pragma GCC optimize(\"no-tree-pre\", \"no-trapping-math\") /* else gcc "
                                "leaves loops of comparisons scalar */\n"
                                "#pragma GCC optimize(\"no-tree-loop-distribute-patterns\") /* nor calls "
                                "memmove for a loop */\n#endif\n\n"
                                "#define bool  _Bool\n#define true  1\n#define false 0\n"
                                "#if defined(__clang__)\n#pragma STDC FP_CONTRACT OFF\n#endif\n\n";

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
    ex_put(x, &h, "\n#define @_PAIR 0x%08lxu /* as in @.%s: they are of one export */\n\n#endif\n", digest,
           x->cuda ? "cu" : "c");
    (x->cuda ? ex_cuda_opening : put_opening)(x, &c);
    ex_put(x, &c,
           "#include \"@.h\"\n\n#if @_PAIR != 0x%08lxu\n"
           "#error \"this @.h is of another export than this @.%s\"\n#endif\n\n",
           digest, x->cuda ? "cu" : "c");
    if (x->cuda)
        ex_cuda_prelude(&c);
    else
        tn_put(&c, "%s", compilers);
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
