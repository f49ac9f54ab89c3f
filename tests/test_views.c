/* test_views.c - views: which element of the input each element of the result is, and whose memory it shares.
 *
 * The input counts 0, 1, 2, ... in row-major order, so a result's value says where it came from; what is
 * expected is computed here from coordinates alone, or written out. Read first: `maps`. */
#include "tests/one_bench.h"

static tn_tensor *counting(tn_session *s, int ndim, const int64_t *shape)
{
    double v[256];
    for (int i = 0; i < 256; i++) v[i] = i;
    return tensor_of(s, v, TN_F32, ndim, shape);
}

static tn_session *session_at(int i) { return i == 0 ? B.ref : B.subject[i - 1]; }
static const char *name_at(int i) { return i == 0 ? "ref" : B.name[i - 1]; }

/* ---- one view, all coordinates ---- */

typedef struct map {
    const char *name;
    tn_tensor *(*view)(tn_tensor *x); /* of [2, 3, 4] */
    int ndim;
    int64_t shape[6];
    int64_t (*from)(const int64_t *o); /* the input element at output coordinate o; < 0: that number itself */
} map;

static int64_t at(int64_t i, int64_t j, int64_t k) { return (i * 3 + j) * 4 + k; }

/* X(name, the result's shape, the view, where its element at o comes from): views, reshapes that no strides can
 * say, views of views of views, and views of computed values and into them. */
/* clang-format off */
#define MAPS(X) \
    X(reshape, (4, 6), tn_reshape(x, TN_SHAPE(4, -1)), o[0] * 6 + o[1]) \
    X(flatten, (2, 12), tn_flatten(x, -2), o[0] * 12 + o[1]) \
    X(unsqueeze, (2, 3, 1, 4), tn_unsqueeze(x, -2), at(o[0], o[1], o[3])) \
    X(squeeze, (6, 4), tn_squeeze(tn_reshape(x, TN_SHAPE(6, 1, 4)), 1), o[0] * 4 + o[1]) \
    X(permute, (4, 2, 3), tn_permute(x, TN_AXES(2, 0, -2)), at(o[1], o[2], o[0])) \
    X(transpose, (4, 3, 2), tn_transpose(x, -1, 0), at(o[2], o[1], o[0])) \
    X(expand, (5, 2, 2, 4), tn_expand(tn_slice(x, 1, 1, 2, 1), TN_SHAPE(5, -1, 2, 4)), at(o[1], 1, o[3])) \
    X(slice, (2, 3, 2), tn_slice(x, 2, 1, TN_END, 2), at(o[0], o[1], 1 + 2 * o[2])) \
    X(slice_back, (2, 2, 4), tn_slice(x, 1, -1, TN_END, -2), at(o[0], 2 - 2 * o[1], o[2])) \
    X(select, (2, 4), tn_select(x, 1, -1), at(o[0], 2, o[1])) \
    X(flip, (2, 3, 4), tn_flip(x, TN_AXES(0, -1)), at(1 - o[0], o[1], 3 - o[2])) \
    X(pad, (2, 6, 4), tn_pad(x, 1, 1, 2, -7), o[1] < 1 || o[1] > 3 ? -7 : at(o[0], o[1] - 1, o[2])) \
    X(pad_twice, (3, 3, 5), tn_pad(tn_pad(x, 0, 1, 0, -3), 2, 0, 1, -4), \
      o[2] == 4 ? -4 : o[0] == 0 ? -3 : at(o[0] - 1, o[1], o[2])) \
    X(concat, (2, 9, 4), tn_concat(3, ((tn_tensor *[]){x, tn_flip(x, TN_AXES(1)), x}), 1), \
      at(o[0], o[1] < 3 ? o[1] : o[1] < 6 ? 5 - o[1] : o[1] - 6, o[2])) \
    X(stack, (2, 3, 4, 2), tn_stack(2, ((tn_tensor *[]){x, tn_flip(x, TN_AXES(0))}), -1), \
      at(o[3] ? 1 - o[0] : o[0], o[1], o[2])) \
    X(contiguous, (2, 4, 3), tn_contiguous(tn_transpose(x, 1, 2)), at(o[0], o[2], o[1])) \
    X(fold, (6, 4), tn_reshape(tn_transpose(x, 0, 2), TN_SHAPE(6, 4)), \
      at((o[0] * 4 + o[1]) % 2, (o[0] * 4 + o[1]) / 2 % 3, (o[0] * 4 + o[1]) / 6)) \
    X(chain, (2, 3, 2), \
      tn_slice(tn_flip(tn_transpose(tn_slice(x, 2, 3, 0, -1), 0, 2), TN_AXES(1)), 0, 1, TN_END, 1), \
      at(o[2], 2 - o[1], 3 - (o[0] + 1))) \
    X(chain_expand, (6, 2, 2), \
      tn_reshape(tn_expand(tn_unsqueeze(tn_select(x, 0, 1), 0), TN_SHAPE(2, 3, 4)), TN_SHAPE(6, 2, 2)), \
      at(1, o[0] % 3, o[1] * 2 + o[2])) \
    X(chain_pad, (2, 3, 3), tn_slice(tn_transpose(tn_pad(x, 2, 1, 1, -9), 1, 2), 1, 0, TN_END, 2), \
      2 * o[1] == 0 || 2 * o[1] == 5 ? -9 : at(o[0], o[2], 2 * o[1] - 1)) \
    X(computed, (3, 2, 4), tn_transpose(tn_neg(tn_flip(tn_neg(x), TN_AXES(0))), 0, 1), \
      at(1 - o[1], o[0], o[2])) \
    X(computed_pad, (2, 6, 4), tn_neg(tn_pad(tn_neg(tn_flip(x, TN_AXES(1))), 1, 2, 1, 5)), \
      o[1] < 2 || o[1] > 4 ? -5 : at(o[0], 4 - o[1], o[2])) \
    X(computed_slice, (2, 2, 2), tn_neg(tn_slice(tn_slice(tn_neg(x), 2, 1, TN_END, 2), 1, -1, 0, -1)), \
      at(o[0], 2 - o[1], 1 + 2 * o[2])) \
    X(computed_select, (2, 5), tn_neg(tn_pad(tn_select(tn_neg(x), 1, 2), 1, 1, 0, 6)), \
      o[1] == 0 ? -6 : at(o[0], 2, o[1] - 1)) \
    X(computed_pads, (3, 3, 3), \
      tn_neg(tn_slice(tn_pad(tn_pad(tn_neg(x), 2, 1, 1, 7), 0, 0, 1, 8), 2, 5, 0, -2)), \
      o[0] == 2 ? -8 : o[2] == 0 ? -7 : at(o[0], o[1], 4 - 2 * o[2])) \
    X(computed_corner, (2, 18), \
      tn_neg(tn_reshape(tn_pad(tn_neg(tn_reshape(x, TN_SHAPE(6, 4))), 1, 0, 2, 9), TN_SHAPE(2, 18))), \
      o[1] % 6 > 3 ? -9 : at(o[0], o[1] / 6, o[1] % 6)) \
    X(border_cut_off, (2, 3, 4), tn_neg(tn_slice(tn_neg(tn_pad(x, 1, 0, 2, 5)), 1, 0, 3, 1)), \
      at(o[0], o[1], o[2]))

#define DIMS_OF(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), {__VA_ARGS__}
/* clang-format on */
#define X(id, shape_of, expression, origin)                                                                  \
    static tn_tensor *v_##id(tn_tensor *x) { return expression; }                                            \
    static int64_t m_##id(const int64_t *o) { return origin; }
MAPS(X)
#undef X
static const map maps[] = {
#define X(id, shape_of, expression, origin) {#id, v_##id, DIMS_OF shape_of, m_##id},
    MAPS(X)
#undef X
};

static void check_map(const map *m, int where)
{
    tn_session *s = session_at(where);
    assert_int_equal(tn_step_begin(s), 0);
    value v;
    tn_tensor *t = m->view(counting(s, TN_SHAPE(2, 3, 4)));
    if (!t) fail_msg("%s on %s: %s", m->name, name_at(where), tn_error_text(s));
    read_value(t, &v);
    assert_int_equal(v.ndim, m->ndim);
    for (int i = 0; i < m->ndim; i++) assert_int_equal(v.shape[i], m->shape[i]);
    int64_t o[TN_MAX_DIMS] = {0};
    for (int64_t i = 0; i < v.n; i++) {
        double want = (double)m->from(o);
        if (v.v[i] != want) {
            char place[128];
            place_text(place, sizeof place, &v, i);
            fail_msg("%s on %s at %s: %g, expected %g", m->name, name_at(where), place, v.v[i], want);
        }
        for (int d = v.ndim - 1; d >= 0 && ++o[d] == v.shape[d]; d--) o[d] = 0;
    }
    free(v.v);
    assert_int_equal(tn_step_end(s), 0);
}

TEST(coordinates)
{
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        for (int where = 0; where <= B.n; where++) check_map(&maps[i], where);
}

/* ---- slices, as Python's range(5)[start:end:step] ---- */

static const struct {
    int64_t start, end, step;
    const char *want;
} slices[] = {
    {0, 5, 1, "01234"},   {1, -1, 1, "123"},    {-3, TN_END, 1, "234"}, {10, TN_END, 1, ""},
    {-10, 2, 1, "01"},    {2, 2, 1, ""},        {3, 1, 1, ""},          {0, TN_END, 2, "024"},
    {1, TN_END, 3, "14"}, {0, 100, 4, "04"},    {1, 2, 7, "1"},         {4, TN_END, -1, "43210"},
    {-1, 0, -2, "42"},    {10, 1, -1, "432"},   {1, 3, -1, ""},         {-1, -4, -1, "432"},
    {0, TN_END, -3, "0"}, {-6, TN_END, -1, ""}, {3, TN_END, -2, "31"},
};

TEST(slice_bounds)
{
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
        tn_session *s = B.ref;
        tn_step_begin(s);
        value v;
        tn_tensor *t = tn_slice(counting(s, TN_SHAPE(5)), 0, slices[i].start, slices[i].end, slices[i].step);
        if (!t) fail_msg("%s", tn_error_text(s));
        read_value(t, &v);
        char got[16] = "";
        for (int64_t k = 0; k < v.n && k < 15; k++) got[k] = (char)('0' + (int)v.v[k]), got[k + 1] = 0;
        free(v.v);
        tn_step_end(s);
        if (strcmp(got, slices[i].want)) {
            fail_msg("[%lld:%lld:%lld] is '%s', expected '%s'", (long long)slices[i].start,
                     (long long)slices[i].end, (long long)slices[i].step, got, slices[i].want);
        }
    }
}

/* ---- whose memory ---- */

static double first(tn_tensor *t)
{
    double v[64] = {NAN};
    assert_true(tn_numel(t) <= 64);
    assert_int_equal(tn_read(t, TN_F64, v, (size_t)tn_numel(t) * sizeof *v), 0);
    return v[0];
}

/* A view made in a step is the value at that point; a view made outside is an alias of the memory. */
TEST(aliasing)
{
    for (int where = 0; where <= B.n; where++) {
        tn_session *s = session_at(where);
        tn_tensor *x = counting(s, TN_SHAPE(2, 3)), *nine = tn_full(s, 9, TN_F32, TN_SHAPE(2, 3));
        assert_non_null(x);
        tn_tensor *alias = tn_transpose(x, 0, 1);
        assert_true(first(alias) == 0);
        assert_int_equal(tn_assign(x, nine), 0);
        if (first(alias) != 9)
            fail_msg("%s: an alias made outside a step reads %g, expected 9", name_at(where), first(alias));

        tn_step_begin(s);
        tn_tensor *then = tn_transpose(x, 0, 1), *doubled = tn_mul_scalar(x, 2);
        assert_int_equal(tn_assign(x, tn_zeros(s, TN_F32, TN_SHAPE(2, 3))), 0);
        if (first(then) != 9)
            fail_msg("%s: a view made before an assignment reads %g, expected 9", name_at(where),
                     first(then));
        if (first(doubled) != 18)
            fail_msg("%s: a reader recorded before an assignment gives %g, expected 18", name_at(where),
                     first(doubled));
        assert_true(first(tn_transpose(x, 0, 1)) == 0);
        tn_step_end(s);
        assert_true(first(x) == 0);
        tn_free(x);
        tn_free(nine);
    }
}

/* The source of an assignment may be a view of the target: all of it is read before anything is written. */
TEST(overlapping_assignment)
{
    for (int where = 0; where <= B.n; where++) {
        tn_session *s = session_at(where);
        tn_tensor *x = counting(s, TN_SHAPE(3, 3));
        tn_step_begin(s);
        assert_int_equal(tn_assign(x, tn_transpose(x, 0, 1)), 0);
        assert_int_equal(tn_assign(x, tn_flip(x, TN_AXES(1))), 0);
        tn_step_end(s);
        double v[9];
        assert_int_equal(tn_read(x, TN_F64, v, sizeof v), 0);
        const double want[9] = {6, 3, 0, 7, 4, 1, 8, 5, 2};
        for (int i = 0; i < 9; i++)
            if (v[i] != want[i])
                fail_msg("%s: element %d is %g, expected %g", name_at(where), i, v[i], want[i]);
        tn_free(x);
    }
}

/* Each stretch between two cuts has its own copy of what it would jump along: a gate over few columns that are one. */
TEST(halves_of_what_is_expanded)
{
    enum { HALF = 96, COLS = 4 };
    for (int where = 0; where <= B.n; where++) {
        tn_session *s = session_at(where);
        double w[2 * HALF], c[2 * HALF * COLS], d[HALF * COLS], got[2 * HALF];
        for (int i = 0; i < 2 * HALF; i++) w[i] = sin(i);
        for (int i = 0; i < 2 * HALF * COLS; i++) c[i] = cos(3 * i), d[i % (HALF * COLS)] = sin(2 * i);
        tn_tensor *x = tensor_of(s, w, TN_F32, TN_SHAPE(2 * HALF, 1));
        tn_tensor *by = tensor_of(s, c, TN_F32, TN_SHAPE(2 * HALF, COLS)),
                  *of = tensor_of(s, d, TN_F32, TN_SHAPE(HALF, COLS));
        tn_requires_grad(x, true);
        tn_step_begin(s);
        tn_tensor *h = tn_expand(x, TN_SHAPE(2 * HALF, COLS)), *y = tn_glu(h, 0);
        tn_tensor *loss = tn_add(tn_sum(tn_mul(h, by), TN_ALL, false), tn_sum(tn_mul(y, of), TN_ALL, false));
        tn_backward(tn_add(loss, tn_sum(tn_mul(tn_tanh(y), of), TN_ALL, false)));
        if (tn_read(tn_gradient(x), TN_F64, got, sizeof got))
            fail_msg("%s: %s", name_at(where), tn_error_text(s));
        for (int i = 0; i < 2 * HALF; i++) {
            const int k = i % HALF;
            const double gate = 1 / (1 + exp(-w[k + HALF])), flat = tanh(w[k] * gate);
            double want = 0, slope = 0;
            for (int j = 0; j < COLS; j++)
                want += c[i * COLS + j], slope += d[k * COLS + j] * (2 - flat * flat);
            want += i < HALF ? slope * gate : slope * w[k] * gate * (1 - gate);
            if (fabs(got[i] - want) > 1e-5)
                fail_msg("%s: element %d is %g, expected %g", name_at(where), i, got[i], want);
        }
        tn_step_end(s);
        tn_free(x), tn_free(by), tn_free(of);
    }
}

/* Where one stretch stores a row for all lines and the other does not, what else it stores is stored for each line. */
TEST(what_else_a_stretch_stores)
{
    enum { LINES = 3, N = 12, PAD = 2, ALL = PAD + N };
    for (int where = 0; where <= B.n; where++) {
        tn_session *s = session_at(where);
        double w[N], q[LINES * ALL], c[LINES * ALL * 64], got[LINES * ALL];
        for (int i = 0; i < LINES * ALL * 64; i++) c[i] = 1, q[i % (LINES * ALL)] = cos(i), w[i % N] = sin(i);
        tn_tensor *x = tensor_of(s, w, TN_F32, TN_SHAPE(N, 1)),
                  *by = tensor_of(s, q, TN_F32, TN_SHAPE(LINES, ALL, 1));
        tn_tensor *wide = tensor_of(s, c, TN_F32, TN_SHAPE(LINES, ALL, 64));
        tn_step_begin(s);
        tn_tensor *h = tn_sin(x), *y = tn_mul(tn_pad(h, 0, PAD, 0, 0.5), by), *z = tn_mul(y, wide);
        h = tn_keep(h), y = tn_keep(y), z = tn_keep(z);
        tn_step_end(s);
        if (tn_read(y, TN_F64, got, sizeof got)) fail_msg("%s: %s", name_at(where), tn_error_text(s));
        for (int i = 0; i < LINES * ALL; i++) {
            const double want = (i % ALL < PAD ? 0.5 : sin(w[i % ALL - PAD])) * q[i];
            if (fabs(got[i] - want) > 1e-5)
                fail_msg("%s: element %d is %g, expected %g", name_at(where), i, got[i], want);
        }
        tn_free(x), tn_free(by), tn_free(wide), tn_free(h), tn_free(y), tn_free(z);
    }
}

/* What gradients need of few values, in front of an expansion, is stored once for many rows; and in the stretch of a
 * padding not at all. */
TEST(what_a_stretch_does_not_store)
{
    enum { ROWS = 3, N = 10, PAD = 4, COLS = 4, ALL = PAD + N };
    for (int where = 0; where <= B.n; where++) {
        tn_session *s = session_at(where);
        double w[N], by[N], of[ROWS * ALL * COLS], got[N];
        for (int i = 0; i < N; i++) w[i] = 0.3 * (i - 4.5), by[i] = cos(i);
        for (int i = 0; i < ROWS * ALL * COLS; i++) of[i] = sin(3 * i);
        tn_tensor *x = tensor_of(s, w, TN_F32, TN_SHAPE(N, 1)), *b = tensor_of(s, by, TN_F32, TN_SHAPE(N, 1));
        tn_tensor *o = tensor_of(s, of, TN_F32, TN_SHAPE(ROWS, ALL, COLS));
        tn_requires_grad(x, true);
        tn_step_begin(s);
        tn_tensor *h = tn_expand(tn_pad(tn_mul(x, tn_sin(x)), 0, PAD, 0, 0.5), TN_SHAPE(ROWS, ALL, COLS));
        tn_tensor *y = tn_mul(h, tn_softplus(h)), *other = tn_mul(x, b);
        double forward[ROWS * ALL * COLS]; /* runs alone */
        assert_int_equal(tn_read(y, TN_F64, forward, sizeof forward), 0);
        tn_backward(tn_add(tn_sum(tn_mul(y, o), TN_ALL, false), tn_sum(tn_square(other), TN_ALL, false)));
        y = tn_keep(y), other = tn_keep(other);
        if (tn_read(tn_gradient(x), TN_F64, got, sizeof got))
            fail_msg("%s: %s", name_at(where), tn_error_text(s));
        for (int i = 0; i < N; i++) {
            const double v = w[i] * sin(w[i]), gate = 1 / (1 + exp(-v));
            double want = 0;
            for (int k = 0; k < ROWS * COLS; k++) want += of[(k / COLS * ALL + PAD + i) * COLS + k % COLS];
            want *= (log1p(exp(v)) + v * gate) * (sin(w[i]) + w[i] * cos(w[i]));
            want += 2 * w[i] * by[i] * by[i];
            if (fabs(got[i] - want) > 1e-4)
                fail_msg("%s: element %d is %g, expected %g", name_at(where), i, got[i], want);
        }
        tn_step_end(s);
        tn_free(x), tn_free(b), tn_free(o), tn_free(y), tn_free(other);
    }
}

TEST(empty_tensors)
{
    for (int where = 0; where <= B.n; where++) {
        tn_session *s = session_at(where);
        tn_step_begin(s);
        tn_tensor *e = tn_zeros(s, TN_F32, TN_SHAPE(0, 3));
        if (!e) fail_msg("%s", tn_error_text(s));
        assert_int_equal(tn_numel(e), 0);
        assert_int_equal(tn_numel(tn_exp(tn_transpose(e, 0, 1))), 0);
        assert_int_equal(tn_numel(tn_reshape(e, TN_SHAPE(3, 0, 2))), 0);
        double v[3] = {-1, -1, -1};
        assert_int_equal(tn_read(tn_sum(e, TN_AXES(0), false), TN_F64, v, sizeof v), 0);
        for (int i = 0; i < 3; i++) assert_true(v[i] == 0);
        assert_true(tn_item(tn_prod(e, TN_ALL, false)) == 1);
        tn_tensor *joined = tn_concat(2, (tn_tensor *[]){e, counting(s, TN_SHAPE(1, 3))}, 0);
        assert_int_equal(tn_dim(joined, 0), 1);
        assert_true(first(tn_sum(joined, TN_ALL, false)) == 3);
        tn_step_end(s);
        assert_int_equal(tn_error(s), TN_OK);
    }
}

RUN_TESTS(open_bench, close_bench)
