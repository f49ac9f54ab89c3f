/* threads.c - a second file that has threads, and how model.c leaves work to them: what it calls by run() is
 * cut into items, of which a thread is given some (src/device/cpu/kernels/threads_plain.h). Products and
 * convolutions take such items as they are; of a kernel they are the chunks that the plan cut it into. Where
 * there is no second file all are computed in one go.
 *
 * Start with ex_put_part. */
#include "export.h"

#include "../core/int64.h"
#include "../device/embed.h"

#include <string.h>

enum { FEWEST_BYTES = 1 << 16 }; /* of a kernel that is worth it */

const char *ex_scalar_type(int word)
{
    return word == TN_WORD_F64 ? "double" : word == TN_WORD_I64 ? "int64_t" : "uint64_t";
}

bool ex_in_parts(const tn_export *x, const tn_step *st, bool finish)
{
    const int64_t n = finish ? st->grid.finish_n : st->grid.n,
                  chunk = finish ? st->grid.finish_chunk : st->grid.chunk;
    return x->options.threads && st->bytes >= FEWEST_BYTES && chunk > 0 && n > chunk;
}

/* Behind a kernel's function: its parameters as a struct, and the function that run() calls with them. */
void ex_put_part(const tn_step *st, const ex_function *fn, tn_growing *t)
{
    tn_growing arguments = {0};
    tn_put(t, "struct %s_CALL {\n", fn->name);
    TN_EACH(p, fn->param, fn->n) {
        if (p->same >= 0) continue;
        tn_put(t, "    %s%s *%s;\n", p->only_read ? "const " : "", p->type, p->name);
        tn_put(&arguments, "c->%s, ", p->name);
    }
    for (int i = 0; i < fn->n_scalar; i++) {
        tn_put(t, "    %s scalar%d;\n", ex_scalar_type(st->scalar[fn->scalar[i]].what), fn->scalar[i]);
        tn_put(&arguments, "c->scalar%d, ", fn->scalar[i]);
    }
    tn_put(t,
           "    int64_t chunk, n;\n};\n\n"
           "static int %s_PART(const void *what, float *room, int64_t begin, int64_t end)\n{\n"
           "    const struct %s_CALL *c = (const struct %s_CALL *)what;\n%s    (void)room;\n"
           "    %s(%s%sbegin * c->chunk, least(end * c->chunk, c->n));\n    return %s;\n}\n\n",
           fn->name, fn->name, fn->name, fn->faults ? "    int fault = 0;\n" : "", fn->name,
           arguments.p ? arguments.p : "", fn->faults ? "&fault, " : "", fn->faults ? "fault" : "0");
    if (arguments.failed) t->failed = arguments.failed;
    tn_growing_free(&arguments);
}

/* The call of a kernel with these arguments, each followed by a comma. */
void ex_put_kernel_call(const tn_export *x, const tn_step *st, const ex_function *fn, bool finish,
                        const char *arguments, tn_growing *to)
{
    const int64_t n = finish ? st->grid.finish_n : st->grid.n,
                  chunk = finish ? st->grid.finish_chunk : st->grid.chunk;
    if (!ex_in_parts(x, st, finish))
        tn_put(to, "    %s(%s%s0, %lld);\n", fn->name, arguments, fn->faults ? "&fault, " : "", (long long)n);
    else
        tn_put(to, "    %srun(m, &%s_PART, &(const struct %s_CALL){%s%lld, %lld}, NULL, %lld);\n",
               fn->faults ? "fault |= " : "", fn->name, fn->name, arguments, (long long)chunk, (long long)n,
               (long long)tn_ceil_div(n, chunk));
}

void ex_put_run(const tn_export *x, tn_growing *t)
{
    if (x->options.threads && x->step.p && strstr(x->step.p, "run(m, &"))
        ex_put(x, t,
               "/* Items [0, items), by threads where there are some. */\n"
               "static int run(@ *m, @_part *part_of, const void *what, float *room, int64_t items)\n{\n"
               "    return m->run ? m->run(m->pool, part_of, what, room, items) : part_of(what, room, 0, "
               "items);\n}\n\n");
}

void ex_put_threads_header(const tn_export *x, tn_growing *t)
{
    if (x->options.threads)
        ex_put(x, t,
               "/* In @_threads.c: from now on calls with m are computed by `count` threads, the caller's "
               "among them, to the\n"
               " * same bits. 1 ends the others, as has to be before @_init and before m's memory goes; nor "
               "is m moved or copied\n"
               " * meanwhile. 0, or a number of errno.h - EINVAL, ENOMEM, EAGAIN -: m is computed by its "
               "caller alone, then. */\nint @_threads(@ *m, int count);\n");
}

/* The text of model_threads.c. */
void ex_put_threads(const tn_export *x, unsigned long digest, tn_growing *t)
{
    for (const char *s = tn_embed_text(TN_EMBED_THREADS_H); *s;) {
        if (!strncmp(s, "NAME", 4)) {
            ex_put(x, t, "@");
            s += 4;
        } else if (!strncmp(s, "PAIR_CHECK", 10)) {
            ex_put(x, t, "@_PAIR != 0x%08lxu", digest);
            s += 10;
        } else if (!strncmp(s, "ROOM", 4)) {
            tn_put(t, "%zu", x->room_bytes / sizeof(float) + 16);
            s += 4;
        } else if (!strncmp(s, "STACK", 5)) {
            tn_put(t, "%zu", 2 * x->stack_bytes + ((size_t)64 << 10));
            s += 5;
        } else {
            tn_put_bytes(t, s++, 1);
        }
    }
}
