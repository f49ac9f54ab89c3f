/* timed.c - the kernels that training on a GPU spends its time in, at sizes that fill one, checked and timed.
 *
 *   build/gpu/timed --write FILE [CASE ..]    on a CPU: some thousand numbers of what each case gives
 *   build/gpu/timed --check FILE [CASE ..]    on a GPU: compares with that
 *   build/gpu/timed --time FILE [CASE ..]     and times each launch
 *
 * A case is an operator of inputs that are the same everywhere; what it gives is multiplied by one more input
 * and summed, and gradients of the inputs are taken. A line per launch: microseconds by the host's clock with
 * a wait behind it, the least of several, operations and bytes a second; then the whole step as it is
 * replayed. Exit status 1 where a number is off. bench/gpu_torch.py has the same cases in PyTorch. Read
 * first: the table, then run_case.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensor_nn.h>

#include "bench/clock.h"
#include "src/report/view.h"

enum { INPUTS = 4, MOST_DIMS = 4, SAMPLES = 1024, ROUNDS = 5, REPLAYS = 20, OUTPUTS = INPUTS + 1 };

typedef struct input {
    int64_t dim[MOST_DIMS]; /* ends at the first 0 */
    int64_t below;          /* indices below this; 0: numbers */
    double scale;           /* 0: 1 */
} input;

typedef struct gpu_case {
    const char *name;
    tn_dtype dtype;
    tn_tensor *(*of)(tn_tensor **in);
    input in[INPUTS];
    bool flat; /* the result is a loss already */
} gpu_case;

/* ---- the operators ---- */

static tn_tensor *attention(tn_tensor **in) { return tn_scaled_dot_product_attention(in[0], in[1], in[2]); }
static tn_tensor *attention_causal(tn_tensor **in)
{
    return tn_scaled_dot_product_attention(in[0], in[1], in[2], .causal = true);
}
static tn_tensor *conv3(tn_tensor **in) { return tn_conv2d(in[0], in[1], NULL, .pad = 1); }
static tn_tensor *conv3_stride(tn_tensor **in)
{
    return tn_conv2d(in[0], in[1], NULL, .pad = 1, .stride = 2);
}
static tn_tensor *stem(tn_tensor **in) { return tn_conv2d(in[0], in[1], NULL, .pad = 3, .stride = 2); }
static tn_tensor *conv1(tn_tensor **in) { return tn_conv2d(in[0], in[1], NULL); }
static tn_tensor *depthwise(tn_tensor **in)
{
    return tn_conv2d(in[0], in[1], NULL, .pad = 1, .groups = (int)tn_dim(in[0], 3));
}
static tn_tensor *conv_norm_relu(tn_tensor **in)
{
    return tn_relu(tn_batch_norm(tn_conv2d(in[0], in[1], NULL, .pad = 1), in[2], in[3], NULL, NULL));
}
static tn_tensor *linear(tn_tensor **in) { return tn_affine(in[0], in[1], in[2]); }
static tn_tensor *linear_gelu(tn_tensor **in) { return tn_gelu(tn_affine(in[0], in[1], in[2])); }
static tn_tensor *layer_norm(tn_tensor **in) { return tn_layer_norm(in[0], in[1], in[2]); }
static tn_tensor *norm_gelu(tn_tensor **in) { return tn_gelu(tn_layer_norm(in[0], in[1], in[2])); }
static tn_tensor *group_norm_silu(tn_tensor **in) { return tn_silu(tn_group_norm(in[0], 32, in[1], in[2])); }
static tn_tensor *batch_norm_relu(tn_tensor **in)
{
    return tn_relu(tn_batch_norm(in[0], in[1], in[2], NULL, NULL));
}
static tn_tensor *softmax(tn_tensor **in) { return tn_softmax(in[0], -1); }
static tn_tensor *cross_entropy(tn_tensor **in) { return tn_cross_entropy(in[0], in[1]); }
static tn_tensor *embedding(tn_tensor **in) { return tn_embedding(in[0], in[1]); }
static tn_tensor *chain(tn_tensor **in) { return tn_mul(tn_gelu(tn_add(in[0], in[1])), tn_sigmoid(in[1])); }
static tn_tensor *max_pool(tn_tensor **in) { return tn_max_pool2d(in[0], 3, .stride = 2, .pad = 1); }

#define T(...)                                                                                               \
    {                                                                                                        \
        .dim = { __VA_ARGS__ }                                                                               \
    }
#define SCALED(by, ...)                                                                                      \
    {                                                                                                        \
        .dim = {__VA_ARGS__}, .scale = by                                                                    \
    }
#define BELOW(n, ...)                                                                                        \
    {                                                                                                        \
        .dim = {__VA_ARGS__}, .below = n                                                                     \
    }
#define QKV(...)                                                                                             \
    {                                                                                                        \
        T(__VA_ARGS__), T(__VA_ARGS__), T(__VA_ARGS__)                                                       \
    }
static const gpu_case cases[] = {
    {"attention-128", TN_BF16, attention, QKV(4, 16, 2048, 128), false},
    {"attention-128-causal", TN_BF16, attention_causal, QKV(4, 16, 2048, 128), false},
    {"attention-64", TN_BF16, attention, QKV(4, 16, 2048, 64), false},
    {"attention-64-causal", TN_BF16, attention_causal, QKV(8, 12, 1024, 64), false},
    {"attention-64-f16", TN_F16, attention, QKV(8, 12, 1000, 64), false},
    {"attention-64-f32", TN_F32, attention_causal, QKV(8, 12, 1024, 64), false},
    {"conv-128-256", TN_BF16, conv3, {T(64, 56, 56, 128), SCALED(.03, 256, 3, 3, 128)}, false},
    {"conv-64-64", TN_BF16, conv3, {T(256, 56, 56, 64), SCALED(.04, 64, 3, 3, 64)}, false},
    {"conv-256-256", TN_BF16, conv3, {T(256, 14, 14, 256), SCALED(.02, 256, 3, 3, 256)}, false},
    {"conv-128-stride", TN_BF16, conv3_stride, {T(256, 56, 56, 128), SCALED(.03, 128, 3, 3, 128)}, false},
    {"conv-stem", TN_BF16, stem, {T(32, 224, 224, 3), SCALED(.08, 64, 7, 7, 3)}, false},
    {"conv-1x1", TN_BF16, conv1, {T(256, 56, 56, 64), SCALED(.1, 256, 1, 1, 64)}, false},
    {"conv-64-64-f32", TN_F32, conv3, {T(64, 56, 56, 64), SCALED(.04, 64, 3, 3, 64)}, false},
    {"conv-depthwise", TN_BF16, depthwise, {T(128, 56, 56, 128), SCALED(.3, 128, 3, 3, 1)}, false},
    {"conv-norm-relu",
     TN_BF16,
     conv_norm_relu,
     {T(256, 28, 28, 128), SCALED(.03, 128, 3, 3, 128), T(128), T(128)},
     false},
    {"linear", TN_BF16, linear, {T(8192, 1024), SCALED(.03, 4096, 1024), T(4096)}, false},
    {"linear-gelu", TN_BF16, linear_gelu, {T(8192, 768), SCALED(.04, 3072, 768), T(3072)}, false},
    {"linear-f32", TN_F32, linear, {T(4096, 1024), SCALED(.03, 4096, 1024), T(4096)}, false},
    {"layer-norm-1024", TN_BF16, layer_norm, {T(32768, 1024), T(1024), T(1024)}, false},
    {"layer-norm-768-f32", TN_F32, layer_norm, {T(32768, 768), T(768), T(768)}, false},
    {"layer-norm-gelu-4096", TN_BF16, norm_gelu, {T(8192, 4096), T(4096), T(4096)}, false},
    {"batch-norm-relu", TN_BF16, batch_norm_relu, {T(128, 56, 56, 128), T(128), T(128)}, false},
    {"group-norm-silu", TN_BF16, group_norm_silu, {T(32, 64, 64, 256), T(256), T(256)}, false},
    {"softmax-4096", TN_BF16, softmax, {T(16384, 4096)}, false},
    {"cross-entropy-50304", TN_BF16, cross_entropy, {T(4096, 50304), BELOW(50304, 4096)}, true},
    {"embedding-65", TN_F32, embedding, {T(65, 768), BELOW(65, 8192)}, false},
    {"embedding-50304", TN_BF16, embedding, {T(50304, 768), BELOW(50304, 8192)}, false},
    {"chain-64M", TN_BF16, chain, {T(8192, 8192), T(8192, 8192)}, false},
    {"small", TN_F32, layer_norm, {T(64, 64), T(64), T(64)}, false},
    {"max-pool", TN_BF16, max_pool, {T(128, 112, 112, 64)}, false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- numbers ---- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    return (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
}

static int ndim_of(const input *d)
{
    int n = 0;
    while (n < MOST_DIMS && d->dim[n]) n++;
    return n;
}

/* The same numbers on each device: uniform, of variance 1 times scale. */
static tn_tensor *make_input(tn_session *s, const input *d, const int64_t *dim, int ndim, tn_dtype dtype,
                             int which)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= dim[i];
    tn_tensor *x = NULL;
    if (d && d->below) {
        int64_t *v = malloc((size_t)n * sizeof *v);
        for (int64_t i = 0; v && i < n; i++) v[i] = (int64_t)(mixed((uint64_t)i + 1) >> 33) % d->below;
        x = v ? tn_from(s, v, TN_I64, ndim, dim) : NULL;
        free(v);
        return x;
    }
    const float scale = 1.7320508f * (d && d->scale ? (float)d->scale : 1);
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; v && i < n; i++)
        v[i] = scale * ((float)(mixed((uint64_t)i * 8 + (uint64_t)which + 1) >> 40) * 0x1p-23f - 1);
    x = v ? tn_from(s, v, TN_F32, ndim, dim) : NULL;
    free(v);
    return x && dtype != TN_F32 ? tn_cast(x, dtype) : x;
}

/* ---- a case ---- */

typedef struct outcome {
    double norm;           /* root of the mean square of all of it */
    float sample[SAMPLES]; /* at fixed places */
} outcome;
typedef struct outcomes {
    char name[32];
    int n;
    outcome of[OUTPUTS];
} outcomes;

static int take(tn_tensor *x, outcome *o)
{
    const int64_t n = tn_numel(x);
    float *v = malloc((size_t)n * sizeof *v);
    double sum = 0;
    if (!v || tn_read(x, TN_F32, v, (size_t)n * sizeof *v)) return free(v), TN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) sum += (double)v[i] * v[i];
    o->norm = sqrt(sum / (double)n);
    for (int i = 0; i < SAMPLES; i++) o->sample[i] = v[mixed((uint64_t)i + 77) % (uint64_t)n];
    free(v);
    return 0;
}

/* The largest difference in units of the norm, of the samples, but for KINKS of them - where relu's argument
 * is rounding alone, its gradient is another number - and of the norms. */
static double distance(const outcome *is, const outcome *due)
{
    enum { KINKS = 4 };
    double most[KINKS + 1] = {0};
    for (int i = 0; i < SAMPLES; i++) {
        double d = fabs((double)is->sample[i] - due->sample[i]) / due->norm;
        if (!(d < INFINITY)) return INFINITY;
        for (int k = 0; k <= KINKS; k++)
            if (d > most[k]) {
                const double other = most[k];
                most[k] = d, d = other;
            }
    }
    const double off = fabs(is->norm / due->norm - 1); /* NaN: some number that is no sample is */
    return off < INFINITY ? fmax(off, most[KINKS]) : INFINITY;
}

typedef struct state {
    tn_session *s;
    const gpu_case *c;
    tn_tensor *in[INPUTS], *g, *result, *grad[INPUTS];
    int n, n_grad, wants[INPUTS];
} state;

static int step(state *t)
{
    tn_tensor *grad[INPUTS] = {NULL}, *from[INPUTS];
    tn_step_begin(t->s);
    tn_tensor *y = t->c->of(t->in);
    tn_tensor *loss = y;
    if (!t->c->flat) {
        loss = tn_sum(tn_mul(y, t->g), TN_ALL, false);
        tn_assign(t->result, y);
    }
    for (int i = 0; i < t->n_grad; i++) from[i] = t->in[t->wants[i]];
    tn_grad(loss, t->n_grad, from, grad);
    for (int i = 0; i < t->n_grad; i++) tn_assign(t->grad[i], grad[i]);
    if (t->c->flat) tn_assign(t->result, tn_cast(loss, TN_F32));
    return tn_step_end(t->s);
}

static tn_tensor *like(tn_session *s, const char *name, tn_tensor *x)
{
    int64_t dim[TN_MAX_DIMS];
    for (int i = 0; i < tn_ndim(x); i++) dim[i] = tn_dim(x, i);
    return tn_buffer(s, name, tn_zeros(s, tn_dtype_of(x), tn_ndim(x), dim));
}

static int prepare(state *t)
{
    static const char *const name[INPUTS] = {"a", "b", "c", "d"}, *const grad_name[INPUTS] = {"ga", "gb",
                                                                                              "gc", "gd"};
    for (int i = 0; i < INPUTS && t->c->in[i].dim[0]; i++, t->n++) {
        const input *d = &t->c->in[i];
        tn_tensor *x = make_input(t->s, d, d->dim, ndim_of(d), t->c->dtype, i);
        t->in[i] = tn_buffer(t->s, name[i], x);
        if (d->below) continue;
        tn_requires_grad(t->in[i], true);
        t->grad[t->n_grad] = like(t->s, grad_name[t->n_grad], t->in[i]);
        t->wants[t->n_grad++] = i;
    }
    if (t->c->flat) {
        t->result = tn_buffer(t->s, "y", tn_zeros(t->s, TN_F32, 0, NULL));
        return tn_error(t->s);
    }
    tn_no_grad_begin(t->s);
    tn_scope_begin(t->s);
    tn_tensor *y = t->c->of(t->in);
    int64_t dim[TN_MAX_DIMS];
    const int ndim = tn_ndim(y);
    for (int i = 0; i < ndim; i++) dim[i] = tn_dim(y, i);
    const tn_dtype dtype = tn_dtype_of(y);
    tn_scope_end(t->s);
    tn_no_grad_end(t->s);
    t->g = tn_buffer(t->s, "g", make_input(t->s, NULL, dim, ndim, dtype, 7));
    t->result = tn_buffer(t->s, "y", tn_zeros(t->s, dtype, ndim, dim));
    return tn_error(t->s);
}

static int time_launches(state *t)
{
    tn_view v;
    double ms[64];
    for (int i = 0; i < 64; i++) ms[i] = INFINITY;
    tn_profile(t->s, true);
    for (int k = 0; k < ROUNDS; k++) {
        if (step(t) || tn_view_make(t->s, &v)) return 1;
        for (int i = 0; i < v.n_launch && i < 64; i++) ms[i] = fmin(ms[i], v.launch[i].ms);
        if (k + 1 < ROUNDS) tn_view_free(&v);
    }
    for (int i = 0; i < v.n_launch && i < 64; i++) {
        const tn_step *of = v.launch[i].of;
        printf("    %9.1f us %8.1f TFLOP/s %8.1f GB/s  %-8s %.40s: %.70s\n", ms[i] * 1e3,
               of->flops / ms[i] * 1e-9, (double)of->bytes / ms[i] * 1e-6, tn_way_name(v.launch[i].way),
               of->name, v.launch[i].ops);
    }
    tn_view_free(&v);
    tn_profile(t->s, false);
    for (int i = 0; i < 5; i++)
        if (step(t)) return 1;
    tn_synchronize(t->s);
    const double start = now_ms();
    for (int i = 0; i < REPLAYS; i++)
        if (step(t)) return 1;
    tn_synchronize(t->s);
    printf("    %9.1f us a step\n", (now_ms() - start) / REPLAYS * 1e3);
    return 0;
}

static int run_case(const gpu_case *c, bool write, bool timed, FILE *f)
{
    outcomes is = {.n = 0}, due;
    state t = {.c = c, .s = tn_open(.device = write ? TN_CPU : TN_CUDA, .mode = TN_FUSED, .seed = 1)};
    if (!t.s) return 1;
    snprintf(is.name, sizeof is.name, "%s", c->name);
    int off = prepare(&t) || step(&t);
    if (!off) {
        off = take(t.result, &is.of[is.n++]);
        for (int i = 0; i < t.n_grad && !off; i++) off = take(t.grad[i], &is.of[is.n++]);
    }
    if (off) {
        printf("%s: %s\n", c->name, tn_error(t.s) ? tn_error_text(t.s) : "no memory");
    } else if (write) {
        off = fwrite(&is, sizeof is, 1, f) != 1;
        printf("%s: %d results written, norm %.4g\n", c->name, is.n, is.of[0].norm);
    } else {
        bool found = false;
        rewind(f);
        while (!found && fread(&due, sizeof due, 1, f) == 1) found = !strcmp(due.name, is.name);
        printf("%s:", c->name);
        for (int i = 0; i < is.n && found; i++) {
            const double d = distance(&is.of[i], &due.of[i]);
            const bool bad = !(d <= (c->dtype == TN_F32 ? 2e-3 : c->dtype == TN_F16 ? 1e-2 : 6e-2));
            printf(" %.2g%s", d, bad ? " OFF" : "");
            off |= bad;
        }
        puts(found ? "" : " nothing to compare with");
        off |= !found;
        if (timed && time_launches(&t)) off = 1, printf("    %s\n", tn_error_text(t.s));
    }
    fflush(stdout);
    tn_close(t.s);
    return off;
}

int main(int argc, char **argv)
{
    const bool write = argc > 2 && !strcmp(argv[1], "--write");
    const bool timed = argc > 2 && !strcmp(argv[1], "--time");
    if (argc < 3 || (!write && !timed && strcmp(argv[1], "--check") != 0))
        return fputs("timed: its head tells\n", stderr), 2;
    FILE *f = fopen(argv[2], write ? "wb" : "rb");
    if (!f) return perror(argv[2]), 2;
    int off = 0;
    for (int i = 0; i < CASES; i++) {
        bool wanted = argc == 3;
        for (int k = 3; k < argc; k++) wanted |= !strcmp(argv[k], cases[i].name);
        if (wanted && run_case(&cases[i], write, timed, f)) off = 1;
    }
    if (fclose(f)) off = 1;
    return off;
}
