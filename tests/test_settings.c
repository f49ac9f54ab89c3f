/* test_settings.c - the environment: what each variable takes, and that nothing else goes by in silence;
 * compilers by name, broken and missing; folders for kernels with odd names, gone, or not to be written.
 * Start with opens, and with doubles, which compiles and runs a kernel. */
#include "tests/test.h"
#include "folder.h"
#include "rig.h"
#include "said.h"
#include "src/core/sanitized.h"

/* Opens a session with the variable set to the value; whether there was one, and what was said. */
static bool opens(const char *name, const char *value, tn_options o)
{
    forget();
    o.size = sizeof o;
    o.log = hear_warnings;
    assert_int_equal(setenv(name, value, 1), 0);
    tn_session *s = tn_open_with(&o);
    assert_int_equal(unsetenv(name), 0);
    if (s) assert_int_equal(tn_close(s), 0);
    return s != NULL;
}

static const struct {
    const char *name, *wrong[3], *accepted, *right[4];
} variables[] = {
    {"TENSOR_THREADS", {"rubbish", "-2", "2x"}, "1 to 256", {"1", "2", "0", ""}},
    {"TENSOR_THREADS", {"257", "1e2", "99999999999999999999"}, "1 to 256", {"256", "1", "2", ""}},
    {"TENSOR_KERNEL_OPT", {"4", "-O2", "fast"}, "0 to 3", {"0", "3", "2", ""}},
    {"TENSOR_REPLAY", {"no", "2", "of"}, "on and off", {"on", "off", "0", "1"}},
    {"TENSOR_PLANS", {"0", "65537", "many"}, "1 to 65536", {"1", "512", "65536", ""}},
    {"TENSOR_CHECK", {"yes", "2", "true"}, "1 and 0", {"0", "1", "off", ""}},
    {"TENSOR_DEBUG", {"6", "verbose", "-1"}, "0 to 5", {"0", "1", "5", ""}},
    {"TENSOR_TUNE", {"2", "yes", "-1"}, "1 and 0", {"0", "1", "off", ""}},
    {"TENSOR_DEVICE",
     {"cdua", "gpu", "0"},
     "auto, cpu, cuda, cuda:N, cuda:NAME and ref",
     {"auto", "cpu", "REF", ""}},
    {"TENSOR_PRECISION", {"f8", "TF", "32"}, "f32, tf32, bf16 and f16", {"f32", "TF32", "f16", ""}},
    {"TENSOR_MODE", {"lazy", "1", "eagr"}, "fused and eager", {"fused", "Eager", "", ""}},
};
enum { VARIABLES = sizeof variables / sizeof *variables };

TEST(wrong_values_are_named)
{
    for (int i = 0; i < VARIABLES; i++)
        for (int k = 0; k < 3; k++) {
            /* said in the program, so that only the variable under test can be at fault */
            const tn_options given = {.device = TN_REF, .mode = TN_FUSED};
            assert_true(opens(variables[i].name, variables[i].wrong[k], given));
            if (n_said != 1 || !strstr(said, variables[i].name) || !strstr(said, variables[i].wrong[k]) ||
                !strstr(said, variables[i].accepted))
                fail_msg("%s=%s: \"%s\"", variables[i].name, variables[i].wrong[k], said);
        }
}

TEST(right_values_are_taken_in_silence)
{
    for (int i = 0; i < VARIABLES; i++)
        for (int k = 0; k < 4; k++) {
            if (!opens(variables[i].name, variables[i].right[k], (tn_options){.device = TN_AUTO}))
                fail_msg("%s=%s: \"%s\"", variables[i].name, variables[i].right[k], said);
            if (n_said) fail_msg("%s=%s: \"%s\"", variables[i].name, variables[i].right[k], said);
        }
}

/* Which device, and which mode, is not guessed; a program that says it needs no variable. */
TEST(a_choice_that_means_nothing_opens_no_session)
{
    assert_false(opens("TENSOR_DEVICE", "cdua", (tn_options){.mode = TN_FUSED}));
    assert_non_null(strstr(
        said, "no session: TENSOR_DEVICE is 'cdua', accepted: auto, cpu, cuda, cuda:N, cuda:NAME and ref"));
    assert_false(opens("TENSOR_MODE", "lazy", (tn_options){.device = TN_REF}));
    assert_non_null(strstr(said, "no session: TENSOR_MODE is 'lazy', accepted: fused and eager"));
}

TEST(values_have_their_effect)
{
    const tn_options o = {.size = sizeof o, .log = hear};
    setenv("TENSOR_THREADS", "3", 1);
    setenv("TENSOR_DEVICE", "cpu", 1);
    tn_session *s = tn_open_with(&o);
    assert_non_null(s);
    assert_int_equal(tn_threads(s), 3);
    assert_string_equal(tn_device_name(s), "cpu");
    tn_close(s);
    setenv("TENSOR_THREADS", "rubbish", 1);
    setenv("TENSOR_DEVICE", "ref", 1);
    s = tn_open_with(&o);
    assert_non_null(s);
    assert_true(tn_threads(s) >= 1);
    assert_string_equal(tn_device_name(s), "ref");
    tn_close(s);
    unsetenv("TENSOR_THREADS");
    unsetenv("TENSOR_DEVICE");
}

/* ---- checked mode ---- */

/* What a cast makes of numbers its type does not hold is nobody's mistake in the kernel; the rest of the step
 * is compared as ever. */
TEST(checked_mode_leaves_undefined_casts_alone)
{
    float x[64];
    for (int i = 0; i < 64; i++) x[i] = (float)i - 3.5F;
    x[3] = INFINITY;
    x[9] = NAN;
    x[20] = 3e9F;
    x[40] = 1e20F;
    setenv("TENSOR_CHECK", "1", 1);
    setenv("TENSOR_CACHE", fresh_dir(), 1);
    const tn_options o = {.size = sizeof o, .device = TN_CPU, .mode = TN_FUSED, .log = hear};
    tn_session *s = tn_open_with(&o);
    unsetenv("TENSOR_CHECK");
    const tn_dtype to[] = {TN_I32, TN_I64, TN_U8};
    for (int k = 0; k < 3; k++) {
        forget();
        tn_step_begin(s);
        tn_tensor *t = tn_from(s, x, TN_F32, TN_SHAPE(64));
        tn_tensor *whole = tn_cast(tn_mul_scalar(t, 1.0), to[k]);
        tn_tensor *then = tn_add_scalar(tn_cast(whole, TN_F32), 0.5), *fine = tn_exp(t);
        double got[64], after[64];
        assert_int_equal(tn_read(whole, TN_F64, got, sizeof got), 0);
        assert_int_equal(tn_read(then, TN_F64, after, sizeof after), 0);
        assert_int_equal(tn_numel(fine), 64);
        assert_int_equal(tn_step_end(s), 0);
        assert_true(got[10] == 6 && after[10] == 6.5);
        if (strstr(said, "is right") || !strstr(said, "not compared") || !strstr(said, "test_settings.c:"))
            fail_msg("%s: \"%s\"", tn_dtype_name(to[k]), said);
    }
    tn_close(s);
}

/* ---- compilers and folders ---- */

/* Opens a session and doubles a number in it, in a kernel of its own; its status, what was said in `said` and
 * how many kernels were compiled. */
static int doubles(uint64_t *compiled, char *error, size_t room)
{
    forget();
    const tn_options o = {.size = sizeof o, .device = TN_CPU, .mode = TN_FUSED, .log = hear};
    tn_session *s = tn_open_with(&o);
    assert_non_null(s);
    const float three = 3;
    tn_tensor *x = tn_from(s, &three, TN_F32, TN_SHAPE(1));
    double got = tn_item(tn_mul_scalar(x, 2.0));
    int status = tn_error(s);
    if (!status) assert_true(got == 6);
    snprintf(error, room, "%s", tn_error_text(s));
    tn_stats v = stats_of(s);
    *compiled = v.compiled;
    tn_close(s);
    return status;
}

static void write_script(const char *path, const char *format, ...)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("#!/bin/sh\n", f);
    va_list ap;
    va_start(ap, format);
    vfprintf(f, format, ap);
    va_end(ap);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
}

static bool on_this_machine(const char *program)
{
    char command[200];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", program);
    return system(command) == 0;
}

TEST(compilers_by_name)
{
    const char *const cc[] = {"gcc", "clang", "gcc -g0", "  clang   -w "};
    char error[600], cache[200];
    uint64_t compiled;
    int tried = 0;
    for (int i = 0; i < 4; i++) {
        const char *program = strstr(cc[i], "gcc") ? "gcc" : "clang";
        if (!on_this_machine(program)) continue;
#if defined(TN_ASAN) /* whose run-time library fits its own compiler only */
        if (!strstr(TN_BUILD_CC, program)) continue;
#endif
        tried++;
        snprintf(cache, sizeof cache, "%s/with space's \"%d\" $HOME;", base, i);
        setenv("TENSOR_CACHE", cache, 1);
        setenv("TENSOR_CC", cc[i], 1);
        for (int run = 0; run < 2; run++) {
            assert_int_equal(doubles(&compiled, error, sizeof error), 0);
            assert_int_equal(compiled > 0, run == 0); /* then it is found there */
            assert_string_equal(said, "");
        }
        assert_true(count_files(cache, ".so") > 0);
    }
    unsetenv("TENSOR_CC");
    printf("  %d compilers\n", tried);
    assert_true(tried > 0);
}

/* The command line of the first kernel that was compiled into the folder, as its source tells. */
static void command_in(const char *folder, char *line, int room)
{
    char command[400];
    snprintf(command, sizeof command, "cat \"%s\"/*.c | sed -n '/-std=gnu11/p'", folder);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, room, f));
    line[strcspn(line, "\n")] = 0;
    while (fgetc(f) != EOF) continue;
    pclose(f);
}

/* Of two options that contradict each other compilers take the last one: that is the user's. A processor the
 * user names is the only one named. */
TEST(the_users_options_count)
{
    if (!on_this_machine("gcc")) skip();
#if defined(TN_ASAN)
    if (!strstr(TN_BUILD_CC, "gcc")) skip();
#endif
    const struct {
        const char *cc, *end, *absent;
    } cases[] = {
#if defined(__x86_64__)
        {"gcc -O1 -march=x86-64", " -O1 -march=x86-64", "native"},
        {"gcc -march=x86-64 -B /nowhere", " -w", "native"},
        {"env LC_ALL=C gcc -O1", " -O1", " -O1 -f"},
#endif
        {"gcc -O1 -fno-builtin", " -O1 -fno-builtin", "gcc -O1"},
    };
    char error[600], cache[200], line[1200];
    uint64_t compiled;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(cache, sizeof cache, "%s/options%zu", base, i);
        setenv("TENSOR_CACHE", cache, 1);
        setenv("TENSOR_CC", cases[i].cc, 1);
        assert_int_equal(doubles(&compiled, error, sizeof error), 0);
        command_in(cache, line, sizeof line);
        size_t n = strlen(line), m = strlen(cases[i].end);
        if (n < m || strcmp(line + n - m, cases[i].end) || strstr(line, cases[i].absent))
            fail_msg("%s became: %s", cases[i].cc, line);
    }
    unsetenv("TENSOR_CC");
}

/* A compiler that was named and fails is a mistake to be told: not slower loops, which would hide it. */
TEST(a_compiler_that_fails_is_an_error)
{
    char error[600];
    uint64_t compiled;
    setenv("TENSOR_CACHE", fresh_dir(), 1);
    if (!on_this_machine("gcc")) skip();
    setenv("TENSOR_CC", "gcc -bogus", 1);
    assert_int_equal(doubles(&compiled, error, sizeof error), TN_E_COMPILE);
    assert_non_null(strstr(error, "TENSOR_CC is \"gcc -bogus\""));
    assert_non_null(strstr(error, "unrecognized command-line option"));
    setenv("TENSOR_CC", "gcc", 1); /* the setting corrected, nothing is left of it */
    assert_int_equal(doubles(&compiled, error, sizeof error), 0);
    unsetenv("TENSOR_CC");
}

/* Where there is none at all the built-in loops serve, and one line says so. */
TEST(no_compiler_is_a_warning)
{
    char error[600];
    uint64_t compiled;
    setenv("TENSOR_CACHE", fresh_dir(), 1);
    char *path = strdup(getenv("PATH") ? getenv("PATH") : ""),
         *own = getenv("CC") ? strdup(getenv("CC")) : NULL;
    assert_non_null(path);
    unsetenv("CC");
    for (int named = strchr(TN_BUILD_CC, '/') != NULL; named < 2; named++) {
        setenv("PATH", named ? path : "/nowhere", 1);
        if (named) setenv("TENSOR_CC", "none", 1);
        assert_int_equal(doubles(&compiled, error, sizeof error), 0);
        assert_int_equal(compiled, 0);
        assert_int_equal(n_said, 1);
        assert_non_null(strstr(said, named ? "TENSOR_CC is none" : "none of $CC"));
        assert_non_null(strstr(said, "built-in loops"));
    }
    unsetenv("TENSOR_CC");
    if (own) setenv("CC", own, 1);
    free(path);
    free(own);
}

/* A compiler that was chosen and is none is told at once: nobody asked for slower loops. */
TEST(a_compiler_that_does_not_run)
{
    static const char *const cc[] = {"/nowhere/cc", "/bin/false"};
    for (int i = 0; i < 2; i++) {
        forget();
        setenv("TENSOR_CC", cc[i], 1);
        assert_null(tn_open(.device = TN_CPU, .log = hear));
        unsetenv("TENSOR_CC");
        assert_int_equal(n_said, 1);
        assert_non_null(strstr(said, cc[i]));
        assert_non_null(strstr(said, "set it to a C compiler"));
    }
}

/* A folder that somebody removes while a kernel is being compiled, or between two sessions, is made again. */
TEST(a_folder_removed_meanwhile)
{
    char error[600], cache[128], cc[128];
    uint64_t compiled;
    snprintf(cache, sizeof cache, "%s", fresh_dir());
    snprintf(cc, sizeof cc, "%s/cc", base);
    write_script(cc,
                 "case \"$*\" in *--version*) exec cc \"$@\";; esac\n"
                 "[ -e %s/done ] || { touch %s/done; rm -rf %s; }\nexec cc \"$@\"\n",
                 base, base, cache);
    setenv("TENSOR_CACHE", cache, 1);
    setenv("TENSOR_CC", cc, 1);
    int status = doubles(&compiled, error, sizeof error);
    if (status) fail_msg("%s", error);
    assert_string_equal(said, "");
    assert_true(count_files(cache, ".so") > 0);
    assert_int_equal(remove_tree(cache), 0);
    assert_int_equal(doubles(&compiled, error, sizeof error), 0);
    assert_string_equal(said, "");
    assert_true(count_files(cache, ".so") > 0);
    unsetenv("TENSOR_CC");
}

/* What cannot be written to is said once, and a folder of the run's own serves. */
TEST(a_folder_that_cannot_be_written)
{
    char error[600];
    uint64_t compiled;
    setenv("TENSOR_CACHE", "/proc/nowhere", 1);
    assert_int_equal(doubles(&compiled, error, sizeof error), 0);
    assert_int_equal(n_said, 1);
    assert_non_null(strstr(said, "/proc/nowhere"));
    assert_non_null(strstr(said, "kernels of this process go to"));
}

/* Without HOME and all that: under /tmp, by the user's number. */
TEST(no_home)
{
    char error[600];
    uint64_t compiled;
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("TENSOR_CACHE");
    assert_int_equal(doubles(&compiled, error, sizeof error), 0);
    assert_string_equal(said, "");
    if (home) setenv("HOME", home, 1);
    free(home);
}

int main(void)
{
    /* what the suite was started with is not under test */
    for (int i = 0; i < VARIABLES; i++) unsetenv(variables[i].name);
    return run_all_tests(make_base, drop_base);
}
