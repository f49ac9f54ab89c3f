/* test_setuid.c - a program with rights that its caller lacks: nothing the caller's environment names is run,
 * opened, read or written, and it computes all the same.
 *
 * The test makes a set-user-id copy of itself, as root, and an ordinary user runs it with traps in every
 * variable: scripts that leave a file behind, a library that does so as it is opened, folders that shall stay
 * empty. Read first: lay_traps, then inside. */
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/wait.h>

#include "cpu_device_rig.h"
#include "include/tensor.h"
#include "src/core/settings.h"
#include "src/device/cpu/cpu_lib.h"
#include "src/device/cuda/api.h"

enum { NOBODY = 65534, NOT_POSSIBLE = 77 };

/* ---- the caller ------------------------------------------------------------------------------------------
 */

static void write_text(const char *name, const char *text, mode_t mode)
{
    spill_text(in_base(name), text);
    assert_int_equal(chmod(in_base(name), mode), 0);
}

static void set_to(const char *name, const char *what)
{
    assert_int_equal(setenv(name, in_base(what), 1), 0);
}

static void lay_traps(void)
{
    static const char *const programs[] = {"gcc", "cc", "clang", "as", "ld", "cc1", "collect2", "python3"};
    static const char *const folders[] = {"TENSOR_CACHE", "XDG_CACHE_HOME", "HOME",
                                          "TMPDIR",       "TENSOR_DUMP",    "JITDUMPDIR"};
    static const char *const found_along[] = {"PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CUDA_HOME",
                                              "CUDA_PATH"};
    static const char *const compilers[] = {"TENSOR_CC", "CC"};
    static const char *const libraries[] = {"TENSOR_CUDA_DRIVER",   "TENSOR_CUDA_NVRTC",
                                            "TENSOR_CUDA_BLASLT",   "INTEL_JIT_PROFILER64",
                                            "INTEL_LIBITTNOTIFY64", "CUDA_INJECTION64_PATH"};
    char text[512], name[64], sprung[256]; /* what every trap leaves behind */
    snprintf(sprung, sizeof sprung, "%s/empty/sprung", base);
    assert_int_equal(mkdir(in_base("empty"), 0700), 0);
    assert_int_equal(chown(in_base("empty"), NOBODY, NOBODY), 0);
    assert_int_equal(mkdir(in_base("bin"), 0755), 0);
    snprintf(text, sizeof text, "#!/bin/sh\necho \"$0\" >> %s\nexit 1\n", sprung);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        snprintf(name, sizeof name, "bin/%s", programs[i]);
        write_text(name, text, 0755);
    }
    snprintf(text, sizeof text,
             "#include <stdio.h>\n__attribute__((constructor)) static void go(void)\n{\n"
             "    FILE *f = fopen(\"%s\", \"a\");\n    if (f) fputs(\"library\\n\", f), fclose(f);\n}\n",
             sprung);
    write_text("trap.c", text, 0644);
    snprintf(text, sizeof text, "%s -shared -fPIC -o %s/trap.so %s/trap.c", TN_BUILD_CC, base, base);
    assert_int_equal(system(text), 0);
    write_text("profile", "nonsense\n", 0644);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) set_to(folders[i], "empty");
    for (size_t i = 0; i < sizeof found_along / sizeof *found_along; i++) set_to(found_along[i], "bin");
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) set_to(compilers[i], "bin/gcc");
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) set_to(libraries[i], "trap.so");
    set_to("TENSOR_PROFILE", "profile");
    setenv("TENSOR_DEVICE", "cuda", 1);
    setenv("TENSOR_DEBUG", "5", 1);
    assert_int_equal(chmod(base, 0755), 0);
}

/* The exit status of a copy of this program, owned by root, when an ordinary user runs it. */
static int run_copy(mode_t mode, const char *how)
{
    char command[512];
    snprintf(command, sizeof command, "cp /proc/%d/exe %s", (int)getpid(), in_base("copy"));
    assert_int_equal(system(command), 0);
    assert_int_equal(chmod(in_base("copy"), mode), 0);
    pid_t pid = fork();
    if (pid == 0) {
        lay_traps();
        if (chdir(in_base("empty")) || setgid(NOBODY) || setuid(NOBODY)) _exit(NOT_POSSIBLE);
        const char *copy = in_base("copy");
        execl(copy, copy, how, (char *)NULL);
        _exit(NOT_POSSIBLE);
    }
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST(nothing_of_the_callers_is_used)
{
    if (geteuid()) {
        print_message("takes root\n");
        skip();
    }
    int status = run_copy(04755, "inside");
    if (status == NOT_POSSIBLE) {
        print_message("set-user-id has no effect in %s\n", base);
        skip();
    }
    assert_int_equal(count_files(in_base("empty"), ""), 0);
    assert_int_equal(status, 0);
}

TEST(one_place_looks_at_the_environment)
{
    FILE *f = popen("grep -rnE 'getenv *\\(' --include='*.[ch]' src fuser autograd nn include", "r");
    char line[512];
    int lines = 0;
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); lines++)
        if (strncmp(line, "src/core/settings.c:", 20)) fail_msg("%s", line);
    pclose(f);
    assert_int_equal(lines, 1);
}

/* ---- the copy: its numbers say which expectation failed ---------------------------------------------------
 */

static int inside(void)
{
    if (!getauxval(AT_SECURE)) return NOT_POSSIBLE;
    tn_settings s = tn_settings_read(NULL, NULL);
    if (s.device != TN_AUTO || s.debug || s.cc || s.cache || s.dump || s.profile) return 2;
    static const char *const names[] = {"CC",   "HOME",      "XDG_CACHE_HOME",  "TMPDIR",
                                        "PATH", "CUDA_HOME", "TENSOR_CUDA_SYNC"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tn_setting(names[i])) return 3;

    tn_device *d = open_device(NULL, 1);
    tn_kernel *k = NULL;
    tn_errbuf err = {""};
    if (d->compile(d, &(tn_source){"add", ADD("add", "6")}, 1, &k, &err) != TN_E_COMPILE || k) return 4;
    if (!strstr(err.text, "no C compiler: this program has rights")) return 5;
    d->close(d);

    tn_cuda_api *api;
    bool driver = true;
    if (!tn_cuda_load(&api, &driver, &err) || driver || !strstr(err.text, "rights")) return 6;
    tn_cpu_lib *lib;
    if (tn_cpu_lib_open(&lib)) return 7;
    tn_cpu_lib_close(lib);

    tn_session *session = tn_open(.seed = 1, .log = hear);
    if (!session) return 8;
    tn_tensor *x = tn_full(session, 2, TN_F32, TN_SHAPE(30, 40)),
              *y = tn_full(session, 3, TN_F32, TN_SHAPE(40, 50));
    if (tn_item(tn_mean(tn_gelu(tn_matmul(x, y)), TN_ALL, false)) != 240) return 9;
    return tn_close(session) ? 10 : 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "inside")) return inside();
    return run_all_tests(make_base, drop_base);
}
