/* nvrtc.c - the simulator's NVRTC: the machine's C++ compiler makes a shared object of the CUDA text.
 *
 * What is compiled is shim.h, the program's text, and a table of its kernels; what comes back as the cubin is
 * the shared object, kept in a folder under a hash of all that went into it. With checks on (cusim.h), every
 * access of a kernel becomes a call to check.c by way of the instrumentation of -fsanitize=thread, and array
 * bounds and alignment are checked by -fsanitize=bounds,alignment; no sanitizer's library is linked.
 *
 * TENSOR_CUSIM_CXX names the compiler; else it is g++, else c++. Programs compile in parallel: the lock is
 * not held.
 *
 * Read first: nvrtcCompileProgram. */
#include "sim.h"
#include "nvrtc.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__asm__(".pushsection .rodata, \"a\"\n"
        ".type cusim_shim_text, %object\n"
        "cusim_shim_text:\n"
        ".incbin \"tests/cusim/shim.h\"\n"
        ".byte 0\n"
        ".size cusim_shim_text, . - cusim_shim_text\n"
        ".popsection\n");
extern const char cusim_shim_text[] __attribute__((visibility("hidden")));

enum { MAX_DEFINES = 32 };

struct _nvrtcProgram {
    char *text, *name;
    sim_text log;
    char *cubin;
    size_t cubin_bytes;
    bool ptx; /* it was compiled for an architecture that is not a GPU's own: there is no cubin */
};

tn_nvrtc_result nvrtcVersion(int *major, int *minor)
{
    *major = (int)(sim.set.nvrtc / 1000);
    *minor = (int)(sim.set.nvrtc % 1000 / 10);
    return SIM_OK;
}

static const int known_arch[] = {70, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

static bool is_supported(int arch)
{
    for (size_t i = 0; i < sizeof known_arch / sizeof *known_arch; i++)
        if (known_arch[i] == arch) return arch >= sim.set.oldest_arch && arch <= sim.set.newest_arch;
    return false;
}

tn_nvrtc_result nvrtcGetSupportedArchs(int *archs)
{
    for (size_t i = 0; i < sizeof known_arch / sizeof *known_arch; i++)
        if (is_supported(known_arch[i])) *archs++ = known_arch[i];
    return SIM_OK;
}

tn_nvrtc_result nvrtcGetNumSupportedArchs(int *count)
{
    *count = 0;
    for (size_t i = 0; i < sizeof known_arch / sizeof *known_arch; i++) *count += is_supported(known_arch[i]);
    return SIM_OK;
}

const char *nvrtcGetErrorString(tn_nvrtc_result e)
{
    static const char *const name[] = {"NVRTC_SUCCESS",
                                       "NVRTC_ERROR_OUT_OF_MEMORY",
                                       "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                       "NVRTC_ERROR_INVALID_INPUT",
                                       "NVRTC_ERROR_INVALID_PROGRAM",
                                       "NVRTC_ERROR_INVALID_OPTION",
                                       "NVRTC_ERROR_COMPILATION"};
    return e < sizeof name / sizeof *name ? name[e] : "NVRTC_ERROR unknown";
}

tn_nvrtc_result nvrtcCreateProgram(tn_nvrtc_program *program, const char *text, const char *name,
                                   int n_headers, const char *const *headers,
                                   const char *const *include_names)
{
    (void)headers;
    (void)include_names;
    if (!program || !text || n_headers) return SIM_NVRTC_INVALID_INPUT;
    struct _nvrtcProgram *p = calloc(1, sizeof *p);
    if (!p) return TN_NVRTC_OUT_OF_MEMORY;
    p->text = strdup(text);
    p->name = strdup(name ? name : "default_program");
    *program = p;
    return p->text && p->name ? SIM_OK : TN_NVRTC_OUT_OF_MEMORY;
}

tn_nvrtc_result nvrtcDestroyProgram(tn_nvrtc_program *program)
{
    if (!program || !*program) return SIM_NVRTC_INVALID_PROGRAM;
    free((*program)->text);
    free((*program)->name);
    free((*program)->log.s);
    free((*program)->cubin);
    free(*program);
    *program = NULL;
    return SIM_OK;
}

/* ---- options ---- */

struct options {
    int arch; /* 90 */
    bool ptx; /* compute_90, not sm_90 */
    bool own; /* sm_90a: with what that one alone has */
    /* --cusim-host: a whole file of CUDA C++, with functions of the host, headers beside it, whose name is
       the program's, and the stand-in for those of the runtime (runtime.c) */
    bool host;
    const char *define[MAX_DEFINES];
    int n_defines;
};

static bool begins(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

/* What NVRTC knows and makes no difference here. */
static bool harmless(const char *s)
{
    static const char *const known[] = {"--std=",
                                        "-std=",
                                        "--fmad=",
                                        "-fmad=",
                                        "-lineinfo",
                                        "--generate-line-info",
                                        "-default-device",
                                        "--device-as-default-execution-space",
                                        "--ptxas-options",
                                        "-Xptxas",
                                        "--maxrregcount=",
                                        "-w",
                                        "--disable-warnings",
                                        "--extra-device-vectorization",
                                        "--split-compile",
                                        "--restrict",
                                        NULL};
    for (const char *const *k = known; *k; k++)
        if (begins(s, *k)) return true;
    return false;
}

static bool take_options(struct options *o, int n, const char *const *option, sim_text *log)
{
    for (int i = 0; i < n; i++) {
        const char *s = option[i], *arch = NULL;
        if (begins(s, "--gpu-architecture="))
            arch = s + 19;
        else if (begins(s, "-arch="))
            arch = s + 6;
        if (arch && begins(arch, "sm_"))
            o->arch = atoi(arch + 3), o->own = arch[strlen(arch) - 1] == 'a';
        else if (arch && begins(arch, "compute_"))
            o->arch = atoi(arch + 8), o->ptx = true;
        else if (!strcmp(s, "--cusim-host"))
            o->host = true;
        else if (!strcmp(s, "-Xptxas") || !strcmp(s, "--ptxas-options"))
            i++;
        else if (begins(s, "-D") && s[2] && o->n_defines < MAX_DEFINES)
            o->define[o->n_defines++] = s;
        else if (!harmless(s)) {
            sim_text_put(log, "nvrtc: error: unrecognized or unsupported option: %s\n", s);
            return false;
        }
    }
    if (!is_supported(o->arch)) {
        sim_text_put(log, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
        return false;
    }
    return true;
}

/* ---- the compiler ---- */

/* gcc's checks find more than clang's: it comes before what the machine calls c++. */
static const char *compiler(void)
{
    static const char *const usual[] = {"/usr/bin/g++", "/usr/local/bin/g++"};
    const char *own = getenv("TENSOR_CUSIM_CXX");
    if (own && *own) return own;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (!access(usual[i], X_OK)) return usual[i];
    return "c++";
}

/* clang and gcc spell one option differently. 1: clang, 0: not, -1: no compiler. */
static int is_clang(void)
{
    static atomic_int known = 2;
    if (known != 2) return known;
    char command[PATH_MAX], line[256] = "";
    snprintf(command, sizeof command, "%s --version 2>/dev/null", compiler());
    FILE *f = popen(command, "re");
    bool read = f && fgets(line, sizeof line, f);
    if (f) pclose(f);
    known = !read ? -1 : strstr(line, "clang") != NULL;
    return known;
}

static int run(const char *const *argument, const char *log)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    pid_t pid;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawnattr_init(&attributes);
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int failed =
        posix_spawnp(&pid, argument[0], &files, &attributes, (char *const *)(uintptr_t)argument, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (failed) return -1;
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *own_path(void)
{
    Dl_info info;
    return dladdr((void *)(uintptr_t)&sim, &info) ? info.dli_fname : "libcusim.so";
}

/* The arguments before the files. */
static int arguments(const char **a, const struct options *o, char define[3][64], const char *include,
                     bool checked)
{
    static const char *const always[] = {"-x",
                                         "c++",
                                         "-std=gnu++17",
                                         "-O1",
                                         "-w",
                                         "-march=native",
                                         "-fPIC",
                                         "-shared",
                                         "-nostdlib",
                                         "-fno-exceptions",
                                         "-fno-rtti",
                                         "-Wl,-Bsymbolic",
                                         "-fno-ident",
                                         "-fno-math-errno",
                                         "-fno-trapping-math",
                                         "-ffp-contract=off",
                                         "-fno-threadsafe-statics",
                                         "-fno-stack-protector",
                                         "-fno-asynchronous-unwind-tables",
                                         "-U_FORTIFY_SOURCE",
                                         NULL};
    int n = 0;
    a[n++] = compiler();
    for (const char *const *flag = always; *flag; flag++) a[n++] = *flag;
    if (is_clang() == 0) a[n++] = "-fno-gnu-unique";
    static const char *const alone[] = {"-nostdinc", "-nostdinc++", "-fvisibility=hidden"};
    for (int i = 0; i < 3 && !o->host; i++) a[n++] = alone[i];
    if (o->host) a[n++] = include;
    if (o->host) a[n++] = "-I" CUSIM_INCLUDE;
    snprintf(define[0], sizeof define[0], "-D__CUDA_ARCH__=%d", 10 * o->arch);
    snprintf(define[1], sizeof define[1], "-DCUSIM_CHECKED=%d", checked);
    a[n++] = define[0];
    a[n++] = define[1];
    if (o->own && o->arch == 90) a[n++] = "-D__CUDA_ARCH_FEAT_SM90_ALL=1";
    for (int i = 0; i < o->n_defines; i++) a[n++] = o->define[i];
    if (checked) {
        a[n++] = "-fsanitize=thread,alignment,bounds";
        a[n++] = is_clang() ? "-mllvm" : "--param";
        a[n++] = is_clang() ? "-tsan-distinguish-volatile=1" : "tsan-distinguish-volatile=1";
    }
    return n;
}

/* Where the program's own headers are. */
static void folder_of(const struct _nvrtcProgram *p, char include[PATH_MAX])
{
    const char *slash = strrchr(p->name, '/');
    snprintf(include, PATH_MAX, "-I%.*s", slash ? (int)(slash - p->name) : 1, slash ? p->name : ".");
}

/* Kernels that macros define are found in what the preprocessor makes of the text. */
static bool expand(const struct options *o, const char *base, const char *include, sim_text *text,
                   const char *original)
{
    char in[PATH_MAX + 96], out[PATH_MAX + 96], log[PATH_MAX + 96], arch[64];
    snprintf(in, sizeof in, "%s.in", base);
    snprintf(out, sizeof out, "%s.out", base);
    snprintf(log, sizeof log, "%s.log", base);
    snprintf(arch, sizeof arch, "-D__CUDA_ARCH__=%d", 10 * o->arch);
    const char *a[20 + MAX_DEFINES] = {
        compiler(), "-E", "-P", "-w", "-x", "c++", "-std=gnu++17", "-D__CUDACC__=1", "-DTN_CUSIM=1", arch};
    int n = 10;
    a[n++] = o->host ? include : "-D__CUDACC_RTC__=1";
    if (o->host) a[n++] = "-I" CUSIM_INCLUDE;
    for (int i = 0; i < o->n_defines; i++) a[n++] = o->define[i];
    a[n++] = in, a[n++] = "-o", a[n++] = out, a[n] = NULL;
    size_t bytes = 0;
    char *expanded = sim_write_file(in, original, strlen(original)) && run(a, log) == 0
                         ? sim_read_file(out, &bytes)
                         : NULL;
    if (expanded) sim_text_add(text, expanded, bytes);
    free(expanded);
    unlink(in), unlink(out), unlink(log);
    return expanded != NULL;
}

static void whole_text(const struct _nvrtcProgram *p, const struct options *o, const char *base,
                       const char *include, sim_text *t)
{
    sim_text expanded = {0};
    const char *scanned = p->text;
    if (sim_scan_macro_kernels(p->text) && expand(o, base, include, &expanded, p->text)) scanned = expanded.s;
    sim_text_put(t, "#line 1 \"cusim/shim.h\"\n");
    sim_text_add(t, cusim_shim_text, strlen(cusim_shim_text));
    if (o->host) sim_text_put(t, "#undef __CUDACC_RTC__\n");
    sim_text_put(t, "#line 1 \"");
    sim_text_add(t, p->name, strlen(p->name));
    sim_text_put(t, "\"\n");
    sim_text_add(t, p->text, strlen(p->text));
    sim_text_put(t, "\n#line 1 \"cusim/kernels\"\n");
    sim_scan_kernels(scanned, o->host, t);
    free(expanded.s);
}

static tn_nvrtc_result compile(struct _nvrtcProgram *p, const struct options *o, bool checked)
{
    static atomic_int serial;
    char include[PATH_MAX], folder[PATH_MAX], base[PATH_MAX + 64], kept[PATH_MAX + 64], in[PATH_MAX + 96],
        out[PATH_MAX + 96], log[PATH_MAX + 96];
    char define[3][64];
    const char *a[64 + MAX_DEFINES];
    if (is_clang() < 0 || !sim_cache_folder(folder)) {
        sim_text_put(&p->log, "cusim: no compiler (%s), or no folder to work in\n", compiler());
        return TN_NVRTC_COMPILATION;
    }
    snprintf(base, sizeof base, "%s/work-%d-%d", folder, (int)getpid(), atomic_fetch_add(&serial, 1));
    sim_text whole = {0};
    folder_of(p, include);
    whole_text(p, o, base, include, &whole);
    if (whole.failed) {
        free(whole.s);
        return TN_NVRTC_OUT_OF_MEMORY;
    }
    int n = arguments(a, o, define, include, checked);
    unsigned long long hash[2];
    sim_hash_begin(hash);
    sim_hash_add(hash, __VERSION__, sizeof __VERSION__);
    sim_hash_add(hash, own_path(), strlen(own_path()));
    for (int i = 0; i < n; i++) sim_hash_add(hash, a[i], strlen(a[i]) + 1);
    sim_hash_add(hash, whole.s, whole.n);
    snprintf(kept, sizeof kept, "%s/%016llx%016llx.so", folder, hash[0], hash[1]);
    if ((p->cubin = sim_read_file(kept, &p->cubin_bytes))) {
        free(whole.s);
        return SIM_OK;
    }
    snprintf(in, sizeof in, "%s.cc", base);
    snprintf(out, sizeof out, "%s.so", base);
    snprintf(log, sizeof log, "%s.log", base);
    a[n++] = "-o", a[n++] = out, a[n++] = in, a[n++] = "-x", a[n++] = "none", a[n++] = own_path(),
    a[n++] = "-lm";
    a[n] = NULL;
    bool good = sim_write_file(in, whole.s, whole.n) && run(a, log) == 0;
    free(whole.s);
    size_t bytes = 0;
    char *said = sim_read_file(log, &bytes);
    if (said) sim_text_add(&p->log, said, bytes);
    free(said);
    if (good) p->cubin = sim_read_file(out, &p->cubin_bytes);
    if (p->cubin) rename(out, kept);
    unlink(in), unlink(out), unlink(log);
    pthread_mutex_lock(&sim.lock);
    sim.count.compiler_runs++;
    pthread_mutex_unlock(&sim.lock);
    return p->cubin ? SIM_OK : TN_NVRTC_COMPILATION;
}

tn_nvrtc_result nvrtcCompileProgram(tn_nvrtc_program p, int n_options, const char *const *options)
{
    if (!p) return SIM_NVRTC_INVALID_PROGRAM;
    struct options o = {0};
    if (!take_options(&o, n_options, options, &p->log)) return SIM_NVRTC_INVALID_OPTION;
    pthread_mutex_lock(&sim.lock);
    sim.count.compilations++;
    bool fail = sim_setting_due(sim.set.compile, sim.compile_from, ++sim.compiles_ever),
         checked = sim.set.check, real = sim.set.real;
    pthread_mutex_unlock(&sim.lock);
    const char *refused = o.host ? NULL : sim_scan_refuse(p->text);
    if (fail || refused) {
        sim_text_put(&p->log, "%s(1): error: %s\n", p->name,
                     fail ? "failed as cusim_set asked for" : refused);
        return TN_NVRTC_COMPILATION;
    }
    if (real && !o.host && !sim_real_takes(p->text, &p->log)) return TN_NVRTC_COMPILATION;
    free(p->cubin);
    p->cubin = NULL;
    p->ptx = o.ptx;
    return compile(p, &o, checked);
}

tn_nvrtc_result nvrtcGetProgramLogSize(tn_nvrtc_program p, size_t *bytes)
{
    if (!p) return SIM_NVRTC_INVALID_PROGRAM;
    *bytes = p->log.n + 1;
    return SIM_OK;
}

tn_nvrtc_result nvrtcGetProgramLog(tn_nvrtc_program p, char *log)
{
    if (!p) return SIM_NVRTC_INVALID_PROGRAM;
    memcpy(log, p->log.s ? p->log.s : "", p->log.n + 1);
    return SIM_OK;
}

tn_nvrtc_result nvrtcGetCUBINSize(tn_nvrtc_program p, size_t *bytes)
{
    if (!p) return SIM_NVRTC_INVALID_PROGRAM;
    *bytes = p->cubin && !p->ptx ? p->cubin_bytes : 0;
    return SIM_OK;
}

tn_nvrtc_result nvrtcGetPTXSize(tn_nvrtc_program p, size_t *bytes)
{
    if (!p) return SIM_NVRTC_INVALID_PROGRAM;
    *bytes = p->cubin ? p->cubin_bytes : 0;
    return SIM_OK;
}

tn_nvrtc_result nvrtcGetPTX(tn_nvrtc_program p, char *ptx)
{
    if (!p || !p->cubin) return SIM_NVRTC_INVALID_PROGRAM;
    memcpy(ptx, p->cubin, p->cubin_bytes);
    return SIM_OK;
}

tn_nvrtc_result nvrtcGetCUBIN(tn_nvrtc_program p, char *cubin)
{
    if (!p || !p->cubin || p->ptx) return SIM_NVRTC_INVALID_PROGRAM;
    memcpy(cubin, p->cubin, p->cubin_bytes);
    return SIM_OK;
}
