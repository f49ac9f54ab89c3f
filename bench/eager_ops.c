/* eager_ops.c - times one operator at a time, in eager mode, for bench/peers.py to set beside a rival.
 *
 *   build/bench/eager_ops --list                  the cases
 *   build/bench/eager_ops CASE ROWS COLS [N]      median, minimum of N runs in microseconds
 *   build/bench/eager_ops --serve                 reads "CASE ROWS COLS N" lines, answers each with N times
 *
 * A case runs in a step of its own, on inputs made once; what is timed is the call itself (and for "_back"
 * cases forward and backward together), with the step's end outside. Start with the table of cases. */
#include <stdio.h>
#include <string.h>

#include <tensor_nn.h>

#include "bench/clock.h"

typedef struct in {
    tn_session *s;
    tn_tensor *x, *y, *w, *b, *label, *index, *image, *kernel, *square;
    int64_t n, c;
} in;

/* Rows as windows of 256, channels as heads of 64: [n / 256, c / 64, 256, 64]. */
static tn_tensor *heads(const in *i, tn_tensor *x)
{
    return tn_transpose(tn_reshape(x, TN_SHAPE(i->n / 256, 256, i->c / 64, 64)), 1, 2);
}

static tn_tensor *attend(const in *i)
{
    return tn_scaled_dot_product_attention(heads(i, i->x), heads(i, i->y), heads(i, i->x));
}

/* ---- forward: X(name, expression) ---- */
#define FORWARD(X)                                                                                           \
    X(neg, tn_neg(i->x))                                                                                     \
    X(relu, tn_relu(i->x))                                                                                   \
    X(exp, tn_exp(i->x))                                                                                     \
    X(log, tn_log(i->y))                                                                                     \
    X(sqrt, tn_sqrt(i->y))                                                                                   \
    X(sin, tn_sin(i->x))                                                                                     \
    X(tanh, tn_tanh(i->x))                                                                                   \
    X(erf, tn_erf(i->x))                                                                                     \
    X(sigmoid, tn_sigmoid(i->x))                                                                             \
    X(silu, tn_silu(i->x))                                                                                   \
    X(gelu, tn_gelu(i->x))                                                                                   \
    X(gelu_tanh, tn_gelu_tanh(i->x))                                                                         \
    X(softplus, tn_softplus(i->x))                                                                           \
    X(add, tn_add(i->x, i->y))                                                                               \
    X(mul, tn_mul(i->x, i->y))                                                                               \
    X(div, tn_div(i->x, i->y))                                                                               \
    X(pow, tn_pow(i->y, i->y))                                                                               \
    X(maximum, tn_maximum(i->x, i->y))                                                                       \
    X(mul_scalar, tn_mul_scalar(i->x, 1.5))                                                                  \
    X(add_row, tn_add(i->x, i->w))                                                                           \
    X(where, tn_where(tn_gt(i->x, i->y), i->x, i->y))                                                        \
    X(transpose_copy, tn_contiguous(tn_transpose(i->x, 0, 1)))                                               \
    X(sum_all, tn_sum(i->x, TN_ALL, 0))                                                                      \
    X(sum_row, tn_sum(i->x, TN_AXES(1), 0))                                                                  \
    X(sum_col, tn_sum(i->x, TN_AXES(0), 0))                                                                  \
    X(max_row, tn_max(i->x, TN_AXES(1), 0))                                                                  \
    X(argmax, tn_argmax(i->x, 1, 0))                                                                         \
    X(var_row, tn_var(i->x, TN_AXES(1), 0, 1))                                                               \
    X(logsumexp, tn_logsumexp(i->x, TN_AXES(1), 0))                                                          \
    X(cumsum, tn_cumsum(i->x, 1))                                                                            \
    X(softmax, tn_softmax(i->x, 1))                                                                          \
    X(log_softmax, tn_log_softmax(i->x, 1))                                                                  \
    X(layer_norm, tn_layer_norm(i->x, i->w, i->b))                                                           \
    X(rms_norm, tn_rms_norm(i->x, i->w))                                                                     \
    X(dropout, tn_dropout(i->x, 0.1))                                                                        \
    X(cross_entropy, tn_cross_entropy(i->x, i->label))                                                       \
    X(embedding, tn_embedding(i->x, i->index))                                                               \
    X(gather, tn_gather(i->x, 1, tn_reshape(i->label, TN_SHAPE(i->n, 1))))                                   \
    X(concat, tn_concat(2, (tn_tensor *[]){i->x, i->y}, 1))                                                  \
    X(pad, tn_pad(i->x, 1, 8, 8, 0))                                                                         \
    X(batch_norm, tn_batch_norm(i->x, i->w, i->b, NULL, NULL))                                               \
    X(attention, attend(i))                                                                                  \
    X(linear, tn_affine(i->x, i->square, i->b))

/* ---- forward and backward: a scalar from x ---- */
#define BACKWARD(X)                                                                                          \
    X(relu_back, tn_relu(i->x))                                                                              \
    X(gelu_back, tn_gelu(i->x))                                                                              \
    X(tanh_back, tn_tanh(i->x))                                                                              \
    X(mul_back, tn_mul(i->x, i->y))                                                                          \
    X(add_row_back, tn_add(i->x, i->w))                                                                      \
    X(softmax_back, tn_softmax(i->x, 1))                                                                     \
    X(layer_norm_back, tn_layer_norm(i->x, i->w, i->b))                                                      \
    X(rms_norm_back, tn_rms_norm(i->x, i->w))                                                                \
    X(batch_norm_back, tn_batch_norm(i->x, i->w, i->b, NULL, NULL))                                          \
    X(dropout_back, tn_dropout(i->x, 0.1))                                                                   \
    X(embedding_back, tn_embedding(i->x, i->index))                                                          \
    X(cross_entropy_back, tn_cross_entropy(i->x, i->label))                                                  \
    X(attention_back, attend(i))                                                                             \
    X(linear_back, tn_affine(i->x, i->square, i->b))

#define X(name, expr)                                                                                        \
    static tn_tensor *run_##name(in *i) { return expr; }
FORWARD(X)
BACKWARD(X)
#undef X

static const struct {
    const char *name;
    tn_tensor *(*run)(in *);
    bool backward;
} cases[] = {
#define X(name, expr) {#name, run_##name, false},
    FORWARD(X)
#undef X
#define X(name, expr) {#name, run_##name, true},
        BACKWARD(X)
#undef X
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void make_inputs(in *i, int64_t n, int64_t c)
{
    tn_session *s = i->s;
    tn_tensor *old[] = {i->x, i->y, i->w, i->b, i->label, i->index, i->square};
    for (size_t k = 0; k < sizeof old / sizeof *old; k++) tn_free(old[k]);
    i->n = n;
    i->c = c;
    i->x = tn_randn(s, TN_F32, TN_SHAPE(n, c));
    i->y = tn_rand(s, TN_F32, TN_SHAPE(n, c));
    i->w = tn_rand(s, TN_F32, TN_SHAPE(c));
    i->b = tn_rand(s, TN_F32, TN_SHAPE(c));
    i->square = tn_randn(s, TN_F32, TN_SHAPE(c, c));
    i->label = tn_randint(s, 0, c, TN_I64, TN_SHAPE(n));
    i->index = tn_randint(s, 0, n, TN_I64, TN_SHAPE(n));
}

static double once(in *i, int k)
{
    tn_tensor *grad_of[] = {i->x, i->w, i->b, i->square};
    for (int j = 0; j < 4; j++) tn_requires_grad(grad_of[j], cases[k].backward);
    tn_step_begin(i->s);
    double t = now_ms();
    tn_tensor *y = cases[k].run(i);
    if (cases[k].backward) tn_backward(tn_ndim(y) ? tn_sum(y, TN_ALL, 0) : y);
    t = now_ms() - t;
    tn_step_end(i->s);
    return t * 1e3;
}

static int find(const char *name)
{
    for (int k = 0; k < N_CASES; k++)
        if (!strcmp(cases[k].name, name)) return k;
    return -1;
}

static int measure(in *i, const char *name, int64_t n, int64_t c, int runs, double *t)
{
    int k = find(name);
    if (k < 0) return fprintf(stderr, "eager_ops: no case '%s'; see --list\n", name), 2;
    if (n != i->n || c != i->c) make_inputs(i, n, c);
    once(i, k);
    once(i, k);
    for (int r = 0; r < runs; r++) t[r] = once(i, k);
    if (tn_error(i->s)) return fprintf(stderr, "eager_ops: %s: %s\n", name, tn_error_text(i->s)), 1;
    return 0;
}

static int serve(in *i)
{
    char name[64];
    long long n, c;
    int runs;
    double t[1000];
    while (scanf("%63s %lld %lld %d", name, &n, &c, &runs) == 4) {
        if (runs > 1000) runs = 1000;
        int status = measure(i, name, n, c, runs, t);
        for (int r = 0; r < runs && !status; r++) printf("%.2f ", t[r]);
        printf(status ? "failed\n" : "\n");
        fflush(stdout);
        tn_clear_error(i->s);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--list")) {
        for (int k = 0; k < N_CASES; k++) puts(cases[k].name);
        return 0;
    }
    in i = {.s = tn_open(.mode = TN_EAGER, .seed = 1)};
    if (!i.s) return 1;
    int status = 2;
    if (argc > 1 && !strcmp(argv[1], "--serve"))
        status = serve(&i);
    else if (argc > 3) {
        int runs = argc > 4 ? atoi(argv[4]) : 20;
        double t[1000];
        status = measure(&i, argv[1], atoll(argv[2]), atoll(argv[3]), runs > 1000 ? 1000 : runs, t);
        double median = middle(t, runs); /* which sorts them */
        if (!status)
            printf("%s %s x %s: median %.1f us, best %.1f us\n", argv[1], argv[2], argv[3], median, t[0]);
    } else
        fprintf(stderr, "usage: eager_ops --list | --serve | CASE ROWS COLS [N]\n");
    tn_close(i.s);
    return status;
}
