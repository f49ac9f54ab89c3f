/* test_cuda_attention_tiles.c - the tiles that attention on tensor cores gets, and what they take: who has one by
 * warpgroups, shared memory, and the registers that the real compiler gives each kernel, where it is installed.
 *
 * With `full` as its argument each combination of flags is compiled. Read first: combination. */
#include "tests/cuda_attention_cases.h"

#include <sys/wait.h>

#include "src/core/sanitized.h"
#include "tests/cuda_source.h"
#include "tests/gpu_target.h"

static bool full;

/* What no tile is made for. */
TEST(test_refused)
{
    const tn_target
        large = {.dialect = TN_DIALECT_CUDA, .capability = 80, .processors = 108, .shared_most = 163 << 10},
        small = {.dialect = TN_DIALECT_CUDA, .capability = 80, .processors = 108, .shared_most = 99 << 10},
        old = {.dialect = TN_DIALECT_CUDA, .capability = 75, .processors = 40, .shared_most = 163 << 10},
        none = {.dialect = TN_DIALECT_CUDA, .capability = 80, .processors = 108, .shared_most = 16 << 10};
    struct fu_flash_tile t;
    for (int pass = 0; pass < FU_FLASH_PASSES; pass++) {
        fu_flash_desc d = {(fu_flash_pass)pass, F, X, CAUSAL, X, X, NONE, 128, 8, 8, 1024, 1024, true};
        assert_true(fu_flash_tile(&d, &large, &t));
        assert_true(t.shared <= large.shared_most && t.threads == 32 * t.warps);
        assert_true(fu_flash_tile(&d, &small, &t));
        assert_true(t.shared <= small.shared_most);
        assert_int_equal(fu_flash_tile(&d, &none, &t), pass == FU_FLASH_DELTA);
        assert_false(fu_flash_tile(&d, &old, &t));
        d.head = 48;
        assert_false(fu_flash_tile(&d, &large, &t));
        d.head = 160;
        assert_false(fu_flash_tile(&d, &large, &t));
        d.head = 64, d.dtype = TN_F64;
        assert_false(fu_flash_tile(&d, &large, &t));
        d.dtype = F, d.tk = 0;
        assert_false(fu_flash_tile(&d, &large, &t));
    }
}

/* Warpgroups have what they are faster for, on a GPU that has their products. */
TEST(test_chosen)
{
    static const struct {
        tn_dtype dtype;
        int head, tq, batch;
        bool wgmma;
    } of[] = {{B, 128, 2048, 8, true},  {H, 64, 2048, 8, true},  {B, 128, 100, 64, true},
              {F, 128, 2048, 8, false}, {B, 96, 2048, 8, false}, {B, 32, 2048, 8, false},
              {B, 128, 1, 64, false}};
    for (int i = 0; i < (int)(sizeof of / sizeof *of); i++)
        for (int pass = 0; pass < FU_FLASH_PASSES; pass++)
            for (int newer = 0; newer < 2; newer++) {
                const fu_flash_desc d = {(fu_flash_pass)pass, of[i].dtype, X,  CAUSAL,   X,    X,   NONE,
                                         of[i].head,          of[i].batch, 16, of[i].tq, 2048, true};
                const tn_target gpu = gpu_target(newer ? 90 : 80);
                struct fu_flash_tile t;
                assert_true(fu_flash_tile(&d, &gpu, &t));
                const bool have = pass == FU_FLASH_FORWARD || pass == FU_FLASH_DKV;
                assert_int_equal(t.wgmma, of[i].wgmma && newer && have);
                if (t.wgmma) assert_int_equal(t.rows % 64, 0);
            }
}

/* ---- registers ---- */

/* How many blocks there are: more than processors; fewer, which have smaller tiles, and of which several
 * share their queries where there are keys enough. */
typedef enum crowd { MANY, FEW, FEW_KEYS, CROWDS } crowd;
enum { COMBINATIONS = 4 * 4 * 12 * 2 };

static config combination(int at, crowd blocks)
{
    const int head = at % 4, kind = at / 4 % 4, flags = at / 16 % 12;
    const bool few = blocks != MANY;
    return (config){.dtype = kind < 1   ? H
                             : kind < 2 ? B
                                        : F,
                    .tf32 = kind == 3,
                    .head = head * 32 + 32,
                    .causal = flags & 1,
                    .mask = (fu_flash_mask)(flags / 4),
                    .dropout = flags & 2,
                    .batch = few ? 1 : 16,
                    .heads = few ? 1 : 16,
                    .tq = 512,
                    .tk = blocks == FEW_KEYS ? 64 : 512,
                    .strict = at / 192};
}

/* Every GPU's blocks have so much shared memory and no more, of which one that shares its rows with others
 * needs a word of its own, with what aligns the rest behind it. */
TEST(test_shared_memory)
{
    static const int kib[] = {99, 163, 227}, extents[] = {1, 33, 100, 512, 4096};
    enum { KIB = sizeof kib / sizeof *kib, EXTENTS = sizeof extents / sizeof *extents };
    int parted = 0;
    for (int g = 0; g < KIB; g++)
        for (int at = 0; at < 192; at++)
            for (int pass = 0; pass < FU_FLASH_PASSES; pass++)
                for (int e = 0; e < EXTENTS * EXTENTS * 2; e++) {
                    tn_target gpu = gpu_target(80);
                    struct fu_flash_tile t;
                    char what[256];
                    gpu.shared_most = kib[g] << 10;
                    config c = combination(at, e / EXTENTS / EXTENTS ? MANY : FEW);
                    c.tq = extents[e % EXTENTS], c.tk = extents[e / EXTENTS % EXTENTS];
                    const fu_flash_desc d = desc_of(&c, (fu_flash_pass)pass);
                    describe(&c, what, sizeof what);
                    if (!fu_flash_tile(&d, &gpu, &t)) fail_msg("%s, pass %d: no tile", what, pass);
                    if (t.shared + (t.splits > 1 ? 1024 : 0) > gpu.shared_most)
                        fail_msg("%s, pass %d, %d splits: %lld bytes for %d KiB", what, pass, t.splits,
                                 (long long)t.shared, kib[g]);
                    parted += t.splits > 1;
                }
    assert_true(parted > 1000);
}

/* Whether the real compiler takes the pass without a warning and without a spilled register; else it says why
 * on stderr. */
static bool fits_registers(const nvrtc *n, const config *c, fu_flash_pass pass, const char *text,
                           const char *arch)
{
    nvrtc_said said;
    char *log;
    const bool good = cuda_fits(n, text, arch, &said, &log);
    if (!good) {
        char what[256];
        describe(c, what, sizeof what);
        fprintf(stderr, "pass %d of %s, strict %d, for %s: %s\n", (int)pass, what, c->strict, arch, log);
    }
    free(log);
    return good;
}

/* The combination's different kernels of the first `crowds` of crowd, for GPUs of two generations: how many;
 * *bad: those that do not fit. */
static int compile_combination(const nvrtc *n, int at, int crowds, int *bad)
{
    static const char *const arch[] = {"sm_80", "sm_90a"};
    static const tn_target target[] = {
        {.dialect = TN_DIALECT_CUDA, .capability = 80, .processors = 108, .shared_most = 163 << 10},
        {.dialect = TN_DIALECT_CUDA,
         .capability = 90,
         .processors = 132,
         .shared_most = 227 << 10,
         .wgmma = true}};
    const problem p = {.scale = .125, .drop = DROP_P};
    int compiled = 0;
    for (int a = 0; a < 2; a++)
        for (int pass = 0; pass < FU_FLASH_PASSES; pass++) {
            char name[CROWDS][64];
            if (pass == FU_FLASH_DELTA && at >= 16) continue; /* knows nothing of flags */
            for (int blocks = 0; blocks < crowds; blocks++) {
                const config c = combination(at, (crowd)blocks);
                struct fu_flash_tile tile;
                bool known = false;
                char *text = text_of(&c, &p, (fu_flash_pass)pass, &target[a], NULL, &tile, name[blocks]);
                for (int i = 0; i < blocks; i++) known |= !strcmp(name[i], name[blocks]);
                if (!known) {
                    *bad += !fits_registers(n, &c, (fu_flash_pass)pass, text, arch[a]);
                    compiled++;
                }
                free(text);
            }
        }
    return compiled;
}

/* What the real compiler makes of the kernels. `full`: of each combination of flags, by a process for each
 * processor. */
TEST(test_registers)
{
    enum { MOST = 64 };
    static const int always[] = {16 + 1,     11 * 16 + 8 + 3, 192 + 16 + 2,
                                 16 + 4 + 3, 8 * 16 + 1,      10 * 16 + 4 + 3};
    nvrtc n;
    int compiled = 0, bad = 0;
    memset(&n, 0, sizeof n);
    if (!nvrtc_open(&n)) {
        print_message("no NVRTC here\n");
        skip();
    }
#if defined(TN_ASAN) /* what NVRTC says does not depend on how the test was built */
    return;
#endif
    for (int i = 0; i < (int)(sizeof always / sizeof *always) && !full; i++)
        compiled += compile_combination(&n, always[i], i < 2 ? 1 : CROWDS, &bad);
    if (!full) {
        print_message("%d kernels compiled\n", compiled);
        assert_int_equal(bad, 0);
        assert_true(compiled >= 16);
        return;
    }
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const int of = processors < 1 ? 1 : processors > MOST ? MOST : (int)processors;
    pid_t worker[MOST];
    for (int w = 0; w < of; w++) {
        worker[w] = fork();
        assert_true(worker[w] >= 0);
        if (worker[w]) continue;
        for (int at = w; at < COMBINATIONS; at += of) compiled += compile_combination(&n, at, CROWDS, &bad);
        fprintf(stderr, "%d kernels compiled, %d of them spill\n", compiled, bad);
        _exit(bad != 0);
    }
    for (int w = 0; w < of; w++) {
        int status = 1;
        assert_int_equal(waitpid(worker[w], &status, 0), worker[w]);
        bad |= status;
    }
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv)
{
    full = argc > 1 && !strcmp(argv[1], "full");
    if (argc > 1 + full) cmocka_set_test_filter(argv[1 + full]);
    return run_all_tests(NULL, NULL);
}
