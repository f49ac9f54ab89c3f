/* test_cuda_prologue.c - convolutions that compute what they are of as they load it, on the simulated GPU:
 * behind a batch norm in training the normed image is neither written nor read where the cost model finds
 * that faster, forward and for the weights' gradient; what stands in the plan, how many bytes are spared, and
 * that results and gradients are the CPU's, whose oracle in f64 test_cuda_conv has.
 *
 * Read first: struct tiled in cuda_traced.h, then check_case. */
#include "cuda_traced.h"

#include "fuser/loops/conv_tile.h"
#include "src/device/profile.h"

/* ---- cases ---- */

static tn_tensor *norm(traced *t, tn_tensor *x)
{
    tn_tensor *w = input_at(t, 1, 8), *b = input_at(t, 0.5, 8);
    return tn_batch_norm(x, w, b, t->mean, t->var);
}

static tn_tensor *first(traced *t)
{
    return tn_conv2d(input(t, 4, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1);
}

static void narrow(traced *t) { give(t, tn_conv2d(tn_relu(norm(t, first(t))), input(t, 16, 1, 1, 8), NULL)); }

/* b is above 0: behind relu the border would be b - mean / deviation. */
static void padded(traced *t)
{
    give(t, tn_conv2d(tn_relu(norm(t, first(t))), input(t, 8, 3, 3, 8), input(t, 8), .pad = 1));
}

static void strided(traced *t)
{
    give(t, tn_conv2d(tn_relu(norm(t, first(t))), input(t, 24, 3, 3, 4), NULL, .pad = 1, .stride = 2,
                      .groups = 2));
}

static void with_residual(traced *t)
{
    tn_tensor *y = tn_relu(tn_add(norm(t, first(t)), input(t, 4, 6, 6, 8)));
    give(t, tn_conv2d(y, input(t, 16, 1, 1, 8), NULL));
}

/* conv - norm - relu, twice, and what follows the second */
static void block(traced *t)
{
    tn_tensor *y = tn_conv2d(tn_relu(norm(t, first(t))), input(t, 8, 3, 3, 8), NULL, .pad = 1);
    tn_tensor *w = input_at(t, 1, 8), *b = input(t, 8), *z = tn_relu(tn_batch_norm(y, w, b, NULL, NULL));
    give(t, tn_gelu(tn_conv2d(z, input(t, 8, 1, 1, 8), NULL)));
}

/* Read by something that cannot compute it: written once, and read by all. */
static void read_elsewhere(traced *t)
{
    tn_tensor *y = tn_relu(norm(t, first(t)));
    give(t, tn_conv2d(y, input(t, 16, 1, 1, 8), NULL));
    give(t, tn_max_pool2d(y, 2, .stride = 1)); /* overlapping windows have a kernel of their own */
}

/* Kernels of the forward part; prologues there, and with the gradients; large operands that are not written.
 */
static const struct loading {
    tiled c;
    int prologues, of_gradients;
} Cases[] = {
    {{"1 x 1", narrow, 2, 0, TN_F32, false, "tn_prologue", 0}, 1, 2},
    {{"3 x 3, padded", padded, 2, 0, TN_F32, false, "tn_prologue", 0}, 1, 2},
    {{"3 x 3, padded, f16", padded, 6, 0, TN_F16, false, "tn_prologue", 0}, 1, 2},
    {{"3 x 3, padded, bf16", padded, 6, 0, TN_BF16, false, "tn_prologue", 0}, 1, 2},
    {{"strides and groups", strided, 2, 0, TN_F32, false, "tn_prologue", 0}, 1, 2},
    {{"residual", with_residual, 2, 0, TN_F32, false, "tn_prologue", 0}, 1, 2},
    {{"two", block, 3, 0, TN_F32, false, "tn_prologue", 0}, 2, 4},
    {{"residual, f16", with_residual, 5, 0, TN_F16, false, "tn_prologue", 0}, 1, 2},
    {{"two, bf16", block, 7, 0, TN_BF16, false, "tn_prologue", 0}, 2, 4},
    {{"evaluation, f16", padded, 6, 0, TN_F16, true, "tn_epilogue", 0}, 0, 0},
    {{"read elsewhere, bf16", read_elsewhere, 8, 0, TN_BF16, false, "tn_epilogue", 0}, 0, 0},
    {{"evaluation", padded, 2, 0, TN_F32, true, "tn_epilogue", 0}, 0, 0},
    {{"read elsewhere", read_elsewhere, 4, 0, TN_F32, false, "tn_epilogue", 0}, 0, 0},
};
enum { N_CASES = sizeof Cases / sizeof *Cases };

static int prologues(const seen *v)
{
    int n = 0;
    for (int i = 0; i < v->plan->n_step; i++)
        n += v->plan->step[i].kind == TN_STEP_KERNEL &&
             strstr(v->plan->step[i].source.text, "\n#define PROLOGUE\n");
    return n;
}

/* The normed images are in nobody's memory. */
static void check_unwritten(const tiled *c, const seen *v)
{
    for (int i = 0; i < v->plan->n_value; i++) {
        const int slot = v->plan->value[i].slot;
        if (slot < v->f.node.n && v->f.node.at[slot]->op == TN_OP_relu) {
            print_plan(v);
            fail_msg("%s: relu is written", c->name);
        }
    }
}

static int64_t bytes_of(const seen *v)
{
    int64_t n = 0;
    for (int i = 0; i < v->plan->n_step; i++) n += v->plan->step[i].bytes;
    return n;
}

/* Where arithmetic is very slow there is a pass that norms; without it its reading and writing are spared. */
static void check_bytes(tn_session *s, const tiled *c, const tn_target *cheap, int fewer)
{
    enum { IMAGE = 4 * 6 * 6 * 8, VECTORS = 256 };
    tn_target dear = *cheap;
    tn_target_profile slow = *tn_target_rates(cheap);
    slow.instruction_ps *= 1e6;
    dear.profile = &slow;
    seen a = look_for(s, true, &dear), b = look_for(s, true, cheap);
    const int64_t size = c->dtype == TN_F32 ? 4 : 2, saved = bytes_of(&a) - bytes_of(&b);
    assert_int_equal(prologues(&a), 0);
    assert_int_equal(a.plan->n_step, b.plan->n_step + fewer);
    if (saved < fewer * (2 * IMAGE * size - VECTORS) || saved > fewer * 2 * IMAGE * size)
        fail_msg("%s: %lld bytes are saved", c->name, (long long)saved);
    forget(&a);
    forget(&b);
}

static void check_case(void **state)
{
    const struct loading *l = *state;
    const tiled *c = &l->c;
    rig_open(NULL);
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, c);
    const tn_target h100 = like_h100(s);
    seen v = look_for(s, true, &h100);
    if (v.plan->n_step != c->forward || prologues(&v) != l->prologues) {
        print_plan(&v);
        fail_msg("%s: %d kernels, %d prologues", c->name, v.plan->n_step, prologues(&v));
    }
    const tn_step *last = NULL;
    for (int i = 0; i < v.plan->n_step; i++)
        if (!strncmp(v.plan->step[i].name, "conv2d", 6)) last = &v.plan->step[i];
    assert_non_null(last);
    if (!strstr(last->source.text, c->has)) fail_msg("%s: no %s in\n%s", c->name, c->has, last->source.text);
    if (l->prologues) check_unwritten(c, &v);
    forget(&v);
    if (l->prologues) check_bytes(s, c, &h100, l->prologues);
    tn_tensor *grad[MOST];
    take_gradients(&t, loss_of(&t), grad);
    v = look_for(s, true, &h100);
    if (prologues(&v) != l->of_gradients) {
        print_plan(&v);
        fail_msg("%s: %d prologues with the gradients", c->name, prologues(&v));
    }
    if (l->prologues) check_unwritten(c, &v);
    forget(&v);
    v = look(s); /* what is going to be compared has them, too */
    assert_int_equal(prologues(&v) > 0, l->of_gradients > 0);
    forget(&v);
    close_step(s);
    compare(c);
}

/* ---- tiles ---- */

/* The largest tile there is, whose sums are half of a thread's registers. */
TEST(the_largest_tile_loads_too)
{
    enum { N = 64, SIDE = 56, C = 128, OUT = 256 };
    rig_open(state);
    tn_session *s = open_on(TN_CUDA);
    const tn_target h100 = like_h100(s);
    tn_step_begin(s);
    traced t = {.s = s, .dtype = TN_F16};
    tn_tensor *x = tn_conv2d(input(&t, N, SIDE, SIDE, 16), input(&t, C, 1, 1, 16), NULL);
    tn_tensor *y = tn_relu(tn_batch_norm(x, input_at(&t, 1, C), input(&t, C), NULL, NULL));
    give(&t, tn_conv2d(y, input(&t, OUT, 1, 1, C), NULL));
    seen v = look_for(s, true, &h100);
    const tn_step *last = NULL;
    for (int i = 0; i < v.plan->n_step; i++)
        if (v.plan->step[i].kind == TN_STEP_KERNEL &&
            strstr(v.plan->step[i].source.text, "#define PROLOGUE\n"))
            last = &v.plan->step[i];
    if (!last) {
        print_plan(&v);
        fail_msg("no prologue");
    }
    assert_int_equal(last->conv.oc, OUT);
    assert_int_equal(last->tile->bm * last->tile->bn, 128 * 256);
    forget(&v);
    assert_int_equal(tn_close(s), 0); /* nothing of it runs */
}

/* ---- training ---- */

enum { WEIGHTS = 8 * 9 * 4 + 8 + 8 + 8 + 8 * 9 * 8 + 8 };

/* Steps in which what the prologue reads is updated: by then all have read it. */
static void train(tn_device_kind device, float *weights)
{
    const tiled c = {.name = "training"};
    tn_session *s = open_on(device);
    tn_conv *c1 = tn_conv2d_new(s, "c1", 4, 8, 3, .pad = 1), *c2 = tn_conv2d_new(s, "c2", 8, 8, 3, .pad = 1);
    tn_norm *n1 = tn_batch_norm_new(s, "n1", 8);
    tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.05);
    traced t = {.s = s, .dtype = TN_F32};
    tn_tensor *x = tn_keep(input(&t, 4, 6, 6, 4));
    for (int i = 0; i < 3; i++) {
        tn_step_begin(s);
        tn_tensor *y = tn_conv2d_forward(c2, tn_relu(tn_norm_forward(n1, tn_conv2d_forward(c1, x))));
        tn_backward(tn_mean(tn_square(y), TN_ALL, false));
        assert_int_equal(tn_optim_step(opt), 0);
        if (device == TN_CUDA) {
            seen v = look(s);
            if (prologues(&v) != 2) {
                print_plan(&v);
                fail_msg("%d prologues", prologues(&v));
            }
            check_unwritten(&c, &v);
            forget(&v);
        }
        if (tn_step_end(s)) fail_msg("%s; %s", tn_error_text(s), sim.report());
    }
    tn_tensor *p;
    int64_t n = 0;
    for (int i = 0; (p = tn_param_at(s, i)); i++) {
        const int64_t k = tn_numel(p);
        assert_true(n + k <= WEIGHTS);
        read_into(p, TN_F32, weights + n);
        n += k;
    }
    assert_int_equal(n, WEIGHTS);
    assert_int_equal(tn_close(s), 0);
}

TEST(parameters_are_updated_when_all_have_read_them)
{
    static float weights[2][WEIGHTS];
    rig_open(state);
    train(TN_CPU, weights[0]);
    train(TN_CUDA, weights[1]);
    for (int i = 0; i < WEIGHTS; i++)
        if (!(fabsf(weights[0][i] - weights[1][i]) < 1e-4f))
            fail_msg("%d: %g, on the CPU %g", i, (double)weights[1][i], (double)weights[0][i]);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < N_CASES; i++) add_test_row(Cases[i].c.name, check_case, &Cases[i]);
    return run_all_tests(NULL, NULL);
}
