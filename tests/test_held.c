/* test_held.c - values and views that are held over assignments. An operator sees its operands as they are at
 * the call, whatever was assigned before or is assigned later, and however they are held: as what an operator
 * made, as a view, as a view of a view. Random steps of 3 x 3 matrices against arrays of the host that are
 * computed at once; all numbers are whole and small, so that every road has the same bits.
 *
 * Start with play. */
#include "tests/test.h"
#include "src/core/sanitized.h"
#include "tests/subject.h"

enum { N = 3, BUFFERS = 2, MOST = 24, STEPS = 3 };
#if defined(TN_ASAN)
enum { PROGRAMS = 8 };
#else
enum { PROGRAMS = 30 };
#endif

typedef struct matrix {
    double at[N][N];
} matrix;

typedef enum what { TRANSPOSE, FLIP, ROTATE, NEGATE, ADD, LARGER, ASSIGN, FLUSH, KEEP, N_WHATS } what;

static uint64_t seed[2]; /* of what is called, and of what it is given */

static int draw_from(int which, int below)
{
    seed[which] = seed[which] * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed[which] >> 33) % (uint64_t)below);
}

static int draw(int below) { return draw_from(0, below); }

static matrix model(what op, const matrix *x, const matrix *y)
{
    matrix r;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            const double a = x->at[i][j], b = y->at[i][j];
            r.at[i][j] = op == TRANSPOSE ? x->at[j][i]
                         : op == FLIP    ? x->at[N - 1 - i][j]
                         : op == ROTATE  ? x->at[j][N - 1 - i]
                         : op == NEGATE  ? -a
                         : op == ADD     ? a - b + 1
                         : op == LARGER  ? (a > b ? a : b)
                                         : a;
        }
    return r;
}

static tn_tensor *record(what op, tn_tensor *x, tn_tensor *y)
{
    switch (op) {
    case TRANSPOSE: return tn_transpose(x, 0, 1);
    case FLIP: return tn_flip(x, TN_AXES(0));
    case ROTATE: return tn_transpose(tn_flip(x, TN_AXES(1)), 0, 1);
    case NEGATE: return tn_neg(x);
    case ADD: return tn_add_scalar(tn_sub(x, y), 1);
    case LARGER: return tn_maximum(x, y);
    default: return tn_keep(x);
    }
}

/* A value is right, or TN_E_NOT_KEPT says that it is gone. Returns false where it is. */
static bool right_or_gone(tn_tensor *x, const matrix *m, int program, int step, int value)
{
    double got[N][N];
    tn_session *s = tn_session_of(x);
    if (tn_read(x, TN_F64, got, sizeof got)) {
        if (tn_error(s) != TN_E_NOT_KEPT)
            fail_msg("program %d, step %d: %s", program, step, tn_error_text(s));
        tn_clear_error(s);
        return false;
    }
    for (int i = 0; i < N * N; i++)
        if (got[i / N][i % N] != m->at[i / N][i % N])
            fail_msg("program %d, step %d: value %d is %g and should be %g at %d", program, step, value,
                     got[i / N][i % N], m->at[i / N][i % N], i);
    return true;
}

/* One step: the first values are the buffers, which always stand for what was assigned to them last. Returns
 * false where it needed a value that was gone: an earlier run, of a read or a flush, had written over it. */
static bool play(tn_session *s, tn_tensor *const *buffer, matrix *state, int program, int step)
{
    tn_tensor *x[MOST];
    matrix m[MOST];
    bool kept[MOST] = {false};
    int n = BUFFERS, lines = 6 + draw(MOST - BUFFERS - 6);
    tn_step_begin(s);
    while (lines-- > 0 && !tn_error(s)) {
        for (int i = 0; i < BUFFERS; i++) {
            x[i] = buffer[i];
            m[i] = state[i];
        }
        const what op = (what)draw(N_WHATS);
        const int a = draw_from(1, n), b = draw_from(1, n), to = draw_from(1, BUFFERS);
        if (op == ASSIGN) {
            if (!tn_assign(buffer[to], x[a])) state[to] = m[a];
        } else if (op == FLUSH) {
            if (!draw(4)) tn_flush(s);
        } else {
            kept[n] = op == KEEP;
            m[n] = model(op, &m[a], &m[b]);
            x[n] = record(op, x[a], x[b]);
            n++;
        }
    }
    int gone = tn_error(s) != TN_OK;
    for (int i = BUFFERS; i < n && !gone; i++)
        if (!draw(4) && !right_or_gone(x[i], &m[i], program, step, i)) gone = 1;
    tn_step_end(s);
    if (tn_error(s) != TN_OK && tn_error(s) != TN_E_NOT_KEPT)
        fail_msg("program %d, step %d: %s", program, step, tn_error_text(s));
    if (gone || tn_error(s)) return false;
    for (int i = 0; i < n; i++) {
        if (i >= BUFFERS && !kept[i]) continue;
        if (!right_or_gone(x[i], i < BUFFERS ? &state[i] : &m[i], program, step, i))
            fail_msg("program %d: kept value %d is gone", program, i);
        if (kept[i]) tn_free(x[i]);
    }
    return true;
}

static void play_all(tn_device_kind device, tn_mode mode)
{
    int whole = 0;
    const char *more = getenv("TEST_PROGRAMS");
    const int programs = more ? atoi(more) : PROGRAMS;
    for (int program = 0; program < programs; program++) {
        tn_session *s = tn_open(.device = device, .mode = mode);
        tn_tensor *buffer[BUFFERS];
        matrix state[BUFFERS];
        assert_non_null(s);
        for (int k = 0; k < BUFFERS; k++) {
            char name[8];
            snprintf(name, sizeof name, "b%d", k);
            buffer[k] =
                tn_buffer(s, name, tn_reshape(tn_arange(s, k * 9, k * 9 + 9, 1, TN_F32), TN_SHAPE(N, N)));
            for (int i = 0; i < N * N; i++) state[k].at[i / N][i % N] = k * 9 + i;
        }
        bool well = true;
        for (int step = 0; step < STEPS && well; step++) {
            /* steps that differ, that make the same calls on other operands, and that are the same */
            seed[0] = (uint64_t)program * 977 + (program % 3 ? 0 : (uint64_t)step);
            seed[1] = (uint64_t)program * 571 + (program % 3 > 1 ? 0 : (uint64_t)step);
            well = play(s, buffer, state, program, step);
        }
        whole += well;
        tn_close(s);
    }
    assert_true(whole > programs / 2);
}

TEST(fused) { play_all(subject_device(), TN_FUSED); }

TEST(eager) { play_all(subject_device(), TN_EAGER); }

TEST(on_the_reference) { play_all(TN_REF, TN_FUSED); }

TEST(without_a_compiler)
{
    setenv("TENSOR_CC", "none", 1);
    play_all(TN_CPU, TN_FUSED);
    unsetenv("TENSOR_CC");
}

RUN_TESTS(NULL, NULL)
