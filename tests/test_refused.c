/* test_refused.c - a run that fails takes no effect. Random programs of assignments, updates and lookups,
 * some with an index out of range, against a model of two states: what has taken effect, and what it will be
 * once what waits has run. Then what a plan does for it, and what the errors say.
 *
 * Start with struct model, then play.
 */
#include "tests/plan_checks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tensor_nn.h>

#include "src/core/sanitized.h"

enum { N = 4, BUFFERS = 3, LINES = 12, STEPS = 5 };
#if defined(TN_ASAN)
enum { PROGRAMS = 30 };
#else
enum { PROGRAMS = 120 };
#endif

static void quiet(int level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

/* ---- programs ---- */

typedef enum what { HALVE, PICK, COMPUTED, BACKWARD, UPDATE, STATISTICS, READ, FLUSH, N_WHATS } what;

typedef struct line {
    what op;
    int to, from;
    int index[N], bad; /* bad: of five steps, the one where the index is out of range; -1: none */
    double by;
} line;

typedef struct program {
    int n;
    line line[LINES];
    bool clears; /* within the step */
} program;

static uint64_t seed;

static int draw(int below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)below);
}

static program draw_program(int number)
{
    program p;
    seed = (uint64_t)number * 77 + 5;
    draw(2);
    p.n = 3 + draw(LINES - 3);
    p.clears = draw(2);
    for (int i = 0; i < p.n; i++) {
        line *l = &p.line[i];
        l->op = (what)draw(N_WHATS);
        l->to = draw(BUFFERS);
        l->from = draw(BUFFERS);
        l->by = 0.25 * draw(8);
        l->bad = draw(3) ? -1 : draw(STEPS);
        for (int k = 0; k < N; k++) l->index[k] = draw(N);
    }
    return p;
}

/* ---- what they do ---- */

typedef struct state {
    double buffer[BUFFERS][N], param[N], gradient[N], mean, variance;
    bool graded, assigned[BUFFERS]; /* in this run */
} state;

/* Two states: what has taken effect, and what waits to. */
typedef struct model {
    bool waits; /* operators do, in this way of running */
    state now, next;
    bool failed;    /* what waits has an index out of range, */
    bool went_back; /* and a backward */
    bool broken;    /* an error stands */
} model;

static void settle(model *m)
{
    bool back = m->went_back;
    if (m->failed || m->broken) {
        m->broken = true;
        m->next = m->now;
        if (back) {
            m->next.graded = false;
            memset(m->next.gradient, 0, sizeof m->next.gradient);
        }
    }
    memset(m->next.assigned, 0, sizeof m->next.assigned);
    m->now = m->next;
    m->failed = m->went_back = false;
}

/* The last element of the index, when it is the step for it, is `off`. */
static tn_tensor *index_of(tn_session *s, const line *l, bool bad)
{
    static const int off[3] = {N, -1, 1000};
    int32_t v[N];
    for (int k = 0; k < N; k++) v[k] = l->index[k];
    if (bad) v[N - 1] = off[l->index[0] % 3];
    return tn_from(s, v, TN_I32, TN_SHAPE(N));
}

typedef struct held {
    tn_session *s;
    tn_tensor *buffer[BUFFERS], *param, *mean, *variance;
    tn_optim *opt;
} held;

static void assigned(model *m, int to, const double *v)
{
    memcpy(m->next.buffer[to], v, sizeof m->next.buffer[to]);
    m->next.assigned[to] = true;
}

/* False: the line is left out, as one that the model does not cover. */
static bool do_line(held *h, model *m, const line *l, bool bad)
{
    tn_session *s = h->s;
    state *x = &m->next;
    double v[N];
    const bool skip = m->broken, was = m->failed;
    const int *at = l->index;
    tn_tensor *loss, *from = h->buffer[l->from];
    switch (l->op) {
    case HALVE:
        tn_assign(h->buffer[l->to], tn_add_scalar(tn_mul_scalar(from, 0.5), l->by));
        for (int k = 0; k < N; k++) v[k] = x->buffer[l->from][k] * 0.5 + l->by;
        if (!skip) assigned(m, l->to, v);
        return true;
    case PICK:
        tn_assign(h->buffer[l->to], tn_mul_scalar(tn_index_select(from, 0, index_of(s, l, bad)), 0.75));
        for (int k = 0; k < N; k++) v[k] = x->buffer[l->from][at[k]] * 0.75;
        if (skip) return true;
        m->failed = m->failed || bad;
        if (m->waits || !bad) assigned(m, l->to, v);
        break;
    case COMPUTED: /* a place that is made of the parameters, which do not change before this has run */
        if (m->waits && (x->graded || m->went_back || memcmp(x->param, m->now.param, sizeof x->param)))
            return false;
        loss = tn_mul_scalar(tn_sum(h->param, TN_ALL, true), 0.0);
        loss = tn_cast(tn_add_scalar(tn_reshape(loss, TN_SHAPE(1)), bad ? 77 : at[0]), TN_I64);
        tn_assign(h->buffer[l->to], tn_add(h->buffer[l->to], tn_index_select(from, 0, loss)));
        for (int k = 0; k < N; k++) v[k] = x->buffer[l->to][k] + x->buffer[l->from][at[0]];
        if (skip) return true;
        m->failed = m->failed || bad;
        if (m->waits || !bad) assigned(m, l->to, v);
        break;
    case BACKWARD:
        loss = tn_sum(tn_index_select(tn_mul_scalar(h->param, 1 + l->by), 0, index_of(s, l, bad)), TN_ALL,
                      false);
        if (!tn_error(s)) tn_backward(loss);
        if (skip) return true;
        m->failed = m->failed || bad;
        if (!m->waits && bad) break;
        for (int k = 0; k < N; k++) x->gradient[at[k]] += 1 + l->by;
        x->graded = m->went_back = true;
        break;
    case UPDATE:
        tn_optim_step(h->opt);
        if (skip || !x->graded) return true;
        for (int k = 0; k < N; k++) x->param[k] -= 0.125 * x->gradient[k];
        return true;
    case STATISTICS: /* of two images of one channel: l->by, and 1 */
        loss = tn_from(s, (float[]){(float)l->by, 1}, TN_F32, TN_SHAPE(2, 1, 1, 1));
        tn_batch_norm(loss, NULL, NULL, h->mean, h->variance);
        if (skip) return true;
        x->mean = 0.9 * x->mean + 0.1 * (1 + l->by) / 2;
        x->variance = 0.9 * x->variance + 0.1 * (1 - l->by) * (1 - l->by) / 2;
        return true;
    case READ:
    case FLUSH:
    case N_WHATS:
        return true;
    }
    if (!m->waits && m->failed && !was) {
        m->failed = false;
        m->broken = true;
    }
    return true;
}

static void same(const held *h, const char *way, int number, tn_tensor *x, int n, const double *want)
{
    double got[N];
    assert_int_equal(tn_read(x, TN_F64, got, (size_t)n * sizeof *got), TN_OK);
    for (int k = 0; k < n; k++)
        if (fabs(got[k] - want[k]) > 1e-4 * (1 + fabs(want[k])))
            fail_msg("%s, program %d: '%s' [%d] is %g, expected %g", way, number, tn_name(x), k, got[k],
                     want[k]);
    assert_string_equal(tn_error_text(h->s), "");
}

static void compare(const held *h, const char *way, int number, const state *x)
{
    for (int i = 0; i < BUFFERS; i++) same(h, way, number, h->buffer[i], N, x->buffer[i]);
    same(h, way, number, h->param, N, x->param);
    same(h, way, number, h->mean, 1, &x->mean);
    same(h, way, number, h->variance, 1, &x->variance);
}

static void error_is(const held *h, const model *m, const char *way, int number)
{
    if (tn_error(h->s) != (m->broken ? TN_E_INDEX : TN_OK))
        fail_msg("%s, program %d: %s", way, number, m->broken ? "no error" : tn_error_text(h->s));
}

static void play_step(held *h, model *m, const program *p, const char *way, int number, int step)
{
    tn_session *s = h->s;
    tn_step_begin(s);
    memset(m->next.gradient, 0, sizeof m->next.gradient);
    m->next.graded = false;
    m->now = m->next;
    for (int i = 0; i < p->n; i++) {
        const line *l = &p->line[i];
        bool done = do_line(h, m, l, l->bad == step);
        if (!m->waits) settle(m);
        if (done && (l->op == READ || l->op == FLUSH)) {
            if (l->op == READ)
                tn_item(tn_sum(h->buffer[l->from], TN_ALL, false));
            else
                tn_flush(s);
            settle(m);
        }
        if (!m->waits || l->op == READ || l->op == FLUSH) error_is(h, m, way, number);
        if (m->broken && p->clears) {
            tn_clear_error(s);
            m->broken = false;
        }
    }
    tn_step_end(s);
    settle(m);
    error_is(h, m, way, number);
    tn_clear_error(s);
    m->broken = false;
    compare(h, way, number, &m->now);
}

typedef struct way_to_run {
    const char *name;
    tn_device_kind device;
    tn_mode mode;
    const char *variable, *value;
} way_to_run;

static void play(const way_to_run *w, int number)
{
    static const float start[N] = {1, 2, 3, 4};
    const program p = draw_program(number);
    if (w->variable) setenv(w->variable, w->value, 1);
    held h = {.s = tn_open(.device = w->device, .mode = w->mode, .log = quiet)};
    model m = {.waits = w->mode == TN_FUSED};
    for (int i = 0; i < BUFFERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "b%d", i);
        h.buffer[i] = tn_buffer(h.s, name, tn_from(h.s, start, TN_F32, TN_SHAPE(N)));
        for (int k = 0; k < N; k++) m.now.buffer[i][k] = start[k];
    }
    h.param = tn_param(h.s, "p", tn_from(h.s, start, TN_F32, TN_SHAPE(N)));
    for (int k = 0; k < N; k++) m.now.param[k] = start[k];
    h.mean = tn_buffer(h.s, "mean", tn_zeros(h.s, TN_F32, TN_SHAPE(1)));
    h.variance = tn_buffer(h.s, "variance", tn_zeros(h.s, TN_F32, TN_SHAPE(1)));
    h.opt = tn_sgd(h.s, tn_all_params(h.s), .lr = 0.125);
    m.next = m.now;
    for (int step = 0; step < STEPS; step++) play_step(&h, &m, &p, w->name, number, step);
    assert_int_equal(tn_close(h.s), TN_OK);
    if (w->variable) unsetenv(w->variable);
}

static void what_runs_together_takes_effect_together(void **unused)
{
    (void)unused;
    static const way_to_run all[] = {{"fused", TN_CPU, TN_FUSED, NULL, NULL},
                                     {"fused, not replayed", TN_CPU, TN_FUSED, "TENSOR_REPLAY", "off"},
                                     {"fused, without a compiler", TN_CPU, TN_FUSED, "TENSOR_CC", "none"},
                                     {"eager", TN_CPU, TN_EAGER, NULL, NULL},
                                     {"reference, fused", TN_REF, TN_FUSED, NULL, NULL},
                                     {"reference, eager", TN_REF, TN_EAGER, NULL, NULL}};
    for (int number = 0; number < PROGRAMS; number++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) play(&all[i], number);
}

/* ---- what a plan does for it ---- */

static tn_session *open_cpu(void)
{
    return tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet);
}

static tn_tensor *numbers(tn_session *s, const char *name, int n)
{
    float v[16];
    for (int i = 0; i < n; i++) v[i] = (float)i;
    return tn_buffer(s, name, tn_from(s, v, TN_F32, TN_SHAPE(n)));
}

static int named(const seen *v, const char *begins)
{
    int n = 0;
    for (int i = 0; i < v->plan->n_step; i++) n += !strncmp(v->plan->step[i].name, begins, strlen(begins));
    return n;
}

/* Labels are looked through first where running statistics would be assigned before the loss reads them;
 * where every assignment is made of gradients of that loss, they are not. */
static void labels_are_checked_where_something_is_assigned_before(void **unused)
{
    (void)unused;
    for (int norm = 0; norm < 2; norm++) {
        tn_session *s = open_cpu();
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(3, 5))),
                  *mean = tn_buffer(s, "mean", tn_zeros(s, TN_F32, TN_SHAPE(3))),
                  *variance = tn_buffer(s, "variance", tn_ones(s, TN_F32, TN_SHAPE(3)));
        tn_optim *o = tn_adam(s, tn_all_params(s), .lr = 0.1);
        for (int step = 0; step < 2; step++) {
            tn_step_begin(s);
            tn_tensor *x = tn_add_scalar(tn_zeros(s, TN_F32, TN_SHAPE(8, 3)), 1.0);
            if (norm)
                x = tn_reshape(tn_batch_norm(tn_reshape(x, TN_SHAPE(8, 1, 1, 3)), NULL, NULL, mean, variance),
                               TN_SHAPE(8, 3));
            int32_t label[8] = {0, 1, 2, 3, 4, 0, 1, 2};
            tn_backward(tn_cross_entropy(tn_matmul(x, w), tn_from(s, label, TN_I32, TN_SHAPE(8))));
            tn_optim_step(o);
            seen v = look(s);
            if (named(&v, "check_") != norm) print_plan(&v);
            assert_int_equal(named(&v, "check_"), norm);
            assert_int_equal(named(&v, "check_labels"), norm);
            if (norm) assert_true(!strncmp(v.plan->step[0].name, "check_labels", 12));
            forget(&v);
            assert_int_equal(tn_step_end(s), TN_OK);
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* Rows at a place that the host has seen to be there need no check, nor does what argmax has chosen; several
 * readers of one index need one. */
static void what_is_known_is_not_checked(void **unused)
{
    (void)unused;
    tn_session *s = open_cpu();
    tn_tensor *cache = numbers(s, "cache", 8), *other = numbers(s, "other", 8);
    tn_step_begin(s);
    tn_assign(cache, tn_add_scalar(cache, 1.0));
    tn_tensor *window = tn_narrow(cache, 0, 2, 3), *best = tn_argmax(other, 0, true);
    tn_add(tn_sum(window, TN_ALL, false), tn_index_select(other, 0, best));
    seen v = look(s);
    assert_int_equal(named(&v, "check_"), 0);
    forget(&v);
    int64_t at[3] = {1, 2, 3};
    tn_tensor *index = tn_from(s, at, TN_I64, TN_SHAPE(3));
    tn_add(tn_index_select(cache, 0, index), tn_index_select(other, 0, index));
    v = look(s);
    assert_int_equal(named(&v, "check_index"), 1);
    forget(&v);
    assert_int_equal(tn_step_end(s), TN_OK);
    assert_int_equal(tn_close(s), TN_OK);
}

/* An index that the run computes is looked up by another kernel than the one that assigns. */
static void a_computed_index_and_an_assignment_are_apart(void **unused)
{
    (void)unused;
    tn_session *s = open_cpu();
    tn_tensor *b = numbers(s, "b", 4), *c = numbers(s, "c", 4);
    for (int bad = 0; bad < 2; bad++) {
        float v[4];
        tn_step_begin(s);
        tn_tensor *place = tn_cast(tn_add_scalar(tn_cumsum(b, 0), bad ? 9.0 : -3.0), TN_I64);
        tn_assign(c, tn_index_select(c, 0, tn_maximum_scalar(place, 0)));
        seen p = look(s);
        assert_int_equal(named(&p, "check_"), 0);
        assert_true(p.kernels >= 3);
        forget(&p);
        assert_int_equal(tn_step_end(s), bad ? TN_E_INDEX : TN_OK);
        tn_clear_error(s);
        tn_read(c, TN_F32, v, sizeof v);
        for (int k = 0; k < 4; k++) assert_true(v[k] == (k < 3 ? 0.0f : 3.0f));
    }
    assert_int_equal(tn_close(s), TN_OK);
}

/* An index that is looked through beforehand, and is written into a larger tensor besides. */
static void an_index_that_stands_in_another_tensor_is_checked(void **unused)
{
    (void)unused;
    tn_session *s = open_cpu();
    tn_tensor *b = numbers(s, "b", 4), *places = numbers(s, "places", 6);
    for (int bad = 0; bad < 2; bad++) {
        float v[4];
        int64_t both[9];
        tn_step_begin(s);
        tn_tensor *half = tn_cast(tn_mul_scalar(tn_slice(places, 0, 1, 4, 1), bad ? 2.0 : 1.0), TN_I64);
        tn_tensor *joined = tn_concat(2, ((tn_tensor *[]){half, tn_cast(places, TN_I64)}), 0);
        tn_assign(b, tn_mul_scalar(b, 2.0));
        tn_tensor *sum = tn_sum(tn_index_select(b, 0, half), TN_ALL, false);
        seen p = look(s);
        assert_int_equal(named(&p, "check_index"), 1);
        forget(&p);
        if (!bad) {
            assert_int_equal(tn_read(joined, TN_I64, both, sizeof both), TN_OK);
            for (int k = 0; k < 9; k++) assert_int_equal(both[k], k < 3 ? k + 1 : k - 3);
            assert_true(tn_item(sum) == 12);
        }
        assert_int_equal(tn_step_end(s), bad ? TN_E_INDEX : TN_OK);
        tn_clear_error(s);
        tn_read(b, TN_F32, v, sizeof v);
        for (int k = 0; k < 4; k++) assert_true(v[k] == (float)(2 * k));
    }
    assert_int_equal(tn_close(s), TN_OK);
}

/* ---- what is said, and what waits on ---- */

static void what_was_refused_has_no_value(void **unused)
{
    (void)unused;
    tn_session *s = open_cpu();
    tn_tensor *b = numbers(s, "b", 4), *c = numbers(s, "c", 4);
    int64_t at[2] = {1, 7};
    float v[4];
    tn_step_begin(s);
    tn_tensor *x = tn_index_select(c, 0, tn_from(s, at, TN_I64, TN_SHAPE(2)));
    tn_assign(b, tn_add_scalar(b, 1.0));
    tn_tensor *y = tn_mul_scalar(b, 2.0), *before = tn_mul_scalar(c, 3.0);
    assert_true(isnan(tn_item(tn_sum(x, TN_ALL, false))));
    assert_non_null(strstr(tn_error_text(s), "index[1] is 7"));
    tn_clear_error(s);
    assert_int_equal(tn_read(y, TN_F32, v, sizeof v), TN_E_NOT_KEPT);
    assert_non_null(strstr(tn_error_text(s), "assign at test_refused.c"));
    assert_non_null(strstr(tn_error_text(s), "to b, did not take place"));
    tn_clear_error(s);
    assert_int_equal(tn_read(x, TN_F32, v, 2 * sizeof *v), TN_E_INDEX);
    assert_non_null(strstr(tn_error_text(s), "index_select at test_refused.c"));
    tn_clear_error(s);
    assert_int_equal(tn_read(before, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[3] == 9);
    /* another assignment, beside a value of the first that nobody asks for */
    tn_add(y, tn_sum(x, TN_ALL, false));
    tn_assign(b, tn_add_scalar(b, 10.0));
    assert_int_equal(tn_read(b, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[3] == 13);
    assert_int_equal(tn_step_end(s), TN_OK);
    assert_int_equal(tn_read(b, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[0] == 10 && v[3] == 13);
    assert_int_equal(tn_close(s), TN_OK);
}

/* Asking for what cannot be had is no run: what waits goes on waiting, and counts once. */
static void asking_in_vain_refuses_nothing(void **unused)
{
    (void)unused;
    float plain[3], asked[3];
    for (int late = 0; late < 2; late++) {
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(3))), *b = numbers(s, "b", 3);
        tn_optim *o = tn_adam(s, tn_all_params(s), .lr = 0.1);
        for (int step = 0; step < 3; step++) {
            tn_step_begin(s);
            int64_t at = late ? 5 : 1;
            tn_tensor *x = tn_index_select(b, 0, tn_from(s, &at, TN_I64, TN_SHAPE(1)));
            tn_item(x);
            tn_clear_error(s);
            tn_assign(b, tn_add_scalar(b, 1.0));
            tn_backward(tn_sum(tn_square(p), TN_ALL, false));
            tn_optim_step(o);
            if (late) tn_item(x);
            assert_int_equal(tn_error(s), late ? TN_E_INDEX : TN_OK);
            tn_clear_error(s);
            assert_int_equal(tn_step_end(s), TN_OK);
        }
        assert_true(tn_item(tn_select(b, 0, 0)) == 3);
        assert_int_equal(tn_read(p, TN_F32, late ? asked : plain, sizeof plain), TN_OK);
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(plain, asked, sizeof plain);
}

/* An update that was refused does not count, and its gradient is none: the next one is as without it. */
static void an_update_that_was_refused_does_not_count(void **unused)
{
    (void)unused;
    float plain[3], refused[3];
    for (int late = 0; late < 2; late++) {
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(3)));
        tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 0.1, .weight_decay = 0.2);
        for (int step = 0; step < 4; step++) {
            tn_step_begin(s);
            for (int time = 0; time < 2; time++) {
                const bool bad = step == 2 && !time;
                if (bad && !late) continue;
                int64_t at[2] = {time, bad ? 3 : 2};
                tn_tensor *picked = tn_index_select(tn_square(p), 0, tn_from(s, at, TN_I64, TN_SHAPE(2)));
                tn_backward(tn_sum(picked, TN_ALL, false));
                tn_optim_step(o);
                tn_flush(s);
                assert_int_equal(tn_error(s), bad ? TN_E_INDEX : TN_OK);
                tn_clear_error(s);
                assert_int_equal(tn_has_gradient(p), !bad);
            }
            assert_int_equal(tn_step_end(s), TN_OK);
        }
        assert_int_equal(tn_read(p, TN_F32, late ? refused : plain, sizeof plain), TN_OK);
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(plain, refused, sizeof plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_runs_together_takes_effect_together),
        cmocka_unit_test(labels_are_checked_where_something_is_assigned_before),
        cmocka_unit_test(what_is_known_is_not_checked),
        cmocka_unit_test(a_computed_index_and_an_assignment_are_apart),
        cmocka_unit_test(an_index_that_stands_in_another_tensor_is_checked),
        cmocka_unit_test(what_was_refused_has_no_value),
        cmocka_unit_test(asking_in_vain_refuses_nothing),
        cmocka_unit_test(an_update_that_was_refused_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
