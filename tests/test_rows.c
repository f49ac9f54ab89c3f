/* test_rows.c - assignments of some lines, and what is built on them: a cache of keys and values that is
 * written at a position, and a table of which a step updates the rows that it read; lines that an index
 * names. Start with lines_assigned. */
#include "tests/golden.h"

/* ---- lines, beside a plain loop ---- */

TEST(lines_assigned)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_F16, TN_I64, TN_BOOL};
    rng r = {77};
    for (int round = 0; round < 24; round++) {
        const int axis = (int)rng_below(&r, 3);
        const int64_t k = 1 + rng_below(&r, 6);
        int64_t shape[3], some[3], at[8];
        for (int i = 0; i < 3; i++)
            shape[i] = some[i] = 1 + rng_below(&r, i == 2 && round % 3 == 0 ? 300 : 7);
        some[axis] = k;
        for (int64_t i = 0; i < k; i++) at[i] = rng_below(&r, shape[axis]);
        const int64_t n = shape[0] * shape[1] * shape[2], m = some[0] * some[1] * some[2];
        double *want = calloc((size_t)n, sizeof *want), *src = calloc((size_t)m, sizeof *src),
               *got = calloc((size_t)n, sizeof *got);
        const tn_dtype d = dtypes[round % 4];
        for (int64_t i = 0; i < m; i++) src[i] = d == TN_BOOL ? (double)(i % 2) : (double)(1 + i % 100);
        for (int64_t i = 0; i < m; i++) {
            int64_t c[3] = {i / some[2] / some[1], i / some[2] % some[1], i % some[2]};
            c[axis] = at[c[axis]];
            want[(c[0] * shape[1] + c[1]) * shape[2] + c[2]] = src[i];
        }
        for (int p = 0; p < PLACE_COUNT; p++) {
            tn_session *s = open_place(&PLACES[p], NULL, NULL);
            tn_tensor *target = tn_buffer(s, "target", tn_zeros(s, d, 3, shape));
            tn_step_begin(s);
            tn_tensor *before = tn_sum(tn_cast(target, TN_F32), TN_ALL, false);
            tn_tensor *x = tensor_of(s, src, d, 3, some), *index = tn_from(s, at, TN_I64, 1, &k);
            /* as it is read: the other way round, from the end */
            x = tn_flip(tn_contiguous(tn_flip(x, 1, &axis)), 1, &axis);
            tn_assign_rows(target, axis, index, x);
            tn_tensor *after = tn_mul_scalar(tn_cast(target, TN_F32), 2.0);
            tn_assign_rows(target, axis, tn_slice(index, 0, 0, 1, 1), tn_slice(x, axis, 0, 1, 1));
            assert_true(tn_item(before) == 0);
            tn_read(after, TN_F64, got, (size_t)n * sizeof *got);
            tn_step_end(s);
            expect_fine(s, PLACES[p].name);
            for (int64_t i = 0; i < n; i++)
                if (got[i] != 2 * want[i])
                    fail_msg("%s, round %d: element %lld is %g, not %g", PLACES[p].name, round, (long long)i,
                             got[i] / 2, want[i]);
            tn_assign_rows(target, axis, tn_from(s, &shape[axis], TN_I64, TN_SHAPE(1)),
                           tn_slice(target, axis, 0, 1, 1));
            tn_read(target, TN_F64, got, (size_t)n * sizeof *got); /* a GPU tells late */
            assert_int_equal(tn_error(s), TN_E_INDEX);
            tn_close(s);
        }
        free(want);
        free(src);
        free(got);
    }
}

/* ---- indices that say the same of a whole line, and such that do not ---- */

enum { MOST_PLACES = 1 << 16 };

/* The element of the target, or of x, that place i of an index of shape `some` means. */
static int64_t meant(const int64_t some[3], const int64_t shape[3], int axis, int64_t i, int64_t line)
{
    int64_t c[3] = {i / some[2] / some[1], i / some[2] % some[1], i % some[2]};
    c[axis] = line;
    return (c[0] * shape[1] + c[1]) * shape[2] + c[2];
}

TEST(gathered_and_scattered_lines)
{
    rng r = {78};
    double *x = calloc(MOST_PLACES, sizeof *x), *got = calloc(MOST_PLACES, sizeof *got),
           *want = calloc(MOST_PLACES, sizeof *want), *src = calloc(MOST_PLACES, sizeof *src);
    int64_t *at = calloc(MOST_PLACES, sizeof *at);
    assert_true(x && got && want && src && at);
    for (int round = 0; round < 30; round++) {
        const int axis = (int)rng_below(&r, 3), kind = round % 3; /* expanded, expanded but less, full */
        int64_t shape[3], some[3], one[3] = {1, 1, 1};
        for (int i = 0; i < 3; i++) {
            shape[i] = (kind == 1 ? 2 : 1) + rng_below(&r, i == 2 && round % 2 ? 90 : 7);
            some[i] = shape[i] - (kind == 1 && i == (axis + 1) % 3);
        }
        some[axis] = one[axis] = 1 + rng_below(&r, shape[0] * shape[2] < 20 ? 300 : 9);
        const int64_t n = shape[0] * shape[1] * shape[2], m = some[0] * some[1] * some[2];
        assert_true(n <= MOST_PLACES && m <= MOST_PLACES);
        for (int64_t i = 0; i < n; i++) x[i] = (double)rng_below(&r, 9) - 4;
        for (int64_t i = 0; i < m; i++) src[i] = (double)rng_below(&r, 9) - 4;
        for (int64_t i = 0; i < m; i++) at[i] = rng_below(&r, shape[axis]);
        for (int p = 0; p < PLACE_COUNT; p++) {
            const bool fused = PLACES[p].mode == TN_FUSED && PLACES[p].device == TN_CPU;
            tn_session *s = open_place(&PLACES[p], NULL, NULL);
            for (int adds = 0; adds < 2; adds++) {
                for (int64_t i = 0; i < n; i++) want[i] = adds ? x[i] : 0;
                for (int64_t i = 0; i < m; i++) {
                    int64_t a = i / some[2] / some[1];
                    a = axis == 0 ? a : axis == 1 ? i / some[2] % some[1] : i % some[2];
                    const int64_t to = meant(some, shape, axis, i, kind < 2 ? at[a] : at[i]);
                    if (adds)
                        want[to] += src[i];
                    else
                        want[i] = x[to];
                }
                tn_step_begin(s);
                tn_tensor *index = kind < 2 ? tn_expand(tn_from(s, at, TN_I64, 3, one), 3, some)
                                            : tn_from(s, at, TN_I64, 3, some);
                tn_tensor *t = tensor_of(s, x, TN_F32, 3, shape), *out, *g = NULL;
                tn_tensor *of = tensor_of(s, src, TN_F32, 3, some);
                tn_requires_grad(adds ? of : t, true);
                out = adds ? tn_scatter_add(t, axis, index, of) : tn_gather(t, axis, index);
                /* of half the squares: a gather of what was added, the sum of what was gathered */
                tn_grad(tn_mul_scalar(tn_sum(tn_square(out), TN_ALL, false), 0.5), 1, adds ? &of : &t, &g);
                tn_flush(s);
                const int64_t count = adds ? n : m, back = adds ? m : n;
                tn_read(out, TN_F64, got, (size_t)count * sizeof *got);
                for (int64_t i = 0; i < count; i++)
                    if (got[i] != want[i])
                        fail_msg("%s, round %d: element %lld is %g, not %g", PLACES[p].name, round,
                                 (long long)i, got[i], want[i]);
                tn_read(g, TN_F64, got, (size_t)back * sizeof *got);
                double *due = calloc((size_t)back, sizeof *due);
                assert_non_null(due);
                for (int64_t i = 0; i < m; i++) {
                    int64_t a = i / some[2] / some[1];
                    a = axis == 0 ? a : axis == 1 ? i / some[2] % some[1] : i % some[2];
                    const int64_t to = meant(some, shape, axis, i, kind < 2 ? at[a] : at[i]);
                    due[adds ? i : to] += want[adds ? to : i];
                }
                for (int64_t i = 0; i < back; i++)
                    if (got[i] != due[i])
                        fail_msg("%s, round %d: gradient %lld is %g, not %g", PLACES[p].name, round,
                                 (long long)i, got[i], due[i]);
                free(due);
                tn_step_end(s);
                expect_fine(s, PLACES[p].name);
                if (!fused || m == some[axis]) continue;
                assert_true((strstr(tn_plan_text(s), " index_add_") != NULL) == (kind == 0));
            }
            tn_close(s);
        }
    }
    free(x);
    free(got);
    free(want);
    free(src);
    free(at);
}

/* ---- the cache, beside attention over the whole ---- */

TEST(cache_like_the_whole)
{
    enum { N = 2, HEADS = 4, FEW = 2, T = 9, D = 8 };
    for (int p = 0; p < PLACE_COUNT; p++) {
        tn_session *s = open_place(&PLACES[p], NULL, NULL);
        tn_tensor *x[3], *whole;
        double want[N * HEADS * T * D], got[N * HEADS * 3 * D];
        for (int i = 0; i < 3; i++) {
            tn_tensor *made = tn_randn(s, TN_F32, TN_SHAPE(N, i ? FEW : HEADS, T, D));
            x[i] = tn_keep(made);
            tn_free(made);
        }
        tn_step_begin(s);
        whole = tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = true);
        tn_read(whole, TN_F64, want, sizeof want);
        tn_step_end(s);
        tn_cache *c = tn_cache_new(s, N, FEW, T + 2, D, TN_F32);
        tn_stats before = {.size = sizeof before}, after = before;
        for (int at = 0; at < T; at++) {
            const int t = at ? 1 : 2; /* a prompt of two first */
            tn_step_begin(s);
            tn_tensor *part[3];
            for (int i = 0; i < 3; i++) part[i] = tn_narrow(x[i], 2, at, t);
            tn_read(tn_cache_attention(c, part[0], part[1], part[2], at), TN_F64, got,
                    (size_t)(N * HEADS * t * D) * sizeof *got);
            tn_step_end(s);
            expect_fine(s, PLACES[p].name);
            for (int i = 0; i < N * HEADS * t * D; i++) {
                const double w = want[(i / D / t * T + at + i / D % t) * D + i % D];
                if (!(fabs(got[i] - w) <= 2e-6))
                    fail_msg("%s, position %d: element %d is %g, not %g", PLACES[p].name, at, i, got[i], w);
            }
            if (!at) at++;
            tn_get_stats(s, &after);
            if (at == 2) before = after;
        }
        assert_int_equal(before.plans, after.plans); /* none anew from one position to the next */
        assert_null(tn_cache_attention(c, x[0], x[1], x[2], 3));
        assert_int_equal(tn_error(s), TN_E_INDEX);
        assert_non_null(strstr(tn_error_text(s), "9 queries and 9 keys at 3, in a cache of 11"));
        tn_cache_free(c);
        tn_close(s);
    }
}

/* ---- a sparse table, beside PyTorch ---- */

enum { ROWS = 12, WIDE = 3, STEPS = 4, EACH = 8 };

TEST(table_like_pytorch)
{
    golden g;
    golden_open(&g, "layers");
    for (int p = 0; p < PLACE_COUNT; p++)
        for (int adam = 0; adam < 2; adam++) {
            tn_session *s = open_place(&PLACES[p], NULL, NULL);
            const char *name = adam ? "sparse_adam" : "sparse_sgd";
            tn_embed *e =
                tn_embedding_new(s, "e", ROWS, WIDE, .sparse = adam ? TN_SPARSE_ADAM : TN_SPARSE_SGD);
            tn_tensor *start = golden_tensor(s, golden_find(&g, "sparse.weight"), TN_F32);
            tn_assign(e->weight, start);
            tn_free(start);
            for (int i = 0; i < STEPS; i++) {
                tn_step_begin(s);
                tn_tensor *index = golden_tensor(s, golden_find(&g, "sparse.index.%d", i), TN_I64);
                tn_tensor *w = golden_tensor(s, golden_find(&g, "sparse.scale.%d", i), TN_F32);
                /* in two lookups, of two shapes */
                tn_tensor *a = tn_embedding_forward(e, tn_slice(index, 0, 0, 3, 1));
                tn_tensor *b = tn_embedding_forward(
                    e, tn_reshape(tn_slice(index, 0, 3, EACH, 1), TN_SHAPE(1, EACH - 3)));
                tn_tensor *rows = tn_concat(2, (tn_tensor *[]){a, tn_squeeze(b, 0)}, 0);
                tn_backward(tn_sum(tn_mul(tn_square(rows), w), TN_ALL, false));
                tn_embedding_step(e, .lr = adam ? 0.05 : 0.1);
                tn_step_end(s);
                expect_fine(s, PLACES[p].name);
                golden_close(PLACES[p].name, name, e->weight, golden_find(&g, "%s.%d", name, i),
                             PLACES[p].device == TN_REF ? 1e-7 : 2e-6);
            }
            tn_step_begin(s);
            assert_int_equal(tn_embedding_step(e, .lr = 1), TN_E_STATE);
            tn_step_end(s);
            tn_close(s);
        }
    golden_close_file(&g);
}

/* A step on a long table moves its rows: some kilobytes, not the megabytes of the table. */
TEST_ON(long_table, tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 1, .log = quiet))
{
    enum { LONG = 20000, FEATURES = 64, LOOKED_UP = 64 };
    tn_embed *e = tn_embedding_new(s, "e", LONG, FEATURES, .sparse = TN_SPARSE_ADAM);
    int32_t index[LOOKED_UP];
    for (int i = 0; i < LOOKED_UP; i++) index[i] = i * 311 % LONG;
    for (int i = 0; i < 2; i++) {
        tn_step_begin(s);
        tn_backward(tn_sum(tn_square(tn_embedding_forward(e, tn_from(s, index, TN_I32, TN_SHAPE(LOOKED_UP)))),
                           TN_ALL, false));
        tn_embedding_step(e, .lr = 0.1);
        tn_step_end(s);
    }
    expect_fine(s, "long table");
    double moved = 0;
    const char *text = tn_plan_text(s);
    assert_int_equal(sscanf(text, "step: %*d kernels, %lf MB", &moved), 1);
    if (!(moved < 1)) fail_msg("%s", text);
}

RUN_TESTS(NULL, NULL)
