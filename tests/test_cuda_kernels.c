/* test_cuda_kernels.c - the CUDA device's hand-written kernels, each variant put to the real NVRTC for two
 * GPU generations where it is installed: all compile, without a warning and without a spilled register. Of
 * the kernels on tensor cores, which take NVRTC a second each, some; `make cuda-kernels` compiles all of
 * them. */
#include "tests/test.h"

#include "src/core/alloc.h"
#include "src/core/sanitized.h"
#include "src/device/cuda/internal.h"
#include "tests/gpu/table.h"
#include "tests/gpu/table_attention.h"
#include "tests/gpu/table_conv.h"

static const struct {
    tn_cuda_own which;
    int first, end; /* variants */
} own[] = {{TN_OWN_IM2COL, 1, 5}, {TN_OWN_COL2IM, 0, 4}, {TN_OWN_EPILOGUE, 0, 4}, {TN_OWN_PRODUCT, 0, 7}};

/* What NVRTC says does not depend on how the test was built: the sanitized build does not ask. */
static const char *const arch[] = {"sm_80", "sm_90a"};
#if defined(TN_ASAN)
enum { N_ARCH = 0 };
#else
enum { N_ARCH = 2 };
#endif
static nvrtc Nvrtc;

static void open_or_skip(void)
{
    if (nvrtc_open(&Nvrtc)) return;
    print_message("no NVRTC here\n");
    skip();
}

static void check(const char *what, const char *text, const char *for_arch)
{
    nvrtc_said said;
    char *log;
    if (!cuda_fits(&Nvrtc, text, for_arch, &said, &log) || !said.registers)
        fail_msg("%s for %s: %s", what, for_arch, log);
    free(log);
}

TEST(test_compile)
{
    int compiled = 0;
    open_or_skip();
    for (int w = 0; w < (int)(sizeof own / sizeof *own); w++)
        for (int v = own[w].first; v < own[w].end; v++) {
            char name[64], *body = tn_cuda_own_text(own[w].which, v, name);
            assert_non_null(body);
            for (int a = 0; a < N_ARCH; a++, compiled++) check(name, body, arch[a]);
            tn_free_mem(body);
        }
    assert_int_equal(compiled, N_ARCH * (4 + 4 + 4 + 7));
}

enum { ROWS = 913 };

static table_family *const families[] = {conv_row, direct_row, few_row, attention_row};

TEST(test_tensor_cores)
{
    table_row row;
    int rows = 0, compiled = 0;
    open_or_skip();
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (int i = 0; families[f](i, &row); i++) {
            char what[144];
            snprintf(what, sizeof what, "%s, %s, %s", row.kernel, row.dtype, row.tile);
            rows += row.text != NULL;
            for (int a = row.wgmma; a < N_ARCH && row.text && row.tested; a++, compiled++)
                check(what, row.text, arch[a]);
            free(row.text);
        }
    assert_int_equal(compiled, N_ARCH ? 2 * (13 + 6) + 3 + 7 + 4 : 0);
    assert_int_equal(rows, ROWS); /* that `make cuda-kernels` compiles */
}

RUN_TESTS(NULL, NULL)
