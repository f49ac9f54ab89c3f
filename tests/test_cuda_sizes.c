/* test_cuda_sizes.c - generated CUDA kernels at the sizes where their schedules differ, run on the simulated
 * GPU and compared with the f64 reference: rows of one element, of less than a warp, of a warp, of a block,
 * longer than a block can keep; widths that no pack divides; few long rows and columns that are split in
 * parts; sums over rows beside sums along them; windows; strides; 16-bit floats.
 *
 * Each test is one program of several results. `test_cuda_sizes 1023` runs those whose name contains that.
 * Read first: the table `Programs`, then check_size. */
#include "check.h"

typedef struct sized {
    const char *name;
    void (*record)(tn_session *s, const struct sized *p, int *n, tn_tensor **out);
    int64_t rows, cols;
    tn_dtype dtype;
} sized;

/* ---- operands ---- */

static tn_tensor *numbers(tn_session *s, tn_dtype d, uint64_t seed, double low, double high, int ndim,
                          const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    double *v = malloc((size_t)n * sizeof *v + 1);
    assert_non_null(v);
    rng r = {seed};
    for (int64_t i = 0; i < n; i++) v[i] = rng_real(&r, low, high);
    tn_tensor *t = tensor_of(s, v, d, ndim, shape);
    free(v);
    return t;
}
#define some(seed, ...) numbers(s, p->dtype, seed, -2, 2, TN_SHAPE(__VA_ARGS__))

static tn_tensor *indices(tn_session *s, uint64_t seed, int64_t below, int64_t n)
{
    double *v = malloc((size_t)n * sizeof *v + 1);
    assert_non_null(v);
    rng r = {seed};
    for (int64_t i = 0; i < n; i++) v[i] = (double)rng_below(&r, below);
    tn_tensor *t = tensor_of(s, v, TN_I64, 1, &n);
    free(v);
    return t;
}

/* y, and the gradients of its weighted sum. */
static void give(tn_session *s, tn_tensor *y, int n_leaf, tn_tensor **leaf, int *n, tn_tensor **out)
{
    tn_tensor *grad[4];
    out[(*n)++] = y;
    if (tn_grad(weighted(s, y, 11), n_leaf, leaf, grad)) fail_msg("%s", tn_error_text(s));
    for (int i = 0; i < n_leaf; i++) out[(*n)++] = grad[i];
}

static tn_tensor *leaf_of(tn_tensor *t)
{
    tn_requires_grad(t, true);
    return t;
}

/* ---- programs ---- */

static void elementwise(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *leaf[3] = {leaf_of(some(1, p->rows, p->cols)), leaf_of(some(2, p->cols)),
                          leaf_of(some(3, p->rows, 1))};
    give(s, tn_sigmoid(tn_mul(tn_add(tn_mul_scalar(leaf[0], 1.5), leaf[1]), leaf[2])), 3, leaf, n, out);
    out[(*n)++] = tn_relu(some(4, p->rows * p->cols));
}

static void softmaxes(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *x = leaf_of(some(1, p->rows, p->cols)), *y = leaf_of(some(2, p->rows, p->cols));
    give(s, tn_softmax(x, -1), 1, &x, n, out);
    give(s, tn_softmax(y, 0), 1, &y, n, out);
}

static void norms(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *leaf[3] = {leaf_of(some(1, p->rows, p->cols)), leaf_of(some(2, p->cols)),
                          leaf_of(some(3, p->cols))};
    give(s, tn_gelu(tn_layer_norm(leaf[0], leaf[1], leaf[2], .eps = 1e-2)), 3, leaf, n, out);
}

static void losses(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *x = leaf_of(some(1, p->rows, p->cols));
    give(s, tn_cross_entropy(x, indices(s, 5, p->cols, p->rows)), 1, &x, n, out);
}

static void reductions(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *x = some(1, p->rows, p->cols);
    out[(*n)++] = tn_sum(x, TN_AXES(0), false);
    out[(*n)++] = tn_sum(x, TN_AXES(1), false);
    out[(*n)++] = tn_mean(tn_square(x), TN_ALL, false);
    out[(*n)++] = tn_max(x, TN_AXES(0), false);
    out[(*n)++] = tn_min(x, TN_AXES(1), true);
    out[(*n)++] = tn_argmax(x, 0, false);
    out[(*n)++] = tn_argmin(x, 1, false);
    out[(*n)++] = tn_cumsum(x, 0);
    out[(*n)++] = tn_cumsum(x, 1);
}

static void channels(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *leaf[3] = {leaf_of(some(1, p->rows, 4, 4, p->cols)), leaf_of(some(2, p->cols)),
                          leaf_of(some(3, p->cols))};
    give(s, tn_relu(tn_batch_norm(leaf[0], leaf[1], leaf[2], NULL, NULL, .eps = 1e-2)), 3, leaf, n, out);
}

/* Groups of 8 channels, whose rows are pieces of pixels: rows is 100 sides and images of side by side - 3. */
static void groups(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    const int64_t images = p->rows % 100, side = p->rows / 100;
    tn_tensor *leaf[3] = {leaf_of(some(1, images, side, side - 3, p->cols)), leaf_of(some(2, p->cols)),
                          leaf_of(some(3, p->cols))};
    give(s, tn_silu(tn_group_norm(leaf[0], (int)(p->cols / 8), leaf[1], leaf[2], .eps = 1e-2)), 3, leaf, n,
         out);
}

static void strides(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *leaf[3] = {leaf_of(some(1, p->rows, 2 * p->cols)), leaf_of(some(2, p->cols, p->rows)),
                          leaf_of(some(3, p->rows, p->cols + 1))};
    tn_tensor *a = tn_slice(leaf[0], 1, 0, TN_END, 2), *b = tn_transpose(leaf[1], 0, 1),
              *c = tn_slice(leaf[2], 1, 1, TN_END, 1);
    give(s, tn_add(tn_mul(a, b), tn_exp(c)), 3, leaf, n, out);
}

static void random_numbers(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *x = leaf_of(some(1, p->rows, p->cols)), *w = some(2, p->cols);
    give(s, tn_add(tn_dropout(x, 0.3), w), 1, &x, n, out);
    out[(*n)++] = tn_sum(tn_rand(s, TN_F32, TN_SHAPE(p->rows, p->cols)), TN_AXES(1), false);
    out[(*n)++] =
        tn_mul(tn_randn(s, TN_F32, TN_SHAPE(p->rows, p->cols)), tn_rand(s, TN_F32, TN_SHAPE(p->cols)));
}

static void gathers(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *leaf[2] = {leaf_of(some(1, p->rows, p->cols)), leaf_of(some(2, 3 * p->rows, p->cols))};
    give(s, tn_mul(tn_index_select(leaf[0], 0, indices(s, 6, p->rows, 3 * p->rows)), leaf[1]), 2, leaf, n,
         out);
    out[(*n)++] = tn_concat(2, (tn_tensor *[]){leaf[0], leaf[1]}, 0);
    out[(*n)++] = tn_pad(leaf[0], 1, 2, 3, 0.5);
}

/* In place, beside a value that reads what was there. */
static void updates(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *m = tn_keep(some(1, p->rows, p->cols)), *g = some(2, p->rows, p->cols);
    tn_assign(m, tn_add(tn_mul_scalar(m, 0.9), tn_mul_scalar(g, 0.1)));
    out[(*n)++] = tn_mul_scalar(m, 1.0);
}

/* Each line of threads has a window of its own: there are fewer elements in it than lines in a block. */
static void windows(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    tn_tensor *x = leaf_of(some(1, p->rows, 6, 6, p->cols)), *y = tn_relu(tn_mul_scalar(x, 1.5));
    give(s, tn_max_pool2d(y, 2, .stride = 2), 1, &x, n, out);
    give(s, tn_avg_pool2d(y, 3, .stride = 3), 1, &x, n, out);
}

/* Windows that overlap, leave out, or reach over the border, and the second derivatives, which read what the
 * windows chose. */
static void pools(tn_session *s, const sized *p, int *n, tn_tensor **out)
{
    static const struct {
        int64_t h, w;
        int window, stride, pad;
    } shape[] = {{9, 7, 3, 2, 1}, {6, 11, 3, 1, 1}, {5, 8, 2, 3, 0}, {4, 3, 5, 1, 2},
                 {7, 7, 7, 7, 0}, {9, 9, 5, 4, 2},  {6, 5, 4, 2, 1}};
    const int k = (int)p->rows;
    tn_tensor *x = leaf_of(some(1, 2, shape[k].h, shape[k].w, p->cols)), *grad, *w;
    tn_tensor *y = tn_max_pool2d(x, shape[k].window, .stride = shape[k].stride, .pad = shape[k].pad);
    give(s, y, 1, &x, n, out);
    give(s, tn_avg_pool2d(x, shape[k].window, .stride = shape[k].stride, .pad = shape[k].pad), 1, &x, n, out);
    w = leaf_of(some(2, 2, tn_dim(y, 1), tn_dim(y, 2), p->cols));
    if (tn_grad(weighted(s, tn_mul(y, w), 12), 1, &x, &grad)) fail_msg("%s", tn_error_text(s));
    give(s, grad, 1, &w, n, out);
}

static const sized Programs[] = {
    {"elementwise 1x1", elementwise, 1, 1, TN_F32},
    {"elementwise 5x3", elementwise, 5, 3, TN_F32},
    {"elementwise 37x33", elementwise, 37, 33, TN_F32},
    {"elementwise 3x1024", elementwise, 3, 1024, TN_F32},
    {"elementwise f16 6x40", elementwise, 6, 40, TN_F16},
    {"elementwise bf16 5x31", elementwise, 5, 31, TN_BF16},
    {"elementwise f64 5x34", elementwise, 5, 34, TN_F64},
    {"softmax 3x1", softmaxes, 3, 1, TN_F32},
    {"softmax 70x3", softmaxes, 70, 3, TN_F32},
    {"softmax 9x31", softmaxes, 9, 31, TN_F32},
    {"softmax 5x33", softmaxes, 5, 33, TN_F32},
    {"softmax 4x1023", softmaxes, 4, 1023, TN_F32},
    {"softmax 3x1025", softmaxes, 3, 1025, TN_F32},
    {"softmax 3x2048", softmaxes, 3, 2048, TN_F32},
    {"softmax 2x9000", softmaxes, 2, 9000, TN_F32},
    {"softmax f16 5x64", softmaxes, 5, 64, TN_F16},
    {"norm 70x5", norms, 70, 5, TN_F32},
    {"norm 130x32", norms, 130, 32, TN_F32},
    {"norm 66x1023", norms, 66, 1023, TN_F32},
    {"norm 70x1024", norms, 70, 1024, TN_F32},
    {"norm 65x6000", norms, 65, 6000, TN_F32},
    {"norm bf16 70x64", norms, 70, 64, TN_BF16},
    {"loss 7x10", losses, 7, 10, TN_F32},
    {"loss 200x10", losses, 200, 10, TN_F32},
    {"loss 66x1025", losses, 66, 1025, TN_F32},
    {"reductions 1x1", reductions, 1, 1, TN_F32},
    {"reductions 33x3", reductions, 33, 3, TN_F32},
    {"reductions 3x31", reductions, 3, 31, TN_F32},
    {"reductions 130x68", reductions, 130, 68, TN_F32},
    {"reductions 3000x6", reductions, 3000, 6, TN_F32},
    {"reductions 2x33001", reductions, 2, 33001, TN_F32},
    {"reductions f16 9x40", reductions, 9, 40, TN_F16},
    {"channels 3x12", channels, 3, 12, TN_F32},
    {"channels 200x5", channels, 200, 5, TN_F32},
    {"groups 11x4x64", groups, 1104, 64, TN_F32},
    {"groups 12x6x32", groups, 1206, 32, TN_F32},
    {"groups bf16 11x2x64", groups, 1102, 64, TN_BF16},
    {"groups bf16 61x2x32", groups, 6102, 32, TN_BF16},
    {"groups 48x2x32", groups, 4802, 32, TN_F32},
    {"windows 3x16", windows, 3, 16, TN_F32},
    {"windows 2x33", windows, 2, 33, TN_F32},
    {"windows 1x260", windows, 1, 260, TN_F32},
    {"windows f16 2x24", windows, 2, 24, TN_F16},
    {"pools 3/2 16", pools, 0, 16, TN_F32},
    {"pools 3/1 5", pools, 1, 5, TN_F32},
    {"pools 3/1 bf16 24", pools, 1, 24, TN_BF16},
    {"pools 2/3 6", pools, 2, 6, TN_F32},
    {"pools 5/1 f16 8", pools, 3, 8, TN_F16},
    {"pools 7/7 f64 4", pools, 4, 4, TN_F64},
    {"pools 5/4 3", pools, 5, 3, TN_F32},
    {"pools 4/2 bf16 12", pools, 6, 12, TN_BF16},
    {"strides 5x7", strides, 5, 7, TN_F32},
    {"strides 36x64", strides, 36, 64, TN_F32},
    {"strides 70x131", strides, 70, 131, TN_F32},
    {"random 5x7", random_numbers, 5, 7, TN_F32},
    {"random 9x64", random_numbers, 9, 64, TN_F32},
    {"gathers 4x3", gathers, 4, 3, TN_F32},
    {"gathers 40x64", gathers, 40, 64, TN_F32},
    {"gathers bf16 9x33", gathers, 9, 33, TN_BF16},
    {"updates 5x33", updates, 5, 33, TN_F32},
    {"updates 6x64", updates, 6, 64, TN_F32},
};
enum { N_PROGRAMS = sizeof Programs / sizeof *Programs };

/* ---- tests ---- */

static bench B;

static void program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    const sized *p = user;
    p->record(s, p, n, out);
}

static void check_size(void **state)
{
    char text[640];
    if (!check_program(&B, program, *state, NULL, text)) fail_msg("%s", text);
}

static int open_bench(void **state)
{
    (void)state;
    setenv("TENSOR_CUDA_DRIVER", CUSIM_LIBRARY, 1);
    setenv("TENSOR_CUDA_NVRTC", CUSIM_LIBRARY, 1);
    setenv("TENSOR_CUDA_BLASLT", CUSIM_LIBRARY, 1);
    setenv("TENSOR_DEVICE", "cuda", 1);
    B.ref = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 77, .log = quiet);
    assert_non_null(B.ref);
    bench_add(&B, "cuda fused", tn_open(.device = TN_CUDA, .mode = TN_FUSED, .seed = 77, .log = quiet));
    return 0;
}

static int close_bench(void **state)
{
    (void)state;
    print_message("%lld elements compared, %lld undecided, worst error %.2f of its bound\n",
                  (long long)B.elements, (long long)B.undecided, B.worst);
    bench_close(&B);
    return 0;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < N_PROGRAMS; i++)
        if (argc < 2 || strstr(Programs[i].name, argv[1]))
            add_test_row(Programs[i].name, check_size, &Programs[i]);
    return run_all_tests(open_bench, close_bench);
}
