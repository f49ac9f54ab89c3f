/* test_cpu_device.c - kernels from text to result, and everything that can go wrong on the way there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/alloc.h"
#include "src/device/cpu/fpu.h"
#include "src/device/cpu/kernels.h"
#include "src/device/device.h"

static char base[64]; /* a folder of this run's own, emptied at the end */

static const char *fresh_dir(void)
{
    static char path[128];
    static int n;
    snprintf(path, sizeof path, "%s/%d", base, n++);
    return path;
}

#define ADD(entry, number)                                                                                   \
    "void " entry "(const tn_args *a, int64_t begin, int64_t end)\n"                                         \
    "{\n"                                                                                                    \
    "    float *y = a->buf[0];\n"                                                                            \
    "    for (int64_t i = begin; i < end; i++) y[i] += " number ";\n"                                        \
    "}\n"

static char logged[1024];

static void keep_log(int level, const char *text, void *user)
{
    (void)level;
    (void)user;
    snprintf(logged, sizeof logged, "%s", text);
}

static tn_device *open_device(const char *dir, int threads)
{
    tn_device *d = NULL;
    tn_errbuf err = {""};
    logged[0] = 0;
    tn_device_options o = {.threads = threads, .cache_dir = dir, .log = keep_log};
    assert_int_equal(tn_cpu_open(&o, &d, &err), 0);
    return d;
}

static int count_files(const char *dir, const char *ending)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t a = strlen(e->d_name), b = strlen(ending);
        n += a >= b && !strcmp(e->d_name + a - b, ending) && e->d_name[0] != '.';
    }
    if (d) closedir(d);
    return n;
}

/* What the kernel makes of y = 0; NaN where it does not run. */
static float result(tn_device *d, tn_kernel *k)
{
    float y[100] = {0};
    tn_errbuf err;
    tn_args args = {.buf = (void *const[]){y}};
    if (d->launch(d, k, &args, &(tn_grid){.n = 100, .chunk = 7}, &err)) return -1;
    for (int i = 1; i < 100; i++)
        if (y[i] != y[0]) return -2;
    return y[0];
}

static float run_text(tn_device *d, const char *entry, const char *text)
{
    tn_kernel *k = NULL;
    tn_errbuf err = {""};
    tn_source s = {entry, text};
    if (d->compile(d, &s, 1, &k, &err)) {
        print_message("%s\n", err.text);
        return -3;
    }
    return result(d, k);
}

/* ---- the ordinary way ------------------------------------------------------------------------------ */

static void compiles_and_runs(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    tn_device *d = open_device(dir, 2);
    assert_string_equal(d->name, "cpu");
    assert_int_equal(d->threads, 2);
    assert_true(run_text(d, "add_one", ADD("add_one", "1")) == 1);
    assert_int_equal(d->stats.compiled, 1);
    assert_int_equal(d->stats.cache_hits, 0);
    assert_int_equal(d->stats.launches, 1);

    tn_source s = {"add_one", ADD("add_one", "1")};
    tn_kernel *a, *b;
    tn_errbuf err;
    assert_int_equal(d->compile(d, &s, 1, &a, &err), 0);
    assert_int_equal(d->compile(d, &s, 1, &b, &err), 0);
    assert_ptr_equal(a, b);
    assert_int_equal(d->stats.compiled, 1);
    assert_int_equal(d->stats.cache_hits, 2);
    d->close(d);

    d = open_device(dir, 2);
    assert_true(run_text(d, "add_one", ADD("add_one", "1")) == 1);
    assert_int_equal(d->stats.compiled, 0);
    assert_int_equal(d->stats.cache_hits, 1);
    d->close(d);
    assert_string_equal(logged, "");
}

static void many_at_once(void **state)
{
    (void)state;
    enum { N = 9 };
    const char *dir = fresh_dir();
    char text[N][256];
    tn_source s[N + 2];
    tn_kernel *k[N + 2];
    tn_errbuf err = {""};
    for (int i = 0; i < N; i++) { /* all with the same entry name */
        snprintf(text[i], sizeof text[i], ADD("add", "%d"), i);
        s[i] = (tn_source){"add", text[i]};
    }
    s[N] = s[3]; /* and one of them twice */
    s[N + 1] = (tn_source){"add__1", ADD("add__1", "100")};
    for (int round = 0; round < 2; round++) {
        tn_device *d = open_device(dir, 2);
        assert_int_equal(d->compile(d, s, N + 2, k, &err), 0);
        for (int i = 0; i < N; i++) assert_true(result(d, k[i]) == (float)i);
        assert_ptr_equal(k[N], k[3]);
        assert_true(result(d, k[N + 1]) == 100);
        assert_int_equal(d->stats.compiled, round ? 0 : N + 1);
        d->close(d);
    }
    assert_int_equal(count_files(dir, ".so"), 2);
    assert_int_equal(count_files(dir, ".c"), N + 1);
    /* each is found again alone */
    tn_device *d = open_device(dir, 1);
    assert_int_equal(d->compile(d, &s[5], 1, k, &err), 0);
    assert_true(result(d, k[0]) == 5);
    assert_int_equal(d->stats.compiled, 0);
    d->close(d);
}

static void statics_of_one_unit_may_clash(void **state)
{
    (void)state;
    tn_source s[] = {
        {"first", "static float f(void) { return 3; }\n" ADD("first", "f()")},
        {"second", "static float f(void) { return 4; }\n" ADD("second", "f()")},
        {"third", ADD("third", "5")},
    };
    tn_kernel *k[3];
    tn_errbuf err = {""};
    tn_device *d = open_device(fresh_dir(), 1);
    assert_int_equal(d->compile(d, s, 3, k, &err), 0);
    for (int i = 0; i < 3; i++) assert_true(result(d, k[i]) == (float)(3 + i));
    assert_int_equal(d->stats.compiled, 3);
    d->close(d);
}

static void floating_point_mode_stays(void **state)
{
    (void)state;
    tn_device *d = open_device(fresh_dir(), 2);
    uint64_t before = tn_fpu_get();
    const char *text = "void tiny(const tn_args *a, int64_t begin, int64_t end)\n"
                       "{\n"
                       "    volatile float x = 0x1p-125f;\n"
                       "    for (int64_t i = begin; i < end; i++) ((float *)a->buf[0])[i] = x / 16 != 0;\n"
                       "}\n";
    assert_true(run_text(d, "tiny", text) == 1); /* denormals are not flushed */
    assert_true(tn_fpu_get() == before);
    d->close(d);
    assert_true(tn_fpu_get() == before);
}

/* An object whose start-up code does what -ffast-math links in. */
static void start_up_code_cannot_change_the_mode(void **state)
{
    (void)state;
#if defined(__SSE__)
    tn_device *d = open_device(fresh_dir(), 2);
    uint64_t before = tn_fpu_get();
    const char *text =
        "__attribute__((constructor)) static void flush(void)\n"
        "{ __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }\n" ADD("flushing", "2");
    assert_true(run_text(d, "flushing", text) == 2);
    assert_true(tn_fpu_get() == before);
    d->close(d);
#else
    skip();
#endif
}

#define PARTS(name, what)                                                                                    \
    "void " name "(const tn_args *a, int64_t begin, int64_t end)\n"                                          \
    "{ for (int64_t i = begin; i < end; i++) ((float *)a->buf[0])[i] = " what "; }\n"                        \
    "void " name "_finish(const tn_args *a, int64_t begin, int64_t end)\n"                                   \
    "{ for (int64_t i = begin; i < end; i++) {\n"                                                            \
    "    float s = 0;\n"                                                                                     \
    "    for (int64_t k = 0; k < 1000; k++) s += ((float *)a->buf[0])[k];\n"                                 \
    "    ((float *)a->buf[1])[i] = s + (float)i; } }\n"

/* Two kernels of one name, in one unit: each keeps its own finish, which sees what all items wrote. */
static void a_finish_runs_after_all_items(void **state)
{
    (void)state;
    tn_device *d = open_device(fresh_dir(), 1);
    tn_source s[] = {
        {"parts", PARTS("parts", "1")}, {"parts", PARTS("parts", "2")}, {"none", ADD("none", "1")}};
    tn_kernel *k[3];
    tn_errbuf err = {""};
    assert_int_equal(d->compile(d, s, 3, k, &err), 0);
    for (int i = 0; i < 2; i++) {
        float part[1000] = {0}, out[70] = {0};
        tn_args args = {.buf = (void *const[]){part, out}};
        tn_grid grid = {.n = 1000, .chunk = 7, .finish_n = 70, .finish_chunk = 3};
        uint64_t before = d->stats.launches;
        assert_int_equal(d->launch(d, k[i], &args, &grid, &err), 0);
        assert_int_equal(d->stats.launches, before + 1);
        for (int j = 0; j < 70; j++) assert_true(out[j] == (float)(1000 * (i + 1) + j));
    }
    float y[100] = {0};
    tn_grid wrong = {.n = 100, .chunk = 7, .finish_n = 1, .finish_chunk = 1};
    assert_int_equal(d->launch(d, k[2], &(tn_args){.buf = (void *const[]){y}}, &wrong, &err), TN_E_ARG);
    d->close(d);
}

static void same_bits_on_1_2_3_threads(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    static float part[3][200];
    tn_source s = {"sums", "void sums(const tn_args *a, int64_t begin, int64_t end)\n"
                           "{\n"
                           "    float s = 0;\n"
                           "    for (int64_t i = begin; i < end; i++) s += 1.0f / (float)(i * i % 977 + 1);\n"
                           "    ((float *)a->buf[0])[begin / 512] = s;\n"
                           "}\n"};
    for (int t = 0; t < 3; t++) {
        tn_device *d = open_device(dir, t + 1);
        tn_kernel *k;
        tn_errbuf err;
        assert_int_equal(d->compile(d, &s, 1, &k, &err), 0);
        assert_int_equal(d->launch(d, k, &(tn_args){.buf = (void *const[]){part[t]}},
                                   &(tn_grid){.n = 200 * 512 - 3, .chunk = 512}, &err),
                         0);
        d->close(d);
    }
    assert_memory_equal(part[0], part[1], sizeof part[0]);
    assert_memory_equal(part[0], part[2], sizeof part[0]);
}

/* ---- broken, stale and colliding entries ------------------------------------------------------------ */

static uint64_t constant_hash(const void *data, size_t bytes, uint64_t seed)
{
    (void)data;
    (void)bytes;
    (void)seed;
    return 42;
}

static float kernels_result(tn_kernel *k)
{
    float y = 0;
    tn_kernel_entry(k)(&(tn_args){.buf = (void *const[]){&y}}, 0, 1);
    return y;
}

static void collisions_never_give_the_wrong_kernel(void **state)
{
    (void)state;
    tn_kernels_options o = {.cache = {.dir = fresh_dir(), .suffix = ".so", .hash = constant_hash}, .jobs = 1};
    tn_source one = {"add", ADD("add", "1")}, two = {"add", ADD("add", "2")};
    for (int round = 0; round < 3; round++) {
        tn_kernels *k;
        tn_kernel *a, *b;
        tn_device_stats stats = {0};
        tn_errbuf err = {""};
        assert_int_equal(tn_kernels_open(&o, &k), 0);
        assert_int_equal(tn_kernels_compile(k, &one, 1, &a, &stats, &err), 0);
        assert_int_equal(tn_kernels_compile(k, &two, 1, &b, &stats, &err), 0);
        assert_true(kernels_result(a) == 1);
        assert_true(kernels_result(b) == 2);
        assert_int_equal(stats.compiled, 2); /* the other one's entry was in the way */
        tn_kernels_close(k);
    }
    assert_int_equal(count_files(o.cache.dir, ".c"), 1);
}

static void spoil(const char *dir, const char *ending, void (*how)(const char *path))
{
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        size_t a = strlen(e->d_name), b = strlen(ending);
        if (a < b || strcmp(e->d_name + a - b, ending)) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        how(path);
    }
    closedir(d);
}

static void halve(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void flip_byte(const char *path)
{
    FILE *f = fopen(path, "r+b");
    fseek(f, -10, SEEK_END);
    int c = fgetc(f);
    fseek(f, -10, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

static void erase(const char *path)
{
    unlink(path);
}
static void blank(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}

static void broken_entries_are_rebuilt(void **state)
{
    (void)state;
    const struct {
        const char *ending;
        void (*how)(const char *path);
    } drill[] = {{".so", halve}, {".so", flip_byte}, {".so", erase}, {".so", blank},
                 {".c", halve},  {".c", flip_byte},  {".c", erase},  {".c", blank}};
    for (size_t i = 0; i < sizeof drill / sizeof *drill; i++) {
        const char *dir = fresh_dir();
        for (int round = 0; round < 3; round++) {
            tn_device *d = open_device(dir, 1);
            assert_true(run_text(d, "add", ADD("add", "3")) == 3);
            assert_int_equal(d->stats.compiled, round < 2);
            d->close(d);
            if (round == 0) spoil(dir, drill[i].ending, drill[i].how);
        }
    }
}

/* ---- the compiler ---------------------------------------------------------------------------------- */

static void write_script(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    fprintf(f, "#!/bin/sh\n%s\n", text);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
}

static int compile_text(tn_device *d, const char *text, tn_errbuf *err)
{
    tn_kernel *k = (tn_kernel *)d;
    err->text[0] = 0;
    int status = d->compile(d, &(tn_source){"k", text}, 1, &k, err);
    if (status) assert_null(k);
    return status;
}

static void no_compiler(void **state)
{
    (void)state;
    tn_errbuf err;
    setenv("TENSOR_CC", "/nowhere/cc", 1);
    tn_device *d = open_device(fresh_dir(), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(compile_text(d, ADD("k", "1"), &err), TN_E_COMPILE);
        assert_non_null(strstr(err.text, "no C compiler"));
        assert_non_null(strstr(err.text, "/nowhere/cc"));
    }
    unsetenv("TENSOR_CC");
    d->close(d);
}

static void bad_code(void **state)
{
    (void)state;
    tn_errbuf err;
    tn_device *d = open_device(fresh_dir(), 2);
    assert_int_equal(compile_text(d, "void k(void)\n{\n    this is not C;\n}\n", &err), TN_E_COMPILE);
    assert_non_null(strstr(err.text, "kernel k:"));
    assert_non_null(strstr(err.text, "k.c:3")); /* the line in the kernel's own text */
    assert_non_null(strstr(err.text, "error"));
    assert_non_null(strstr(err.text, "-O"));
    assert_null(strchr(err.text, '\n'));
    char path[512] = "", *at = strstr(err.text, "source kept in ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "source kept in %511[^;]", path), 1);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    static char kept[200000];
    kept[fread(kept, 1, sizeof kept - 1, f)] = 0;
    fclose(f);
    assert_non_null(strstr(kept, "this is not C;"));
    assert_non_null(strstr(kept, "TN_KERNEL_ABI_H"));

    /* the good ones beside it compile, and the device is as good as before */
    tn_source s[] = {{"good", ADD("good", "1")}, {"bad", "int x = ;"}, {"fine", ADD("fine", "2")}};
    tn_kernel *k[3];
    tn_device *one = open_device(fresh_dir(), 1); /* one unit for all three */
    assert_int_equal(one->compile(one, s, 3, k, &err), TN_E_COMPILE);
    assert_non_null(strstr(err.text, "kernel bad:"));
    assert_null(k[1]);
    assert_true(result(one, k[0]) == 1);
    assert_true(result(one, k[2]) == 2);
    assert_int_equal(one->launch(one, k[1], NULL, &(tn_grid){.n = 1, .chunk = 1}, &err), TN_E_NULL);
    one->close(one);

    assert_int_equal(compile_text(d, "int other;", &err), TN_E_COMPILE);
    assert_non_null(strstr(err.text, "does not define k"));
    assert_int_equal(compile_text(d, ADD("k", "1"), &err), 0);
    d->close(d);
}

static void compilers_that_fail_oddly(void **state)
{
    (void)state;
    const struct {
        const char *script, *said;
    } odd[] = {
        {"exit 0", "it wrote no object"},
        {"[ \"$1\" = --version ] && exit 0; echo out of cheese >&2; exit 1", "out of cheese"},
        {"[ \"$1\" = --version ] && exit 0; kill -9 $$", "it wrote no object"},
        {"[ \"$1\" = --version ] && exit 0; while [ \"$1\" != -o ]; do shift; done; echo rubbish > $2", "k"},
    };
    char cc[128];
    snprintf(cc, sizeof cc, "%s/cc", base);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tn_errbuf err;
        write_script(cc, odd[i].script);
        setenv("TENSOR_CC", cc, 1);
        const char *dir = fresh_dir();
        tn_device *d = open_device(dir, 2);
        assert_int_equal(compile_text(d, ADD("k", "1"), &err), TN_E_COMPILE);
        assert_non_null(strstr(err.text, odd[i].said));
        assert_non_null(strstr(err.text, "source kept in"));
        unsetenv("TENSOR_CC");
        d->close(d);
        d = open_device(dir, 2);
        assert_int_equal(compile_text(d, ADD("k", "1"), &err), 0);
        d->close(d);
    }
}

static void compiler_with_arguments(void **state)
{
    (void)state;
    char cc[256];
    snprintf(cc, sizeof cc, "  %s   -DTN_TEST_WORD=8 ", TN_BUILD_CC);
    setenv("TENSOR_CC", cc, 1);
    tn_device *d = open_device(fresh_dir(), 1);
    assert_true(run_text(d, "add", ADD("add", "TN_TEST_WORD")) == 8);
    d->close(d);
    unsetenv("TENSOR_CC");
}

/* In a child, because the setting is the process's: 0 when all was well there. */
static int in_child(int (*what)(const char *dir), const char *dir)
{
    pid_t pid = fork();
    if (pid == 0) _exit(what(dir));
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int with_sigchld_ignored(const char *dir)
{
    signal(SIGCHLD, SIG_IGN);
    tn_errbuf err;
    tn_device *d = open_device(dir, 2);
    int bad = run_text(d, "add", ADD("add", "6")) != 6;
    bad += compile_text(d, "nonsense", &err) != TN_E_COMPILE;
    d->close(d);
    return bad;
}

static void reap_all(int number)
{
    (void)number;
    int saved = errno;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    errno = saved;
}

static int with_host_reaping_everything(const char *dir)
{
    struct sigaction sa = {.sa_handler = reap_all};
    sigaction(SIGCHLD, &sa, NULL);
    tn_errbuf err;
    tn_device *d = open_device(dir, 2);
    int bad = run_text(d, "add", ADD("add", "6")) != 6;
    bad += compile_text(d, "nonsense", &err) != TN_E_COMPILE;
    d->close(d);
    return bad;
}

static int with_no_home(const char *dir)
{
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("TENSOR_CACHE");
    (void)dir;
    tn_device *d = open_device(NULL, 2);
    int bad = run_text(d, "add", ADD("add", "7")) != 7;
    d->close(d);
    char made[64];
    snprintf(made, sizeof made, "/tmp/libtensor-%lu", (unsigned long)geteuid());
    struct stat st;
    return bad + (stat(made, &st) != 0) + ((st.st_mode & 0777) != 0700);
}

static int with_no_signal_wanted(const char *dir)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    tn_device *d = open_device(dir, 2);
    int bad = run_text(d, "add", ADD("add", "6")) != 6;
    d->close(d);
    return bad;
}

static void hosts_of_every_kind(void **state)
{
    (void)state;
    assert_int_equal(in_child(with_sigchld_ignored, fresh_dir()), 0);
    assert_int_equal(in_child(with_host_reaping_everything, fresh_dir()), 0);
    assert_int_equal(in_child(with_no_home, NULL), 0);
    assert_int_equal(in_child(with_no_signal_wanted, fresh_dir()), 0);
}

/* ---- folders that cannot be executed from ------------------------------------------------------------ */

static void loads_from_memory_where_the_folder_forbids(void **state)
{
    (void)state;
    tn_kernels_options o = {.cache = {.dir = fresh_dir(), .suffix = ".so"}, .jobs = 2, .refuse_folder = true};
    tn_source s[] = {{"add", ADD("add", "1")}, {"plus", ADD("plus", "2")}, {"sum", ADD("sum", "3")}};
    for (int round = 0; round < 2; round++) {
        tn_kernels *k;
        tn_kernel *out[3];
        tn_device_stats stats = {0};
        tn_errbuf err = {""};
        assert_int_equal(tn_kernels_open(&o, &k), 0);
        assert_int_equal(tn_kernels_compile(k, s, 3, out, &stats, &err), 0);
        assert_int_equal(stats.compiled, round ? 0 : 3);
        for (int i = 0; i < 3; i++) assert_true(kernels_result(out[i]) == (float)(i + 1));
        tn_kernels_close(k);
    }
}

static int on_noexec_mount(const char *dir)
{
    mkdir(dir, 0700);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", MS_NOEXEC, "mode=0700"))
        return 77;
    int bad = 0;
    for (int round = 0; round < 2; round++) {
        tn_device *d = open_device(dir, 2);
        bad += run_text(d, "add", ADD("add", "5")) != 5;
        bad += d->stats.compiled != (round ? 0 : 1);
        d->close(d);
    }
    return bad;
}

static void noexec_mount(void **state)
{
    (void)state;
    int status = in_child(on_noexec_mount, fresh_dir());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_int_equal(status, 0);
}

/* ---- copies, threads, errors ------------------------------------------------------------------------ */

static void copies(void **state)
{
    (void)state;
    enum { N = 5000001 };
    tn_device *d = open_device(fresh_dir(), 2);
    char *a = d->alloc(d, N), *b = d->alloc(d, N), *host = malloc(N);
    for (int i = 0; i < N; i++) host[i] = (char)(i * 31 % 251);
    assert_int_equal(d->upload(d, a, host, N), 0);
    assert_int_equal(d->copy(d, b, a, N), 0);
    memset(a, 0, N);
    assert_int_equal(d->copy(d, a, b, 0), 0);
    assert_int_equal(d->download(d, a, b, N), 0);
    assert_memory_equal(a, host, N);
    assert_int_equal(d->copy(d, a + 3, a, N - 3), 0); /* overlapping: as memmove */
    assert_memory_equal(a + 3, host, N - 3);
    assert_int_equal(d->stats.copies, 3);
    assert_int_equal(d->sync(d), 0);
    assert_true(d->stats.bytes_now == 2 * (size_t)N);
    d->free(d, a);
    assert_true(d->stats.bytes_now == N && d->stats.bytes_peak == 2 * (size_t)N);
    d->free(d, b);
    free(host);
    d->close(d);
}

static void thread_count(void **state)
{
    (void)state;
    setenv("TENSOR_THREADS", "3", 1);
    tn_device *d = open_device(fresh_dir(), 0);
    assert_int_equal(d->threads, 3);
    d->close(d);
    d = open_device(fresh_dir(), 5);
    assert_int_equal(d->threads, 5);
    d->close(d);
    setenv("TENSOR_THREADS", "rubbish", 1);
    d = open_device(fresh_dir(), 0);
    assert_true(d->threads >= 1);
    d->close(d);
    unsetenv("TENSOR_THREADS");
}

/* Every allocation fails in turn, until all goes well. */
static void failing_allocations(void **state)
{
    (void)state;
    const char *dir = fresh_dir();
    tn_source s[] = {{"add", ADD("add", "1")}, {"plus", ADD("plus", "2")}};
    int failures = 0;
    for (long n = 0;; n++) {
        tn_device *d = NULL;
        tn_kernel *k[2] = {NULL, NULL};
        tn_errbuf err = {""};
        tn_device_options o = {.threads = 2, .cache_dir = dir, .log = keep_log};
        tn_alloc_fail_after(n);
        int status = tn_cpu_open(&o, &d, &err);
        if (!status) status = d->compile(d, s, 2, k, &err);
        tn_alloc_fail_after(-1);
        if (status) {
            failures++;
            assert_true(status == TN_E_NOMEM || status == TN_E_COMPILE || status == TN_E_IO);
            assert_true(err.text[0] != 0);
        }
        if (d && status) assert_int_equal(d->compile(d, s, 2, k, &err), 0); /* there is memory again */
        if (d) {
            assert_true(result(d, k[0]) == 1 && result(d, k[1]) == 2);
            d->close(d);
        }
        if (!status) break;
    }
    assert_true(failures > 10);
}

static void *own_device(void *arg)
{
    tn_device *d = NULL;
    tn_errbuf err;
    tn_device_options o = {.threads = 2, .cache_dir = arg};
    intptr_t bad = tn_cpu_open(&o, &d, &err) != 0;
    for (int i = 0; i < 4 && !bad; i++) {
        char text[256];
        snprintf(text, sizeof text, ADD("add", "%d"), i);
        bad += run_text(d, "add", text) != (float)i;
    }
    if (d) d->close(d);
    return (void *)bad;
}

static void devices_in_several_threads(void **state)
{
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s", fresh_dir());
    pthread_t t[3];
    void *bad;
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, own_device, dir), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
}

static int make_base(void **state)
{
    (void)state;
    strcpy(base, "/tmp/tn-test-XXXXXX");
    return mkdtemp(base) ? 0 : 1;
}

static int drop_base(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiles_and_runs),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(statics_of_one_unit_may_clash),
        cmocka_unit_test(floating_point_mode_stays),
        cmocka_unit_test(start_up_code_cannot_change_the_mode),
        cmocka_unit_test(a_finish_runs_after_all_items),
        cmocka_unit_test(same_bits_on_1_2_3_threads),
        cmocka_unit_test(collisions_never_give_the_wrong_kernel),
        cmocka_unit_test(broken_entries_are_rebuilt),
        cmocka_unit_test(no_compiler),
        cmocka_unit_test(bad_code),
        cmocka_unit_test(compilers_that_fail_oddly),
        cmocka_unit_test(compiler_with_arguments),
        cmocka_unit_test(hosts_of_every_kind),
        cmocka_unit_test(loads_from_memory_where_the_folder_forbids),
        cmocka_unit_test(noexec_mount),
        cmocka_unit_test(copies),
        cmocka_unit_test(thread_count),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(devices_in_several_threads),
    };
    return cmocka_run_group_tests(tests, make_base, drop_base);
}
