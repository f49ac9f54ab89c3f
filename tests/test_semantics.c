/* test_semantics.c - what a program means: each operator sees its operands' values at the call, whatever is
 * assigned later; running statistics happen in program order; errors stop effects. Every test runs on the
 * reference device and on the cpu, in eager and in fused mode. */
#include "tests/rig.h"

#include "src/runtime/session.h"

static tn_tensor *vec(tn_session *s, float a, float b)
{
    const float v[2] = {a, b};
    return tn_from(s, v, TN_F32, TN_SHAPE(2));
}

static void is_vec(tn_tensor *x, float a, float b)
{
    float v[2] = {-77, -77};
    assert_int_equal(tn_read(x, TN_F32, v, sizeof v), 0);
    assert_float_equal(v[0], a, 1e-5);
    assert_float_equal(v[1], b, 1e-5);
}

/* ---- assignment ---- */

TEST(a_view_made_outside_a_step_of_a_persistent_tensor_dies_with_the_next_one)
{
    ON_EACH_WAY(s) {
        tn_tensor *k = vec(s, 1, 2);
        tn_tensor *view = tn_flip(k, TN_ALL);
        is_vec(view, 2, 1);
        tn_step_begin(s);
        assert_int_equal(tn_ndim(view), -1);
        null_with(s, TN_E_STALE, "", tn_relu(view));
        tn_step_end(s);
    }
}

/* Lines that are assigned are read, and so are their numbers, before any is written. */
TEST(lines_of_a_tensor_are_exchanged_within_it)
{
    enum { N = 37 };
    ON_EACH_WAY(s)
        for (int turned = 0; turned < 2; turned++) {
            float v[N][N], got[N][N];
            int32_t line[N];
            for (int i = 0; i < N; i++) line[i] = (i * 5 + 3) % N;
            for (int i = 0; i < N; i++)
                for (int k = 0; k < N; k++) v[i][k] = (float)(i * N + k);
            tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(N, N)), *to = tn_from(s, line, TN_I32, TN_SHAPE(N));
            tn_tensor *all = tn_from(s, line, TN_I32, TN_SHAPE(N));
            tn_step_begin(s);
            assert_int_equal(tn_assign_rows(x, 0, to, turned ? tn_transpose(x, 0, 1) : x), 0);
            assert_int_equal(tn_assign_rows(to, 0, to, tn_mul_scalar(all, 2)), 0);
            assert_int_equal(tn_step_end(s), 0);
            assert_int_equal(tn_read(x, TN_F32, got, sizeof got), 0);
            for (int i = 0; i < N; i++)
                for (int k = 0; k < N; k++) assert_true(got[line[i]][k] == (turned ? v[k][i] : v[i][k]));
            int32_t moved[N];
            assert_int_equal(tn_read(to, TN_I32, moved, sizeof moved), 0);
            for (int i = 0; i < N; i++) assert_int_equal(moved[line[i]], 2 * line[i]);
            tn_free(x), tn_free(to), tn_free(all);
        }
}

/* After a backward the old value is given up; asking for it again once it is overwritten is an error that
 * names the tensor. Where nothing has run yet, it can still be had. */
TEST(a_lost_version_is_an_error_and_never_a_wrong_number)
{
    ON_EACH_WAY(s) {
        tn_tensor *w = tn_param(s, "w", vec(s, 3, 4));
        tn_step_begin(s);
        tn_tensor *loss = tn_sum(tn_mul(w, w), TN_ALL, 0);
        assert_int_equal(tn_backward(loss), 0);
        assert_int_equal(tn_assign(w, tn_zeros(s, TN_F32, TN_SHAPE(2))), 0);
        if (is_fused(way_)) assert_float_equal(tn_item(loss), 25, 0);
        assert_int_equal(tn_backward(loss), is_fused(way_) ? TN_OK : TN_E_NOT_KEPT);
        if (is_fused(way_)) assert_true(isnan(tn_item(tn_sum(tn_gradient(w), TN_ALL, 0))));
        failed(s, TN_E_NOT_KEPT, "w, which assign");
        tn_step_end(s);
    }
}

/* tn_grad's, twice over, and tn_backward's. */
static void has_gradient(tn_tensor *loss, tn_tensor *w, float a, float b)
{
    tn_tensor *g[2] = {NULL};
    if (tn_grad(loss, 2, (tn_tensor *[]){w, w}, g)) fail_msg("%s", tn_error_text(tn_session_of(loss)));
    for (int i = 0; i < 2; i++) is_vec(g[i], a, b);
    assert_int_equal(tn_backward(loss), 0);
    is_vec(tn_gradient(w), a, b);
}

static tn_tensor *sum(tn_tensor *x) { return tn_sum(x, TN_ALL, false); }

/* What a loss has read of a parameter before it was assigned to counts in tn_grad as it does in tn_backward,
 * whatever assigns, whatever reads, and when the newest value is not read at all. */
TEST(a_gradient_is_that_of_all_values_that_were_read)
{
    enum { ASSIGN, WINDOW, SLAB, ROWS, OUTSIDE, TWICE, UNREAD, SECOND, VIEWS, FROZEN, N_HOW };
    for (int how = 0; how < N_HOW; how++)
        ON_EACH_WAY(s) {
            tn_tensor *p = how == OUTSIDE ? vec(s, 0, 0) : tn_param(s, "p", vec(s, 0, 0));
            tn_tensor *all, *grads, *x = vec(s, 10, 20),
                                    *line = tn_from(s, &(int32_t){1}, TN_I32, TN_SHAPE(1));
            if (how == OUTSIDE) tn_requires_grad(p, true);
            tn_tensor *tail = tn_window(p, 1, TN_SHAPE(1));
            for (int step = 0; step < 3; step++) { /* the third repeats the second */
                tn_tensor *g, *view, *seven = tn_full(s, 7, TN_F32, TN_SHAPE(1)), *loss, *loose;
                tn_assign(p, vec(s, 1, 2));
                tn_step_begin(s);
                tn_tensor *y = tn_mul(p, x);
                switch (how) {
                case ASSIGN:
                case OUTSIDE: /* p = [5, 10] */
                    tn_assign(p, tn_mul_scalar(x, 0.5));
                    has_gradient(tn_add(sum(y), sum(tn_square(p))), p, 10 + 10, 20 + 20);
                    break;
                case WINDOW: /* [1, 7] */
                    tn_assign(tail, seven);
                    has_gradient(tn_add(sum(y), sum(tn_square(p))), p, 10 + 2, 20 + 14);
                    break;
                case ROWS:
                    tn_assign_rows(p, 0, line, seven);
                    has_gradient(tn_add(sum(y), sum(tn_square(p))), p, 10 + 2, 20 + 14);
                    break;
                case SLAB: /* [3, 6] */
                    assert_int_equal(tn_param_slab(s, TN_F32, &all, &grads), 0);
                    tn_assign(all, tn_mul_scalar(all, 3));
                    has_gradient(tn_add(sum(y), sum(tn_square(p))), p, 10 + 6, 20 + 12);
                    break;
                case TWICE: /* [10, 20], then [20, 40] */
                    y = tn_square(p);
                    tn_assign(p, x);
                    y = tn_add(y, tn_square(p));
                    tn_assign(p, tn_mul_scalar(p, 2));
                    has_gradient(sum(tn_add(y, tn_square(p))), p, 2 + 20 + 40, 4 + 40 + 80);
                    break;
                case UNREAD:
                    tn_assign(p, x);
                    has_gradient(sum(tn_square(y)), p, 200, 1600);
                    break;
                case SECOND: /* 3 p p, of [1, 2] and [10, 20]: squared and summed, 36 p p p for each */
                    y = tn_mul(tn_square(p), p);
                    tn_assign(p, x);
                    assert_int_equal(tn_grad(sum(y), 1, &p, &g), 0);
                    tn_assign(p, x);
                    is_vec(g, 3, 12);
                    y = tn_mul(tn_square(p), p);
                    assert_int_equal(tn_grad(sum(y), 1, &p, &loose), 0);
                    loss = tn_add(sum(tn_square(g)), sum(tn_square(loose)));
                    has_gradient(loss, p, 36 + 36000, 288 + 288000);
                    break;
                case VIEWS: /* of [1, 2] and [10, 20]; one of them given is that one alone */
                    y = tn_mul(tn_slice(p, 0, 0, 1, 1), tn_slice(p, 0, 1, 2, 1));
                    tn_assign(p, x);
                    view = tn_flip(p, TN_ALL);
                    loss = sum(tn_add(tn_mul(tn_square(view), vec(s, 2, 3)), tn_expand(y, TN_SHAPE(2))));
                    assert_int_equal(tn_grad(loss, 1, &view, &g), 0);
                    is_vec(g, 80, 60);
                    has_gradient(loss, p, 2 * 2 + 60, 2 * 1 + 80);
                    break;
                case FROZEN: /* where it was read while it was not */
                    tn_requires_grad(p, false);
                    loss = sum(tn_add(y, tn_square(p)));
                    has_gradient(loss, p, 10, 20);
                    tn_requires_grad(p, true);
                }
                tn_step_end(s);
                assert_string_equal(tn_error_text(s), "");
            }
            tn_free(tail), tn_free(x), tn_free(line);
        }
}

TEST(a_gradient_is_written_into_its_segment)
{
    ON_EACH_WAY(s) {
        tn_tensor *u = tn_param(s, "u", tn_ones(s, TN_F32, TN_SHAPE(5))), *w = tn_param(s, "w", vec(s, 3, 4));
        int64_t first, count;
        assert_int_equal(tn_param_segment(w, &first, &count), 0);
        assert_int_equal(first, 64);
        assert_int_equal(count, 2);
        tn_step_begin(s);
        tn_tensor *p = tn_mul(tn_sum(tn_mul(w, w), TN_ALL, 0), tn_sum(u, TN_ALL, 0));
        assert_int_equal(tn_backward(p), 0);
        tn_tensor *all, *grads;
        assert_int_equal(tn_param_slab(s, TN_F32, &all, &grads), 0);
        float g[128], v[128];
        assert_int_equal(tn_read(grads, TN_F32, g, sizeof g), 0);
        assert_int_equal(tn_read(all, TN_F32, v, sizeof v), 0);
        assert_float_equal(g[64], 30, 1e-4);
        assert_float_equal(g[65], 40, 1e-4);
        assert_float_equal(g[0], 25, 1e-4);
        assert_float_equal(v[4], 1, 0);
        assert_float_equal(v[65], 4, 0);
        for (int i = 5; i < 64; i++) assert_true(g[i] == 0 && v[i] == 0);
        assert_int_equal(tn_assign(all, tn_mul_scalar(all, 2.0)), 0);
        is_vec(w, 6, 8);
        tn_step_end(s);
        is_vec(w, 6, 8);
    }
}

TEST(what_only_infers_has_no_memory_for_gradients)
{
    enum { N = 1 << 18, EACH = N * 4, ELSE = EACH / 4 };
    ON_EACH_WAY(s) {
        const bool counts = Ways[way_].device != TN_REF; /* what parameters take */
        const size_t before = stats_of(s).bytes_now;
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(N)));
        tn_step_begin(s);
        tn_no_grad_begin(s);
        assert_float_equal(tn_item(tn_sum(w, TN_ALL, 0)), N, 0);
        tn_no_grad_end(s);
        tn_step_end(s);
        if (counts) assert_in_range(stats_of(s).bytes_now - before, EACH, EACH + ELSE);
        tn_step_begin(s);
        assert_int_equal(tn_backward(tn_sum(tn_mul(w, w), TN_ALL, 0)), 0);
        assert_float_equal(tn_item(tn_sum(tn_gradient(w), TN_ALL, 0)), 2 * N, 0);
        tn_step_end(s);
        if (counts) assert_in_range(stats_of(s).bytes_now - before, 2 * EACH, SIZE_MAX);
        tn_tensor *later = tn_param(s, "later", tn_ones(s, TN_F32, TN_SHAPE(N))), *grads;
        tn_step_begin(s);
        assert_int_equal(tn_backward(tn_sum(later, TN_ALL, 0)), 0);
        assert_int_equal(tn_param_slab(s, TN_F32, NULL, &grads), 0);
        assert_float_equal(tn_item(tn_sum(grads, TN_ALL, 0)), 3 * N, 0); /* 2 of w's stay there */
        tn_step_end(s);
    }
}

TEST(inside_one_operator_assignments_wait_for_its_readers)
{
    ON_EACH_WAY(s) {
        tn_tensor *a = tn_keep(vec(s, 1, 2)), *b = tn_keep(vec(s, 10, 20));
        tn_step_begin(s);
        tn_op_begin(s, "swap and add");
        tn_tensor *sum = tn_add(a, b), *old_a = tn_mul_scalar(a, 1.0);
        assert_int_equal(tn_assign(a, sum), 0);
        assert_int_equal(tn_assign(b, tn_sub(a, old_a)), 0); /* the new a */
        assert_int_equal(tn_op_end(s), 0);
        is_vec(a, 11, 22);
        is_vec(b, 10, 20);
        tn_step_end(s);
    }
}

/* The same record each time, but then the source is the target's own memory, one element on, or memory beside it. */
TEST(a_plan_made_for_other_memory_does_not_serve_an_overlap)
{
    ON_EACH_WAY(s) {
        tn_param(s, "u", tn_arange(s, 0, 64, 1, TN_F32));
        tn_tensor *w = tn_param(s, "w", tn_arange(s, 64, 128, 1, TN_F32));
        tn_tensor *other = tn_arange(s, 1000, 1128, 1, TN_F32), *all;
        assert_int_equal(tn_param_slab(s, TN_F32, &all, NULL), 0);
        float v[64];
        const int from[] = {1063, 0, 63};
        for (int round = 0; round < 3; round++) {
            const int first = round ? from[round] : 63;
            tn_step_begin(s);
            assert_int_equal(tn_assign(w, tn_arange(s, 64, 128, 1, TN_F32)), 0);
            tn_op_begin(s, "shift and double");
            assert_int_equal(
                tn_assign(w, tn_mul_scalar(tn_slice(round ? all : other, 0, first, first + 64, 1), 2.0)), 0);
            assert_int_equal(tn_op_end(s), 0);
            assert_int_equal(tn_read(w, TN_F32, v, sizeof v), 0);
            for (int i = 0; i < 64; i++) assert_float_equal(v[i], (float)(2 * (from[round] + i)), 0);
            tn_step_end(s);
        }
    }
}

/* What was recorded before an assignment to more than it reads, and not read by anybody until behind it. */
TEST(a_view_is_read_before_what_is_around_it_is_overwritten)
{
    enum { FIRST = 10, N = 20 };
    ON_EACH_WAY(s) {
        tn_tensor *w = tn_param(s, "w", tn_arange(s, 0, 64, 1, TN_F32)), *all;
        assert_int_equal(tn_param_slab(s, TN_F32, &all, NULL), 0);
        float v[N];
        for (int round = 0; round < 3; round++) {
            assert_int_equal(tn_assign(w, tn_arange(s, 0, 64, 1, TN_F32)), 0);
            tn_step_begin(s);
            tn_tensor *old = tn_mul_scalar(tn_slice(all, 0, FIRST, FIRST + N, 1), 3);
            assert_int_equal(tn_assign(all, tn_mul_scalar(tn_ones(s, TN_F32, TN_SHAPE(tn_numel(all))), 7)),
                             0);
            tn_tensor *now = tn_flip(tn_slice(all, 0, FIRST, FIRST + N, 1), TN_ALL);
            assert_int_equal(tn_read(tn_add(old, now), TN_F32, v, sizeof v), 0);
            for (int i = 0; i < N; i++) assert_float_equal(v[i], (float)(3 * (FIRST + i) + 7), 0);
            tn_step_end(s);
        }
    }
}

/* A value that is cheap to make is made again by each of its readers, though what it is made of is overwritten
 * before the later ones. */
TEST(what_is_made_again_is_made_of_what_was_there)
{
    enum { N = 1 << 16, ALIKE = 97 };
    double exps = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        const double x = 0.01 * (i % ALIKE);
        exps += exp(2 * x);
        squares += 2 * x * x;
    }
    ON_EACH_WAY(s) {
        float *v = malloc(N * sizeof *v);
        assert_non_null(v);
        for (int i = 0; i < N; i++) v[i] = 0.01f * (float)(i % ALIKE);
        tn_tensor *w = tn_from(s, v, TN_F32, TN_SHAPE(N)), *other = tn_from(s, v, TN_F32, TN_SHAPE(N));
        free(v);
        tn_step_begin(s);
        tn_tensor *twice = tn_mul_scalar(w, 2.0), *sum = tn_sum(tn_exp(twice), TN_ALL, false);
        assert_int_equal(tn_assign(w, tn_add_scalar(w, 1.0)), 0);
        tn_tensor *between = tn_cumsum(tn_mul(twice, tn_cumsum(tn_add(other, w), 0)), 0);
        tn_tensor *later = tn_sum(tn_mul(twice, other), TN_ALL, false);
        assert_true(fabs(tn_item(sum) / exps - 1) < 1e-4);
        assert_true(tn_item(tn_sum(between, TN_ALL, false)) > 0);
        assert_true(fabs(tn_item(later) / squares - 1) < 1e-4);
        tn_step_end(s);
    }
}

/* The record is the same in both rounds, and so is every shape and stride in it; only in the second the
 * factor is the first element of the target's own memory. What was planned for the first would have that
 * element overwritten by one chunk of the loop and read by the next. */
TEST(where_operands_lie_is_part_of_a_plan_that_assigns)
{
    enum { N = 1 << 17 };
    tn_session *s = open_way(CPU_EAGER);
    tn_tensor *w = tn_param(s, "w", tn_full(s, 3, TN_F32, TN_SHAPE(1))), *all;
    tn_param(s, "u", tn_zeros(s, TN_F32, TN_SHAPE(N)));
    assert_int_equal(tn_param_slab(s, TN_F32, &all, NULL), 0);
    int64_t n = tn_numel(all);
    tn_tensor *x = tn_arange(s, 0, (double)n, 1, TN_F32), *elsewhere = tn_full(s, 3, TN_F32, TN_SHAPE(1));
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(tn_assign(w, tn_full(s, 3, TN_F32, TN_SHAPE(1))), 0);
        tn_step_begin(s);
        const tn_stats before = stats_of(s);
        tn_no_grad_begin(s); /* else the old value of w is kept for a backward, in memory of its own */
        tn_op_begin(s, "scale");
        assert_int_equal(tn_assign(all, tn_mul(x, round ? w : elsewhere)), 0);
        assert_int_equal(tn_op_end(s), 0);
        tn_no_grad_end(s);
        const tn_stats after = stats_of(s);
        assert_int_equal(after.plans - before.plans, 1); /* a plan of its own */
        assert_int_equal(tn_read(all, TN_F32, v, (size_t)n * sizeof *v), 0);
        for (int64_t i = 0; i < n; i++) assert_true(v[i] == 3.0f * (float)i);
        tn_step_end(s);
    }
    free(v);
    close_clean(s);
}

/* The same host memory lent twice: what lies where is part of the plan there too. */
TEST(memory_that_was_borrowed_twice_is_known_by_its_addresses)
{
    enum { N = 1 << 16 };
    static float memory[N], elsewhere[1];
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_EAGER, .seed = 1); /* in place: on a CPU alone */
    tn_tensor *x = tn_arange(s, 0, N, 1, TN_F32);
    tn_tensor *all = tn_borrow(s, memory, TN_F32, TN_SHAPE(N), NULL, NULL);
    tn_tensor *other = tn_borrow(s, elsewhere, TN_F32, TN_SHAPE(1), NULL, NULL);
    tn_tensor *first = tn_borrow(s, memory, TN_F32, TN_SHAPE(1), NULL, NULL);
    for (int round = 0; round < 4; round++) {
        memory[0] = elsewhere[0] = 3;
        tn_step_begin(s);
        tn_no_grad_begin(s);
        tn_op_begin(s, "scale");
        assert_int_equal(tn_assign(all, tn_mul(x, round % 2 ? first : other)), 0);
        assert_int_equal(tn_op_end(s), 0);
        tn_no_grad_end(s);
        tn_step_end(s);
        for (int64_t i = 0; i < N; i++) assert_true(memory[i] == 3.0f * (float)i);
    }
    close_clean(s);
}

/* ---- errors stop effects ---- */

/* ---- numbers of few bits, equal ones, other types ---- */

TEST(whatever_is_not_zero_is_true)
{
    const float real[] = {0, 0.5F, 3, -1};
    const int64_t whole[] = {0, 256, -2, 5};
    ON_EACH_WAY(s) {
        tn_step_begin(s);
        for (int k = 0; k < 2; k++) {
            tn_tensor *x = k ? tn_from(s, whole, TN_I64, TN_SHAPE(4)) : tn_from(s, real, TN_F32, TN_SHAPE(4));
            unsigned char v[2][4];
            assert_int_equal(tn_read(x, TN_BOOL, v[0], 4), 0);
            assert_int_equal(tn_read(tn_cast(x, TN_BOOL), TN_U8, v[1], 4), 0);
            for (int i = 0; i < 8; i++) assert_int_equal(v[i / 4][i % 4], i % 4 != 0);
        }
        tn_step_end(s);
    }
}

/* Of few different numbers, some of which are none, in rows that are no whole vectors, along either axis. */
TEST(the_first_of_equals_is_chosen)
{
    enum { R = 7, C = 77 };
    float x[R][C];
    rng g = {4};
    for (int i = 0; i < R * C; i++)
        x[i / C][i % C] = rng_below(&g, 60) ? (float)rng_below(&g, 1 + i / C) : NAN;
    ON_EACH_WAY(s) {
        tn_step_begin(s);
        for (int most = 0; most < 2; most++)
            for (int axis = 0; axis < 2; axis++) {
                const int lines = axis ? R : C, n = axis ? C : R;
                int64_t got[C];
                tn_tensor *t = tn_from(s, x, TN_F32, TN_SHAPE(R, C));
                t = most ? tn_argmax(t, axis, false) : tn_argmin(t, axis, false);
                assert_int_equal(tn_read(t, TN_I64, got, (size_t)lines * sizeof *got), 0);
                for (int l = 0; l < lines; l++) {
                    int want = 0;
                    for (int i = 1; i < n; i++) {
                        const float a = axis ? x[l][i] : x[i][l], b = axis ? x[l][want] : x[want][l];
                        if (!isnan(b) && (isnan(a) || (most ? a > b : a < b))) want = i;
                    }
                    assert_int_equal(got[l], want);
                }
            }
        tn_step_end(s);
    }
}

/* ---- plans ---- */

TEST(scalars_and_a_shorter_batch_compile_nothing_new)
{
    tn_session *s = open_way(CPU_EAGER);
    tn_stats a = {.size = sizeof a}, b = {.size = sizeof b};
    for (int i = 0; i < 6; i++) {
        int64_t n = i < 3 ? 64 : 61 - i;
        tn_step_begin(s);
        tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(n, 48));
        tn_tensor *y = tn_layer_norm(tn_mul_scalar(tn_gelu(x), 0.1 * i), NULL, NULL);
        tn_item(tn_mean(tn_softmax(y, 1), TN_ALL, 0));
        tn_step_end(s);
        if (i == 1) a = stats_of(s);
    }
    b = stats_of(s);
    assert_int_equal(b.compiled, a.compiled);
    assert_true(b.plan_hits > a.plan_hits);
    close_clean(s);
}

/* A cache of keys grows by one in each step, at a place that is a number, and a window of it is read: the
 * plan stays, whether steps are replayed or not or run eagerly, and a window that does not fit is an error
 * and no value. */
/* A slice of what the step itself makes: where it begins is part of the plan. */
TEST(a_slice_that_moves_is_found_where_it_is)
{
    enum { N = 97, WIDE = 8 };
    float v[N], got[WIDE];
    for (int i = 0; i < N; i++) v[i] = 0.01f * (float)i;
    ON_EACH_WAY(s) {
        tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(N));
        for (int first = 0; first < 5; first++) {
            tn_step_begin(s);
            tn_tensor *y = tn_exp(x), *part = tn_sin(tn_slice(y, 0, first, first + WIDE, 1));
            assert_int_equal(tn_read(part, TN_F32, got, sizeof got), 0);
            for (int i = 0; i < WIDE; i++)
                assert_float_equal(got[i], (float)sin(exp(0.01 * (first + i))), 1e-5);
            tn_step_end(s);
        }
    }
}

/* What becomes part of a concat could be written there alone, but for others who want it, or the part beside
 * it, which is the same. */
TEST(a_part_of_a_concat_is_a_value_of_its_own)
{
    enum { N = 8, ALL = N * N };
    ON_EACH_WAY(s) {
        tn_tensor *x = tn_full(s, 2, TN_F32, TN_SHAPE(N, N));
        for (int k = 0; k < 4; k++) {
            const bool twice = k & 1, product = k & 2;
            const float e2 = (float)exp(2), want = product ? 4 * N : e2;
            float part[ALL], whole[2 * ALL];
            tn_step_begin(s);
            tn_tensor *y = product ? tn_matmul(x, x) : tn_exp(x), *other = twice ? y : tn_exp(x);
            tn_tensor *all = tn_concat(2, (tn_tensor *[]){y, other}, 0);
            if (!twice) assert_int_equal(tn_read(y, TN_F32, part, sizeof part), 0);
            assert_int_equal(tn_read(all, TN_F32, whole, sizeof whole), 0);
            for (int i = 0; i < ALL; i++) {
                if (!twice) assert_float_equal(part[i], want, 1e-5);
                assert_float_equal(whole[i], want, 1e-5);
                assert_float_equal(whole[ALL + i], twice ? want : e2, 1e-5);
            }
            tn_step_end(s);
        }
    }
}

TEST(a_window_moves_without_a_new_plan)
{
    for (int kind = 0; kind < 3; kind++) {
        setenv("TENSOR_REPLAY", kind ? "on" : "off", 1);
        tn_session *s = tn_open(.device = TN_CPU, .mode = kind < 2 ? TN_FUSED : TN_EAGER, .log = quiet);
        unsetenv("TENSOR_REPLAY");
        tn_tensor *cache = tn_keep(tn_zeros(s, TN_F32, TN_SHAPE(10, 3)));
        tn_tensor *places = tn_keep(tn_reshape(tn_arange(s, 0, 10, 1, TN_F32), TN_SHAPE(10, 1)));
        tn_stats a = {.size = sizeof a}, b = a;
        for (int i = 0; i < 9; i++) {
            float v[6];
            tn_step_begin(s);
            tn_tensor *here = tn_eq_scalar(places, (double)i),
                      *key = tn_full(s, i + 1, TN_F32, TN_SHAPE(1, 3));
            tn_assign(cache, tn_where(here, key, cache));
            tn_tensor *window = tn_mul_scalar(tn_narrow(cache, 0, i ? i - 1 : 1, 2), 2.0);
            assert_int_equal(tn_read(window, TN_F32, v, sizeof v), 0);
            for (int k = 0; k < 6; k++) assert_true(v[k] == (float)(i ? 2 * (i + k / 3) : 0));
            assert_int_equal(tn_step_end(s), 0);
            if (i == 3) a = stats_of(s); /* starts of 1 and 0 are no constants any more */
        }
        b = stats_of(s);
        assert_int_equal(b.plans, a.plans);
        assert_int_equal(b.compiled, a.compiled);
        for (int bad = -1; bad <= 9; bad += 10) {
            float v[6];
            tn_step_begin(s);
            tn_read(tn_narrow(cache, 0, bad, 2), TN_F32, v, sizeof v);
            assert_int_equal(tn_error(s), TN_E_INDEX);
            tn_step_end(s);
            tn_clear_error(s);
        }
        tn_step_begin(s);
        null_with(s, TN_E_SHAPE, "", tn_narrow(cache, 0, 0, 11));
        tn_step_end(s);
        close_clean(s);
    }
}

/* ---- what may run in one kernel, and how ---- */

/* Each row's sum over every other row's: read beside the sums along both axes, it is not their diagonal. */
TEST(a_reduction_read_along_two_axes_is_all_of_their_product)
{
    ON_EACH_WAY(s) {
        float v[16];
        tn_step_begin(s);
        tn_tensor *x = tn_expand(tn_reshape(tn_arange(s, 1, 5, 1, TN_F32), TN_SHAPE(4, 1)), TN_SHAPE(4, 8));
        tn_tensor *sum = tn_sum(x, TN_AXES(1), 1);
        tn_tensor *ratio = tn_div(tn_reshape(sum, TN_SHAPE(1, 4)), sum);
        assert_int_equal(tn_read(ratio, TN_F32, v, sizeof v), 0);
        for (int i = 0; i < 16; i++) assert_float_equal(v[i], (float)(i % 4 + 1) / (float)(i / 4 + 1), 1e-6);
        tn_step_end(s);
    }
}

/* The gradient that reaches the scatter is a number repeated, which stands in no memory. */
TEST(a_number_can_be_gathered)
{
    ON_EACH_WAY(s) {
        float v[2];
        const int64_t at[2] = {1, 0};
        tn_tensor *src = tn_param(s, "src", vec(s, 3, 4)), *grad = NULL;
        tn_step_begin(s);
        tn_tensor *index = tn_from(s, at, TN_I64, TN_SHAPE(2));
        tn_tensor *y = tn_sign(tn_scatter_add(tn_zeros(s, TN_F32, TN_SHAPE(2)), 0, index, src));
        assert_int_equal(tn_grad(tn_sum(y, TN_ALL, 0), 1, &src, &grad), 0);
        assert_int_equal(tn_read(grad, TN_F32, v, sizeof v), 0);
        assert_true(v[0] == 0 && v[1] == 0);
        tn_step_end(s);
    }
}

RUN_TESTS(NULL, NULL)
