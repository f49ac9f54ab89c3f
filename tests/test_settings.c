/* test_settings.c - the environment: what each variable takes, and that nothing else goes by in silence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "include/tensor.h"

static char said[4096];
static int lines;

static void hear(int level, const char *text, void *user)
{
    (void)level, (void)user;
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", text);
    lines++;
}

/* Opens a session with the variable set to the value; whether there was one, and what was said. */
static bool opens(const char *name, const char *value, tn_options o)
{
    said[0] = 0;
    lines = 0;
    o.size = sizeof o;
    o.log = hear;
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
    {"TENSOR_CHECK", {"yes", "2", "true"}, "1 and 0", {"0", "1", "off", ""}},
    {"TENSOR_DEBUG", {"6", "verbose", "-1"}, "0 to 5", {"0", "1", "5", ""}},
    {"TENSOR_TUNE", {"1", "on", "yes"}, "0", {"0", "0", "", ""}},
    {"TENSOR_DEVICE", {"cdua", "gpu", "0"}, "auto, cpu, cuda and ref", {"auto", "cpu", "REF", ""}},
    {"TENSOR_MODE", {"lazy", "1", "eagr"}, "fused and eager", {"fused", "Eager", "", ""}},
};
enum { VARIABLES = sizeof variables / sizeof *variables };

static void wrong_values_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < VARIABLES; i++)
        for (int k = 0; k < 3; k++) {
            /* said in the program, so that only the variable under test can be at fault */
            const tn_options given = {.device = TN_REF, .mode = TN_FUSED};
            assert_true(opens(variables[i].name, variables[i].wrong[k], given));
            if (lines != 1 || !strstr(said, variables[i].name) || !strstr(said, variables[i].wrong[k]) ||
                !strstr(said, variables[i].accepted))
                fail_msg("%s=%s: \"%s\"", variables[i].name, variables[i].wrong[k], said);
        }
}

static void right_values_are_taken_in_silence(void **state)
{
    (void)state;
    for (int i = 0; i < VARIABLES; i++)
        for (int k = 0; k < 4; k++) {
            assert_true(opens(variables[i].name, variables[i].right[k], (tn_options){.device = TN_AUTO}));
            if (lines) fail_msg("%s=%s: \"%s\"", variables[i].name, variables[i].right[k], said);
        }
}

/* Which device, and which mode, is not guessed; a program that says it needs no variable. */
static void a_choice_that_means_nothing_opens_no_session(void **state)
{
    (void)state;
    assert_false(opens("TENSOR_DEVICE", "cdua", (tn_options){.mode = TN_FUSED}));
    assert_non_null(strstr(said, "no session"));
    assert_false(opens("TENSOR_MODE", "lazy", (tn_options){.device = TN_REF}));
    assert_non_null(strstr(said, "no session"));
}

static void values_have_their_effect(void **state)
{
    (void)state;
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

int main(void)
{
    /* what the suite was started with is not under test */
    for (int i = 0; i < VARIABLES; i++) unsetenv(variables[i].name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(right_values_are_taken_in_silence),
        cmocka_unit_test(a_choice_that_means_nothing_opens_no_session),
        cmocka_unit_test(values_have_their_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
