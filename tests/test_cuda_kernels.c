/* test_cuda_kernels.c - the CUDA device's hand-written kernels, each variant put to the real NVRTC for two
 * GPU generations where it is installed: all compile, without a warning and without a spilled register. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "src/core/alloc.h"
#include "src/device/cuda/internal.h"
#include "src/device/embed.h"
#include "tests/nvrtc.h"

static const struct {
    tn_cuda_own which;
    int first, end; /* variants */
} own[] = {{TN_OWN_IM2COL, 1, 5}, {TN_OWN_COL2IM, 0, 4}, {TN_OWN_EPILOGUE, 0, 4}, {TN_OWN_PRODUCT, 0, 7}};

static void test_compile(void **state)
{
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_90"};
    nvrtc n;
    int compiled = 0;
    memset(&n, 0, sizeof n);
    if (!nvrtc_open(&n)) {
        print_message("no NVRTC here\n");
        skip();
    }
    for (int w = 0; w < (int)(sizeof own / sizeof *own); w++)
        for (int v = own[w].first; v < own[w].end; v++) {
            char name[64], *body = tn_cuda_own_text(own[w].which, v, name);
            assert_non_null(body);
            size_t room = strlen(body) + 1;
            for (int i = 0; i < TN_PRELUDE_FILES; i++) room += strlen(tn_embed_text(tn_prelude_cuda[i])) + 1;
            char *text = calloc(1, room);
            assert_non_null(text);
            for (int i = 0; i < TN_PRELUDE_FILES; i++) {
                strcat(text, tn_embed_text(tn_prelude_cuda[i]));
                strcat(text, "\n");
            }
            strcat(text, body);
            for (int a = 0; a < 2; a++) {
                char *log;
                int status = nvrtc_compile(&n, text, arch[a], &log);
                if (status || strstr(log, "warning")) fail_msg("%s for %s: %s", name, arch[a], log);
                if (!strstr(log, "0 bytes spill stores, 0 bytes spill loads"))
                    fail_msg("%s for %s: %s", name, arch[a], log);
                compiled++;
                free(log);
            }
            free(text);
            tn_free_mem(body);
        }
    assert_int_equal(compiled, 2 * (4 + 4 + 4 + 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
