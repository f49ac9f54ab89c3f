/* test_cuda_scatter.c - gradients of embeddings, and other sums by index, on the simulated GPU: where the
 * index is long its places are sorted first (fuser/text/scatter_cuda.c). Sums are of small whole numbers, so
 * that they are exact in whatever order; in which order they are made shows in sums that are not.
 *
 * Read first: sums_of. */
#include "cuda_rig.h"

#include "src/runtime/session.h"

static tn_session *Cpu;

/* How the lines are named. */
typedef enum habit { EVENLY, ONE_LINE, MOST_ONE, IN_ORDER, BACKWARDS, IN_TURN, FEW, HABITS } habit;

static int64_t line_of(rng *r, habit h, int64_t i, int64_t n, int64_t lines)
{
    switch (h) {
    case EVENLY: return rng_below(r, lines);
    case ONE_LINE: return lines - 1;
    case MOST_ONE: return rng_below(r, 3) ? lines / 2 : rng_below(r, lines);
    case IN_ORDER: return i * lines / n;
    case BACKWARDS: return lines - 1 - i * lines / n;
    case IN_TURN: return i % lines;
    case FEW: return rng_below(r, 3) * (lines - 1) / 2;
    case HABITS: break;
    }
    return 0;
}

typedef struct problem {
    tn_dtype dtype, index;
    int64_t outer, n, inner, lines;
    habit habit;
    bool apart;   /* index and source are every second of something longer */
    bool scatter; /* as tn_scatter_add, of an index that is the same for all of a line */
    bool whole;
} problem;

static int64_t *index_of(const problem *p, uint64_t seed)
{
    rng r = {seed};
    int64_t *index = malloc((size_t)p->n * sizeof *index);
    assert_non_null(index);
    for (int64_t i = 0; i < p->n; i++) index[i] = line_of(&r, p->habit, i, p->n, p->lines);
    return index;
}

static double *source_of(const problem *p, uint64_t seed)
{
    rng r = {seed + 1};
    const int64_t n = p->outer * p->n * p->inner;
    double *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = p->whole ? (double)rng_below(&r, 7) - 3 : rng_real(&r, -1, 1);
    return x;
}

/* A tensor of d with these values; `apart` along the axis: every second line of one that has twice as many.
 */
static tn_tensor *given(tn_session *s, tn_dtype d, const double *x, const int64_t shape[3], bool apart)
{
    tn_tensor *t = tn_cast(tn_from(s, x, TN_F64, 3, shape), d);
    if (!apart) return tn_keep(t);
    const int64_t twice[4] = {shape[0], shape[1], 1, shape[2]};
    t = tn_reshape(t, 4, twice);
    t = tn_concat(2, (tn_tensor *[]){t, tn_mul_scalar(t, tn_number_i(5))}, 2);
    t = tn_keep(tn_reshape(t, 3, ((int64_t[]){shape[0], 2 * shape[1], shape[2]})));
    return tn_slice(t, 1, 0, 2 * shape[1], 2);
}

/* The sums that a session makes, [outer, lines, inner]; *launches: of what the GPU ran for them. */
static double *sums_of(tn_session *s, const problem *p, uint64_t seed, uint64_t *launches)
{
    const int64_t shape[3] = {p->outer, p->n, p->inner}, to[3] = {p->outer, p->lines, p->inner},
                  line[3] = {1, p->n, 1};
    const size_t n = (size_t)(p->outer * p->lines * p->inner);
    int64_t *index = index_of(p, seed);
    double *wide = malloc((size_t)p->n * sizeof *wide), *x = source_of(p, seed),
           *out = malloc((n + 1) * sizeof *out);
    assert_true(wide && out);
    for (int64_t i = 0; i < p->n; i++) wide[i] = (double)index[i];
    tn_step_begin(s);
    tn_tensor *src = given(s, p->dtype, x, shape, p->apart), *at = given(s, p->index, wide, line, p->apart);
    tn_flush(s);
    const uint64_t before = s->device && launches ? (tn_synchronize(s), counters().launches) : 0;
    tn_tensor *sum;
    if (p->scatter) {
        sum = tn_scatter_add(tn_zeros(s, p->dtype, 3, to), 1, tn_expand(at, 3, shape), src);
    } else {
        tn_tensor *table = tn_keep(tn_zeros(s, TN_F32, 3, to)), *g = NULL;
        if (p->dtype != TN_F32) table = tn_keep(tn_cast(table, p->dtype));
        tn_requires_grad(table, true);
        tn_tensor *read = tn_index_select(table, 1, tn_reshape(at, 1, &p->n));
        tn_grad(tn_sum(tn_mul(read, src), TN_ALL, false), 1, &table, &g);
        sum = g;
    }
    tn_read(sum, TN_F64, out, n * sizeof *out);
    if (launches) *launches = counters().launches - before;
    tn_step_end(s);
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
    free(wide);
    free(index);
    free(x);
    return out;
}

static tn_session *open_gpu(void)
{
    tn_session *s = tn_open(.device = TN_CUDA, .log = log_keep, .seed = 5);
    assert_non_null(s);
    return s;
}

static void name_problem(const problem *p, char *out, size_t n)
{
    snprintf(out, n, "%s by %s, %d x %d x %d to %d, habit %d%s%s", tn_dtype_name(p->dtype),
             tn_dtype_name(p->index), (int)p->outer, (int)p->n, (int)p->inner, (int)p->lines, (int)p->habit,
             p->apart ? ", apart" : "", p->scatter ? ", scatter_add" : "");
}

static void same_sums(tn_session *gpu, const problem *p, uint64_t seed)
{
    char name[200];
    double *want = sums_of(Cpu, p, seed, NULL), *got = sums_of(gpu, p, seed, NULL);
    name_problem(p, name, sizeof name);
    for (int64_t i = 0; i < p->outer * p->lines * p->inner; i++)
        if (want[i] != got[i])
            fail_msg("%s, seed %d: [%d] is %g, not %g", name, (int)seed, (int)i, got[i], want[i]);
    free(want);
    free(got);
}

/* The CPU's kernel adds up in the index's order; sums of whole numbers are exact in any. */
CUDA_TEST_ON(test_sums_are_the_cpus, open_gpu())
{
    static const problem all[] = {
        {TN_F32, TN_I32, 1, 512, 1, 1, ONE_LINE, .whole = true},
        {TN_F32, TN_I64, 1, 513, 3, 256, EVENLY, .whole = true},
        {TN_F32, TN_I64, 1, 700, 8, 257, BACKWARDS, .whole = true},
        {TN_F32, TN_I32, 2, 1025, 6, 65, MOST_ONE, .whole = true},
        {TN_F64, TN_I32, 3, 600, 5, 70000, EVENLY, .whole = true},
        {TN_F16, TN_I64, 1, 1200, 4, 300, IN_TURN, .whole = true},
        {TN_BF16, TN_I32, 1, 640, 12, 9, FEW, .apart = true, .whole = true},
        {TN_F32, TN_I64, 1, 2048, 20, 31, ONE_LINE, .apart = true, .whole = true},
        {TN_F32, TN_I64, 2, 530, 4, 40, EVENLY, .scatter = true, .whole = true},
        {TN_I32, TN_I64, 1, 900, 4, 17, MOST_ONE, .scatter = true, .whole = true},
        {TN_U8, TN_I32, 1, 777, 2, 600, FEW, .scatter = true, .whole = true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) same_sums(s, &all[i], i);
    rng r = {2026};
    for (int i = 0; i < 12; i++) {
        static const tn_dtype dtype[] = {TN_F32, TN_F16, TN_BF16, TN_F64};
        static const int64_t lines[] = {2, 33, 256, 1000, 65537};
        same_sums(s,
                  &(problem){.dtype = dtype[rng_below(&r, 4)],
                             .index = rng_below(&r, 2) ? TN_I32 : TN_I64,
                             .outer = 1 + rng_below(&r, 2),
                             .n = 512 + rng_below(&r, 1500),
                             .inner = 1 + rng_below(&r, 9),
                             .lines = lines[rng_below(&r, 5)],
                             .habit = (habit)rng_below(&r, HABITS),
                             .apart = rng_below(&r, 4) == 0,
                             .whole = true},
                  (uint64_t)i + 100);
    }
}

/* However blocks and threads take turns. */
CUDA_TEST(test_bits_are_the_same_each_time)
{
    const problem p = {TN_F32, TN_I64, 1, 5000, 8, 40, MOST_ONE, .apart = false};
    const size_t bytes = (size_t)(p.lines * p.inner) * sizeof(double);
    double *first = NULL;
    for (int i = 0; i < 3; i++) {
        sim.set("seed", 17 + i);
        tn_session *s = open_gpu();
        double *sum = sums_of(s, &p, 3, NULL);
        if (!first)
            first = sum;
        else
            assert_memory_equal(sum, first, bytes);
        assert_int_equal(tn_close(s), TN_OK);
        if (i) free(sum);
    }
    double *want = sums_of(Cpu, &p, 3, NULL); /* 3,300 of a line: a chunk's sums, and then theirs */
    for (int64_t i = 0; i < p.lines * p.inner; i++) assert_true(fabs(first[i] - want[i]) < 1e-4);
    free(want);
    free(first);
}

/* A pass of 8 bits of the line is two launches, and so is adding up; one adds the sums to the target. */
CUDA_TEST(test_long_indices_alone_are_sorted)
{
    static const struct {
        int64_t n, lines;
        uint64_t launches;
    } row[] = {{511, 70, 2}, {512, 70, 5}, {512, 256, 5}, {512, 257, 7}, {600, 65536, 7}, {600, 65537, 9}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint64_t launches = 0;
        tn_session *s = open_gpu();
        free(sums_of(s,
                     &(problem){.dtype = TN_F32,
                                .index = TN_I32,
                                .outer = 1,
                                .n = row[i].n,
                                .inner = 4,
                                .lines = row[i].lines,
                                .scatter = true},
                     i, &launches));
        assert_int_equal(launches, row[i].launches);
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* Where an image is read follows from its size alone. */
CUDA_TEST_ON(test_resized_images_are_not_sorted, open_gpu())
{
    tn_tensor *x = tn_keep(tn_ones(s, TN_F32, TN_SHAPE(1, 500, 2, 1))), *g;
    tn_requires_grad(x, true);
    tn_step_begin(s);
    tn_grad(tn_sum(tn_square(tn_resize_bilinear(x, 700, 3, false)), TN_ALL, false), 1, &x, &g);
    tn_step_end(s);
    assert_int_equal(tn_error(s), TN_OK);
    const char *plan = tn_plan_text(s);
    assert_non_null(strstr(plan, "index_add"));
    assert_null(strstr(plan, "sort"));
}

CUDA_TEST_ON(test_a_bad_index_is_told, open_gpu())
{
    static const int64_t bad[] = {-1, 300, INT64_MAX};
    for (int i = 0; i < 6; i++) {
        int64_t index[600];
        const int64_t n = 600, lines = 300;
        for (int k = 0; k < n; k++) index[k] = k % lines;
        index[i % 2 ? 599 : 13] = bad[i / 2];
        tn_step_begin(s);
        tn_tensor *sum =
            tn_scatter_add(tn_zeros(s, TN_F32, TN_SHAPE(300, 4)), 0,
                           tn_expand(tn_from(s, index, TN_I64, TN_SHAPE(600, 1)), TN_SHAPE(600, 4)),
                           tn_ones(s, TN_F32, TN_SHAPE(600, 4)));
        tn_keep(sum);
        tn_flush(s);
        assert_int_equal(tn_synchronize(s), TN_E_INDEX);
        assert_non_null(strstr(tn_error_text(s), i / 2 ? (i / 2 > 1 ? "9223372036854775807" : "300") : "-1"));
        tn_clear_error(s);
        tn_step_end(s);
        tn_clear_error(s);
    }
}

static int open_cpu(void **state)
{
    const int r = rig_open(state);
    Cpu = tn_open(.device = TN_CPU, .log = log_keep, .seed = 5);
    return r || !Cpu;
}

static int close_cpu(void **state)
{
    (void)state;
    return tn_close(Cpu);
}

RUN_TESTS(open_cpu, close_cpu)
