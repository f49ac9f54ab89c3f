/* test_fusion_rows.c - what the kernel of long rows does between and beside its passes: which values it keeps
 * from one to the next, and for which lines of the next row it asks early.
 *
 * Rows here are 4 KiB, so that four of them fill half of a small first-level cache. */
#include "fusion_rig.h"

enum { LONG_ROWS = 1024, WIDTH = 1024 };

typedef tn_tensor *row_fn(traced *t, tn_tensor *x);

typedef struct row_case {
    const char *name;
    row_fn *fn;
    bool step;        /* the whole of it, or forward alone */
    int kept;         /* rows kept on the stack */
    int near, second; /* arrays whose next row is asked for, in the first-level cache or in the second */
} row_case;

static tn_tensor *line(traced *t, tn_tensor *x)
{
    (void)x;
    return input(t, WIDTH);
}

static tn_tensor *softmax(traced *t, tn_tensor *x)
{
    (void)t;
    return tn_softmax(x, 1);
}

static tn_tensor *normed(traced *t, tn_tensor *x)
{
    tn_tensor *w = line(t, x), *b = line(t, x);
    return tn_layer_norm(x, w, b);
}

static tn_tensor *scaled(traced *t, tn_tensor *x) { return tn_rms_norm(x, line(t, x)); }

static tn_tensor *scaled_silu(traced *t, tn_tensor *x) { return tn_silu(scaled(t, x)); }

static tn_tensor *residual(traced *t, tn_tensor *x)
{
    tn_tensor *y = input(t, LONG_ROWS, WIDTH);
    return normed(t, tn_add(x, y));
}

static tn_tensor *residual_dropout(traced *t, tn_tensor *x)
{
    tn_tensor *y = input(t, LONG_ROWS, WIDTH);
    return normed(t, tn_add(x, tn_dropout(y, 0.1)));
}

/* Kernels begin with what they are made of, in a comment; the longest text is the rows'. */
static const char *longest_text(const seen *v)
{
    const char *text = NULL;
    for (int i = 0; i < v->plan->n_step; i++) {
        const char *s = v->plan->step[i].source.text;
        if (s && (!text || strlen(s) > strlen(text))) text = s;
    }
    assert_non_null(text);
    return text;
}

/* How many different arrays the text asks for, with this end of the call. */
static int asked_for(const char *text, bool second)
{
    char seen_name[8][24];
    int n = 0;
    for (const char *p = text; (p = strstr(p, "__builtin_prefetch("));) {
        char name[24] = "";
        p += strlen("__builtin_prefetch(");
        sscanf(p, "%23[a-z0-9]", name);
        const char *end = strchr(p, ';');
        assert_non_null(end);
        bool known = !strncmp(end - 7, ", 0, 2)", 7) != second;
        for (int i = 0; i < n && !known; i++) known = !strcmp(seen_name[i], name);
        if (known) continue;
        assert_true(n < 8);
        memcpy(seen_name[n++], name, sizeof name);
    }
    return n;
}

/* One line of classes for each row; its loss is a sum over all. */
static tn_tensor *classes(traced *t, tn_tensor *x)
{
    return tn_cross_entropy(x, indices(t, LONG_ROWS, WIDTH));
}

TEST(rows_keep_and_ask_for)
{
    static const row_case all[] = {
        {"softmax", softmax, false, 1, 1, 0},
        {"softmax", softmax, true, 1, 0, 1},
        {"layer_norm", normed, false, 0, 1, 0},
        {"layer_norm", normed, true, 0, 0, 2},
        {"rms_norm", scaled, false, 0, 1, 0},
        {"rms_norm", scaled, true, 0, 0, 1}, /* its gradient is first read when little else is done */
        {"silu of rms_norm", scaled_silu, false, 0, 1, 0},
        {"silu of rms_norm", scaled_silu, true, 1, 0, 2},
        {"residual", residual, false, 0, 0, 2},
        {"residual", residual, true, 0, 0, 3},
        {"residual with dropout", residual_dropout, true, 1, 0, 3},
        {"cross_entropy", classes, false, 0, 1, 0},
        {"cross_entropy", classes, true, 1, 1, 0},
    };
    TN_EACH(c, all, sizeof all / sizeof *all) {
        tn_session *s = open_mode(TN_FUSED);
        s->target.last_bytes = 1; /* results go past the caches */
        traced t = {.s = s, .gradients = c->step};
        tn_step_begin(s);
        tn_tensor *x = input(&t, LONG_ROWS, WIDTH), *out = c->fn(&t, x), *grad[MAX_CASE_IN];
        t.gradients = false;
        tn_tensor *g = c->step ? input(&t, LONG_ROWS, WIDTH) : NULL;
        tn_tensor *loss = c->step && tn_ndim(out) ? tn_sum(tn_mul(out, g), TN_ALL, false) : out;
        if (c->step) assert_int_equal(tn_grad(loss, t.n_wrt, t.wrt, grad), 0);
        seen v = look(s);
        const char *text = longest_text(&v);
        int kept = count_text(text, "_row[1024];"), near = asked_for(text, false),
            second = asked_for(text, true);
        if (kept != c->kept || near != c->near || second != c->second)
            fail_msg("%s, %s: %d rows kept, %d and %d asked for, expected %d, %d and %d, in\n%s", c->name,
                     c->step ? "whole step" : "forward", kept, near, second, c->kept, c->near, c->second,
                     text);
        forget(&v);
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(tn_close(s), 0);
    }
}

/* Softmax of one row in f64. */
static void softmax_of(const float *x, double *y, int n)
{
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) top = (double)x[i] > top || isnan(x[i]) ? (double)x[i] : top;
    for (int i = 0; i < n; i++) sum += y[i] = exp((double)x[i] - top);
    for (int i = 0; i < n; i++) y[i] /= sum;
}

/* Each row goes by its own spread to the short form of exp or to the whole one: what is masked, infinite, no
 * number, or far below its row's largest must not go the short way, and its neighbours may. */
TEST(each_row_finds_its_form_of_exp)
{
    enum { N = 9, W = 512 };
    static float x[N * W], got[N * W];
    for (int i = 0; i < N * W; i++) x[i] = (float)(i * 37 % 101) * 0.5f - 20;
    x[1 * W + 7] = -INFINITY;
    x[2 * W + 500] = INFINITY;
    x[3 * W + 511] = NAN;
    x[4 * W + 3] = 100;
    x[5 * W + 0] = NAN;
    for (int i = 0; i < W; i++) x[6 * W + i] = -INFINITY;
    x[7 * W + 100] = 30 - 86.99f; /* 30 is the largest: just within, */
    x[8 * W + 100] = 30 - 95.0f;  /* and far enough for a denormal power */
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++) {
        tn_session *s = open_mode((tn_mode)mode);
        tn_step_begin(s);
        tn_tensor *t = tn_softmax(tn_from(s, x, TN_F32, TN_SHAPE(N, W)), 1);
        if (mode == TN_FUSED) {
            seen v = look(s);
            assert_non_null(strstr(longest_text(&v), "tn_exp_low_f32("));
            assert_non_null(strstr(longest_text(&v), "tn_exp("));
            forget(&v);
        }
        assert_int_equal(tn_read(t, TN_F32, got, sizeof got), 0);
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(tn_close(s), 0);
        for (int r = 0; r < N; r++) {
            double want[W];
            softmax_of(x + r * W, want, W);
            for (int i = 0; i < W; i++) {
                const double y = (double)got[r * W + i];
                const bool same = isnan(want[i]) ? isnan(y) : fabs(y - want[i]) <= 2e-6 * want[i] + 1e-44;
                if (!same) fail_msg("row %d, element %d: %.9g, expected %.9g", r, i, y, want[i]);
            }
        }
    }
}

/* Rows too short for a vector are computed many at a time, one in each lane; the rest of the last vector, rows of any
 * length and another number of them are right, too. */
TEST(short_rows_lie_side_by_side)
{
    enum { MOST_ROWS = 1003, MOST_WIDTH = 63 };
    static const int widths[] = {2, 3, 5, 7, 8, 10, 16, 20, 33, 63}, rows[] = {MOST_ROWS, 64, 517, 3};
    static float x[MOST_ROWS * MOST_WIDTH], soft[MOST_ROWS * MOST_WIDTH];
    static int64_t at[MOST_ROWS];
    for (int i = 0; i < MOST_ROWS * MOST_WIDTH; i++)
        x[i] = (float)(i * 37 % 29) * 0.25f - 3; /* many are equal */
    for (int k = 0; k < (int)(sizeof widths / sizeof *widths); k++) {
        tn_session *s = open_mode(TN_FUSED);
        const int w = widths[k];
        for (int r = 0; r < (int)(sizeof rows / sizeof *rows); r++) {
            tn_step_begin(s);
            tn_tensor *t = tn_from(s, x, TN_F32, TN_SHAPE(rows[r], w)), *y = tn_softmax(t, 1),
                      *most = tn_argmax(t, 1, false);
            if (!r) {
                seen v = look(s);
                assert_non_null(strstr(longest_text(&v), "column schedule"));
                forget(&v);
            }
            assert_int_equal(tn_read(y, TN_F32, soft, (size_t)(rows[r] * w) * sizeof *soft), 0);
            assert_int_equal(tn_read(most, TN_I64, at, (size_t)rows[r] * sizeof *at), 0);
            assert_int_equal(tn_step_end(s), 0);
            for (int i = 0; i < rows[r]; i++) {
                double want[MOST_WIDTH];
                int first = 0;
                softmax_of(x + i * w, want, w);
                for (int j = 1; j < w; j++) first = x[i * w + j] > x[i * w + first] ? j : first;
                if (at[i] != first)
                    fail_msg("%d wide: row %d's largest is %d, not %d", w, i, first, (int)at[i]);
                for (int j = 0; j < w; j++)
                    if (!(fabs((double)soft[i * w + j] - want[j]) <= 2e-6 * want[j]))
                        fail_msg("%d wide: row %d, element %d: %.9g, expected %.9g", w, i, j,
                                 (double)soft[i * w + j], want[j]);
            }
        }
        assert_int_equal(tn_close(s), 0);
    }
}

/* A loss over many rows that leave some of a vector is a sum of what a kernel has made of each, and explain says why;
 * over few, or over rows of whole vectors, one kernel is both. */
TEST(a_sum_over_many_short_rows_is_a_kernel_of_its_own)
{
    enum { MOST_ROWS = 4099, MOST_WIDTH = 63 };
    static const int widths[] = {5, 10, 16, 20, 48, 63}, rows[] = {2047, 2048, MOST_ROWS};
    static float x[MOST_ROWS * MOST_WIDTH], g[MOST_ROWS * MOST_WIDTH];
    static int32_t label[MOST_ROWS];
    for (int i = 0; i < MOST_ROWS * MOST_WIDTH; i++) x[i] = (float)(i * 37 % 29) * 0.25f - 3;
    for (int k = 0; k < (int)(sizeof widths / sizeof *widths); k++) {
        tn_session *s = open_mode(TN_FUSED);
        const int w = widths[k];
        for (int i = 0; i < MOST_ROWS; i++) label[i] = i * 7 % w;
        for (int r = 0; r < (int)(sizeof rows / sizeof *rows); r++) {
            const bool apart = w % 16 && rows[r] >= 2048;
            tn_step_begin(s);
            tn_tensor *t = tn_from(s, x, TN_F32, TN_SHAPE(rows[r], w));
            assert_int_equal(tn_requires_grad(t, true), 0);
            tn_tensor *loss = tn_cross_entropy(t, tn_from(s, label, TN_I32, TN_SHAPE(rows[r])));
            assert_int_equal(tn_backward(loss), 0);
            seen v = look(s);
            int cuts = 0;
            for (int i = 0; i < v.plan->n_cut; i++) cuts += v.plan->cut[i].reason == TN_CUT_SHORT;
            if ((cuts > 0) != apart) {
                print_plan(&v);
                fail_msg("%d rows of %d: cut %d times", rows[r], w, cuts);
            }
            forget(&v);
            double want = 0;
            assert_int_equal(tn_read(tn_gradient(t), TN_F32, g, (size_t)(rows[r] * w) * sizeof *g), 0);
            for (int i = 0; i < rows[r]; i++) {
                double soft[MOST_WIDTH];
                softmax_of(x + i * w, soft, w);
                want -= log(soft[label[i]]) / rows[r];
                for (int j = 0; j < w; j++)
                    assert_true(fabs(g[i * w + j] * (double)rows[r] - (soft[j] - (j == label[i]))) <= 4e-6);
            }
            assert_true(fabs(tn_item(loss) - want) <= 1e-5 * want);
            assert_int_equal(tn_step_end(s), 0);
        }
        assert_int_equal(tn_close(s), 0);
    }
}

RUN_TESTS(NULL, NULL)
