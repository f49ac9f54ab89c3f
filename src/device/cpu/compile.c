/* compile.c - find cc, run it, load the result.
 *
 * The compiler is a child process like any other: started with posix_spawn, waited for by its own number
 * only, with the default action for SIGCHLD (a host that ignores it would otherwise hand that on, and
 * compiler drivers wait for children themselves). When somebody else has reaped it, the output file is the
 * judge. Read first: tn_cc_probe, then tn_cc_build. */
#include "compile.h"

#include "../../core/sanitized.h"
#include "../../core/settings.h"
#include "../embed.h"
#include "../folder.h"
#include "fpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if !defined(TN_BUILD_CC)
#define TN_BUILD_CC "cc"
#endif

extern char **environ;

enum { WORDS_MAX = 16, COMMAND_MAX = 1024, VERSION_MAX = 256 };

/* Not -ffast-math, -Ofast or -funsafe-math-optimizations, ever: linking with them adds start-up code that
 * changes the floating-point mode of the thread that loads the object. */
static const char *const flags[] = {
#if defined(TN_ASAN)
    "-O1",
    "-g1",
    "-fsanitize=address,undefined", /* kernels are checked as the library is */
#else
    "-O3", /* or as TENSOR_KERNEL_OPT says */
#endif
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off", /* see tn_fma_f32 */
    "-fwrapv",           /* integers wrap around */
    "-fopenmp-simd",
    "-fPIC",
    "-shared",
    "-std=gnu11",
    "-w",
};
enum { FLAGS = sizeof flags / sizeof *flags };

/* TENSOR_KERNEL_OPT=0..2 compiles faster and runs slower: tests that compile much and compute little. */
static const char *flag(int i)
{
    static const char *const level[] = {"-O0", "-O1", "-O2"};
    int chosen = tn_settings_read(NULL, NULL).kernel_opt;
    return strncmp(flags[i], "-O", 2) || chosen > 2 ? flags[i] : level[chosen];
}

struct tn_cc {
    bool probed, takes_kept;
    char words[COMMAND_MAX]; /* the command's words, each NUL-terminated; word points here */
    char *word[WORDS_MAX + FLAGS + 10];
    int count;                 /* words and flags; file names follow */
    char command[COMMAND_MAX]; /* the same as one line */
    char *common;
    char missing[320]; /* why there is no compiler */
    char chosen[200];  /* "TENSOR_CC is \"gcc -O9\": ", or "CC is ..", where one of them names it */
};

/* posix_spawn takes words that it could write to, and writes to none. */
static char *word(const char *text) { return (char *)(uintptr_t)text; }

/* ---- processes ------------------------------------------------------------------------------------- */

/* The environment with messages in English and the compiler's temporary files in `dir`. LD_PRELOAD is for the
 * host. Freed by the caller; NULL when out of memory. */
static char **child_environment(const char *dir)
{
    static const char *const drop[] = {"LC_ALL=", "TMPDIR=", "LD_PRELOAD="};
    size_t n = 0, used = 0;
    while (environ && environ[n]) n++;
    size_t room = (n + 3) * sizeof(char *), tmp = dir ? strlen(dir) + sizeof "TMPDIR=" : 0;
    char **env = tn_malloc(room + tmp);
    if (!env) return NULL;
    for (size_t i = 0; i < n; i++) {
        bool dropped = false;
        for (size_t j = dir ? 0 : 2; j < 3; j++) dropped |= !strncmp(environ[i], drop[j], strlen(drop[j]));
        if (!dropped) env[used++] = environ[i];
    }
    if (dir) {
        char *text = (char *)env + room;
        snprintf(text, tmp, "TMPDIR=%s", dir);
        env[used++] = word("LC_ALL=C");
        env[used++] = text;
    }
    env[used] = NULL;
    return env;
}

/* Starts argv with both outputs going to fd `out`. 0 or an errno. */
static int start(char *const argv[], int out, const char *dir, pid_t *pid)
{
    char **env = child_environment(dir);
    if (!env) return ENOMEM;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    int e = posix_spawn_file_actions_init(&files);
    if (e) goto no_files;
    e = posix_spawnattr_init(&how);
    if (e) goto no_attributes;
    sigset_t held, usual;
    sigemptyset(&held);
    sigemptyset(&usual);
    const int reset[] = {SIGCHLD, SIGPIPE};
    for (size_t i = 0; i < sizeof reset / sizeof *reset; i++) sigaddset(&usual, reset[i]);
    /* Ctrl-C and job managers reach every process of a job: the host decides what is to end, and one that
     * goes on to the end of its step needs its kernels. A compiler whose host is gone ends by itself. */
    const int hosts[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) sigaddset(&held, hosts[i]);
    posix_spawnattr_setsigmask(&how, &held);
    posix_spawnattr_setsigdefault(&how, &usual);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    e = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!e) e = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (!e) e = posix_spawn_file_actions_adddup2(&files, out, STDERR_FILENO);
    if (!e) e = posix_spawnp(pid, argv[0], &files, &how, argv, env);
    posix_spawnattr_destroy(&how);
no_attributes:
    posix_spawn_file_actions_destroy(&files);
no_files:
    tn_free_mem(env);
    return e;
}

/* Waits for one child. Its exit status, 128 + signal, or -1 when somebody else took it. */
static int finish(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- which compiler, which processor --------------------------------------------------------------- */

/* Splits a command at spaces. False when it has no or too many words. */
static bool split(tn_cc *cc, const char *command)
{
    cc->count = 0;
    if (!command || strlen(command) >= sizeof cc->words) return false;
    strcpy(cc->words, command);
    char *rest = cc->words;
    for (char *w; (w = strtok_r(rest, " \t", &rest));) {
        if (cc->count == WORDS_MAX) return false;
        cc->word[cc->count++] = w;
    }
    return cc->count > 0;
}

/* Runs "cc --version" and keeps the first line. A memory file takes the output: a pipe would wait for
 * whatever a compiler wrapper leaves behind. */
static bool answers(tn_cc *cc, const char *command, char version[VERSION_MAX], bool *no_memory)
{
    if (!split(cc, command)) return false;
    cc->word[cc->count] = word("--version");
    cc->word[cc->count + 1] = NULL;
    int fd = memfd_create("version", MFD_CLOEXEC);
    if (fd < 0) return false;
    pid_t pid;
    int e = start(cc->word, fd, NULL, &pid);
    bool ok = e == 0 && finish(pid) <= 0;
    *no_memory |= e == ENOMEM;
    ssize_t n = ok ? pread(fd, version, VERSION_MAX - 1, 0) : 0;
    version[n > 0 ? n : 0] = 0;
    version[strcspn(version, "\n")] = 0;
    close(fd);
    return ok;
}

void tn_cc_describe_cpu(char out[TN_CPU_MAX])
{
    static const char *const wanted[] = {"vendor_id", "cpu family", "model\t",  "model name",
                                         "flags",     "Features",   "CPU impl", "CPU part"};
    size_t used = 0;
    out[0] = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, f) > 1) /* the first processor's paragraph */
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
            if (strncmp(line, wanted[i], strlen(wanted[i]))) continue;
            int n = snprintf(out + used, TN_CPU_MAX - used, " * %s", line);
            if (n > 0 && used + (size_t)n < TN_CPU_MAX) used += (size_t)n;
            out[used] = 0;
        }
    free(line);
    fclose(f);
}

/* Nothing inside may end the comment it will stand in. */
static void keep_in_comment(char *text)
{
    for (char *p = text; (p = strstr(p, "*/"));) *p = '.';
}

size_t tn_cc_prelude(char *out, size_t room)
{
    size_t n = 0;
    for (int i = 0; i < TN_PRELUDE_C_FILES; i++)
        n += (size_t)snprintf(out ? out + n : NULL, out ? room - n : 0, "#line 1 \"%s\"\n%s\n",
                              tn_embed_name(tn_prelude_c[i]), tn_embed_text(tn_prelude_c[i]));
    return n;
}

static int write_common(tn_cc *cc, char *version, char *cpu)
{
    keep_in_comment(cpu);
    keep_in_comment(version);
    size_t room = strlen(cpu) + COMMAND_MAX + VERSION_MAX + 256 + tn_cc_prelude(NULL, 0);
    char *p = cc->common = tn_malloc(room);
    if (!p) return TN_E_NOMEM;
    const int n = sprintf(p, TN_CC_OPENING " * %s\n * %s\n%s" TN_CC_CLOSING, cc->command, version, cpu);
    tn_cc_prelude(p + n, room - (size_t)n);
    return 0;
}

/* Returns true where the compiler takes this flag, behind the words it has so far: an empty file goes through
 * its preprocessor. */
static bool takes(tn_cc *cc, const char *flag)
{
    char *const more[] = {word(flag), word("-E"), word("-x"), word("c"), word("/dev/null"), NULL};
    memcpy(cc->word + cc->count, more, sizeof more);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pid_t pid;
    bool ok = fd >= 0 && start(cc->word, fd, NULL, &pid) == 0 && finish(pid) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

/* The flag that says "for the processor at hand", or NULL. Compilers for x86 know the same one; elsewhere it
 * is one of two, or none, and the compiler is asked. A command that names a processor itself is left to that.
 */
static const char *native_flag(tn_cc *cc)
{
    static const char march[] = "-march=native", mcpu[] = "-mcpu=native";
    for (int i = 1; i < cc->count; i++)
        if (!strncmp(cc->word[i], march, sizeof "-march") || !strncmp(cc->word[i], mcpu, sizeof "-mcpu"))
            return NULL;
#if defined(__x86_64__)
    bool sure = true;
#else
    bool sure = false;
#endif
    return sure ? march : takes(cc, mcpu) ? mcpu : takes(cc, march) ? march : NULL;
}

/* Ours come behind the command and before the options it ends with, so that of two that contradict each other
 * the user's counts. */
static void add_flags(tn_cc *cc, const char *cpu, const char *version)
{
    /* Some processors' tuning prefers 256-bit vectors where 512 are there: exp then takes 1.25 times as long,
     * erf 1.6 times (measured), and what waits for memory is none the faster. */
    const char *wide = "-mprefer-vector-width=512";
    /* gcc's partial redundancy elimination turns the selects of one function composed with another's (log1p
     * of exp) into branches, and the loop stays scalar: 60 times as long. clang has no such flag. */
    const char *no_pre = "-fno-tree-pre";
    /* It also walks two blocks of a row at once and keeps the sums' lanes in memory meanwhile: a sum over
     * 1024 elements takes 68 ns, without that 26. */
    const char *no_jam = "-fno-loop-unroll-and-jam", *native = native_flag(cc);
    char *options[WORDS_MAX];
    int given = cc->count, n = 0;
    while (cc->count > 1 && *cc->word[cc->count - 1] == '-') cc->count--;
    for (int i = cc->count; i < given; i++) options[n++] = cc->word[i];
    if (!strstr(version, "clang")) {
        cc->word[cc->count++] = word(no_pre);
        cc->word[cc->count++] = word(no_jam);
    }
    for (int i = 0; i < FLAGS; i++) cc->word[cc->count++] = word(flag(i));
    if (native) cc->word[cc->count++] = word(native);
    if (native && strstr(cpu, " avx512f")) cc->word[cc->count++] = word(wide);
    for (int i = 0; i < n; i++) cc->word[cc->count++] = options[i];
    size_t used = 0;
    for (int i = 0; i < cc->count; i++) {
        int more = snprintf(cc->command + used, sizeof cc->command - used, "%s%s", i ? " " : "", cc->word[i]);
        if (more > 0 && used + (size_t)more < sizeof cc->command) used += (size_t)more;
    }
    keep_in_comment(cc->command);
}

int tn_cc_probe(tn_cc *cc, tn_errbuf *err)
{
    if (cc->probed && !*cc->missing) return 0;
    if (!cc->probed) {
        char version[VERSION_MAX];
        const char *own = tn_settings_read(NULL, NULL).cc, *env = tn_setting("CC");
#if defined(TN_ASAN)
        env = NULL; /* a sanitizer's run-time library fits its own compiler only */
#endif
        const char *candidate[] = {own, env, TN_BUILD_CC, "cc", "gcc", "clang"};
        bool none = own && !strcmp(own, "none"), kept = own && !strcmp(own, "kept"),
             foreign = tn_setting_is_foreign();
        size_t candidates = none || kept || foreign ? 0 : own ? 1 : sizeof candidate / sizeof *candidate;
        bool found = false, no_memory = false;
        const char *used = NULL;
        for (size_t i = 0; !found && i < candidates; i++) {
            used = candidate[i];
            found = used && answers(cc, used, version, &no_memory);
        }
        if (found) {
            char cpu[TN_CPU_MAX];
            tn_cc_describe_cpu(cpu);
            if (own || used == env)
                snprintf(cc->chosen, sizeof cc->chosen, "%s is \"%.150s\": ", own ? "TENSOR_CC" : "CC", used);
            add_flags(cc, cpu, version);
            if (write_common(cc, version, cpu)) return tn_err(err, TN_E_NOMEM, "out of memory");
        } else if (no_memory) {
            return tn_err(err, TN_E_NOMEM, "out of memory");
        } else if (none || kept) {
            snprintf(cc->missing, sizeof cc->missing, "no C compiler: TENSOR_CC is %s", own);
        } else if (foreign) {
            snprintf(cc->missing, sizeof cc->missing,
                     "no C compiler: this program has rights that its caller lacks, and starts no other");
        } else if (own) {
            snprintf(cc->missing, sizeof cc->missing,
                     "no C compiler: TENSOR_CC is \"%.150s\", which does not run; set it to a C compiler, to "
                     "none for slower built-in loops, or not at all",
                     own);
        } else {
            snprintf(cc->missing, sizeof cc->missing,
                     "no C compiler: none of $CC, %.150s, cc, gcc, clang runs; set TENSOR_CC to one",
                     TN_BUILD_CC);
        }
        cc->probed = true;
        cc->takes_kept = !found && !foreign && !none;
        if (found) return 0;
    }
    return tn_err(err, TN_E_COMPILE, "%s", cc->missing);
}

bool tn_cc_missing(const tn_cc *cc) { return cc->probed && *cc->missing; }

bool tn_cc_takes_kept(const tn_cc *cc) { return cc->takes_kept; }

int tn_cc_open(tn_cc **out)
{
    *out = tn_calloc(1, sizeof **out);
    return *out ? 0 : TN_E_NOMEM;
}

void tn_cc_close(tn_cc *cc)
{
    if (!cc) return;
    tn_free_mem(cc->common);
    tn_free_mem(cc);
}

const char *tn_cc_common(const tn_cc *cc) { return cc->common; }

const char *tn_cc_chosen(const tn_cc *cc) { return cc->chosen; }

const char *tn_cc_command(const tn_cc *cc) { return cc->command; }

/* ---- compiling ------------------------------------------------------------------------------------- */

static int start_unit(tn_cc *cc, const char *dir, int i, pid_t *pid)
{
    char src[PATH_MAX], object[PATH_MAX], log[PATH_MAX];
    snprintf(src, sizeof src, "%s/%d.c", dir, i);
    snprintf(object, sizeof object, "%s/%d.so", dir, i);
    snprintf(log, sizeof log, "%s/%d.log", dir, i);
    char *const last[] = {word("-o"), object, src, word("-lm"), NULL};
    memcpy(cc->word + cc->count, last, sizeof last);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    unlink(object); /* what is there afterwards is this compiler's work */
    int e = start(cc->word, fd, dir, pid);
    close(fd);
    return e;
}

static bool finish_unit(const char *dir, int i, pid_t pid)
{
    char object[PATH_MAX];
    snprintf(object, sizeof object, "%s/%d.so", dir, i);
    struct stat st;
    return finish(pid) <= 0 && stat(object, &st) == 0 && st.st_size > 0;
}

int tn_cc_build(tn_cc *cc, const char *dir, int n, int jobs, bool *ok, tn_errbuf *err)
{
    pid_t *pid = tn_calloc((size_t)n, sizeof *pid);
    if (!pid) return tn_err(err, TN_E_NOMEM, "out of memory");
    int e = 0, started = 0, finished = 0;
    for (int i = 0; i < n; i++) ok[i] = false;
    while (finished < n && (started < n || finished < started)) {
        if (started < n && started - finished < (jobs > 0 ? jobs : 1)) {
            e = start_unit(cc, dir, started, &pid[started]);
            if (!e) {
                started++;
                continue;
            }
            n = started; /* wait for those that run */
            continue;
        }
        ok[finished] = finish_unit(dir, finished, pid[finished]);
        finished++;
    }
    tn_free_mem(pid);
    if (!e) return 0;
    if (e == ENOMEM) return tn_err(err, TN_E_NOMEM, "out of memory");
    return tn_err(err, TN_E_COMPILE, "cannot start %s: %s", cc->word[0], strerror(e));
}

/* ---- loading --------------------------------------------------------------------------------------- */

/* Start-up code of an object must not leave the host with another floating-point mode. */
static void *load(const char *path, char *why, size_t why_bytes)
{
    uint64_t mode = tn_fpu_get();
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    tn_fpu_set(mode);
    if (!handle) {
        const char *e = dlerror();
        snprintf(why, why_bytes, "%s", e ? e : "dlopen failed");
    }
    return handle;
}

static bool copy_to(int out, const char *path)
{
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0) return false;
    char buf[16384];
    bool ok = true;
    for (ssize_t n; ok && (n = read(in, buf, sizeof buf)) != 0;) {
        ok = n > 0;
        for (ssize_t at = 0; ok && at < n;) {
            ssize_t w = write(out, buf + at, (size_t)(n - at));
            ok = w > 0;
            at += w;
        }
    }
    close(in);
    return ok;
}

static bool load_from_memory(const char *path, tn_object *out, char *why, size_t why_bytes)
{
#if !defined(MFD_EXEC)
#define MFD_EXEC 0x10u /* asked for where the system defaults to memory files that cannot be executed */
#endif
    int fd = memfd_create("kernel", MFD_CLOEXEC | MFD_EXEC);
    if (fd < 0) fd = memfd_create("kernel", MFD_CLOEXEC);
    if (fd < 0) return false;
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (copy_to(fd, path) && (out->handle = load(name, why, why_bytes))) {
        out->fd = fd;
        return true;
    }
    close(fd);
    return false;
}

static bool load_from_elsewhere(const char *path, tn_object *out, char *why, size_t why_bytes)
{
    char name[PATH_MAX];
    for (int i = 0; !out->handle && tn_folder_next_place(&i, name);) {
        strcat(name, "/libtensor-kernel-XXXXXX");
        int fd = mkostemp(name, O_CLOEXEC);
        if (fd < 0) continue;
        if (copy_to(fd, path)) out->handle = load(name, why, why_bytes);
        close(fd);
        unlink(name);
    }
    return out->handle != NULL;
}

int tn_object_load(const char *path, bool refuse_folder, tn_object *out, char *why, size_t why_bytes)
{
    out->handle = NULL;
    out->fd = -1;
    snprintf(why, why_bytes, "%s cannot be read", path);
    if (!refuse_folder && (out->handle = load(path, why, why_bytes))) return 0;
    if (load_from_memory(path, out, why, why_bytes)) return 0;
    return load_from_elsewhere(path, out, why, why_bytes) ? 0 : TN_E_COMPILE;
}

void tn_object_unload(tn_object *o)
{
    if (o->handle) dlclose(o->handle);
    if (o->fd >= 0) close(o->fd);
    o->handle = NULL;
    o->fd = -1;
}
