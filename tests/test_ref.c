/* test_ref.c - the reference interpreter against values worked out by hand.
 *
 * The oracle has no oracle: every expected value below was computed on paper, or is a published vector
 * (Philox). Nodes are put together by hand from graph.h, so that neither the builders nor the runtime take
 * part. Read first: node(), then any test. */
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

TEST_IN(rows, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(4), V(-2, 0, 3, NAN)), *y = leaf(TN_F32, SHAPE(4), V(1, 0, NAN, 2));
    expect(node(TN_OP_relu, TN_F32, SHAPE(4), x, NULL, NULL), V(0, 0, 3, NAN));
    expect(node(TN_OP_sign, TN_F32, SHAPE(4), x, NULL, NULL), V(-1, 0, 1, 0));
    expect(node(TN_OP_maximum, TN_F32, SHAPE(4), x, y, NULL), V(1, 0, NAN, NAN));
    expect(node(TN_OP_minimum, TN_F32, SHAPE(4), x, y, NULL), V(-2, 0, NAN, NAN));
    expect(node(TN_OP_isnan, TN_BOOL, SHAPE(4), x, NULL, NULL), V(0, 0, 0, 1));
    expect(node(TN_OP_lt, TN_BOOL, SHAPE(4), x, y, NULL), V(1, 0, 0, 0));
    tn_tensor *half = leaf(TN_F64, SHAPE(4), V(0.5, 1.5, -2.5, 0.25));
    expect(node(TN_OP_round, TN_F64, SHAPE(4), half, NULL, NULL), V(0, 2, -2, 0));
    expect_near(node(TN_OP_sigmoid, TN_F64, SHAPE(4), half, NULL, NULL),
                V(0.62245933120185457, 0.81757447619364365, 0.07585818002124355, 0.56217650088579807), 1e-16);
    tn_tensor *c = leaf(TN_BOOL, SHAPE(4), V(1, 0, 0, 1));
    expect(node(TN_OP_where, TN_F32, SHAPE(4), c, half, x), V(0.5, 0, 3, 0.25));
}

TEST_IN(integers_wrap, setup, teardown)
{
    tn_tensor *x = leaf(TN_I32, SHAPE(3), V(2147483647, -2147483648.0, 123456789));
    tn_tensor *y = leaf(TN_I32, SHAPE(3), V(1, -1, 987654321));
    expect(node(TN_OP_add, TN_I32, SHAPE(3), x, y, NULL), V(-2147483648.0, 2147483647, 1111111110));
    expect(node(TN_OP_mul, TN_I32, SHAPE(3), x, y, NULL), V(2147483647, -2147483648.0, -67153019));
    tn_tensor *u = leaf(TN_U8, SHAPE(2), V(200, 3)), *v = leaf(TN_U8, SHAPE(2), V(100, 5));
    expect(node(TN_OP_add, TN_U8, SHAPE(2), u, v, NULL), V(44, 8));
    expect(node(TN_OP_sub, TN_U8, SHAPE(2), v, u, NULL), V(156, 2));
    tn_tensor *f = leaf(TN_F32, SHAPE(3), V(-1.75, 300.5, 0.5));
    expect(node(TN_OP_cast, TN_I32, SHAPE(3), f, NULL, NULL), V(-1, 300, 0));
    expect(node(TN_OP_cast, TN_U8, SHAPE(3), f, NULL, NULL), V(255, 44, 0));
    expect(node(TN_OP_cast, TN_BOOL, SHAPE(3), f, NULL, NULL), V(1, 1, 1));
    expect(node(TN_OP_cast, TN_F16, SHAPE(3), f, NULL, NULL), V(-1.75, 300.5, 0.5));
}

TEST_IN(reductions, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(2, 3), V(1, 5, 5, -2, NAN, NAN));
    tn_tensor *r = node(TN_OP_reduce_max, TN_F32, SHAPE(2, 1), x, NULL, NULL);
    r->attr->axes = 2;
    expect(r, V(5, NAN));
    r = node(TN_OP_reduce_argmax, TN_I64, SHAPE(2, 1), x, NULL, NULL);
    r->attr->axes = 2;
    expect(r, V(1, 1));
    r = node(TN_OP_reduce_argmin, TN_I64, SHAPE(1, 3), x, NULL, NULL);
    r->attr->axes = 1;
    expect(r, V(1, 1, 1));
    tn_tensor *y = leaf(TN_I64, SHAPE(2, 1, 2), V(1, 2, 3, 4));
    r = node(TN_OP_reduce_sum, TN_I64, SHAPE(1, 1, 2), y, NULL, NULL);
    r->attr->axes = 1;
    expect(r, V(4, 6));
    r = node(TN_OP_reduce_prod, TN_I64, SHAPE(1, 1, 1), y, NULL, NULL);
    r->attr->axes = 7;
    expect(r, V(24));
    r = node(TN_OP_cumsum, TN_I64, SHAPE(2, 1, 2), y, NULL, NULL);
    expect(r, V(1, 2, 4, 6));
    r = node(TN_OP_cumsum, TN_I64, SHAPE(2, 1, 2), y, NULL, NULL);
    r->attr->axis = 2, r->attr->reverse = true;
    expect(r, V(3, 2, 7, 4));
}

TEST_IN(views, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(2, 3), V(1, 2, 3, 4, 5, 6));
    tn_tensor *t = node(TN_OP_permute, TN_F32, SHAPE(3, 2), x, NULL, NULL);
    t->base = x, t->stride[0] = 1, t->stride[1] = 3;
    tn_tensor *flat = node(TN_OP_reshape, TN_F32, SHAPE(6), t, NULL, NULL);
    flat->base = NULL;
    expect(flat, V(1, 4, 2, 5, 3, 6));
    assert_ptr_equal(flat->base, flat);
    tn_tensor *s = node(TN_OP_slice, TN_F32, SHAPE(2, 2), x, NULL, NULL);
    s->base = x, s->offset = 2, s->stride[0] = 3, s->stride[1] = -2;
    tn_tensor *p = node(TN_OP_pad, TN_F32, SHAPE(3, 2), x, leaf(TN_F32, 0, NULL, V(9)), NULL);
    p->attr->v[0][0] = 1, p->attr->v[0][1] = -1;
    expect(p, V(9, 9, 2, 3, 5, 6));
    tn_tensor *k = node(TN_OP_concat, TN_F32, SHAPE(2, 5), x, s, NULL);
    k->attr->axis = 1;
    expect(k, V(1, 2, 3, 3, 1, 4, 5, 6, 6, 4));

    /* Strided operands: a transposed, reversed alias of x. */
    tn_tensor *alias = node(TN_OP_permute, TN_F32, SHAPE(3, 2), x, NULL, NULL);
    alias->base = x, alias->offset = 5, alias->stride[0] = -1, alias->stride[1] = -3;
    tn_tensor *n = node(TN_OP_neg, TN_F32, SHAPE(3, 2), alias, NULL, NULL);
    expect(n, V(-6, -3, -5, -2, -4, -1));

    /* A number that nothing has run, seen through an expand. */
    tn_tensor *two = node(TN_OP_scalar, TN_F32, 0, NULL, NULL, NULL, NULL);
    two->attr->number = (tn_number){2.5, 0, false};
    tn_tensor *twos = node(TN_OP_expand, TN_F32, SHAPE(3, 2), two, NULL, NULL);
    twos->base = two, twos->stride[0] = twos->stride[1] = 0;
    expect(node(TN_OP_mul, TN_F32, SHAPE(3, 2), alias, twos, NULL), V(15, 7.5, 12.5, 5, 10, 2.5));
    tn_tensor *i = node(TN_OP_iota, TN_I64, SHAPE(2, 3), NULL, NULL, NULL);
    i->attr->axis = 1;
    expect(i, V(0, 1, 2, 0, 1, 2));
}

TEST_IN(products, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(2, 1, 2), V(1, 2, 3, 4));
    tn_tensor *y = leaf(TN_F32, SHAPE(2, 2, 2), V(1, 0, 2, 1, 1, 1, 0, 1));
    expect(node(TN_OP_matmul, TN_F32, SHAPE(2, 1, 2), x, y, NULL), V(5, 2, 3, 7));
    tn_tensor *bias = leaf(TN_F32, SHAPE(2), V(10, 20));
    expect(node(TN_OP_matmul, TN_F32, SHAPE(2, 1, 2), x, y, bias), V(15, 22, 13, 27));
}

/* One image 3 x 3 of one channel, two output channels, window 2 x 2, top and left padding 1, stride 2. */
TEST_IN(convolution, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(1, 3, 3, 1), V(1, 2, 3, 4, 5, 6, 7, 8, 9));
    tn_tensor *w = leaf(TN_F32, SHAPE(2, 2, 2, 1), V(1, 10, 100, 1000, 0, 0, 0, 1));
    tn_conv_attr attr = {.stride = {2, 2},
                         .pad = {1, 0, 1, 0},
                         .dilation = {1, 1},
                         .groups = 1,
                         .h = 3,
                         .w = 3,
                         .kh = 2,
                         .kw = 2};
    tn_tensor *y = node(TN_OP_conv2d, TN_F32, SHAPE(1, 2, 2, 2), x, w, leaf(TN_F32, SHAPE(2), V(0, 0.5)));
    y->attr->conv = attr;
    expect(y, V(1000, 1.5, 3200, 3.5, 7040, 7.5, 9865, 9.5));
    tn_tensor *gy = leaf(TN_F32, SHAPE(1, 2, 2, 2), V(1, 0, 2, 0, 3, 0, 4, 1));
    tn_tensor *gx = node(TN_OP_conv2d_data_grad, TN_F32, SHAPE(1, 3, 3, 1), gy, w, NULL);
    gx->attr->conv = attr;
    expect(gx, V(1000, 200, 2000, 30, 4, 40, 3000, 400, 4001));
    tn_tensor *gw = node(TN_OP_conv2d_weight_grad, TN_F32, SHAPE(2, 2, 2, 1), x, gy, NULL);
    gw->attr->conv = attr;
    expect(gw, V(20, 36, 36, 64, 5, 6, 8, 9));

    /* Two groups, 1 x 1 window: each output channel sees its own input channel alone. */
    tn_tensor *g = node(TN_OP_conv2d, TN_F32, SHAPE(1, 1, 1, 2), leaf(TN_F32, SHAPE(1, 1, 1, 2), V(3, 5)),
                        leaf(TN_F32, SHAPE(2, 1, 1, 1), V(2, 7)), NULL);
    g->attr->conv =
        (tn_conv_attr){.stride = {1, 1}, .dilation = {1, 1}, .groups = 2, .h = 1, .w = 1, .kh = 1, .kw = 1};
    expect(g, V(6, 35));
}

TEST_IN(pooling, setup, teardown)
{
    tn_pool_attr attr = {
        .window = {2, 2}, .stride = {1, 2}, .pad = {0, 0, 1, 1}, .h = 2, .w = 2, .oh = 1, .ow = 2};
    tn_tensor *x = leaf(TN_F32, SHAPE(1, 2, 2, 1), V(1, 4, 1, NAN));
    tn_tensor *m = node(TN_OP_pool_max, TN_F32, SHAPE(1, 1, 2, 1), x, NULL, NULL);
    m->attr->pool = attr;
    expect(m, V(1, NAN));
    tn_tensor *i = node(TN_OP_pool_argmax, TN_I32, SHAPE(1, 1, 2, 1), x, NULL, NULL);
    i->attr->pool = attr;
    expect(i, V(1, 2));
    tn_tensor *s = node(TN_OP_pool_sum, TN_F32, SHAPE(1, 1, 2, 1),
                        leaf(TN_F32, SHAPE(1, 2, 2, 1), V(1, 4, 2, 3)), NULL, NULL);
    s->attr->pool = attr;
    expect(s, V(3, 7));
    tn_tensor *g = leaf(TN_F32, SHAPE(1, 1, 2, 1), V(10, 20));
    tn_tensor *spread = node(TN_OP_pool_spread, TN_F32, SHAPE(1, 2, 2, 1), g, NULL, NULL);
    spread->attr->pool = attr;
    expect(spread, V(10, 20, 10, 20));
    tn_tensor *put = node(TN_OP_pool_put, TN_F32, SHAPE(1, 2, 2, 1), g, i, NULL);
    put->attr->pool = attr;
    expect(put, V(10, 0, 0, 20));
    tn_tensor *take = node(TN_OP_pool_take, TN_F32, SHAPE(1, 1, 2, 1), s->in[0], i, NULL);
    take->attr->pool = attr;
    expect(take, V(1, 3));
}

TEST_IN(indexing, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(3, 2), V(1, 2, 3, 4, 5, 6));
    tn_tensor *index = leaf(TN_I64, SHAPE(2, 2), V(2, 0, 2, 1));
    expect(node(TN_OP_gather, TN_F32, SHAPE(2, 2), x, index, NULL), V(5, 2, 5, 4));
    tn_tensor *src = leaf(TN_F32, SHAPE(2, 2), V(10, 20, 30, 40));
    expect(node(TN_OP_scatter_add, TN_F32, SHAPE(3, 2), src, index, NULL), V(0, 20, 0, 40, 40, 0));
    tn_tensor *i = leaf(TN_I32, SHAPE(3), V(1, 1, 0));
    tn_tensor *s = node(TN_OP_index_select, TN_F32, SHAPE(3, 3), x, i, NULL);
    s->attr->axis = 1, s->shape[1] = 3;
    expect(s, V(2, 2, 1, 4, 4, 3, 6, 6, 5));
    expect(node(TN_OP_index_add, TN_F32, SHAPE(2, 2), x, i, NULL), V(5, 6, 4, 6));

    tn_errbuf err = {""};
    i = leaf(TN_I32, SHAPE(1), V(-1));
    assert_int_equal(tn_ref_run(node(TN_OP_index_select, TN_F32, SHAPE(1, 2), x, i, NULL), &err), TN_E_INDEX);
    assert_non_null(strstr(err.text, "out of range for extent"));
    assert_non_null(strstr(err.text, "-1"));
    assert_non_null(strstr(err.text, "3"));
    i = leaf(TN_I32, SHAPE(1, 2), V(3, 0));
    assert_int_equal(tn_ref_run(node(TN_OP_gather, TN_F32, SHAPE(1, 2), x, i, NULL), &err), TN_E_INDEX);
}

/* The published known answers of Philox4x32-10, read off as uniforms. */
TEST_IN(random_numbers, setup, teardown)
{
    const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    tn_tensor *u = node(TN_OP_uniform, TN_F32, SHAPE(4), NULL, NULL, NULL);
    double want[4];
    for (int i = 0; i < 4; i++) want[i] = (double)(zeros[i] >> 8) * 0x1p-24;
    expect(u, want);

    F->graph.seed = 1;
    tn_tensor *all = node(TN_OP_uniform, TN_F32, SHAPE(1000), NULL, NULL, NULL);
    tn_tensor *kept = node(TN_OP_bernoulli, TN_BOOL, SHAPE(1000), leaf(TN_F32, 0, NULL, V(0.25)), NULL, NULL);
    tn_tensor *normal = node(TN_OP_normal, TN_F32, SHAPE(1000), NULL, NULL, NULL);
    tn_errbuf err;
    assert_int_equal(tn_ref_run(all, &err), 0);
    assert_int_equal(tn_ref_run(kept, &err), 0);
    assert_int_equal(tn_ref_run(normal, &err), 0);
    const double *a = tn_node_data(all), *k = tn_node_data(kept), *z = tn_node_data(normal);
    double mean = 0, square = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(k[i] != 0, a[i] >= 0.25);
        mean += z[i] / 1000;
        square += z[i] * z[i] / 1000;
        if (i % 2 == 0) {
            double radius = -2 * log(a[i] + 0x1p-24);
            assert_true(fabs(z[i] * z[i] + z[i + 1] * z[i + 1] - radius) < 1e-12 * (1 + radius));
        }
    }
    assert_true(fabs(mean) < 0.1 && fabs(square - 1) < 0.15);
}

TEST_IN(assignment, setup, teardown)
{
    tn_tensor *x = leaf(TN_F32, SHAPE(3), V(1, 2, 3));
    tn_tensor *reversed = node(TN_OP_slice, TN_F32, SHAPE(3), x, NULL, NULL);
    reversed->base = x, reversed->offset = 2, reversed->stride[0] = -1;
    tn_tensor *a = node(TN_OP_assign, TN_F32, SHAPE(3), x, reversed, NULL);
    expect(a, V(3, 2, 1));
    assert_memory_equal(tn_node_data(x), V(3, 2, 1), 24);
    assert_ptr_equal(a->buf, x->buf);

    /* Target and source overlap by two elements: the source is read before anything is written. */
    tn_tensor *head = node(TN_OP_slice, TN_F32, SHAPE(2), x, NULL, NULL);
    head->base = x;
    tn_tensor *tail = node(TN_OP_slice, TN_F32, SHAPE(2), x, NULL, NULL);
    tail->base = x, tail->offset = 1;
    expect(node(TN_OP_assign, TN_F32, SHAPE(2), tail, head, NULL), V(3, 2));
    assert_memory_equal(tn_node_data(x), V(3, 3, 2), 24);
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
