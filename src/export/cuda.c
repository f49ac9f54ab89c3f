/* cuda.c - the body of a model.cu: each step of the plan as launches,
 *
 *     start(layer_norm_128, 96, 256, 0, stream,
 *         tn_cuda_args{768, 8, number + 2, fault, ticket, {h, weight, bias, out}, {768}});
 *
 * and the kernels' texts, which are those that the device compiles (fuser/text); products and convolutions
 * are the device's own kernels (tn_device.tell). A text that several kernels have in common stands at the end
 * of the file, which each of them includes for the sake of that part. Run-time numbers are computed by a
 * kernel of the file (cuda_file.c) before all others, one word each.
 *
 * Start with ex_cuda_step.
 */
#include "export.h"

#include "../device/batch.h"
#include "../device/embed.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 1024 };

/* ---- texts ---- */

static const tn_embedded part[] = {TN_EMBED_OWN_CU,
                                   TN_EMBED_ATTENTION_CU,
                                   TN_EMBED_ATTENTION_BACKWARD_CU,
                                   TN_EMBED_CONV2D_CU,
                                   TN_EMBED_DEPTHWISE_CU,
                                   TN_EMBED_GROUPED_CU,
                                   TN_EMBED_CONV_PLAIN_CUH,
                                   TN_EMBED_SCATTER_CU,
                                   TN_EMBED_ATTENTION_WGMMA_CU,
                                   TN_EMBED_CONV2D_WGMMA_CU,
                                   TN_EMBED_CONV_HALO_CU,
                                   TN_EMBED_CONV_HALO_WEIGHTS_CU,
                                   TN_EMBED_ATTENTION_WGMMA_BACKWARD_CU};
enum { PARTS = sizeof part / sizeof *part };

/* The number of the part that begins at `text`; -1: none does. */
static int part_at(const char *text)
{
    for (int i = 0; i < PARTS; i++) {
        const char *t = tn_embed_text(part[i]);
        if (!strncmp(text, t, strlen(t))) return i;
    }
    return -1;
}

/* Each function of the file is known in it alone. Kernels that have one name get another. */
static void put_renamed(tn_growing *t, const char *text, const char *end, const char *from, const char *to)
{
    static const char outside[] = "extern \"C\" __global__";
    const size_t n = strlen(from);
    for (const char *s = text; s < end;) {
        const bool begins = s == text || !ex_is_word(s[-1]);
        if (!strncmp(s, outside, sizeof outside - 1)) {
            tn_put(t, "static __global__");
            s += sizeof outside - 1;
        } else if (begins && !strncmp(s, from, n) &&
                   (!ex_is_word(s[n]) || (!strncmp(s + n, TN_FINISH, sizeof TN_FINISH - 1) &&
                                          !ex_is_word(s[n + sizeof TN_FINISH - 1])))) {
            tn_put(t, "%s", to);
            s += n;
        } else {
            tn_put_bytes(t, s++, 1);
        }
    }
}

/* Names that the text leaves defined. */
static void put_undefined(tn_growing *t, const char *text)
{
    size_t n;
    for (const char *name; (name = tn_next_macro(&text, &n));) {
        char undone[EXPORT_NAME + 16];
        snprintf(undone, sizeof undone, "\n#undef %.*s\n", (int)n, name);
        if (!strstr(t->p, undone)) tn_put(t, "%s", undone + 1);
    }
}

static void put_text(tn_export *x, const char *text, const char *entry, const char *name)
{
    const char *ptx = tn_embed_text(TN_EMBED_PTX_CUH), *begin = text;
    tn_growing undone = {0};
    tn_put(&undone, "\n");
    for (const char *s = text; *s; s++) {
        const int i = s == text || s[-1] == '\n' ? part_at(s) : -1;
        const bool once = i < 0 && !strncmp(s, ptx, strlen(ptx)); /* it stands in front of all kernels */
        if (i < 0 && !once) continue;
        put_renamed(&x->kernels, begin, s, entry, name);
        if (i >= 0) {
            x->parts |= 1u << i;
            tn_put(&x->kernels, "#define PART %d /* %s, at the end */\n#include \"%s.cu\"\n#undef PART\n",
                   i + 1, tn_embed_name(part[i]), x->name);
        }
        s += strlen(once ? ptx : tn_embed_text(part[i]));
        begin = s--;
    }
    put_renamed(&x->kernels, begin, begin + strlen(begin), entry, name);
    put_undefined(&undone, text);
    tn_put(&x->kernels, "%s\n", undone.p ? undone.p : "");
    if (undone.failed) x->kernels.failed = TN_E_NOMEM;
    tn_growing_free(&undone);
}

/* The kernel's name in the file, where it is put when it is first needed; NULL: no memory. */
static const char *kernel(tn_export *x, const tn_step *st, const tn_source *src)
{
    for (int i = 0; i < x->n_kernel; i++)
        if (!strcmp(x->kernel[i].text, src->text)) return x->kernel[i].name;
    char name[EXPORT_NAME];
    snprintf(name, sizeof name, "%.50s", src->entry);
    for (int k = 2; ex_is_taken(x, name); k++) snprintf(name, sizeof name, "%.50s_v%d", src->entry, k);
    char *text = tn_strdup(src->text);
    if (!text || !tn_reserve(&x->kernel, &x->cap_kernel, x->n_kernel + 1, sizeof *x->kernel)) {
        tn_free_mem(text);
        ex_fail(x, TN_E_NOMEM, "no memory for a list of kernels");
        return NULL;
    }
    struct ex_kernel *k = &x->kernel[x->n_kernel++];
    k->text = text;
    snprintf(k->name, sizeof k->name, "%s", name);
    tn_put(&x->kernels, "/* ");
    ex_put_calls(x, st, &x->kernels);
    tn_put(&x->kernels, " */\n");
    put_text(x, text, src->entry, k->name);
    return k->name;
}

void ex_cuda_prelude(tn_growing *t)
{
    tn_put(
        t,
        "/* ---- what kernels have in common ---- */\n\n"
        "#if defined(__NVCC__)\n#pragma nv_diag_suppress 177 /* a coordinate that happens not to be used */\n"
        "#endif\n\n");
    for (int i = 0; i < TN_PRELUDE_FILES; i++) tn_put(t, "%s\n", tn_embed_text(tn_prelude_cuda[i]));
    tn_put(t, "%s\n", tn_embed_text(TN_EMBED_PTX_CUH));
}

void ex_cuda_parts(const tn_export *x, tn_growing *t)
{
    for (int i = 0; i < PARTS; i++) {
        if (!(x->parts & 1u << i)) continue;
        tn_put(t, "\n#elif PART == %d\n\n", i + 1);
        const char *text = tn_embed_text(part[i]);
        put_renamed(t, text, text + strlen(text), "ENTRY", "ENTRY");
    }
    tn_put(t, "\n#endif /* PART */\n");
}

/* ---- launches ---- */

typedef struct launch {
    tn_export *x;
    const tn_step *st;
    tn_growing *to;
    bool told; /* of the step's bytes */
} launch;

static int64_t blocks_of(int64_t n, int64_t chunk) { return n > 0 ? (n - 1) / chunk + 1 : 0; }

static void put_start(launch *l, const char *name, const char *finish, int64_t n, int64_t chunk, int threads,
                      int64_t shared)
{
    tn_put(l->to, "    start(%s%s, %lld, %d, %lld, stream,\n        tn_cuda_args{%lld, %lld, ", name, finish,
           (long long)blocks_of(n, chunk), threads, (long long)shared, (long long)n, (long long)chunk);
    char launched[EXPORT_NAME + 16];
    snprintf(launched, sizeof launched, "%s%s", name, finish);
    tn_put(&l->x->table, " *   %-40s %8lld x %4d threads", launched, (long long)blocks_of(n, chunk), threads);
    if (!l->told) tn_put(&l->x->table, " %12lld bytes", (long long)l->st->bytes);
    tn_put(&l->x->table, "\n");
    l->told = true;
    l->x->n_launch++;
}

static void put_pointer(const launch *l, int k, const char *comma)
{
    char text[LINE];
    const int slot = l->st->buf[k];
    ex_operand(l->x, l->st, k, text, sizeof text);
    const bool given = slot >= 0 && l->x->place[slot].kind == EX_MARK; /* perhaps a pointer to const */
    tn_put(l->to, given ? "%s(void *)(%s)" : "%s%s", comma, text);
}

static void put_dims(const launch *l, const int64_t *dim, int n)
{
    tn_put(l->to, "}, {");
    while (n && !dim[n - 1]) n--;
    for (int i = 0; i < n; i++) tn_put(l->to, "%s%lld", i ? ", " : "", (long long)dim[i]);
    tn_put(l->to, "}});\n");
}

static void put_kernel(launch *l)
{
    const tn_step *st = l->st;
    tn_export *x = l->x;
    const char *name = kernel(x, st, &st->source);
    char text[LINE];
    static const char member[] = {
        [TN_WORD_F64] = 'f', [TN_WORD_I64] = 'i', [TN_WORD_SEED] = 'u', [TN_WORD_DRAW] = 'u'};
    for (int k = 0; name && k < st->n_buf; k++)
        if (st->buf[k] >= 0) ex_operand(x, st, k, text, sizeof text); /* declared in front of the launch */
    for (int second = 0; second < 2 && name; second++) {
        const tn_grid *g = &st->grid;
        if (second ? g->finish_n <= 0 : g->n <= 0) continue;
        put_start(l, name, second ? TN_FINISH : "", second ? g->finish_n : g->n,
                  second ? g->finish_chunk : g->chunk, second ? g->finish_threads : g->threads,
                  second ? 0 : g->shared);
        if (st->n_scalar)
            tn_put(l->to, "number + %d, fault, ticket, {", x->n_word);
        else
            tn_put(l->to, "NULL, fault, ticket, {");
        for (int k = 0; k < st->n_buf; k++) put_pointer(l, k, k ? ", " : "");
        put_dims(l, st->dim, st->n_dim);
    }
    for (int i = 0; i < st->n_scalar; i++) {
        ex_scalar(x, &st->scalar[i], text, sizeof text);
        tn_put(&x->numbers, "    number[%d].%c = %s;\n", x->n_word++, member[st->scalar[i].what], text);
    }
}

/* ---- products and convolutions ---- */

/* Addresses that tell which operand they are of, and how far behind its first element. */
enum { OPERAND_BIT = 44, WORKSPACE = 4, OPERANDS };

static char *address(int operand, size_t offset)
{
    return (char *)(uintptr_t)(((uint64_t)operand + 1) << OPERAND_BIT) + offset;
}

/* How its first element is aligned: the device's kernels go by it. */
static size_t position(const launch *l, int k)
{
    const ex_place *p = &l->x->place[l->st->buf[k]];
    return (p->offset + (size_t)l->st->offset[k] * tn_dtype_size(p->dtype)) % 16;
}

static void put_address(const launch *l, const void *at, const char *comma)
{
    const uint64_t u = (uint64_t)(uintptr_t)at;
    const int k = (int)(u >> OPERAND_BIT) - 1;
    uint64_t bytes = u & (((uint64_t)1 << OPERAND_BIT) - 1);
    if (k < 0) {
        tn_put(l->to, "%sNULL", comma);
        return;
    }
    if (k < WORKSPACE) bytes -= position(l, k);
    tn_put(l->to, bytes ? "%s(char *)(" : "%s", comma);
    if (k < WORKSPACE)
        put_pointer(l, k, "");
    else
        tn_put(l->to, "room");
    if (bytes) tn_put(l->to, ") + %llu", (unsigned long long)bytes);
}

static int put_told(void *user, const tn_source *src, const tn_cuda_args *a, int threads)
{
    launch *l = user;
    int n = TN_MAX_KERNEL_BUFS;
    const char *name = kernel(l->x, l->st, src);
    if (!name) return TN_E_NOMEM;
    while (n && !a->buf[n - 1]) n--;
    put_start(l, name, "", a->n, a->chunk, threads, 0);
    tn_put(l->to, "NULL, fault, ticket, {");
    for (int k = 0; k < n; k++) put_address(l, a->buf[k], k ? ", " : "");
    put_dims(l, a->dim, TN_MAX_KERNEL_DIMS);
    return TN_OK;
}

static void put_library_call(launch *l)
{
    const tn_step *st = l->st;
    const bool product = st->kind == TN_STEP_GEMM;
    tn_gemm g = {0};
    tn_conv2d_desc d = {0};
    const char *at[WORKSPACE];
    char text[LINE];
    size_t bytes = 0;
    tn_errbuf err = {""};
    for (int k = 0; k < WORKSPACE; k++) {
        at[k] = st->buf[k] < 0 ? NULL : address(k, position(l, k));
        if (at[k]) ex_operand(l->x, st, k, text, sizeof text);
    }
    if (product) {
        g = st->gemm;
        g.a = at[0], g.b = at[1], g.bias = at[2], g.c = (void *)(uintptr_t)at[3];
    } else {
        d = st->conv;
        d.in0 = at[0], d.in1 = at[1], d.bias = at[2], d.out = (void *)(uintptr_t)at[3];
    }
    const int status = l->x->s->device->tell(product ? &g : NULL, product ? NULL : &d, address(WORKSPACE, 0),
                                             &bytes, put_told, l, &err);
    if (bytes > l->x->room_bytes) l->x->room_bytes = bytes;
    if (status && !l->x->status) ex_fail(l->x, status, "%s: %s", st->name, err.text);
}

void ex_cuda_step(tn_export *x, const tn_step *st, tn_growing *to)
{
    launch l = {x, st, to, false};
    if (st->kind == TN_STEP_KERNEL)
        put_kernel(&l);
    else
        put_library_call(&l);
}
