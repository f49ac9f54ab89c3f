/* test_cuda_conv_prologue.c - what our own convolution kernels compute of their image as they load it:
 * forward and weight gradients, all dtypes, with padding, strides, groups, splits and statistics (cuda_conv.h
 * runs a case). The prologue does not make 0 of 0, so that a border it is applied to is a wrong number.
 *
 * `full` as the first argument runs many more cases. Read first: drawn.
 */
#include "cuda_conv.h"

static bool full;

static void drawn(void **state)
{
    (void)state;
    tn_device *d = device_open();
    cases l = {.n = 0};
    const int each = full ? 30 : 5;
    int padded = 0;
    seed = 777;
    for (int pass = 0; pass < 3; pass += 2)
        for (int kind = 0; kind < 4; kind++)
            for (int set = 0; set < 4; set++) {
                if (!full && set > 1 && kind % 2) continue;
                for (int i = 0; i < each;) {
                    test_case c = draw((tn_conv_pass)pass, kind, set);
                    if (small_groups(&c.d) || (c.d.groups > 1 && c.d.groups == c.d.c))
                        continue; /* have none */
                    c.prologue = true;
                    c.tiling = full ? (int)below(4) : 0;
                    c.stats = pass == 0 && set == 1 && i % 3 == 1;
                    c.splits = set == 1 && i % 3 == 2 ? 2 + below(3) : 1;
                    padded += c.d.pad[0] || c.d.pad[1] || c.d.pad[2] || c.d.pad[3];
                    i += add(&l, &d->target, c);
                }
            }
    assert_true(padded > l.n / 2);
    run_cases(d, &l);
    device_close(d);
}

static void by_hand(void **state)
{
    (void)state;
    run_corners(full, 41, true);
}

/* ---- what is planted ---- */

/* A convolution with a border whose kernel has `to` in the place of `from`: its results, or why there are
 * none. */
static int planted(const char *from, const char *to, bool *right)
{
    tn_device *d = device_open();
    cases l = {.n = 0};
    tn_errbuf err = {""};
    enum { N = 8 * 8 * 8 };
    float out[N];
    double sum[N] = {0}, magnitude[N] = {0};
    test_case c = {.splits = 1, .prologue = true, .whole = true};
    seed = 9;
    c.d = conv_desc(TN_F32, TN_CONV_FORWARD, 1, 8, 24, 8, 3);
    assert_true(add(&l, &d->target, c));
    c = l.c[0];
    char *changed = with_fault(c.tile.text, from, to);
    free(l.c[0].text);
    l.c[0].text = text_of(&c, c.name, changed);
    compile(d, &l);
    numbers a = make(d, TN_F32, elements(&c.d, 0), true), b = make(d, TN_F32, elements(&c.d, 1), true);
    before f = make_before(d, &c);
    put_before(&c, &f, &a);
    oracle(&c.d, a.value, b.value, sum, magnitude);
    int status = launch(d, l.kernel[0], &c, a.device, b.device, &f, out, N, NULL, &err);
    *right = !status;
    for (int i = 0; i < N && !status; i++) *right = *right && (double)out[i] == sum[i];
    free(changed);
    free(a.value);
    free(b.value);
    free(f.of_channel.value);
    free(f.more.value);
    free(l.c[0].text);
    free(l.c);
    free(l.source);
    free(l.kernel);
    d->close(d);
    return status;
}

#define WAIT    "        tn_copy_wait<STAGES - 2>();\n"
#define APPLY   "        transform(a, p, s, shared + reading * STAGE, (begin + i) * BK);\n"
#define BARRIER "        __syncthreads(); /* buffer i is there"

static void nothing(void **state)
{
    (void)state;
    bool right;
    assert_int_equal(planted(APPLY, APPLY, &right), 0);
    assert_true(right);
}

static void a_border_that_is_put_through(void **state)
{
    (void)state;
    bool right;
    assert_int_equal(planted("(s.offset[at] + down * p.width + right) : -1;",
                             "(s.offset[at] + down * p.width + right) : 0;", &right),
                     0);
    assert_false(right);
}

static void elements_that_have_not_come(void **state)
{
    (void)state;
    bool right;
    assert_int_not_equal(planted(WAIT "#if defined(PROLOGUE)\n" APPLY "#endif\n",
                                 "#if defined(PROLOGUE)\n" APPLY "#endif\n" WAIT, &right),
                         0);
    if (!strstr(sim.report(), "that a cp.async is to fill")) fail_msg("%s", sim.report());
}

static void elements_that_others_read(void **state)
{
    (void)state;
    bool right;
    assert_int_not_equal(planted(APPLY "#endif\n" BARRIER, "#endif\n" BARRIER " */\n" APPLY "/*", &right), 0);
    if (!strstr(sim.report(), "shared memory")) fail_msg("%s", sim.report());
}

int main(int argc, char **argv)
{
    full = argc > 1 && !strcmp(argv[1], "full");
    if (argc > 1 && !full) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(drawn, rig_open),
        cmocka_unit_test_setup(by_hand, rig_open),
        cmocka_unit_test_setup(nothing, rig_open),
        cmocka_unit_test_setup(a_border_that_is_put_through, rig_open),
        cmocka_unit_test_setup(elements_that_have_not_come, rig_open),
        cmocka_unit_test_setup(elements_that_others_read, rig_open),
    };
    return cmocka_run_group_tests_name("cuda_conv_prologue", tests, NULL, NULL);
}
