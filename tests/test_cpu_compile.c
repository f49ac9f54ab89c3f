/* test_cpu_compile.c - everything that can go wrong between a kernel's text and its code: damaged cache
 * entries, compilers that are missing or fail, hosts with signals of their own, folders nothing may be
 * executed from. Read first: broken_entries_are_rebuilt. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "cpu_device_rig.h"
#include "src/core/alloc.h"
#include "src/device/cpu/kept.h"

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

TEST(collisions_never_give_the_wrong_kernel)
{
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

/* Processes that want the same kernels at the same time: each is compiled once, and works in all. The first
 * to have the lock is stopped in it until the others have asked. */
TEST(one_of_many_processes_compiles)
{
    enum { PROCESSES = 4, N = 3 };
    const tn_source src[N] = {{"one", ADD("one", "1")}, {"two", ADD("two", "2")}, {"two", ADD("two", "3")}};
    tn_kernels_options o = {.cache = {.dir = fresh_dir(), .suffix = ".so"}, .jobs = 1};
    int counts[2];
    uint64_t compiled = 0;
    tn_kcache *gate = NULL;
    bool waited = true;
    assert_int_equal(tn_kcache_open(&o.cache, &gate), 0);
    const int lock = tn_kcache_lock(gate, &waited);
    assert_true(lock >= 0 && !waited);
    assert_int_equal(pipe(counts), 0);
    for (int p = 0; p < PROCESSES; p++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid) continue;
        close(lock); /* which does not unlock it: the parent has it still */
        tn_kernels *k = NULL;
        tn_kernel *out[N];
        tn_device_stats stats = {0};
        tn_errbuf err = {""};
        bool good = !tn_kernels_open(&o, &k) && !tn_kernels_compile(k, src, N, out, &stats, &err);
        for (int i = 0; good && i < N; i++) good = kernels_result(out[i]) == (float)(i + 1);
        good = good && stats.compiled + stats.cache_hits == N &&
               write(counts[1], &stats.compiled, sizeof stats.compiled) == sizeof stats.compiled;
        tn_kernels_close(k);
        _exit(!good);
    }
    usleep(100000);
    assert_int_equal(count_files(o.cache.dir, ".c"), 0); /* all wait */
    close(lock);
    for (int p = 0; p < PROCESSES; p++) {
        int status = -1;
        uint64_t one = 0;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(read(counts[0], &one, sizeof one), sizeof one);
        assert_true(one == 0 || one == N);
        compiled += one;
    }
    assert_int_equal(compiled, N);
    assert_int_equal(count_files(o.cache.dir, ".so"), 1);
    tn_kcache_close(gate);
    close(counts[0]);
    close(counts[1]);
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

static void erase(const char *path) { unlink(path); }
static void blank(const char *path) { assert_int_equal(truncate(path, 0), 0); }

TEST(broken_entries_are_rebuilt)
{
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

TEST(no_compiler)
{
    tn_errbuf err;
    setenv("TENSOR_CC", "none", 1);
    tn_device *d = open_device(fresh_dir(), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(compile_text(d, ADD("k", "1"), &err), TN_E_COMPILE);
        assert_non_null(strstr(err.text, "no C compiler"));
        assert_non_null(strstr(err.text, "TENSOR_CC"));
    }
    unsetenv("TENSOR_CC");
    d->close(d);
}

/* A filled cache serves a machine without a compiler; an entry for a processor with more instructions, or of
 * another version, does not. */
TEST(kept_kernels_need_no_compiler)
{
    static const char *const change[] = {"true", "sed -i 's/ \\* flags.*:/& unheard_of/' '%s'/*.c",
                                         "sed -i 's/TN_KERNEL_ABI_H/TN_KERNEL_ABI_X/' '%s'/*.c"};
    for (int i = 0; i < 3; i++) {
        char line[512];
        tn_errbuf err;
        const char *dir = fresh_dir();
        tn_device *d = open_device(dir, 1);
        assert_true(run_text(d, "k", ADD("k", "3")) == 3);
        d->close(d);
        snprintf(line, sizeof line, change[i], dir);
        assert_int_equal(system(line), 0);
        tn_kcache *cache;
        assert_int_equal(tn_kcache_open(&(tn_kcache_options){.dir = dir, .suffix = ".so"}, &cache), 0);
        char *common = tn_kept_common(cache);
        assert_int_equal(common != NULL, i == 0);
        tn_free_mem(common);
        tn_kcache_close(cache);
        setenv("TENSOR_CC", "kept", 1);
        d = open_device(dir, 1);
        if (i == 0) assert_true(run_text(d, "k", ADD("k", "3")) == 3);
        assert_int_equal(d->stats.cache_hits, i == 0);
        assert_false(d->no_compiler);
        assert_int_equal(compile_text(d, ADD("k", "4"), &err), TN_E_COMPILE);
        assert_non_null(strstr(err.text, "no C compiler"));
        assert_true(d->no_compiler);
        unsetenv("TENSOR_CC");
        d->close(d);
    }
}

TEST(bad_code)
{
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

TEST(compilers_that_fail_oddly)
{
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

TEST(compiler_with_arguments)
{
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

/* Ctrl-C and job managers signal every process of a job, the compiler too: that is for the host to decide. */
TEST(signals_to_the_whole_job)
{
    static const char *const names[] = {"INT", "QUIT", "TERM", "HUP", "USR1", "USR2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char cc[128], script[256];
        snprintf(cc, sizeof cc, "%s/signalled", base);
        snprintf(script, sizeof script, "kill -%s $$\nexec %s \"$@\"", names[i], TN_BUILD_CC);
        write_script(cc, script);
        setenv("TENSOR_CC", cc, 1);
        tn_device *d = open_device(fresh_dir(), 2);
        assert_true(run_text(d, "add", ADD("add", "6")) == 6);
        d->close(d);
        unsetenv("TENSOR_CC");
    }
}

TEST(hosts_of_every_kind)
{
    assert_int_equal(in_child(with_sigchld_ignored, fresh_dir()), 0);
    assert_int_equal(in_child(with_host_reaping_everything, fresh_dir()), 0);
    assert_int_equal(in_child(with_no_home, NULL), 0);
    assert_int_equal(in_child(with_no_signal_wanted, fresh_dir()), 0);
}

/* ---- folders that cannot be executed from ------------------------------------------------------------ */

TEST(loads_from_memory_where_the_folder_forbids)
{
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

/* A file system of its own that has no room, over each of n folders; false where that takes rights we lack.
 */
static bool mount_full(const char *const *dir, int n)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return false;
    for (int i = 0; i < n; i++)
        if (mount("none", dir[i], "tmpfs", 0, "mode=0700,size=16k")) return false;
    return true;
}

static int compiles_elsewhere(const char *dir)
{
    tn_device *d = open_device(dir, 2);
    int bad = run_text(d, "add", ADD("add", "5")) != 5;
    bad += run_text(d, "more", ADD("more", "6")) != 6;
    bad += !strstr(said, dir) || !strstr(said, "No space left");
    d->close(d);
    return bad + (count_files(dir, "") != 0);
}

static int on_full_disk(const char *dir)
{
    mkdir(dir, 0700);
    return mount_full(&dir, 1) ? compiles_elsewhere(dir) : 77;
}

/* Also where the folders for temporary files are full, as long as there is one more. */
static int on_full_disks(const char *dir)
{
    (void)dir;
    unsetenv("TMPDIR");
    if (access("/dev/shm", W_OK) || !mount_full((const char *const[]){"/tmp", "/var/tmp"}, 2)) return 77;
    return mkdir("/tmp/cache", 0700) ? 1 : compiles_elsewhere("/tmp/cache");
}

TEST(a_full_disk_is_gone_around)
{
    int (*const full[])(const char *) = {on_full_disk, on_full_disks};
    for (int i = 0; i < 2; i++) {
        int status = in_child(full[i], fresh_dir());
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
        assert_int_equal(status, 0);
    }
}

TEST(noexec_mount)
{
    int status = in_child(on_noexec_mount, fresh_dir());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_int_equal(status, 0);
}

RUN_TESTS(make_base, drop_base)
