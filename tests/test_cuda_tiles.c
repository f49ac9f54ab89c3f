/* test_cuda_tiles.c - convolutions by our own kernel on the simulated GPU: what joins it, forward and
 * backward, how many kernels a program becomes, what stands in the kernel's text and in the reasons for cuts;
 * and that results and gradients are the CPU's. `test_cuda_tiles programs_by_chance 100` runs more programs
 * of the random kind.
 *
 * A case records operators on inputs. The plan of its forward part is looked at before it runs, then that of
 * its gradients alone. Read first: struct tiled, then check_case.
 */
#include "cuda_rig.h"

#include <math.h>

#include <tensor_nn.h>

#include "src/runtime/flush.h"

enum { MOST = 12 };

typedef struct traced {
    tn_session *s;
    bool gradients;
    tn_dtype dtype;
    int n_out, n_wrt, n_input;
    tn_tensor *out[MOST], *wrt[MOST];
    tn_tensor *mean, *var; /* running statistics of 8 channels */
} traced;

typedef struct tiled {
    const char *name;
    void (*record)(traced *t);
    int forward, backward; /* kernels, at most */
    tn_dtype dtype;
    bool evaluation; /* as tn_train(s, false) */
    const char *has; /* in the text of the first convolution's kernel */
    double slack;    /* 0: as the dtype's digits ask for */
} tiled;

/* An input of the case: numbers that differ from input to input. */
static tn_tensor *input_of(traced *t, double middle, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = malloc((size_t)n * sizeof *v + 4);
    assert_non_null(v);
    int64_t step = 37 + 6 * t->n_input++;
    for (int64_t i = 0; i < n; i++) v[i] = (float)(middle + (double)((i * step + 11) % 1009) / 1009 - 0.5);
    tn_tensor *x = tn_from(t->s, v, TN_F32, ndim, shape);
    free(v);
    assert_non_null(x);
    if (t->gradients) tn_requires_grad(t->wrt[t->n_wrt++] = x, true);
    return t->dtype == TN_F32 ? x : tn_cast(x, t->dtype);
}
#define input(t, ...)        input_of(t, 0, TN_SHAPE(__VA_ARGS__))
#define input_at(t, at, ...) input_of(t, at, TN_SHAPE(__VA_ARGS__))

static void give(traced *t, tn_tensor *out)
{
    if (!out) fail_msg("%s", tn_error_text(t->s));
    t->out[t->n_out++] = t->dtype == TN_F32 ? out : tn_cast(out, TN_F32);
}

/* ---- cases ---- */

static void plain(traced *t)
{
    give(t, tn_conv2d(input(t, 2, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1));
}

static void bias_relu(traced *t)
{
    tn_tensor *x = input(t, 2, 6, 7, 3), *w = input(t, 6, 3, 3, 3), *b = input(t, 6);
    give(t, tn_relu(tn_conv2d(x, w, b, .pad = 1, .stride = 2)));
}

static void bias_gelu(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 4), *w = input(t, 8, 3, 3, 4), *b = input(t, 8);
    give(t, tn_gelu(tn_conv2d(x, w, b, .pad = 1)));
}

static void residual(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 8), *w = input(t, 8, 3, 3, 8), *b = input(t, 8);
    give(t, tn_relu(tn_add(tn_conv2d(x, w, b, .pad = 1), x)));
}

static void dropped(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 4), *w = input(t, 8, 1, 1, 4), *y = input(t, 2, 5, 6, 8);
    give(t, tn_add(tn_dropout(tn_silu(tn_conv2d(x, w, NULL)), 0.25), y));
}

static void several(traced *t)
{
    tn_tensor *y = tn_conv2d(input(t, 2, 5, 6, 4), input(t, 8, 3, 3, 4), NULL);
    give(t, tn_tanh(y));
    give(t, tn_square(y));
}

static void grouped(traced *t)
{
    tn_tensor *x = input(t, 2, 6, 6, 8), *w = input(t, 12, 3, 3, 2);
    give(t, tn_sigmoid(tn_conv2d(x, w, NULL, .groups = 4, .pad = 1, .dilation = 2)));
}

/* Its channels come first: read crosswise by what follows. */
static void permuted(traced *t)
{
    tn_tensor *y = tn_conv2d(input(t, 2, 5, 6, 4), input(t, 8, 3, 3, 4), NULL);
    give(t, tn_exp(tn_permute(y, 4, (const int[]){0, 3, 1, 2})));
}

static tn_tensor *norm(traced *t, tn_tensor *x, int64_t c)
{
    tn_tensor *w = input_at(t, 1, c), *b = input(t, c);
    return tn_batch_norm(x, w, b, t->mean, t->var);
}

static void batch_norm_relu(traced *t)
{
    tn_tensor *x = input(t, 4, 6, 6, 4), *w = input(t, 8, 3, 3, 4);
    give(t, tn_relu(norm(t, tn_conv2d(x, w, NULL, .pad = 1), 8)));
}

/* The mean is far from zero: hundreds of deviations. */
static void batch_norm_far(traced *t)
{
    tn_tensor *x = input(t, 4, 6, 6, 4), *w = input(t, 8, 3, 3, 4), *b = input_at(t, 300, 8);
    give(t, norm(t, tn_conv2d(x, w, b, .pad = 1), 8));
}

/* mean and variance by hand, in two passes */
static void moments(traced *t)
{
    tn_tensor *y = tn_conv2d(input(t, 4, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1);
    tn_tensor *mean = tn_mean(y, TN_AXES(0, 1, 2), true), *d = tn_sub(y, mean);
    give(t, mean);
    give(t, tn_mean(tn_square(d), TN_AXES(0, 1, 2), true));
}

/* pooled by a mean: it is another reduction */
static void pooled(traced *t)
{
    tn_tensor *y = tn_relu(tn_conv2d(input(t, 4, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1));
    give(t, tn_mean(y, TN_AXES(1, 2), false));
}

static const tiled Cases[] = {
    {"plain", plain, 1, 2, TN_F32, false, "tn_epilogue", 0},
    {"bias + relu", bias_relu, 1, 4, TN_F32, false, "tn_load", 0},
    {"bias + gelu", bias_gelu, 1, 4, TN_F32, false, "tn_erf", 0},
    {"bias + gelu, bf16", bias_gelu, 4, 8, TN_BF16, false, "tn_erf", 0},
    {"bias + relu, f16", bias_relu, 4, 8, TN_F16, false, "tn_epilogue", 0},
    {"residual + relu", residual, 1, 4, TN_F32, false, "tn_load", 0},
    {"silu + dropout + residual", dropped, 1, 3, TN_F32, false, "tn_random_pack", 0},
    {"several results", several, 1, 3, TN_F32, false, "tn_tanh", 0},
    {"groups and dilation", grouped, 1, 3, TN_F32, false, "tn_epilogue", 0},
    {"permuted", permuted, 1, 3, TN_F32, false, "tn_exp", 0},
    {"batch_norm + relu", batch_norm_relu, 2, 4, TN_F32, false, "tn_statistics", 0},
    /* its values have 2e-5 of rounding to begin with, of deviations of about 0.5 */
    {"batch_norm, mean far from 0", batch_norm_far, 2, 5, TN_F32, false, "tn_statistics", 2e-3},
    {"batch_norm + relu, evaluation", batch_norm_relu, 1, 5, TN_F32, true, "tn_rsqrt", 0},
    {"moments", moments, 1, 4, TN_F32, false, "tn_statistics", 0},
    {"relu + mean", pooled, 2, 4, TN_F32, false, "tn_epilogue", 0},
};
enum { N_CASES = sizeof Cases / sizeof *Cases };

/* ---- looking at a plan ---- */

typedef struct seen {
    tn_plan *plan;
    tn_flush_scratch f;
} seen;

/* What waits in this step, as its end would run it; it goes on waiting. */
static seen look(tn_session *s)
{
    seen v = {0};
    for (uint32_t i = 0; i < s->graph.n_nodes; i++) {
        tn_tensor *n = s->graph.nodes[i];
        bool done = n->base->flags & TN_F_DONE || tn_kind_of(n->base) == TN_KIND_NUMBER;
        bool asked = tn_node_written(n) || (n->flags & (TN_F_USER | TN_F_CONSUMED)) == TN_F_USER;
        if (!done && asked) assert_true(tn_list_push(&v.f.seed, n));
    }
    s->ending = true;
    assert_int_equal(tn_segment_collect(s, &v.f), 0);
    s->ending = false;
    tn_segment seg = {.graph = &s->graph,
                      .node = v.f.node.at,
                      .n_node = v.f.node.n,
                      .leaf = v.f.leaf.at,
                      .n_leaf = v.f.leaf.n,
                      .root = v.f.root};
    tn_errbuf err = {""};
    if (tn_plan_build(&seg, &s->target, &v.plan, &err)) fail_msg("%s", err.text);
    return v;
}

static void forget(seen *v)
{
    tn_plan_free(v->plan);
    void *all[] = {v->f.seed.at, v->f.node.at, v->f.leaf.at, v->f.stack.at, v->f.root};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tn_free_mem(all[i]);
    *v = (seen){0};
}

static void print_plan(const seen *v)
{
    const tn_plan *p = v->plan;
    for (int i = 0; i < p->n_step; i++) {
        print_error("  %s, %lld bytes:", p->step[i].name, (long long)p->step[i].bytes);
        for (int k = 0; k < p->step[i].n_nodes; k++) {
            int node = p->node_of[p->step[i].first_node + k];
            print_error(" %d:%s", node, tn_op_get((tn_op)v->f.node.at[node]->op)->name);
        }
        print_error("\n");
    }
    for (int i = 0; i < p->n_cut; i++)
        print_error("  cut %d:%s -> %d:%s: %s\n", p->cut[i].from,
                    tn_op_get((tn_op)v->f.node.at[p->cut[i].from]->op)->name, p->cut[i].to,
                    tn_op_get((tn_op)v->f.node.at[p->cut[i].to]->op)->name, tn_cut_text(p->cut[i].reason));
}

static void expect(const tiled *c, const char *what, const seen *v, int kernels)
{
    bool library = false;
    for (int i = 0; i < v->plan->n_step; i++) library |= v->plan->step[i].kind == TN_STEP_CONV;
    if (v->plan->n_step <= kernels && !library) return;
    print_plan(v);
    fail_msg("%s, %s: %d kernels, expected %d%s", c->name, what, v->plan->n_step, kernels,
             library ? "; one is the library's" : "");
}

static const tn_step *convolution(const seen *v)
{
    for (int i = 0; i < v->plan->n_step; i++)
        if (!strncmp(v->plan->step[i].name, "conv2d", 6)) return &v->plan->step[i];
    return NULL;
}

/* ---- one case ---- */

static tn_session *open_on(tn_device_kind device, const tiled *c)
{
    tn_session *s = tn_open(.device = device, .mode = TN_FUSED, .seed = 9, .threads = 1, .log = log_keep);
    if (!s) fail_msg("%s", logged);
    tn_train(s, !c->evaluation);
    return s;
}

static traced begin(tn_session *s, const tiled *c)
{
    float mean[8], var[8];
    for (int i = 0; i < 8; i++) mean[i] = (float)i / 8, var[i] = 1 + (float)i / 16;
    traced t = {.s = s, .gradients = true, .dtype = c->dtype};
    t.mean = tn_from(s, mean, TN_F32, TN_SHAPE(8));
    t.var = tn_from(s, var, TN_F32, TN_SHAPE(8));
    tn_step_begin(s);
    c->record(&t);
    return t;
}

static tn_tensor *loss_of(const traced *t)
{
    tn_tensor *loss = NULL;
    for (int i = 0; i < t->n_out; i++) {
        int64_t shape[TN_MAX_DIMS], n = tn_numel(t->out[i]);
        for (int k = 0; k < tn_ndim(t->out[i]); k++) shape[k] = tn_dim(t->out[i], k);
        float *v = malloc((size_t)n * sizeof *v);
        for (int64_t k = 0; k < n; k++) v[k] = (float)((k * 53 + 7) % 997) / 997 - 0.4f;
        tn_tensor *part =
            tn_sum(tn_mul(t->out[i], tn_from(t->s, v, TN_F32, tn_ndim(t->out[i]), shape)), TN_ALL, false);
        free(v);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

/* Results and gradients, one after the other: returns how many, *v is the caller's. */
static int64_t values_of(const tiled *c, tn_device_kind device, float **v)
{
    tn_session *s = open_on(device, c);
    traced t = begin(s, c);
    tn_tensor *all[2 * MOST + 2];
    int n = 0;
    int64_t count = 0, at = 0;
    for (int i = 0; i < t.n_out; i++) all[n++] = t.out[i];
    if (tn_grad(loss_of(&t), t.n_wrt, t.wrt, all + n)) fail_msg("%s", tn_error_text(s));
    n += t.n_wrt;
    all[n++] = t.mean;
    all[n++] = t.var;
    for (int i = 0; i < n; i++) count += tn_numel(all[i]);
    assert_non_null(*v = malloc((size_t)count * sizeof **v));
    for (int i = 0; i < n; i++) {
        int64_t k = tn_numel(all[i]);
        if (tn_read(all[i], TN_F32, *v + at, (size_t)k * sizeof **v))
            fail_msg("%s: %s; %s", c->name, tn_error_text(s), sim.report());
        at += k;
    }
    tn_step_end(s);
    assert_int_equal(tn_close(s), 0);
    return count;
}

static void compare_values(const tiled *c, int64_t n, const float *cuda, const float *cpu)
{
    double slack = c->slack > 0 ? c->slack : c->dtype == TN_F32 ? 1e-4 : c->dtype == TN_F16 ? 5e-3 : 4e-2;
    for (int64_t i = 0; i < n; i++) {
        double scale = fabs((double)cpu[i]) > 1 ? fabs((double)cpu[i]) : 1;
        double off = fabs((double)cuda[i] - (double)cpu[i]) / scale;
        if (!(off < slack))
            fail_msg("%s: value %lld of %lld is %g, on the CPU %g", c->name, (long long)i, (long long)n,
                     (double)cuda[i], (double)cpu[i]);
    }
}

static void compare(const tiled *c)
{
    float *cuda, *cpu;
    int64_t n = values_of(c, TN_CPU, &cpu);
    assert_int_equal(values_of(c, TN_CUDA, &cuda), n);
    compare_values(c, n, cuda, cpu);
    free(cuda);
    free(cpu);
}

static void check_case(void **state)
{
    const tiled *c = *state;
    rig_open(NULL);
    tn_session *s = open_on(TN_CUDA, c);
    traced t = begin(s, c);
    seen v = look(s);
    expect(c, "forward", &v, c->forward);
    const tn_step *conv = convolution(&v);
    assert_non_null(conv);
    if (!strstr(conv->source.text, c->has)) fail_msg("%s: no %s in\n%s", c->name, c->has, conv->source.text);
    forget(&v);
    if (tn_flush(s)) fail_msg("%s: %s; %s", c->name, tn_error_text(s), sim.report());
    tn_tensor *grad[MOST], *loss = loss_of(&t);
    assert_int_equal(tn_flush(s), 0);
    if (tn_grad(loss, t.n_wrt, t.wrt, grad)) fail_msg("%s", tn_error_text(s));
    v = look(s);
    expect(c, "backward", &v, c->backward);
    forget(&v);
    tn_step_end(s);
    assert_int_equal(tn_close(s), 0);
    compare(c);
    assert_int_equal(counters().live, 0);
}

/* ---- random programs ---- */

static uint32_t random_state;

static int below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

/* Up to six operators behind a convolution, some of which it can take along and some not, and some that read
 * a value from further back. */
static void chance(traced *t)
{
    static const int channels[] = {2, 3, 4, 8};
    const int64_t c = channels[below(4)], oc = 8, side = 4 + below(4);
    const int k = below(2) ? 3 : 1;
    tn_tensor *x = input(t, 2, side, side, c), *w = input(t, oc, k, k, c);
    tn_tensor *y = tn_conv2d(x, w, below(2) ? input(t, oc) : NULL, .pad = k / 2, .stride = 1 + below(2));
    tn_tensor *kept = y;
    int norms = 0;
    for (int n = 1 + below(6); n > 0 && y; n--) {
        const int64_t h = tn_dim(y, 1);
        switch (below(12)) {
        case 0:
            y = tn_tanh(y);
            break;
        case 1:
            y = tn_mul(y, input_at(t, 1, oc));
            break;
        case 2:
            y = tn_add(y, input(t, 2, h, h, oc));
            break;
        case 3: /* one value a row, and then one a column */
            y = tn_mul(y, input_at(t, 1, 2, h, h, 1));
            break;
        case 4:
            y = tn_dropout(y, 0.25);
            break;
        case 5:
            if (!norms++ && tn_numel(y) > 2 * oc)
                y = tn_batch_norm(y, input_at(t, 1, oc), input(t, oc), t->mean, t->var);
            break;
        case 6:
            y = tn_add(y, tn_mean(y, TN_AXES(1, 2), true));
            break;
        case 7:
            y = tn_relu(tn_permute(y, 4, (const int[]){0, 2, 1, 3}));
            kept = y;
            break;
        case 8:
            if (tn_numel(kept) == tn_numel(y)) y = tn_add(y, tn_sigmoid(kept));
            break;
        case 9:
            y = tn_conv2d(tn_relu(y), input(t, oc, 1, 1, oc), NULL);
            kept = y;
            break;
        case 10:
            y = tn_slice(y, 3, 0, TN_END, 1);
            give(t, tn_sum(tn_square(y), TN_AXES(0, 1, 2), false));
            break;
        case 11:
            y = tn_sub(y, tn_mean(y, TN_AXES(0, 1, 2), true));
            break;
        }
        if (t->n_wrt > MOST - 3 || t->n_out > MOST - 2) break;
    }
    give(t, y);
}

static int random_programs = 8;

static void programs_by_chance(void **state)
{
    rig_open(state);
    for (int i = 0; i < random_programs; i++) {
        char name[32];
        snprintf(name, sizeof name, "seed %d", i);
        tiled c = {name, chance, 0, 0, TN_F32, below(4) == 0, "", 5e-4};
        const uint32_t seed = 77u * (uint32_t)i + 5;
        random_state = seed;
        float *cpu, *cuda;
        int64_t n = values_of(&c, TN_CPU, &cpu);
        random_state = seed;
        assert_int_equal(values_of(&c, TN_CUDA, &cuda), n);
        compare_values(&c, n, cuda, cpu);
        free(cuda);
        free(cpu);
    }
}

/* ---- what a kernel must not do, and what is said of it ---- */

static float pattern(int64_t i)
{
    return (float)((i * 37 + 11) % 101) / 101 - 0.5f;
}

static tn_tensor *filled(tn_session *s, const char *name, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = pattern(i);
    tn_tensor *x = tn_param(s, name, tn_from(s, v, TN_F32, ndim, shape));
    free(v);
    assert_non_null(x);
    return x;
}

enum { STATE = 2 * 5 * 6 * 8, WEIGHT = 8 * 3 * 3 * 8 };

/* The image is replaced by what is computed of it, and the weights are in the same step: all of it is read
 * before. */
static void overwrite(tn_device_kind device, float *image, float *weight)
{
    tn_session *s = tn_open(.device = device, .seed = 9, .threads = 1, .log = log_keep);
    tn_tensor *x = filled(s, "x", TN_SHAPE(2, 5, 6, 8)), *w = filled(s, "w", TN_SHAPE(8, 3, 3, 8));
    for (int i = 0; i < 3; i++) {
        tn_step_begin(s);
        tn_tensor *y = tn_tanh(tn_conv2d(x, w, NULL, .pad = 1));
        assert_int_equal(tn_assign(x, tn_add(y, x)), 0);
        assert_int_equal(tn_assign(w, tn_mul_scalar(w, 0.5)), 0);
        tn_step_end(s);
    }
    if (tn_read(x, TN_F32, image, STATE * sizeof *image) ||
        tn_read(w, TN_F32, weight, WEIGHT * sizeof *weight))
        fail_msg("%s; %s", tn_error_text(s), sim.report());
    assert_int_equal(tn_close(s), 0);
}

static void operands_are_read_before_they_are_overwritten(void **state)
{
    static float x[2][STATE], w[2][WEIGHT];
    rig_open(state);
    overwrite(TN_CPU, x[0], w[0]);
    overwrite(TN_CUDA, x[1], w[1]);
    for (int i = 0; i < STATE; i++) assert_true(fabsf(x[0][i] - x[1][i]) < 1e-5f);
    for (int i = 0; i < WEIGHT; i++) assert_true(w[0][i] == w[1][i]);
}

static void doubles_are_left_to_the_library(void **state)
{
    rig_open(state);
    tn_session *s = tn_open(.device = TN_CUDA, .seed = 9, .log = log_keep);
    tn_tensor *x = filled(s, "x", TN_SHAPE(2, 5, 6, 8)), *w = filled(s, "w", TN_SHAPE(8, 3, 3, 8));
    tn_step_begin(s);
    tn_tensor *y = tn_tanh(tn_conv2d(tn_cast(x, TN_F64), tn_cast(w, TN_F64), NULL, .pad = 1));
    assert_non_null(y);
    seen v = look(s);
    int conv = -1;
    for (int i = 0; i < v.plan->n_step; i++)
        if (v.plan->step[i].kind == TN_STEP_CONV) conv = i;
    assert_true(conv >= 0);
    assert_string_equal(v.plan->step[conv].name, "conv2d_im2col");
    bool said = false;
    for (int i = 0; i < v.plan->n_cut; i++) said |= v.plan->cut[i].reason == TN_CUT_LIBRARY;
    assert_true(said);
    forget(&v);
    tn_step_end(s);
    assert_int_equal(tn_error(s), 0);
    assert_int_equal(tn_close(s), 0);
}

/* conv - gelu - conv with a bias each: the first one's gradient is made as the second one's data gradient is,
 * and only then summed for the bias. */
static void two_layers(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 4), *w = input(t, 8, 3, 3, 4), *b = input(t, 8),
              *v = input(t, 8, 3, 3, 8);
    give(t, tn_conv2d(tn_gelu(tn_conv2d(x, w, b, .pad = 1)), v, NULL, .pad = 1));
}

static void gradients_of_activations_are_made_with_the_data_gradient(void **state)
{
    rig_open(state);
    const tiled c = {"two layers", two_layers, 2, 5, TN_F32, false, "tn_erf", 0};
    tn_session *s = open_on(TN_CUDA, &c);
    traced t = begin(s, &c);
    if (tn_flush(s)) fail_msg("%s; %s", tn_error_text(s), sim.report());
    tn_tensor *grad[MOST], *loss = loss_of(&t);
    assert_int_equal(tn_flush(s), 0);
    if (tn_grad(loss, t.n_wrt, t.wrt, grad)) fail_msg("%s", tn_error_text(s));
    seen v = look(s);
    expect(&c, "backward", &v, c.backward + 1);
    bool joined = false;
    for (int i = 0; i < v.plan->n_step; i++)
        joined |= !strncmp(v.plan->step[i].name, "conv2d_data_grad", 16) &&
                  strstr(v.plan->step[i].source.text, "tn_erf") != NULL;
    if (!joined) {
        print_plan(&v);
        fail_msg("the gradient of gelu is not in the data gradient's kernel");
    }
    forget(&v);
    tn_step_end(s);
    assert_int_equal(tn_close(s), 0);
    compare(&c);
}

/* One product with operands rounded to TF32, or the three that make up for the rounding. */
static void the_session_says_how_precise(void **state)
{
    rig_open(state);
    for (int i = 0; i < 2; i++) {
        tn_session *s = tn_open(.device = TN_CUDA, .log = log_keep,
                                .precision = i ? TN_PRECISION_TF32 : TN_PRECISION_F32);
        float fine[4 * 8], one[8 * 8], y[4 * 8];
        for (int k = 0; k < 32; k++) fine[k] = 1 + 0x1p-12f; /* more digits than TF32 has */
        for (int k = 0; k < 64; k++) one[k] = k % 9 == 0;
        tn_step_begin(s);
        tn_tensor *x = tn_from(s, fine, TN_F32, TN_SHAPE(1, 2, 2, 8)),
                  *w = tn_from(s, one, TN_F32, TN_SHAPE(8, 1, 1, 8));
        tn_tensor *out = tn_relu(tn_conv2d(x, w, NULL));
        seen v = look(s);
        const tn_step *conv = convolution(&v);
        assert_non_null(conv);
        assert_non_null(strstr(conv->source.text, i ? "#define PRODUCTS 1" : "#define PRODUCTS 3"));
        forget(&v);
        if (tn_read(out, TN_F32, y, sizeof y)) fail_msg("%s; %s", tn_error_text(s), sim.report());
        for (int k = 0; k < 32; k++) assert_true(i ? y[k] == 1 : fabsf(y[k] - fine[k]) < 1e-6f);
        tn_step_end(s);
        assert_int_equal(tn_close(s), 0);
    }
}

static void the_plan_says_what_a_convolution_took_along(void **state)
{
    rig_open(state);
    tn_session *s = tn_open(.device = TN_CUDA, .seed = 9, .log = log_keep);
    tn_tensor *x = filled(s, "x", TN_SHAPE(2, 6, 6, 8)), *w = filled(s, "w", TN_SHAPE(16, 3, 3, 8));
    tn_step_begin(s);
    tn_tensor *y = tn_max_pool2d(tn_gelu(tn_conv2d(x, w, NULL, .pad = 1)), 2, .stride = 2);
    tn_backward(tn_sum(y, TN_ALL, false));
    tn_step_end(s);
    const char *text = tn_plan_text(s);
    if (!strstr(text, "conv2d_gelu_16") || !strstr(text, "conv2d + gelu")) fail_msg("%s", text);
    char *explained = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&explained, &n);
    assert_non_null(f);
    tn_explain(s, f);
    fclose(f);
    if (!strstr(explained, "a convolution's kernel takes along only")) fail_msg("%s", explained);
    free(explained);
    assert_int_equal(tn_close(s), 0);
}

int main(int argc, char **argv)
{
    setenv("TENSOR_PROFILE", "reference", 1);
    const struct CMUnitTest others[] = {
        cmocka_unit_test(operands_are_read_before_they_are_overwritten),
        cmocka_unit_test(programs_by_chance),
        cmocka_unit_test(doubles_are_left_to_the_library),
        cmocka_unit_test(gradients_of_activations_are_made_with_the_data_gradient),
        cmocka_unit_test(the_session_says_how_precise),
        cmocka_unit_test(the_plan_says_what_a_convolution_took_along),
    };
    enum { OTHERS = sizeof others / sizeof *others };
    struct CMUnitTest tests[N_CASES + OTHERS];
    memcpy(tests + N_CASES, others, sizeof others);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) random_programs = atoi(argv[2]);
    for (int i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){Cases[i].name, check_case, NULL, NULL, (void *)(uintptr_t)&Cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
