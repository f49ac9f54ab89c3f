/* test_cuda_kernels.c - the CUDA device's hand-written kernels, each variant put to the real NVRTC for two
 * GPU generations where it is installed: all compile, without a warning and without a spilled register. Of
 * the kernels on tensor cores, which take NVRTC a second each, some; tests/gpu/KERNELS.md has all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "src/core/alloc.h"
#include "src/core/sanitized.h"
#include "src/device/cuda/internal.h"
#include "src/device/embed.h"
#include "tests/gpu/table.h"
#include "tests/gpu/table_attention.h"
#include "tests/gpu/table_conv.h"
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

/* What NVRTC says does not depend on how the test was built: the sanitized build asks it for one GPU. */
#if defined(TN_ASAN)
enum { N_ARCH = 1 };
#else
enum { N_ARCH = 2 };
#endif

static table_family *const families[] = {conv_row, direct_row, attention_row};

static void test_tensor_cores(void **state)
{
    (void)state;
    static const char *const arch[] = {"sm_80", "sm_90"};
    nvrtc n;
    table_row row;
    int compiled = 0;
    memset(&n, 0, sizeof n);
    if (!nvrtc_open(&n)) {
        print_message("no NVRTC here\n");
        skip();
    }
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (int i = 0; families[f](i, &row); i++) {
            for (int a = 0; a < N_ARCH && row.text && row.tested; a++) {
                table_result r = table_compile(&n, &row, arch[a]);
                if (r.status || r.warned || r.spilled || !r.registers)
                    fail_msg("%s, %s, %s for %s: %s", row.kernel, row.dtype, row.tile, arch[a], r.log);
                free(r.log);
                compiled++;
            }
            free(row.text);
        }
    assert_int_equal(compiled, N_ARCH * (13 + 6));
}

/* What stands in the table: a line for each kernel, none of which spills. */
static void test_table(void **state)
{
    (void)state;
    char line[1024];
    int rows = 0, wanted = 0;
    table_row row;
    FILE *f = fopen("tests/gpu/KERNELS.md", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        int column = 0;
        if (strncmp(line, "| ", 2) != 0 || !strncmp(line, "| kernel", 8)) continue;
        rows++;
        for (const char *p = line; (p = strchr(p, '|')); p++)
            if (++column == 9) assert_true(!strncmp(p, "| 0 |", 5));
        assert_int_equal(column, 13);
    }
    fclose(f);
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        for (int i = 0; families[k](i, &row); i++) {
            wanted += row.text != NULL;
            free(row.text);
        }
    assert_int_equal(rows, wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compile), cmocka_unit_test(test_tensor_cores),
                                       cmocka_unit_test(test_table)};
    return cmocka_run_group_tests_name("cuda_kernels", tests, NULL, NULL);
}
