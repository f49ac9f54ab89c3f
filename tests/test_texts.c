/* test_texts.c - the text of each kernel, and how it is launched, as tests/texts has them: whoever changes
 * how the fuser works, and means to change nothing about what it comes to, sees here whether that is so.
 *
 * Programs are recorded for a processor and for a GPU that are made up here, so that the texts are the same
 * on every machine; nothing is compiled and nothing runs. A file of tests/texts holds a program's step in one
 * dialect:
 *
 *     the plan         what tn_plan_text says
 *     each kernel      once, where it is launched first; texts of the library's own files by their names
 *                      alone
 *     each launch      kernel, grid, extents; products and convolutions with their shapes
 *
 * The operators one by one, dense and strided, in f32 and f16, stand in tests/texts/digests.txt, a hash a
 * line.
 *
 *   build/tests/test_texts                 compares; says the first line that differs of each file
 *   build/tests/test_texts softmax         only the programs whose name contains it
 *   make texts                             writes them anew, where the change is meant: git diff shows
 *                                          what it is
 *   TEXTS=DIR build/tests/test_texts       writes them into DIR, which must exist, with c and cuda in it
 *
 * Read first: struct recorder, then of_program. */

#include "fusion_cases.h"
#include "gpu_target.h"

#include "bench/fused_vs_eager/bench.h"
#include "examples/gpt_model.h"
#include "examples/mnist_net.h"
#include "src/device/embed.h"

static const tn_target Processor = {.dialect = TN_DIALECT_C,
                                    .vector_bytes = 64,
                                    .l1_bytes = 48 << 10,
                                    .l2_bytes = 2 << 20,
                                    .last_bytes = 32 << 20,
                                    .cache_bytes = 32 << 20};
/* The newer GPU's instructions, and the older one's memory for a block. */
static tn_target a_gpu(void)
{
    tn_target t = gpu_target(80);
    t.capability = 90;
    return t;
}
static const struct dialect {
    const char *folder;
    const tn_target *target; /* NULL: a_gpu() */
} Dialects[] = {{"c", &Processor}, {"cuda", NULL}};

/* ---- what a session would have run ---- */

enum { MOST_KERNELS = 512, MOST_BYTES = 1 << 29 };

static struct recorder {
    char *text;
    size_t n, cap;
    int kernels;
    char *name[MOST_KERNELS]; /* what a launch is given for a compiled kernel */
    uint64_t hash[MOST_KERNELS];
} Rec;
static void *Memory; /* what large inputs borrow: never touched, so it costs only addresses */

static void put_text(const char *text, size_t n)
{
    if (Rec.n + n + 1 > Rec.cap) {
        Rec.cap = 2 * (Rec.n + n + 1);
        Rec.text = realloc(Rec.text, Rec.cap);
        assert_non_null(Rec.text);
    }
    memcpy(Rec.text + Rec.n, text, n);
    Rec.text[Rec.n += n] = 0;
}

static void put(const char *format, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    assert_true(n >= 0 && n < (int)sizeof line);
    put_text(line, (size_t)n);
}

/* A kernel's text, without the files of the library that it carries: they have a history of their own. */
static void put_source(const char *text)
{
    const char *at = text;
    while (*at) {
        const char *found = NULL;
        int which = 0;
        for (int e = 0; e < TN_EMBED_COUNT; e++) {
            const char *here = strstr(at, tn_embed_text((tn_embedded)e));
            if (here && (!found || here < found)) found = here, which = e;
        }
        put_text(at, found ? (size_t)(found - at) : strlen(at));
        if (!found) break;
        put("[%s]\n", tn_embed_name((tn_embedded)which));
        at = found + strlen(tn_embed_text((tn_embedded)which));
    }
}

static int note_kernels(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    (void)d, (void)err;
    for (int i = 0; i < n; i++) {
        const uint64_t hash = hash_text(src[i].text);
        int k = 0;
        while (k < Rec.kernels && Rec.hash[k] != hash) k++;
        if (k == Rec.kernels) {
            assert_true(k < MOST_KERNELS);
            Rec.hash[k] = hash;
            Rec.name[k] = strdup(src[i].entry);
            Rec.kernels++;
            put("---- %s\n", src[i].entry);
            put_source(src[i].text);
        }
        out[i] = (tn_kernel *)(void *)&Rec.name[k];
    }
    return TN_OK;
}

static void put_extents(const char *word, int n, const int64_t *extent)
{
    for (int i = 0; i < n; i++) put("%s%lld", i ? " " : word, (long long)extent[i]);
}

static int note_launch(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *g, tn_errbuf *err)
{
    (void)d, (void)err;
    put("launch %s: %lld by %lld", *(char **)(void *)k, (long long)g->n, (long long)g->chunk);
    if (g->finish_n) put(", finish %lld by %lld", (long long)g->finish_n, (long long)g->finish_chunk);
    if (g->threads) put(", %d threads", g->threads);
    if (g->shared) put(", %lld shared", (long long)g->shared);
    put(", %d buffers", args->n_buf);
    put_extents(", extents ", args->n_dim, args->dim);
    put("\n");
    return TN_OK;
}

static int note_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *err)
{
    (void)d, (void)err;
    put("product %s %lld %lld %lld, strides %lld %lld, %lld %lld, %lld%s%s", tn_dtype_name(g->dtype),
        (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->a_row, (long long)g->a_col,
        (long long)g->b_row, (long long)g->b_col, (long long)g->c_row, g->bias ? ", bias" : "",
        g->epilogue ? ", relu" : "");
    put_extents(", batch ", g->batch_ndim, g->batch);
    put("\n");
    return TN_OK;
}

static int note_conv(tn_device *d, const tn_conv2d_desc *c, tn_errbuf *err)
{
    (void)d, (void)err;
    put("convolution %s, pass %d, %lld x %lld x %lld x %lld by %lld x %lld x %lld%s\n",
        tn_dtype_name(c->dtype), (int)c->pass, (long long)c->n, (long long)c->h, (long long)c->w,
        (long long)c->c, (long long)c->oc, (long long)c->kh, (long long)c->kw, c->bias ? ", bias" : "");
    return TN_OK;
}

static int note_copy(tn_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d, (void)dst, (void)src;
    put("copy %zu\n", bytes);
    return TN_OK;
}

static tn_session *open_recorder(const struct dialect *dialect)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 77, .threads = 1, .log = quiet);
    assert_non_null(s);
    tn_device *d = s->device;
    d->compile = note_kernels;
    d->launch = note_launch;
    d->gemm = note_gemm;
    d->conv2d = note_conv;
    d->copy = note_copy;
    d->download = ahead_download;
    d->kernel_info = NULL;
    d->record_begin = NULL;
    s->target = d->target = dialect->target ? *dialect->target : a_gpu();
    Rec.n = 0;
    Rec.kernels = 0;
    put_text("", 0);
    return s;
}

static void close_recorder(tn_session *s)
{
    tn_clear_error(s);
    assert_int_equal(tn_close(s), 0);
    for (int k = 0; k < Rec.kernels; k++) free(Rec.name[k]);
    Rec.kernels = 0;
}

/* ---- programs ---- */

typedef struct text_program {
    char name[80];
    void (*run)(tn_session *s, const struct text_program *p);
    const struct program *fusion; /* of fusion_cases.h */
    const struct fusion *bench;   /* of the benchmark */
} text_program;

static void run_fusion(tn_session *s, const text_program *p)
{
    result r = run_program(s, record, (void *)(uintptr_t)p->fusion, NULL);
    if (r.status) fail_msg("%s: %s", p->name, r.text);
    result_free(&r);
}

static tn_tensor *borrowed(tn_session *s, tn_dtype d, int ndim, const int64_t *shape)
{
    return tn_borrow(s, Memory, d, ndim, shape, NULL, NULL);
}

static void run_bench(tn_session *s, const text_program *p)
{
    struct field field[MAX_INPUTS], g;
    struct in in = {.s = s};
    tn_tensor *out[MAX_OUTS], *loss = NULL, *leaf[MAX_INPUTS], *grad[MAX_INPUTS];
    const int fields = p->bench->fields(65536, 1024, field, &g);
    int n_leaf = 0;
    for (int k = 0; k < fields; k++) {
        in.t[k] = borrowed(s, field[k].kind == 'i' ? TN_I32 : TN_F32, field[k].ndim, field[k].dim);
        assert_non_null(in.t[k]);
        if (field[k].gradient) tn_requires_grad(leaf[n_leaf++] = in.t[k], true);
    }
    in.g = borrowed(s, TN_F32, g.ndim, g.dim);
    tn_step_begin(s);
    const int outs = p->bench->run(&in, out);
    for (int k = 0; k < outs; k++) {
        tn_tensor *part = p->bench->is_loss ? out[k] : tn_sum(tn_mul(out[k], in.g), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    assert_int_equal(tn_grad(loss, n_leaf, leaf, grad), 0);
    tn_step_end(s);
}

static void train_cnn(tn_session *s, const text_program *p)
{
    (void)p;
    struct net net;
    make_net(s, &net, 28, 32);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-3, .weight_decay = 0.01);
    tn_step_begin(s);
    tn_tensor *x = borrowed(s, TN_F32, TN_SHAPE(64, 28, 28, 1)), *y = borrowed(s, TN_I64, TN_SHAPE(64));
    tn_backward(tn_cross_entropy(net_forward(&net, x), y));
    tn_optim_step(opt);
    tn_step_end(s);
    tn_train(s, false);
    tn_step_begin(s);
    x = borrowed(s, TN_F32, TN_SHAPE(64, 28, 28, 1)), y = borrowed(s, TN_I64, TN_SHAPE(64));
    tn_accuracy(net_forward(&net, x), y);
    tn_step_end(s);
}

static void train_gpt(tn_session *s, const text_program *p)
{
    (void)p;
    static const struct gpt_shape shape = {4, 4, 128, 64, 0};
    struct gpt m;
    make_gpt(s, &m, &shape, 65);
    tn_optim *opt = gpt_optimizer(s, 1e-3);
    tn_step_begin(s);
    gpt_update(&m, opt, borrowed(s, TN_I64, TN_SHAPE(12, 64)), borrowed(s, TN_I64, TN_SHAPE(12, 64)));
    tn_step_end(s);
}

/* Kinds of groups that the fusions and the models do not hold: one operator and its gradient each. */
static const char *const Kinds[] = {"concat",
                                    "stack",
                                    "flip",
                                    "cumsum/first",
                                    "cumsum/last",
                                    "scatter_add",
                                    "gather/first",
                                    "max_pool2d/overlap",
                                    "max_pool2d",
                                    "avg_pool2d/pad",
                                    "argmax",
                                    "prod",
                                    "logsumexp/all",
                                    "one_hot",
                                    "group_norm",
                                    "conv2d/groups",
                                    "rand/chain",
                                    "narrow",
                                    "cross_entropy/ignore",
                                    "scaled_dot_product_attention/mask",
                                    "scaled_dot_product_attention/dropout",
                                    "matmul/broadcast"};

static void of_program(const text_program *p, const struct dialect *dialect)
{
    tn_session *s = open_recorder(dialect);
    p->run(s, p);
    if (tn_error(s)) fail_msg("%s: %s", p->name, tn_error_text(s));
    put("---- plan\n");
    put_text(tn_plan_text(s), strlen(tn_plan_text(s)));
    close_recorder(s);
}

/* ---- comparing ---- */

static int Differ;

static void compare_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *want = calloc(1, Rec.n + 2);
    assert_non_null(want);
    size_t n = f ? fread(want, 1, Rec.n + 1, f) : 0;
    if (f) fclose(f);
    if (n != Rec.n || memcmp(want, Rec.text, n)) {
        size_t at = 0, line = 1, start = 0;
        while (at < n && at < Rec.n && want[at] == Rec.text[at])
            if (want[at++] == '\n') line++, start = at;
        print_message("%s:%zu:\n  was  %.*s\n  is   %.*s\n", path, line, (int)strcspn(want + start, "\n"),
                      want + start, (int)strcspn(Rec.text + start, "\n"), Rec.text + start);
        Differ++;
    }
    free(want);
}

static void settle(const char *file)
{
    char path[512];
    const char *folder = getenv("TEXTS");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "tests/texts", file);
    if (!folder) {
        compare_text(path);
        return;
    }
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("%s cannot be written", path);
    assert_int_equal(fwrite(Rec.text, 1, Rec.n, f), Rec.n);
    assert_int_equal(fclose(f), 0);
}

static const char *Filter;

static void one(const text_program *p)
{
    if (Filter && !strstr(p->name, Filter)) return;
    for (int d = 0; d < 2; d++) {
        char file[160];
        snprintf(file, sizeof file, "%s/%s.txt", Dialects[d].folder, p->name);
        for (char *c = strchr(file, '/') + 1; *c; c++)
            if (*c == '/') *c = '_';
        of_program(p, &Dialects[d]);
        settle(file);
    }
}

static void said(void)
{
    if (Differ) fail_msg("%d texts are not as they were; where that is meant: make texts", Differ);
}

static const op_case *case_named(const char *name)
{
    for (int i = 0; i < n_cases; i++)
        if (!strcmp(cases[i].name, name)) return &cases[i];
    fail_msg("no case %s", name);
    return NULL;
}

TEST(programs)
{
    Differ = 0;
    for (int i = 0; i < N_fusions; i++) {
        text_program p = {.run = run_fusion, .fusion = &Fusions[i]};
        snprintf(p.name, sizeof p.name, "%s", Fusions[i].name);
        one(&p);
    }
    for (int i = 0; i < n_fusions; i++) {
        text_program p = {.run = run_bench, .bench = &fusions[i]};
        snprintf(p.name, sizeof p.name, "bench_%s", fusions[i].name);
        one(&p);
    }
    for (size_t i = 0; i < sizeof Kinds / sizeof *Kinds; i++) {
        const program f = {.c = case_named(Kinds[i]), .dtype = TN_F32};
        text_program p = {.run = run_fusion, .fusion = &f};
        snprintf(p.name, sizeof p.name, "%s", Kinds[i]);
        one(&p);
    }
    one(&(text_program){.name = "train_cnn", .run = train_cnn});
    one(&(text_program){.name = "train_gpt", .run = train_gpt});
    said();
}

TEST(operators)
{
    Differ = 0;
    if (Filter) skip();
    char *lines = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&lines, &n);
    assert_non_null(out);
    for (int i = 0; i < n_cases; i++)
        for (int way = 0; way < 3; way++) {
            const program f = {.c = &cases[i], .dtype = way == 1 ? TN_F16 : TN_F32, .strided = way == 2};
            if (f.strided && cases[i].flags & NO_STRIDES) continue;
            text_program p = {.run = run_fusion, .fusion = &f};
            snprintf(p.name, sizeof p.name, "%s %s", cases[i].name,
                     way == 1   ? "f16"
                     : way == 2 ? "strided"
                                : "f32");
            fprintf(out, "%s", p.name);
            for (int d = 0; d < 2; d++) {
                of_program(&p, &Dialects[d]);
                fprintf(out, " %016llx", (unsigned long long)hash_text(Rec.text));
            }
            fprintf(out, "\n");
        }
    assert_int_equal(fclose(out), 0);
    Rec.n = 0;
    put_text(lines, n);
    free(lines);
    settle("digests.txt");
    said();
}

static int begin(void **state)
{
    (void)state;
    setenv("TENSOR_PROFILE", "reference", 1);
    Memory = calloc(1, MOST_BYTES);
    return Memory ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    free(Memory);
    free(Rec.text);
    return 0;
}

int main(int argc, char **argv)
{
    Filter = argc > 1 ? argv[1] : NULL;
    return run_all_tests(begin, end);
}
