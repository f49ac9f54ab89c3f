/* test_ref.c - what the reference interpreter has beside its operators, which are PyTorch's to 12 digits in
 * test_golden.c and exact in test_integers.c: published random numbers, memory, rounding noise.
 *
 * Nodes are put together by hand from graph.h, so that neither the builders nor the runtime take part. Read
 * first: node(), then noise. */
#include "tests/test.h"
#include "src/core/convert.h"
#include "src/device/ref/ref.h"

enum { MAX_NODES = 32 };

typedef struct fixture {
    tn_graph graph;
    tn_tensor nodes[MAX_NODES];
    tn_attr attrs[MAX_NODES];
    int n;
} fixture;

static fixture *F;

static int setup(void **state)
{
    (void)state;
    tn_errbuf err;
    F = calloc(1, sizeof *F);
    return F ? tn_ref_open(NULL, &F->graph.device, &err) : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < F->n; i++)
        if (F->nodes[i].buf) tn_storage_release(F->nodes[i].buf);
    size_t left = F->graph.device->stats.bytes_now;
    F->graph.device->close(F->graph.device);
    free(F);
    return left == 0 ? 0 : -1;
}

#define SHAPE(...)                                                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { __VA_ARGS__ }

static tn_tensor *node(tn_op op, tn_dtype dtype, int ndim, const int64_t *shape, tn_tensor *a, tn_tensor *b,
                       tn_tensor *c)
{
    assert_true(F->n < MAX_NODES);
    tn_tensor *t = &F->nodes[F->n];
    t->attr = &F->attrs[F->n++];
    t->graph = &F->graph;
    t->op = (uint16_t)op;
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)ndim;
    t->in = t->in_;
    t->in_[0] = a, t->in_[1] = b, t->in_[2] = c;
    t->n_in = (uint8_t)(c ? 3 : b ? 2 : a ? 1 : 0);
    t->base = t;
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->stride[i] = n;
        n *= shape[i];
    }
    return t;
}

static tn_tensor *leaf(tn_dtype dtype, int ndim, const int64_t *shape, const double *v)
{
    tn_tensor *t = node(TN_OP_leaf, dtype, ndim, shape, NULL, NULL, NULL);
    t->buf = tn_storage_new(&F->graph, (size_t)tn_node_numel(t) * sizeof(double));
    assert_non_null(t->buf);
    tn_convert(t->buf->data, tn_stored_dtype(&F->graph, dtype), v, TN_F64, (size_t)tn_node_numel(t));
    return t;
}

#define V(...)                                                                                               \
    (const double[]) { __VA_ARGS__ }

static void expect_near(tn_tensor *t, const double *want, double tolerance)
{
    tn_errbuf err = {""};
    int rc = tn_ref_run(t, &err);
    if (rc != TN_OK) fail_msg("%s: %s", tn_op_get((tn_op)t->op)->name, err.text);
    for (int64_t i = 0; i < tn_node_numel(t); i++) {
        double got = tn_load_f64(tn_node_data(t), tn_stored_dtype(&F->graph, (tn_dtype)t->dtype), (size_t)i);
        if (isnan(want[i]) ? !isnan(got) : !(got == want[i] || fabs(got - want[i]) <= tolerance))
            fail_msg("%s[%d]: %.17g, expected %.17g", tn_op_get((tn_op)t->op)->name, (int)i, got, want[i]);
    }
}

static void expect(tn_tensor *t, const double *want) { expect_near(t, want, 0); }

/* The published known answers of Philox4x32-10, read off as uniforms. */
TEST_IN(random_numbers, setup, teardown)
{
    const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    tn_tensor *u = node(TN_OP_uniform, TN_F32, SHAPE(4), NULL, NULL, NULL);
    double want[4];
    for (int i = 0; i < 4; i++) want[i] = (double)(zeros[i] >> 8) * 0x1p-24;
    expect(u, want);
}

TEST_IN(device, setup, teardown)
{
    tn_device *d = F->graph.device;
    tn_errbuf err = {""};
    char from[100], to[100] = {0};
    memset(from, 7, sizeof from);
    char *p = d->alloc(d, 100), *range = d->reserve(d, (size_t)1 << 36);
    assert_non_null(p);
    assert_non_null(range);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(d->commit(d, range, 0, 4096), 0);
    assert_int_equal(range[4095], 0);
    assert_int_equal(d->upload(d, p, from, 100), 0);
    assert_int_equal(d->copy(d, range, p, 100), 0);
    assert_int_equal(d->download(d, to, range, 100), 0);
    assert_memory_equal(from, to, 100);
    assert_int_equal(d->stats.bytes_now, 100);
    d->free(d, p);
    d->release(d, range, (size_t)1 << 36);
    assert_int_equal(d->stats.bytes_now, 0);
    assert_int_equal(d->gemm(d, NULL, &err), TN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "gemm"));
}

/* Noise leaves what f32 holds exactly alone, moves the rest by no more than asked, and moves the summands of
 * a sum that cancels. */
TEST_IN(noise, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(4), V(1, -2, 3, 0)), *third = leaf(TN_F32, 0, NULL, V(3));
    tn_ref_set_noise(F->graph.device, 1, 7);
    expect(node(TN_OP_neg, TN_F32, SHAPE(4), x, NULL, NULL), V(-1, 2, -3, 0));
    tn_tensor *e = node(TN_OP_expand, TN_F32, SHAPE(4), third, NULL, NULL);
    e->base = third, e->stride[0] = 0;
    tn_tensor *q = node(TN_OP_div, TN_F32, SHAPE(4), x, e, NULL);
    expect_near(q, V(1 / 3., -2 / 3., 1, 0), 0x1p-23);
    const double *v = tn_node_data(q);
    assert_true(v[0] != 1 / 3. && v[1] != -2 / 3. && v[2] == 1 && v[3] == 0);
    tn_tensor *sum =
        node(TN_OP_reduce_sum, TN_F32, SHAPE(1), leaf(TN_F32, SHAPE(2), V(1000, -1000)), NULL, NULL);
    sum->attr->axes = 1;
    expect_near(sum, V(0), 2000 * 0x1p-23 * 1.001);
    assert_true(*(const double *)tn_node_data(sum) != 0);
    /* A comparison that rounding could turn goes one way under even seeds and the other under odd ones; one
     * of equals does not. */
    tn_tensor *a = leaf(TN_F32, SHAPE(3), V(1, 2, 3)), *b = leaf(TN_F32, SHAPE(3), V(1 + 0x1p-24, 2, 4));
    tn_tensor *c = leaf(TN_F32, SHAPE(2), V(3 - 0x1p-24, 2.75));
    expect(node(TN_OP_lt, TN_BOOL, SHAPE(3), a, b, NULL), V(0, 0, 1));
    expect(node(TN_OP_floor, TN_F32, SHAPE(2), c, NULL, NULL), V(2, 2));
    tn_ref_set_noise(F->graph.device, 1, 8);
    expect(node(TN_OP_lt, TN_BOOL, SHAPE(3), a, b, NULL), V(1, 0, 1));
    expect(node(TN_OP_floor, TN_F32, SHAPE(2), c, NULL, NULL), V(3, 2));
    tn_ref_set_noise(F->graph.device, 0, 7);
    expect(node(TN_OP_div, TN_F32, SHAPE(4), x, e, NULL), V(1 / 3., -2 / 3., 1, 0));
}

RUN_TESTS(NULL, NULL)
