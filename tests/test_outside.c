/* test_outside.c - results of operators outside of steps: what tn_free gives back, what it leaves, what a
 * session says where they pile up, and that serving keeps to its memory. Read first: random_frees. */
#include "check.h"

#include <pthread.h>
#include "rig.h"
#include "said.h"

static tn_session *open_one(void)
{
    forget();
    tn_session *s = tn_open(.device = TN_CPU, .seed = 1, .threads = 1, .log = hear_warnings);
    assert_non_null(s);
    return s;
}

static size_t bytes_of(const tn_session *s)
{
    tn_stats st = {.size = sizeof st};
    tn_get_stats(s, &st);
    return st.bytes_now;
}

TEST_ON(freed_at_once, open_one())
{
    tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(1000, 1000));
    const size_t before = bytes_of(s);
    tn_tensor *y = tn_add_scalar(x, 1.0), *z = tn_mul_scalar(y, 3.0), *turned = tn_transpose(z, 0, 1);
    assert_true(bytes_of(s) >= before + 8000000);
    tn_free(y);
    assert_true(bytes_of(s) < before + 8000000);
    tn_free(z); /* a view of it is held */
    assert_true(bytes_of(s) >= before + 4000000);
    assert_true(tn_item(tn_max(turned, TN_ALL, false)) == 6);
    null_with(s, TN_E_STALE, "freed", tn_relu(y));
}

/* What creation functions make is freed likewise, though other results are still held, and nodes that read it: not
 * where a view of it is held, or a backward will read it. */
TEST_ON(what_was_created_is_freed_at_once, open_one())
{
    tn_tensor *held = tn_mul_scalar(tn_ones(s, TN_F32, TN_SHAPE(4)), 3.0);
    const size_t before = bytes_of(s);
    for (int i = 0; i < 3; i++) {
        tn_tensor *x = tn_rand(s, TN_F32, TN_SHAPE(1000, 1000)), *y = tn_mul_scalar(x, 2.0);
        tn_free(x);
        tn_free(y);
        assert_true(bytes_of(s) < before + 1000);
    }
    tn_tensor *x = tn_full(s, 2.0, TN_F32, TN_SHAPE(3, 5)), *turned = tn_transpose(x, 0, 1);
    tn_free(x);
    assert_true(tn_item(tn_sum(turned, TN_ALL, false)) == 30);
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(3, 5)));
    x = tn_full(s, 4.0, TN_F32, TN_SHAPE(3, 5));
    tn_tensor *loss = tn_sum(tn_mul(w, x), TN_ALL, false);
    tn_free(x);
    assert_int_equal(tn_backward(loss), 0);
    assert_true(tn_item(tn_max(tn_gradient(w), TN_ALL, false)) == 4);
    assert_true(tn_item(tn_sum(held, TN_ALL, false)) == 12);
}

/* Two sessions do the same; one of them frees what it will not use again. Both must read the same. */
enum { HELD = 12, ROUNDS = 400 };

static tn_tensor *drawn(rng *r, tn_tensor *const *x)
{
    tn_tensor *a = x[rng_below(r, HELD)], *b = x[rng_below(r, HELD)];
    switch (rng_below(r, 9)) {
    case 0: return tn_tanh(a);
    case 1: return tn_mul(tn_tanh(a), b);
    case 2: return tn_transpose(a, 0, 1);
    case 3: return tn_mul_scalar(tn_matmul(a, b), 0.1);
    case 4: return tn_flip(tn_tanh(b), TN_AXES(1));
    case 5: return tn_softmax(a, 1);
    case 6: return tn_layer_norm(a, NULL, NULL);
    case 7: return tn_add(a, tn_mean(b, TN_AXES(0), true));
    default: return tn_sub(tn_sigmoid(a), b);
    }
}

static void run_drawn(uint64_t seed, bool frees, bool back, float *out)
{
    rng r = {seed};
    tn_session *s = open_one();
    tn_tensor *x[HELD], *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(5, 5)));
    for (int i = 0; i < HELD; i++)
        x[i] = i % 3 || !back ? tn_randn(s, TN_F32, TN_SHAPE(5, 5)) : tn_mul_scalar(w, i);
    for (int k = 0; k < (back ? ROUNDS / 8 : ROUNDS); k++) {
        const int at = (int)rng_below(&r, HELD);
        tn_tensor *y = drawn(&r, x);
        assert_non_null(y);
        if (frees) tn_free(x[at]);
        x[at] = y;
        if (k % 16 == 0) assert_int_equal(tn_read(x[rng_below(&r, HELD)], TN_F32, out, 100), 0);
    }
    for (int i = 0; i < HELD; i++) assert_int_equal(tn_read(x[i], TN_F32, out + 25 * i, 100), 0);
    if (back) {
        tn_tensor *loss = tn_sum(tn_mul(w, w), TN_ALL, false);
        for (int i = 0; i < HELD; i++) loss = tn_add(loss, tn_mean(x[i], TN_ALL, false));
        assert_int_equal(tn_backward(loss), 0);
        assert_int_equal(tn_read(tn_gradient(w), TN_F32, out, 100), 0);
    }
    assert_int_equal(tn_error(s), 0);
    assert_int_equal(tn_close(s), 0);
}

TEST(random_frees)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        static float a[25 * HELD], b[25 * HELD];
        run_drawn(seed, false, seed % 2, a);
        run_drawn(seed, true, seed % 2, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

/* What frees all it gets, in whatever order, needs no step: nodes go as well. */
TEST_ON(all_freed_is_bounded, open_one())
{
    tn_linear *a = tn_linear_new(s, "a", 16, 16);
    tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(4, 16));
    size_t bytes = 0;
    tn_no_grad_begin(s);
    for (int i = 0; i < 3000; i++) {
        tn_tensor *h = tn_linear_forward(a, x), *r = tn_relu(h), *t = tn_transpose(r, 0, 1);
        tn_tensor *m = tn_mean(t, TN_ALL, false), *all[] = {h, r, t, m};
        assert_true(isfinite(tn_item(m)));
        for (int k = 0; k < 4; k++) tn_free(all[(k + i) % 4]);
        if (i == 100) bytes = bytes_of(s);
        assert_true(s->graph.n_nodes < 200);
    }
    assert_int_equal(bytes_of(s), bytes);
    assert_int_equal(n_said, 0);
}

TEST_ON(piling_up_is_told, open_one())
{
    tn_linear *a = tn_linear_new(s, "a", 100, 1000);
    tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(100, 100));
    int line = 0;
    assert_int_equal(n_said, 0);
    for (int i = 0; i < 700; i++) {
        line = __LINE__ + 1;
        tn_linear_forward(a, x);
    }
    char place[40];
    snprintf(place, sizeof place, "test_outside.c:%d", line);
    assert_int_equal(n_said, 2); /* of 256, and of 512 */
    assert_non_null(strstr(said, place));
    assert_non_null(strstr(said, "bytes"));
    assert_non_null(strstr(said, "tn_step_begin"));
    tn_tensor *held[2000] = {NULL};
    for (int i = 0; i < 20000; i++) { /* many calls, whose results do not pile up further */
        tn_free(held[i % 2000]);
        held[i % 2000] = tn_sum(x, TN_ALL, false);
    }
    assert_int_equal(n_said, 4); /* of 1024 and of 2048, not for each thousand calls */
}

/* ---- serving ---- */

enum { REQUESTS = 10000 };

static double sum_of(tn_tensor *x) { return tn_item(tn_sum(x, TN_ALL, false)); }

typedef struct server {
    tn_session *s;
    bool scoped; /* requests are scopes, and not steps */
    size_t warm, end, nodes_warm, nodes_end;
    tn_arena_mark text_warm, text_end; /* calls, attributes, names */
} server;

/* Beside a result that stays, and a cache that each request writes to. */
static void *serve(void *arg)
{
    server *v = arg;
    tn_session *s = v->s;
    tn_linear *a = tn_linear_new(s, "a", 16, 32), *b = tn_linear_new(s, "b", 32, 4);
    tn_tensor *last = tn_buffer(s, "last", tn_zeros(s, TN_F32, TN_SHAPE(1, 4))), *stays = NULL;
    if (v->scoped) stays = tn_exp(tn_linear_forward(b, tn_ones(s, TN_F32, TN_SHAPE(1, 32))));
    const double sum = stays ? sum_of(stays) : 0;
    if (!v->scoped) tn_train(s, false), tn_no_grad_begin(s);
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t n = 1 + i % 7;
        float in[7 * 16] = {0}, out[7 * 4];
        v->scoped ? tn_scope_begin(s) : tn_step_begin(s);
        tn_tensor *x = tn_from(s, in, TN_F32, TN_SHAPE(n, 16));
        tn_tensor *y = tn_linear_forward(b, tn_relu(tn_linear_forward(a, x)));
        if (stays) y = tn_mul(y, stays);
        tn_set_name(y, "answer");
        tn_assign(last, tn_slice(y, 0, 0, 1, 1));
        tn_read(y, TN_F32, out, (size_t)n * 4 * sizeof *out);
        v->scoped ? tn_scope_end(s) : tn_step_end(s);
        if (i == 100) v->warm = bytes_of(s), v->nodes_warm = s->graph.slots.n_slots;
        if (i == 100) v->text_warm = tn_arena_here(&s->graph.arena);
    }
    v->end = bytes_of(s);
    v->text_end = tn_arena_here(&s->graph.arena);
    v->nodes_end = s->graph.slots.n_slots;
    if (stays && sum_of(stays) != sum) v->end = 0;
    return NULL;
}

TEST(serving_keeps_to_its_memory)
{
    server v[4] = {{.s = NULL}};
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        v[i] = (server){.s = open_one(), .scoped = i > 1};
        assert_int_equal(pthread_create(&t[i], NULL, serve, &v[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(tn_error(v[i].s), 0);
        assert_int_equal(v[i].end, v[i].warm);
        assert_int_equal(v[i].nodes_end, v[i].nodes_warm);
        const tn_arena_mark *warm = &v[i].text_warm, *end = &v[i].text_end;
        assert_true(!v[i].scoped || (end->chunk == warm->chunk && end->used == warm->used));
        assert_int_equal(tn_close(v[i].s), 0);
    }
    assert_int_equal(n_said, 0);
}

/* What the library makes for itself outside of steps, as where it reads an optimizer's state, it frees
 * itself. */
TEST_ON(saving_leaves_nothing, open_one())
{
    enum { PARAMS = 40, SAVES = 2 * 8192 / (4 * PARAMS) + 2 }; /* of each two moments, two views of each */
    tn_tensor *loss = NULL;
    char name[16];
    for (int i = 0; i < PARAMS; i++) {
        snprintf(name, sizeof name, "w%d", i);
        tn_param(s, name, tn_ones(s, TN_F32, TN_SHAPE(2)));
    }
    tn_optim *o = tn_adam(s, tn_all_params(s));
    tn_step_begin(s);
    for (int i = 0; i < PARAMS; i++) {
        tn_tensor *sum = tn_sum(tn_param_at(s, i), TN_ALL, false);
        loss = loss ? tn_add(loss, sum) : sum;
    }
    tn_backward(loss);
    tn_optim_step(o);
    assert_int_equal(tn_step_end(s), 0);
    for (int i = 0; i < SAVES; i++) assert_int_equal(tn_save(s, "test_outside.safetensors"), 0);
    assert_int_equal(tn_load(s, "test_outside.safetensors"), 0);
    assert_int_equal(remove("test_outside.safetensors"), 0);
    assert_int_equal(n_said, 0);
}

/* ---- scopes ---- */

TEST_ON(a_scope_ends_what_it_made, open_one())
{
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(4, 4)));
    tn_tensor *outer = tn_mul_scalar(w, 2), *buffer = tn_buffer(s, "b", tn_zeros(s, TN_F32, TN_SHAPE(4, 4)));
    assert_int_equal(tn_scope_begin(s), 0);
    const float host[16] = {1, 2, 3};
    tn_tensor *in = tn_from(s, host, TN_F32, TN_SHAPE(4, 4)), *z = tn_zeros(s, TN_F32, TN_SHAPE(4, 4));
    tn_tensor *seen = tn_reshape(outer, TN_SHAPE(16)), *y = tn_add(tn_mul(in, outer), z), *kept = tn_keep(y);
    assert_int_equal(tn_assign(buffer, y), 0);
    assert_true(sum_of(y) == 12 && sum_of(y) == 12 && sum_of(seen) == 32);
    tn_tensor *param = tn_param(s, "p", in);
    assert_int_equal(tn_scope_end(s), 0);
    assert_true(sum_of(outer) == 32 && sum_of(kept) == 12 && sum_of(buffer) == 12 && sum_of(param) == 6);
    tn_tensor *gone[] = {in, z, seen, y};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tn_ndim(gone[i]), -1);
        null_with(s, TN_E_STALE, "made between tn_scope_begin and tn_scope_end", tn_relu(gone[i]));
        float out[16];
        fails_with(s, TN_E_STALE, "tn_scope_end", tn_read(gone[i], TN_F32, out, sizeof out));
    }
    tn_free(y); /* nothing is left to free */
    const size_t before = bytes_of(s);
    tn_scope_begin(s);
    tn_tensor *big = tn_zeros(s, TN_F32, TN_SHAPE(1000, 1000)),
              *from = tn_from(s, host, TN_F32, TN_SHAPE(16));
    tn_tensor *twice = tn_mul_scalar(big, 2);
    assert_true(bytes_of(s) >= before + 4000000);
    tn_free(big);
    tn_free(from);
    tn_free(twice);
    assert_int_equal(bytes_of(s), before);
    tn_scope_end(s);
    assert_int_equal(tn_error(s), 0);
    assert_int_equal(tn_backward(tn_sum(tn_mul(outer, outer), TN_ALL, false)), 0);
    assert_true(sum_of(tn_gradient(w)) == 16 * 8);
}

TEST_ON(scopes_and_steps, open_one())
{
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(4, 4)));
    fails_with(s, TN_E_STATE, "without tn_scope_begin|test_outside.c", tn_scope_end(s));

    tn_scope_begin(s); /* what a nested one makes goes before the rest */
    tn_tensor *a = tn_exp(w);
    tn_scope_begin(s);
    tn_tensor *b = tn_mul(a, a);
    assert_true(fabs(sum_of(b) - 16 * exp(2)) < 1e-4);
    tn_scope_end(s);
    assert_int_equal(tn_ndim(b), -1);
    assert_true(fabs(sum_of(a) - 16 * exp(1)) < 1e-4);
    null_with(s, TN_E_STATE, "tn_scope_begin",
              (tn_tensor *)(tn_backward(tn_sum(a, TN_ALL, false)) ? NULL : a));
    tn_no_grad_end(s);
    assert_int_equal(tn_error(s), TN_E_STATE); /* it is not the program's to end */
    tn_clear_error(s);
    tn_scope_end(s);
    assert_int_equal(tn_ndim(a), -1);

    for (int i = 0; i < 3; i++) { /* in a step, replayed as well: what was made lives on to its end */
        tn_step_begin(s);
        tn_scope_begin(s);
        tn_tensor *y = tn_mul_scalar(w, i + 1);
        tn_scope_end(s);
        tn_tensor *loss = tn_sum(tn_mul(y, w), TN_ALL, false); /* y is a constant to it */
        tn_backward(loss);
        assert_true(tn_item(loss) == 16 * (i + 1) && sum_of(tn_gradient(w)) == 16 * (i + 1));
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(tn_ndim(y), -1);
    }
    tn_tensor *outer = tn_exp(w);
    tn_scope_begin(s); /* a step in a scope */
    tn_tensor *x = tn_exp(w);
    tn_step_begin(s);
    null_with(s, TN_E_STALE, "outside a step", tn_relu(outer));
    null_with(s, TN_E_STALE, "outside a step", tn_relu(x));
    assert_int_equal(tn_scope_end(s), TN_E_STATE);
    tn_clear_error(s);
    assert_true(fabs(sum_of(tn_exp(w)) - 16 * exp(1)) < 1e-4);
    assert_int_equal(tn_step_end(s), 0);
    tn_tensor *y = tn_mul_scalar(w, 3);
    assert_true(sum_of(y) == 48);
    assert_int_equal(tn_scope_end(s), 0);
    assert_int_equal(tn_ndim(y), -1);

    tn_step_begin(s); /* one that is left open */
    tn_scope_begin(s);
    tn_exp(w);
    fails_with(s, TN_E_STATE, "no tn_scope_end", tn_step_end(s));
    tn_step_begin(s);
    assert_int_equal(tn_backward(tn_sum(w, TN_ALL, false)), 0); /* gradients are kept again */
    assert_int_equal(tn_step_end(s), 0);
    tn_scope_begin(s); /* as the session closes */
    tn_exp(w);
}

/* A request that fails half way leaves nothing, and the next one is answered. */
TEST_ON(an_error_in_a_scope, open_one())
{
    tn_linear *a = tn_linear_new(s, "a", 8, 4);
    tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(2, 8)), *wrong = tn_ones(s, TN_F32, TN_SHAPE(2, 7));
    double right = 0;
    size_t bytes = 0;
    for (int i = 0; i < 200; i++) {
        tn_scope_begin(s);
        tn_tensor *h = tn_relu(x), *y = tn_linear_forward(a, i % 2 ? wrong : h);
        if (i % 2) {
            assert_null(y);
            assert_null(tn_exp(y));
            assert_int_equal(tn_scope_end(s), TN_E_SHAPE);
            tn_clear_error(s);
        } else {
            const double v = sum_of(y);
            assert_true(!i || v == right);
            right = v;
            assert_int_equal(tn_scope_end(s), 0);
        }
        if (i == 9) bytes = bytes_of(s);
        assert_true(s->graph.n_nodes <= 8);
    }
    assert_int_equal(bytes_of(s), bytes);
}

/* Two sessions do the same: reads, assignments, views of what is older, keeps, frees, steps in between; one
 * of them has parts of it in scopes, nested, and takes out of them what it goes on with. */
enum { BUFFERS = 3 };

typedef struct both {
    tn_session *s;
    bool scoped;
    tn_tensor *x[HELD], *buffer[BUFFERS];
    float *out;
} both;

static void note_value(both *p, tn_tensor *t)
{
    assert_int_equal(tn_read(t, TN_F32, p->out, 100), 0);
    p->out += 25;
}

static void scoped_part(both *p, rng *r, int depth)
{
    tn_tensor *all[HELD], *keep[HELD] = {NULL};
    memcpy(all, p->x, sizeof all);
    if (p->scoped) assert_int_equal(tn_scope_begin(p->s), 0);
    for (int k = 0; k < 12; k++) {
        const int at = (int)rng_below(r, HELD), b = (int)rng_below(r, BUFFERS);
        all[at] = rng_below(r, 6) ? drawn(r, all) : tn_mul_scalar(tn_transpose(p->buffer[b], 0, 1), 0.5);
        assert_non_null(all[at]);
        if (!rng_below(r, 4)) assert_int_equal(tn_assign(p->buffer[b], all[rng_below(r, HELD)]), 0);
        if (!rng_below(r, 3)) note_value(p, all[rng_below(r, HELD)]);
        if (!rng_below(r, 5)) {
            const int to = (int)rng_below(r, HELD);
            tn_free(keep[to]);
            keep[to] = tn_keep(all[at]);
        }
        if (depth < 3 && !rng_below(r, 8)) {
            tn_tensor *was[HELD];
            memcpy(was, p->x, sizeof was);
            memcpy(p->x, all, sizeof all);
            scoped_part(p, r, depth + 1);
            for (int i = 0; i < HELD; i++)
                if (p->x[i] != all[i]) all[i] = p->x[i]; /* kept by the inner part */
            memcpy(p->x, was, sizeof was);
        }
    }
    if (p->scoped) assert_int_equal(tn_scope_end(p->s), 0);
    for (int i = 0; i < HELD; i++)
        if (keep[i]) p->x[i] = keep[i];
}

static size_t run_scoped(uint64_t seed, bool scoped, float *out, size_t most)
{
    rng r = {seed};
    both p = {.s = open_one(), .scoped = scoped, .out = out};
    for (int i = 0; i < BUFFERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "b%d", i);
        p.buffer[i] = tn_buffer(p.s, name, tn_randn(p.s, TN_F32, TN_SHAPE(5, 5)));
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < HELD; i++) {
            tn_tensor *from = tn_randn(p.s, TN_F32, TN_SHAPE(5, 5));
            p.x[i] = i % 2 ? from : tn_transpose(tn_tanh(from), 0, 1);
        }
        for (int k = 0; k < 8; k++) {
            scoped_part(&p, &r, 0);
            if (rng_below(&r, 3) == 0) p.x[rng_below(&r, HELD)] = drawn(&r, p.x);
        }
        for (int i = 0; i < HELD; i++) note_value(&p, p.x[i]);
        for (int k = 0; k < 2; k++) { /* ends all results, and leaves a step that is to be replayed */
            tn_step_begin(p.s);
            tn_assign(p.buffer[0], tn_mul(p.buffer[1], p.buffer[2]));
            assert_int_equal(tn_step_end(p.s), 0);
        }
        for (int i = 0; i < BUFFERS; i++) note_value(&p, p.buffer[i]);
    }
    assert_int_equal(tn_error(p.s), 0);
    assert_int_equal(tn_close(p.s), 0);
    assert_true((size_t)(p.out - out) <= most);
    return (size_t)(p.out - out);
}

TEST(random_scopes)
{
    enum { MOST = 40000 };
    static float a[MOST], b[MOST];
    for (uint64_t seed = 1; seed <= 40; seed++) {
        const size_t n = run_scoped(seed, false, a, MOST);
        assert_int_equal(run_scoped(seed, true, b, MOST), n);
        assert_memory_equal(a, b, n * sizeof *a);
    }
}

RUN_TESTS(NULL, NULL)
