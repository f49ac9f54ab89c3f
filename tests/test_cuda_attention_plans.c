/* test_cuda_attention_plans.c - what attention becomes on a GPU: one kernel forward and three backward, or
 * two, for each head, mask and dtype that there are kernels for, q, k and v read where a packed projection
 * has left them, nothing in memory that grows as the scores do; and that its numbers are the CPU's.
 *
 * Plans are looked at; what is compared with the CPU also runs, on the simulated GPU. Read first:
 * record_block.
 */
#include "cuda_traced.h"

/* ---- counting ---- */

static void expect(const seen *v, const char *what, int steps, int attentions)
{
    if (v->plan->n_step == steps && steps_named(v, "attention") == attentions) return;
    print_plan(v);
    fail_msg("%s: %d steps, %d of them attention; not %d and %d", what, v->plan->n_step,
             steps_named(v, "attention"), steps, attentions);
}

static int64_t elements_of(const seen *v)
{
    int64_t n = 0;
    for (int i = 0; i < v->plan->n_value; i++) n += (int64_t)v->plan->value[i].elems;
    return n;
}

/* ---- a block of a transformer ---- */

enum { BATCH = 2, ROWS = 40, HEADS = 2, HEAD = 32, WIDTH = HEADS * HEAD };

/* q, k and v of one projection of x: [batch, rows, 3, heads, head], whose parts are looked at as [batch,
 * heads, rows, head]. */
static tn_tensor *attend(tn_tensor *packed, int64_t batch, int64_t rows, int64_t heads, int64_t head,
                         double dropout)
{
    tn_tensor *p = tn_reshape(packed, TN_SHAPE(batch, rows, 3, heads, head));
    p = tn_permute(p, 5, (const int[]){2, 0, 3, 1, 4});
    return tn_scaled_dot_product_attention(tn_select(p, 0, 0), tn_select(p, 0, 1), tn_select(p, 0, 2),
                                           .causal = true, .dropout = dropout);
}

static void record_block(traced *t)
{
    tn_tensor *x = input(t, BATCH, ROWS, WIDTH), *w = input(t, 3 * WIDTH, WIDTH), *b = input(t, 3 * WIDTH),
              *v = input(t, WIDTH, WIDTH);
    tn_tensor *o = attend(tn_affine(x, w, b), BATCH, ROWS, HEADS, HEAD, .25);
    o = tn_reshape(tn_permute(o, 4, (const int[]){0, 2, 1, 3}), TN_SHAPE(BATCH, ROWS, WIDTH));
    give(t, tn_affine(o, v, NULL));
}

/* Projection, attention, projection; and backward two products for each, three kernels, and the sum for the
 * bias: no copy of q, k, v, o or of what their gradients are. */
CUDA_TEST(a_packed_projection_is_read_where_it_lies)
{
    const tiled c = {.name = "block", .record = record_block, .dtype = TN_F32};
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, &c);
    seen v = look(s);
    expect(&v, "forward", 3, 1);
    forget(&v);
    v = look_backward(&t);
    expect(&v, "backward", 2 + 3 + 2 + 1, 3);
    forget(&v);
    assert_int_equal(tn_close(s), 0);
    compare(&c);
}

/* ---- which there are kernels for ---- */

enum { NO_MASK, BOOLS, NUMBERS, MASKS };

TEST(each_has_one_kernel_forward_and_three_backward)
{
    static const tn_dtype dtype[] = {TN_F32, TN_F16, TN_BF16};
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int64_t head = 32; head <= 128; head += 32)
            for (int m = 0; m < MASKS; m++) {
                char what[64];
                rig_open(NULL);
                snprintf(what, sizeof what, "%s, head %d, mask %d", tn_dtype_name(dtype[d]), (int)head, m);
                tn_session *s = open_on(TN_CUDA);
                tn_step_begin(s);
                traced t = {.s = s, .gradients = true, .dtype = dtype[d]};
                tn_tensor *x[4], *grad[MOST], *hides = NULL;
                float numbers[ROWS * ROWS] = {1};
                for (int i = 0; i < 4; i++) x[i] = input(&t, BATCH, HEADS, ROWS, head);
                if (m)
                    hides = tn_cast(tn_from(s, numbers, TN_F32, TN_SHAPE(ROWS, ROWS)),
                                    m == BOOLS ? TN_BOOL : dtype[d]);
                assert_int_equal(tn_flush(s), 0);
                tn_tensor *o =
                    tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = hides, .dropout = m ? .1 : 0);
                if (!o) fail_msg("%s: %s", what, tn_error_text(s));
                seen v = look(s);
                expect(&v, what, 1, 1);
                forget(&v);
                t.n_wrt = 3;
                take_gradients(&t, tn_sum(tn_mul(o, x[3]), TN_ALL, false), grad);
                v = look(s);
                if (steps_named(&v, "attention_d") != 3) {
                    print_plan(&v);
                    fail_msg("%s: %d kernels backward", what, steps_named(&v, "attention_d"));
                }
                forget(&v);
                assert_int_equal(tn_close(s), 0);
            }
}

/* ---- by warpgroups ---- */

enum { LONG = 200, WIDE = 64 }; /* two blocks of keys */

static void record_long(traced *t)
{
    give(t, attend(input(t, BATCH, LONG, 3 * HEADS * WIDE), BATCH, LONG, HEADS, WIDE, 0));
}

/* Where a GPU has their products one kernel gives the gradients of q, k and v, if all are wanted; the
 * gradients of k and v alone are the older kernel's. */
TEST(warpgroups_have_two_kernels_backward)
{
    const tiled c = {.name = "long", .record = record_long, .dtype = TN_BF16};
    rig_open(state);
    sim.set("shared-most", 227 << 10);
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, &c);
    seen v = look(s);
    forget(&v);
    v = look_backward(&t);
    if (steps_named(&v, "attention_dq_dk_dv") != 1 || steps_named(&v, "attention_d") != 2) {
        print_plan(&v);
        fail_msg("%d kernels backward", steps_named(&v, "attention_d"));
    }
    forget(&v);
    assert_int_equal(tn_close(s), 0);
    compare(&c);
    s = open_on(TN_CUDA);
    tn_step_begin(s);
    traced some = {.s = s, .gradients = true, .dtype = TN_BF16};
    tn_tensor *x[3], *grad[MOST];
    for (int i = 0; i < 3; i++) x[i] = input(&some, BATCH, HEADS, LONG, WIDE);
    give(&some, tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = true));
    some.wrt[0] = some.wrt[1], some.wrt[1] = some.wrt[2], some.n_wrt = 2;
    take_gradients(&some, loss_of(&some), grad);
    v = look(s);
    assert_int_equal(steps_named(&v, "attention_dk_dv"), 1);
    assert_int_equal(steps_named(&v, "attention_d"), 2);
    forget(&v);
    assert_int_equal(tn_close(s), 0);
}

/* ---- memory ---- */

/* Twice the rows, twice the memory, up to 8192 of them: of all values of a plan together. */
TEST(memory_grows_as_the_rows_do)
{
    enum { ONE_HEAD = 64 };
    int64_t before[2] = {0};
    rig_open(state);
    for (int64_t rows = 1024; rows <= 8192; rows *= 2) {
        tn_session *s = open_on(TN_CUDA);
        tn_step_begin(s);
        traced t = {.s = s, .gradients = true, .dtype = TN_F32};
        tn_tensor *o = attend(input(&t, 1, rows, 3 * ONE_HEAD), 1, rows, 1, ONE_HEAD, .1), *grad[MOST];
        for (int part = 0; part < 2; part++) {
            if (part) take_gradients(&t, tn_sum(o, TN_ALL, false), grad);
            seen v = look(s);
            const int64_t now = elements_of(&v);
            if (before[part] && now > before[part] * 21 / 10) {
                print_plan(&v);
                fail_msg("%lld elements for %lld rows, %lld for half of them", (long long)now,
                         (long long)rows, (long long)before[part]);
            }
            assert_true(now < 20 * rows * ONE_HEAD);
            before[part] = now;
            forget(&v);
        }
        assert_int_equal(tn_close(s), 0); /* nothing of it runs */
    }
}

RUN_TESTS(NULL, NULL)
