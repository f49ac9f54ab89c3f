/* test_half.c - random cases of f16 and bf16 against the exact answer: no sum, square or statistic is rounded
 * to 16 bits, whichever way a program is run.
 *
 *     test_half [--cases N] [--seed S] [--small] [--one S] [--write FILE]
 *
 * A case is an operator that adds something up, with operands of 16 bits of a hard kind: far from zero, all
 * equal, tiny, huge, with an outlier, in rows short and long. The reference computes it in f64 from the same
 * operands, and so it does what each road must come to within two roundings of the type:
 *
 *     |got - want| <= 2 u |want| + a step of the smallest numbers + what rounding in f32 makes of it
 *
 * u is half a unit in the last place of the type. The last summand is found by running the reference with f32
 * operands and noise as large as f32's rounding; it is what a result can lose whose rows cancel. A few runs
 * of noise may all happen to move a value less than rounding does: what is wrong by them is judged again by
 * many. Softmax's gradient is made of its result, which is rounded: its share is two roundings of what is
 * subtracted there.
 *
 * Roads: fused, eager, and eager without a compiler; on the device of TENSOR_DEVICE. `--one` says of one case
 * what it is, `--small` draws sizes for a simulated GPU, `--write` is for long/half_torch.py, which compares
 * the same cases with PyTorch. Start with check_case. */
#include "half_cases.h"

enum { MAX_RESULT = 8, FEW = 4, MANY = 20 };

static int n_cases = 60;
static uint64_t first_seed = 1, only_seed;
static bool small;
static FILE *written;

/* ---- a case in a session ---- */

typedef struct outcome {
    int n;
    value out[MAX_RESULT]; /* the result, and the gradient of each operand */
    value scale;           /* softmax: what its gradient subtracts */
} outcome;

static void outcome_free(outcome *o)
{
    for (int i = 0; i < o->n; i++) free(o->out[i].v);
    free(o->scale.v);
}

/* What the n elements of the result are weighted with, so that its gradient is a number of the type. */
static double *weights_of(const half_case *c, int64_t n)
{
    rng r = {c->seed ^ 0x77};
    double *g = malloc((size_t)n * sizeof *g + 1);
    assert_non_null(g);
    for (int64_t i = 0; i < n; i++) { /* of either type: not below f16's normal numbers */
        double v = as(TN_BF16, rng_below(&r, 8) ? normal(&r) : 1);
        g[i] = fabs(v) < 0x1p-14 ? 0x1p-14 : v;
    }
    if (c->variant >= 8) /* all ones: what a mean over rows sends back */
        for (int64_t i = 0; i < n; i++) g[i] = 1;
    return g;
}

static tn_tensor *weights_like(tn_session *s, const half_case *c, tn_tensor *y)
{
    int64_t shape[TN_MAX_DIMS];
    double *g = weights_of(c, tn_numel(y));
    for (int i = 0; i < tn_ndim(y); i++) shape[i] = tn_dim(y, i);
    tn_tensor *t = tensor_of(s, g, TN_F32, tn_ndim(y), shape);
    free(g);
    return t;
}

/* As: the dtype in place of 16 bits, or TN_DTYPE_COUNT. */
static void run_in(tn_session *s, const half_case *c, tn_dtype instead, outcome *o)
{
    tn_tensor *x[MAX_IN + 1] = {NULL};
    *o = (outcome){0};
    tn_step_begin(s);
    for (int i = 0; i < c->op->n_in; i++) {
        tn_dtype d = c->op->shape == ROWS && i ? c->weights : c->d;
        x[i] = tensor_of(s, c->v[i], instead < TN_DTYPE_COUNT ? instead : d, c->ndim[i], c->shape[i]);
        tn_requires_grad(x[i], true);
    }
    tn_tensor *y = c->op->f(x, c);
    if (y && instead == TN_DTYPE_COUNT && c->op->f != f_broadcast && tn_dtype_of(y) != c->d)
        fail_msg("%s of %s is %s", c->op->name, tn_dtype_name(c->d), tn_dtype_name(tn_dtype_of(y)));
    tn_tensor *g = y ? weights_like(s, c, y) : NULL;
    tn_backward(tn_sum(tn_mul(tn_cast(y, TN_F32), g), TN_ALL, false));
    if (y) read_value(y, &o->out[o->n++]);
    for (int i = 0; i < c->op->n_in && !tn_error(s); i++) {
        tn_tensor *dx = tn_gradient(x[i]);
        if (!dx) fail_msg("%s: no gradient of operand %d: %s", c->op->name, i, tn_error_text(s));
        if (tn_dtype_of(dx) != tn_dtype_of(x[i]))
            fail_msg("%s: gradient %d has another dtype", c->op->name, i);
        read_value(dx, &o->out[o->n++]);
    }
    if (c->op->f == f_softmax && instead == TN_F32) {
        tn_tensor *a = tn_abs(g), *rounded = tn_maximum_scalar(y, c->d == TN_F16 ? 0x1p-14 : 0x1p-126);
        read_value(tn_mul(rounded, tn_add(a, tn_sum(tn_mul(a, y), TN_AXES(-1), true))), &o->scale);
    }
    tn_step_end(s);
    if (tn_error(s))
        fail_msg("%s, seed %llu: %s", c->op->name, (unsigned long long)c->seed, tn_error_text(s));
}

/* ---- comparison ---- */

typedef struct roads {
    tn_session *ref;
    int n;
    tn_session *s[3];
    const char *name[3];
} roads;

static struct {
    int64_t elements, loose;
    double worst;
    int failed, op[N_OPS], kind[N_KINDS];
} tally;

static double half_ulp(tn_dtype d) { return d == TN_F16 ? 0x1p-11 : d == TN_BF16 ? 0x1p-8 : 0x1p-24; }

static void describe(const half_case *c, char *out, size_t n)
{
    char shape[64];
    tn_shape_text(shape, sizeof shape, c->ndim[0], c->shape[0]);
    snprintf(out, n, "seed %llu: %s of %s %s (%s), variant %d, weights %s", (unsigned long long)c->seed,
             c->op->name, tn_dtype_name(c->d), shape, kinds[c->kind], c->variant, tn_dtype_name(c->weights));
}

typedef struct answer {
    outcome want, noisy[MANY];
    int n; /* of noisy, so far */
} answer;

/* How far element i of output k may be from what is wanted, in dtype d. */
static double allowed_at(const answer *a, int k, int64_t i, tn_dtype d)
{
    double v = a->want.out[k].v[i], u = half_ulp(d), spread = 0;
    for (int j = 0; j < a->n; j++) spread = fmax(spread, fabs(a->noisy[j].out[k].v[i] - v));
    double bound = 2 * u * fabs(v) + (d == TN_F16 ? 0x1p-24 : 0x1p-132) + 8 * spread;
    return a->want.scale.n && k == 1 ? bound + 2 * u * a->want.scale.v[i] : bound;
}

/* The first element that is wrong, or -1. */
static int64_t wrong_element(const half_case *c, const answer *a, const value *got, int k, double *allowed)
{
    const value *w = &a->want.out[k];
    const tn_dtype d = got->dtype;
    int64_t first = -1;
    if (got->n != w->n) fail_msg("%s: output %d has another shape", c->op->name, k);
    for (int64_t i = 0; i < w->n; i++) {
        double v = w->v[i], bound = allowed_at(a, k, i, d);
        tally.elements++;
        if (!isfinite(v) || !isfinite(bound)) continue; /* not finite in f32, either */
        if (bound > 0.1 * fabs(v) && bound > 100 * half_ulp(d)) tally.loose++;
        if (fabs(v) + bound > largest(d) && (isinf(got->v[i]) ? (got->v[i] > 0) == (v > 0) : true) &&
            !isnan(got->v[i]))
            continue;
        double error = fabs(got->v[i] - v);
        if (error <= bound) {
            if (bound > 0) tally.worst = fmax(tally.worst, error / bound);
            continue;
        }
        if (first < 0) {
            first = i;
            *allowed = bound;
        }
    }
    return first;
}

static bool roads_agree(const roads *r, const half_case *c, const answer *a, const outcome *got, bool say)
{
    char text[300];
    for (int i = 0; i < r->n; i++) {
        for (int k = 0; k < a->want.n; k++) {
            double allowed = 0;
            int64_t at = wrong_element(c, a, &got[i].out[k], k, &allowed);
            if (at < 0) continue;
            if (!say) return false;
            describe(c, text, sizeof text);
            print_error("%s\n    %s, output %d [%lld]: %.9g, expected %.9g, %.3g allowed\n", text, r->name[i],
                        k, (long long)at, got[i].out[k].v[at], a->want.out[k].v[at], allowed);
            return false;
        }
    }
    return true;
}

/* A line of JSON, then doubles: operands, labels, weights; of each output what is wanted and allowed; and
 * what each road came to. */
static void write_case(const roads *r, const half_case *c, const answer *a, const outcome *got)
{
    const int64_t n_labels = c->label ? c->rows : 0;
    fprintf(written,
            "{\"op\": \"%s\", \"seed\": %llu, \"dtype\": \"%s\", \"weights\": \"%s\", \"kind\": \"%s\", "
            "\"variant\": %d, \"groups\": %d, \"labels\": %d, \"roads\": %d, \"shapes\": [",
            c->op->name, (unsigned long long)c->seed, tn_dtype_name(c->d), tn_dtype_name(c->weights),
            kinds[c->kind], c->variant, (int)c->groups, (int)n_labels, r->n);
    for (int i = 0; i < c->op->n_in; i++)
        for (int k = 0; k < c->ndim[i]; k++)
            fprintf(written, "%s%d%s",
                    k   ? ", "
                    : i ? ", ["
                        : "[",
                    (int)c->shape[i][k], k + 1 < c->ndim[i] ? "" : "]");
    fprintf(written, "], \"outputs\": [");
    for (int k = 0; k < a->want.n; k++) fprintf(written, "%s%d", k ? ", " : "", (int)a->want.out[k].n);
    fprintf(written, "]}\n");
    for (int i = 0; i < c->op->n_in; i++) fwrite(c->v[i], sizeof(double), (size_t)c->numel[i], written);
    for (int64_t i = 0; i < n_labels; i++) fwrite(&(double){(double)c->label[i]}, sizeof(double), 1, written);
    double *g = weights_of(c, a->want.out[0].n);
    fwrite(g, sizeof *g, (size_t)a->want.out[0].n, written);
    free(g);
    for (int k = 0; k < a->want.n; k++) {
        const value *w = &a->want.out[k];
        fwrite(w->v, sizeof(double), (size_t)w->n, written);
        for (int64_t i = 0; i < w->n; i++)
            fwrite(&(double){allowed_at(a, k, i, got[0].out[k].dtype)}, sizeof(double), 1, written);
        for (int i = 0; i < r->n; i++) fwrite(got[i].out[k].v, sizeof(double), (size_t)w->n, written);
    }
}

static bool check_case(const roads *r, const half_case *c)
{
    answer a = {.n = 0};
    outcome got[3];
    bool ok = false;
    tn_ref_set_noise(r->ref->device, 0, 0);
    run_in(r->ref, c, TN_F32, &a.want);
    for (int i = 0; i < r->n; i++) run_in(r->s[i], c, TN_DTYPE_COUNT, &got[i]);
    for (int enough = FEW; !ok && a.n < MANY; enough = MANY) {
        for (; a.n < enough; a.n++) {
            tn_ref_set_noise(r->ref->device, 2, noise_seed(a.n));
            run_in(r->ref, c, TN_F32, &a.noisy[a.n]);
        }
        ok = roads_agree(r, c, &a, got, a.n == MANY);
    }
    if (written) write_case(r, c, &a, got);
    for (int i = 0; i < r->n; i++) outcome_free(&got[i]);
    outcome_free(&a.want);
    for (int j = 0; j < a.n; j++) outcome_free(&a.noisy[j]);
    return ok;
}

static tn_session *open_road(tn_device_kind device, tn_mode mode)
{
    tn_session *s = tn_open(.device = device, .mode = mode, .seed = 77, .log = quiet);
    assert_non_null(s);
    return s;
}

static void open_roads(roads *r)
{
    *r =
        (roads){.ref = open_road(TN_REF, TN_EAGER), .n = 2, .name = {"fused", "eager", "without a compiler"}};
    r->s[0] = open_road(subject_device(), TN_FUSED);
    r->s[1] = open_road(subject_device(), TN_EAGER);
    if (subject_device() == TN_CUDA) return;
    char *cc = getenv("TENSOR_CC") ? strdup(getenv("TENSOR_CC")) : NULL;
    setenv("TENSOR_CC", "none", 1);
    r->s[r->n++] = open_road(TN_CPU, TN_EAGER);
    if (cc)
        setenv("TENSOR_CC", cc, 1);
    else
        unsetenv("TENSOR_CC");
    free(cc);
}

static void close_roads(roads *r)
{
    tn_clear_error(r->ref);
    assert_int_equal(tn_close(r->ref), 0);
    for (int i = 0; i < r->n; i++) {
        tn_clear_error(r->s[i]);
        assert_int_equal(tn_close(r->s[i]), 0);
    }
    ahead_close();
}

/* The kernels of many cases are compiled together. */
static void note_kernels_of(const half_case *c)
{
    if (!Ahead.s[0]) ahead_open(subject_device());
    for (int i = 0; i < 2; i++) {
        outcome o;
        run_in(Ahead.s[i], c, TN_DTYPE_COUNT, &o);
        outcome_free(&o);
    }
}

TEST(sums_and_statistics_are_exact)
{
    enum { BATCH = 40 };
    roads r;
    open_roads(&r);
    int failed = 0;
    for (int done = 0; done < n_cases; done += BATCH) {
        half_case c[BATCH];
        int n = n_cases - done < BATCH ? n_cases - done : BATCH;
        for (int k = 0; k < n; k++) {
            draw_case(&c[k], first_seed + (uint64_t)(done + k), small);
            tally.op[c[k].op - ops]++;
            tally.kind[c[k].kind]++;
            note_kernels_of(&c[k]);
        }
        ahead_compile();
        for (int k = 0; k < n; k++) {
            failed += !check_case(&r, &c[k]);
            free_case(&c[k]);
        }
    }
    close_roads(&r);
    printf("%d cases on %d roads, %d wrong; %lld elements, %.3f %% judged loosely, worst %.2f of what is "
           "allowed\n",
           n_cases, r.n, failed, (long long)tally.elements,
           100.0 * (double)tally.loose / (double)tally.elements, tally.worst);
    for (int i = 0; n_cases >= 50 * N_OPS && i < N_OPS; i++)
        if (tally.op[i] < n_cases / N_OPS / 2) fail_msg("too few cases of %s", ops[i].name);
    assert_int_equal(failed, 0);
}

static void one(void **state)
{
    (void)state;
    roads r;
    half_case c;
    char text[300];
    open_roads(&r);
    draw_case(&c, only_seed, small);
    describe(&c, text, sizeof text);
    puts(text);
    bool ok = check_case(&r, &c);
    free_case(&c);
    close_roads(&r);
    assert_true(ok);
}

int main(int argc, char **argv)
{
    OPTION(n_cases, "cases");
    OPTION(first_seed, "seed");
    OPTION(only_seed, "one");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--small")) small = true;
        if (!strcmp(argv[i], "--write") && i + 1 < argc) written = fopen(argv[i + 1], "wb");
    }
    if (only_seed) only_test("one", one);
    int failed = run_all_tests(NULL, NULL);
    if (written) failed += fclose(written);
    return failed;
}
