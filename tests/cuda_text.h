/* cuda_text.h - sessions that run nothing but are told that they have a GPU, and NVRTC for what they would
 * compile, many kernels at a time, for two generations of GPUs. What does not compile or spills is counted.
 *
 * Read first: open_sessions, then compile_batch. */
#pragma once

#include "check.h"

#include "cuda_source.h"
#include "gpu_target.h"
#include "src/core/sanitized.h"
#include "src/device/batch.h"

/* ---- compiling ---- */

/* For both GPUs, or turn and turn about: for one of them each batch of kernels. What NVRTC says does not
 * depend on how the test was built: the sanitized build writes all kernels and does not ask. */
static const char *const arch[] = {"sm_90a", "sm_80"};
#if defined(TN_ASAN)
enum { N_ARCH = 0 };
#else
enum { N_ARCH = 2 };
#endif
static bool Both;
static nvrtc Nvrtc;
static struct {
    int kernels, batches, spilled, failed;
    long most_registers;
    char most[128]; /* the kernel that has them */
    char what[512]; /* the first that failed or spilled */
} Seen;

static void append(char **text, size_t *n, size_t *cap, const char *more, size_t len)
{
    if (*n + len + 1 > *cap) {
        *cap = 2 * (*n + len + 1);
        *text = realloc(*text, *cap);
        assert_non_null(*text);
    }
    memcpy(*text + *n, more, len);
    *n += len;
    (*text)[*n] = 0;
}

/* Kernels of one unit need names of their own: k12_softmax_768. */
static void append_kernel(char **text, size_t *n, size_t *cap, const tn_source *k, int number)
{
    char call[128], name[16], finish[256];
    append(text, n, cap, finish,
           (size_t)snprintf(finish, sizeof finish, "#define %s%s k%d_%s%s\n", k->entry, TN_FINISH, number,
                            k->entry, TN_FINISH));
    snprintf(call, sizeof call, " %s(const tn_cuda_args", k->entry);
    const char *at = strstr(k->text, call);
    if (!at) { /* one of those whose text is the same for many: it is told its name */
        snprintf(call, sizeof call, "#define ENTRY %s\n", k->entry);
        at = strstr(k->text, call);
        if (at) at += strlen("#define ENTRY");
    }
    if (!at) fail_msg("no function %s in\n%s", k->entry, k->text);
    at++;
    append(text, n, cap, k->text, (size_t)(at - k->text));
    append(text, n, cap, name, (size_t)snprintf(name, sizeof name, "k%d_", number));
    append(text, n, cap, at, strlen(at));
    append(text, n, cap, finish,
           (size_t)snprintf(finish, sizeof finish, "#undef %s%s\n", k->entry, TN_FINISH));
    size_t length;
    at = k->text;
    for (const char *macro; (macro = tn_next_macro(&at, &length));)
        append(text, n, cap, finish,
               (size_t)snprintf(finish, sizeof finish, "#undef %.*s\n", (int)length, macro));
}

static void complain(const char *what, const char *text)
{
    if (!*Seen.what) snprintf(Seen.what, sizeof Seen.what, "%s: %.400s", what, text);
}

static void read_log(const char *log, const char *what)
{
    const nvrtc_said said = nvrtc_read(log);
    if (said.spilling) {
        print_message("%ld kernels spill, %s: %s\n", said.spilling, what, said.spiller);
        complain("spills", said.spiller);
        Seen.spilled += (int)said.spilling;
    }
    if (said.registers > Seen.most_registers) {
        Seen.most_registers = said.registers;
        snprintf(Seen.most, sizeof Seen.most, "%s", said.most);
    }
}

static int compile_batch(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    (void)d, (void)out, (void)err;
    char *text = NULL;
    size_t len = 0, cap = 0;
    for (int i = 0; i < n; i++) append_kernel(&text, &len, &cap, &src[i], Seen.kernels + i);
    const char *dir = getenv("CUDA_TEXT");
    if (dir) {
        char path[512];
        snprintf(path, sizeof path, "%s/batch%d.cu", dir, Seen.batches);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    }
    char *whole = cuda_source(text, false);
    for (int a = 0; a < N_ARCH; a++) {
        char *log;
        if (!Both && a != Seen.batches % 2) continue;
        if (nvrtc_compile(&Nvrtc, whole, arch[a], &log)) {
            print_message("%s: batch %d:\n%.2000s\n", arch[a], Seen.batches, log);
            complain(arch[a], log);
            Seen.failed++;
        } else {
            read_log(log, arch[a]);
        }
        free(log);
    }
    Seen.kernels += n;
    Seen.batches++;
    free(whole);
    free(text);
    return TN_OK;
}

/* ---- sessions ---- */

static tn_session *Cpu; /* notes nothing: how many kernels there are in C */

static int note_nothing(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    static char some_kernel;
    (void)d, (void)src, (void)err;
    for (int i = 0; i < n; i++) out[i] = (tn_kernel *)(void *)&some_kernel;
    return TN_OK;
}

static int open_sessions(void **state)
{
    (void)state;
    ahead_open(TN_CPU);
    Ahead.compile = compile_batch;
    for (int i = 0; i < 2; i++) Ahead.s[i]->target = Ahead.s[i]->device->target = gpu_target(80);
    Cpu = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 77, .log = quiet);
    assert_non_null(Cpu);
    Cpu->device->compile = note_nothing;
    Cpu->device->ready = NULL; /* would look into a kernel that a product takes along */
    Cpu->device->launch = ahead_launch;
    Cpu->device->gemm = ahead_gemm;
    Cpu->device->conv2d = ahead_conv2d;
    Cpu->device->download = ahead_download;
    return 0;
}

static int close_sessions(void **state)
{
    (void)state;
    ahead_close();
    return tn_close(Cpu);
}

static void check(void)
{
    ahead_compile();
    print_message("%d kernels in %d batches, %s: at most %ld registers (%s)\n", Seen.kernels, Seen.batches,
                  !N_ARCH ? "written only"
                  : Both  ? "for sm_90 and sm_80"
                          : "for sm_90 or sm_80 in turn",
                  Seen.most_registers, Seen.most);
    if (Seen.failed || Seen.spilled)
        fail_msg("%d batches not compiled, %d kernels spill; first: %s", Seen.failed, Seen.spilled,
                 Seen.what);
}
