/* test_refused.c - a run that fails takes no effect. Random programs of assignments, updates and lookups,
 * some with an index out of range, against a model of two states: what has taken effect, and what it will be
 * once what waits has run. Single cases are in test_refused_cases.c.
 *
 * Start with struct model, then play. */
#include "tests/test.h"
#include <tensor_nn.h>

#include "src/core/alloc.h"
#include "src/core/sanitized.h"

enum { N = 4, BUFFERS = 3, LINES = 12, STEPS = 5 };
#if defined(TN_ASAN)
enum { PROGRAMS = 30 };
#else
enum { PROGRAMS = 120 };
#endif

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
    TN_EACH(l, p.line, p.n) {
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

typedef struct values {
    double buffer[BUFFERS][N], param[N], gradient[N], mean, variance;
    bool graded, assigned[BUFFERS]; /* in this run */
} values;

/* Two states: what has taken effect, and what waits to. */
typedef struct model {
    bool waits; /* operators do, in this way of running */
    values now, next;
    bool failed;    /* what waits has an index out of range, */
    bool went_back; /* and a backward */
    bool broken;    /* an error stands */
} model;

static void settle(model *m)
{
    if (m->failed || m->broken) {
        m->broken = true;
        m->next = m->now;
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
    values *x = &m->next;
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
    case N_WHATS: return true;
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

static void compare(const held *h, const char *way, int number, const values *x)
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
    TN_EACH(l, p->line, p->n) {
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
    assert_true(!tn_gradient(h->param) && !tn_has_gradient(h->param));
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

TEST(what_runs_together_takes_effect_together)
{
    static const way_to_run all[] = {{"fused", TN_CPU, TN_FUSED, NULL, NULL},
                                     {"fused, not replayed", TN_CPU, TN_FUSED, "TENSOR_REPLAY", "off"},
                                     {"fused, without a compiler", TN_CPU, TN_FUSED, "TENSOR_CC", "none"},
                                     {"eager", TN_CPU, TN_EAGER, NULL, NULL},
                                     {"reference, fused", TN_REF, TN_FUSED, NULL, NULL},
                                     {"reference, eager", TN_REF, TN_EAGER, NULL, NULL}};
    for (int number = 0; number < PROGRAMS; number++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) play(&all[i], number);
}

RUN_TESTS(NULL, NULL)
