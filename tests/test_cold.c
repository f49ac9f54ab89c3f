/* test_cold.c - what programs cost that have run nowhere yet: how many kernels are compiled, and how many
 * plans made, from an empty cache. Nothing is timed. Start with cold. */
#include "tests/folder.h"

#include <tensor_nn.h>

/* A session whose cache is empty. */
static tn_session *cold(tn_mode mode)
{
    setenv("TENSOR_CACHE", fresh_dir(), 1);
    return tn_open(.device = TN_CPU, .mode = mode, .seed = 5, .threads = 2, .log = quiet);
}

static tn_stats stats_of(const tn_session *s)
{
    tn_stats st = {.size = sizeof st};
    assert_int_equal(tn_get_stats(s, &st), 0);
    return st;
}

static void close_fine(tn_session *s)
{
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
    assert_int_equal(tn_close(s), 0);
}

/* ---- kernels of several layers ---- */

/* Layers that differ in their names alone, and in numbers in them, have the same kernels. */
TEST(layers_that_are_alike_are_compiled_once)
{
    static const char *const name[] = {"block.%d.norm.weight", "w%d", "%d", "out.%d.norm%d.weight"};
    for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
        tn_session *s = cold(TN_FUSED);
        tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(6, 23)),
                  *m = tn_keep(tn_ones(s, TN_F32, TN_SHAPE(23, 23))), *w[5];
        for (int i = 0; i < 5; i++) {
            char text[40];
            snprintf(text, sizeof text, name[k], i, i);
            w[i] = tn_param(s, text, tn_ones(s, TN_F32, TN_SHAPE(23)));
        }
        const tn_stats before = stats_of(s);
        tn_step_begin(s);
        for (int i = 0; i < 5; i++) x = tn_gelu(tn_layer_norm(tn_matmul(x, m), w[i], NULL));
        tn_keep(x);
        tn_step_end(s);
        const tn_stats after = stats_of(s);
        assert_int_equal(after.library_calls - before.library_calls, 5);
        assert_in_range(after.kernels - before.kernels, 5, 6);
        assert_in_range(after.compiled - before.compiled, 1, 2); /* and the copy that is kept */
        close_fine(s);
    }
}

int main(void)
{
    setenv("TENSOR_KERNEL_OPT", "0", 0);
    return run_all_tests(make_base, drop_base);
}
