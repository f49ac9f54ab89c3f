/* cmocka.h - what the suite uses of cmocka, for a machine where cmocka is not and nothing can be installed:
 * a GPU machine without a network (tests/gpu/check.sh). It prints what tests/run.sh counts. Everywhere else
 * the real library is used; where a test comes to need more of it, this file grows by the same name.
 *
 * A failed assertion leaves its test by longjmp, as cmocka's does, so that the next one runs. Start with
 * cmocka_run_group_tests_name.
 */
#ifndef TN_MINI_CMOCKA_H
#define TN_MINI_CMOCKA_H

#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    int (*setup_func)(void **state);
    int (*teardown_func)(void **state);
    void *initial_state;
};

typedef struct mini_state {
    jmp_buf out;
    const char *filter;
} mini_state;

static inline mini_state *mini(void)
{
    static mini_state s;
    return &s;
}

enum { MINI_FAILED = 1, MINI_SKIPPED = 2 };

static inline _Noreturn void mini_leave(int how) { longjmp(mini()->out, how); }

static inline _Noreturn __attribute__((format(printf, 3, 4))) void mini_fail(const char *file, int line,
                                                                             const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "[  ERROR   ] --- ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n[   LINE   ] --- %s:%d: error: Failure!\n", file, line);
    va_end(ap);
    mini_leave(MINI_FAILED);
}

#define fail_msg(...)      mini_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail()             mini_fail(__FILE__, __LINE__, "failed")
#define skip()             mini_leave(MINI_SKIPPED)
#define print_message(...) printf(__VA_ARGS__)
#define print_error(...)   fprintf(stderr, __VA_ARGS__)

#define mini_must(holds, ...) ((holds) ? (void)0 : mini_fail(__FILE__, __LINE__, __VA_ARGS__))
#define mini_whole(x)         ((unsigned long long)(uintmax_t)(x))

#define assert_true(c)             mini_must(c, "%s", #c)
#define assert_false(c)            mini_must(!(c), "not: %s", #c)
#define assert_null(p)             mini_must((p) == NULL, "%s is not NULL", #p)
#define assert_non_null(p)         mini_must((p) != NULL, "%s is NULL", #p)
#define assert_ptr_equal(a, b)     mini_must((const void *)(a) == (const void *)(b), "%s is not %s", #a, #b)
#define assert_ptr_not_equal(a, b) mini_must((const void *)(a) != (const void *)(b), "%s is %s", #a, #b)

static inline void mini_int(unsigned long long a, unsigned long long b, int equal, const char *file, int line)
{
    if ((a == b) != equal)
        mini_fail(file, line, "%lld %s %lld", (long long)a, equal ? "!=" : "==", (long long)b);
}
#define assert_int_equal(a, b)     mini_int(mini_whole(a), mini_whole(b), 1, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) mini_int(mini_whole(a), mini_whole(b), 0, __FILE__, __LINE__)
#define assert_in_range(x, low, high)                                                                        \
    mini_must(mini_whole(x) >= mini_whole(low) && mini_whole(x) <= mini_whole(high),                         \
              "%s = %llu is out of range", #x, mini_whole(x))

static inline void mini_float(float a, float b, float within, const char *file, int line)
{
    float d = a > b ? a - b : b - a;
    if (!(d <= within)) mini_fail(file, line, "%g != %g", (double)a, (double)b);
}
#define assert_float_equal(a, b, e) mini_float((float)(a), (float)(b), (float)(e), __FILE__, __LINE__)

static inline void mini_string(const char *a, const char *b, int equal, const char *file, int line)
{
    if ((strcmp(a, b) == 0) != equal) mini_fail(file, line, "\"%s\" %s \"%s\"", a, equal ? "!=" : "==", b);
}
#define assert_string_equal(a, b)     mini_string(a, b, 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) mini_string(a, b, 0, __FILE__, __LINE__)

static inline void mini_memory(const void *a, const void *b, size_t n, int equal, const char *file, int line)
{
    if ((memcmp(a, b, n) == 0) != equal)
        mini_fail(file, line, "%zu bytes %s", n, equal ? "differ" : "are the same");
}
#define assert_memory_equal(a, b, n)     mini_memory(a, b, n, 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, n) mini_memory(a, b, n, 0, __FILE__, __LINE__)

#define cmocka_unit_test(f)                                                                                  \
    {                                                                                                        \
#f, f, NULL, NULL, NULL                                                                              \
    }
#define cmocka_unit_test_setup(f, setup)                                                                     \
    {                                                                                                        \
#f, f, setup, NULL, NULL                                                                             \
    }
#define cmocka_unit_test_setup_teardown(f, setup, after)                                                     \
    {                                                                                                        \
#f, f, setup, after, NULL                                                                            \
    }

static inline void cmocka_set_test_filter(const char *pattern) { mini()->filter = pattern; }

/* 0: passed, else MINI_FAILED or MINI_SKIPPED. Nothing that changes between setjmp and longjmp is a local. */
static inline int mini_one(const struct CMUnitTest *t, void **state)
{
    int how = setjmp(mini()->out);
    if (how) return how;
    if (t->setup_func && t->setup_func(state)) mini_fail(__FILE__, __LINE__, "%s: its setup failed", t->name);
    t->test_func(state);
    return 0;
}

static inline int mini_after(const struct CMUnitTest *t, void **state)
{
    if (setjmp(mini()->out)) return MINI_FAILED;
    return t->teardown_func && t->teardown_func(state) ? MINI_FAILED : 0;
}

static inline int mini_group(const char *name, const struct CMUnitTest *test, size_t n, int (*setup)(void **),
                             int (*teardown)(void **))
{
    void *group = NULL;
    size_t failed = 0, planned = 0, ran = 0;
    for (size_t i = 0; i < n; i++) planned += !mini()->filter || !fnmatch(mini()->filter, test[i].name, 0);
    printf("[==========] %s: Running %zu test(s).\n", name, planned);
    if (setup && setup(&group)) {
        printf("[  FAILED  ] GROUP SETUP\n");
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (mini()->filter && fnmatch(mini()->filter, test[i].name, 0)) continue;
        void *state = test[i].initial_state ? test[i].initial_state : group;
        printf("[ RUN      ] %s\n", test[i].name);
        fflush(stdout);
        int how = mini_one(&test[i], &state), after = mini_after(&test[i], &state);
        how = how ? how : after;
        ran++;
        failed += how == MINI_FAILED;
        printf("%s %s\n",
               how == MINI_SKIPPED ? "[  SKIPPED ]"
               : how               ? "[  FAILED  ]"
                                   : "[       OK ]",
               test[i].name);
        fflush(stdout);
    }
    printf("[==========] %s: %zu test(s) run.\n", name, ran);
    if (teardown && teardown(&group)) {
        printf("[  FAILED  ] GROUP TEARDOWN\n");
        failed++;
    }
    return (int)failed;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                                       \
    cmocka_run_group_tests_name(#tests, tests, setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                            \
    mini_group(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define _cmocka_run_group_tests mini_group /* of tests that are counted at run time */

#endif
