/* test_outside.c - results of operators outside of steps: what tn_free gives back, what it leaves, what a
 * session says where they pile up, and that serving keeps to its memory. Read first: random_frees.
 */
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

TEST(freed_at_once)
{
    tn_session *s = open_one();
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
    assert_int_equal(tn_close(s), 0);
}

TEST(kept_for_backward)
{
    tn_session *s = open_one();
    tn_tensor *w = tn_param(s, "w", tn_full(s, 0.5, TN_F32, TN_SHAPE(4)));
    tn_tensor *y = tn_exp(w), *z = tn_mul(y, y), *loss = tn_sum(z, TN_ALL, false);
    tn_free(y);
    tn_free(z);
    assert_int_equal(tn_backward(loss), 0);
    tn_free(loss);
    float g[4];
    assert_int_equal(tn_read(tn_gradient(w), TN_F32, g, sizeof g), 0);
    assert_true(fabsf(g[0] - 2 * expf(1)) < 1e-4f);
    assert_int_equal(tn_close(s), 0);
}

/* Two sessions do the same; one of them frees what it will not use again. Both must read the same. */
enum { HELD = 12, ROUNDS = 400 };

static tn_tensor *drawn(rng *r, tn_tensor *const *x)
{
    tn_tensor *a = x[rng_below(r, HELD)], *b = x[rng_below(r, HELD)];
    switch (rng_below(r, 9)) {
    case 0:
        return tn_tanh(a);
    case 1:
        return tn_mul(tn_tanh(a), b);
    case 2:
        return tn_transpose(a, 0, 1);
    case 3:
        return tn_mul_scalar(tn_matmul(a, b), 0.1);
    case 4:
        return tn_flip(tn_tanh(b), TN_AXES(1));
    case 5:
        return tn_softmax(a, 1);
    case 6:
        return tn_layer_norm(a, NULL, NULL);
    case 7:
        return tn_add(a, tn_mean(b, TN_AXES(0), true));
    default:
        return tn_sub(tn_sigmoid(a), b);
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
TEST(all_freed_is_bounded)
{
    tn_session *s = open_one();
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
    assert_int_equal(tn_close(s), 0);
}

TEST(piling_up_is_told)
{
    tn_session *s = open_one();
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
    assert_int_equal(tn_close(s), 0);
}

/* ---- serving ---- */

enum { REQUESTS = 10000 };

typedef struct server {
    tn_session *s;
    size_t warm, end, nodes_warm, nodes_end;
} server;

static void *serve(void *arg)
{
    server *v = arg;
    tn_linear *a = tn_linear_new(v->s, "a", 16, 32), *b = tn_linear_new(v->s, "b", 32, 4);
    tn_train(v->s, false);
    tn_no_grad_begin(v->s);
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t n = 1 + i % 7;
        float in[7 * 16] = {0}, out[7 * 4];
        tn_step_begin(v->s);
        tn_tensor *x = tn_from(v->s, in, TN_F32, TN_SHAPE(n, 16));
        tn_tensor *y = tn_linear_forward(b, tn_relu(tn_linear_forward(a, x)));
        tn_read(y, TN_F32, out, (size_t)n * 4 * sizeof *out);
        tn_step_end(v->s);
        if (i == 100) v->warm = bytes_of(v->s), v->nodes_warm = v->s->graph.slots.n_slots;
    }
    v->end = bytes_of(v->s);
    v->nodes_end = v->s->graph.slots.n_slots;
    return NULL;
}

TEST(serving_keeps_to_its_memory)
{
    server v[2] = {{.s = open_one()}, {.s = open_one()}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&t[i], NULL, serve, &v[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(tn_error(v[i].s), 0);
        assert_int_equal(v[i].end, v[i].warm);
        assert_int_equal(v[i].nodes_end, v[i].nodes_warm);
        assert_int_equal(tn_close(v[i].s), 0);
    }
}

/* What the library makes for itself outside of steps, as where it reads an optimizer's state, it frees
 * itself. */
TEST(saving_leaves_nothing)
{
    enum { PARAMS = 40, SAVES = 2 * 8192 / (4 * PARAMS) + 2 }; /* of each two moments, two views of each */
    tn_session *s = open_one();
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
    assert_int_equal(tn_close(s), 0);
}

RUN_TESTS(NULL, NULL)
