/* test.h - how a test is written. What is defined as a test is run by the program that it stands in, in the
 * order of the file:
 *
 *   TEST(what_holds)                  a test; a block follows
 *   TEST_ON(what_holds, open())       in a session s of its own, that is closed behind it
 *   TEST_IN(what_holds, set, clean)   with a set-up and a clean-up; TEST_AGAIN: once more, in others
 *   RUN_TESTS(set, clean)             main, at the end of the file: both around all of them
 *
 * `program NAME` runs the tests of that name alone, which may hold wildcards. A program with options of its
 * own has its own main, which asks for them by OPTION and ends with run_all_tests. */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

typedef int test_frame(void **state); /* a set-up or a clean-up */

enum { MOST_TESTS = 64 };
static struct CMUnitTest Tests[MOST_TESTS];
static size_t N_tests;

static inline void add_test(const char *name, void (*run)(void **), test_frame *set, test_frame *clean)
{
    if (N_tests == MOST_TESTS) abort();
    Tests[N_tests++] = (struct CMUnitTest){name, run, set, clean, NULL};
}

/* A test that is a row of a table: `run` finds the row at *state. */
static inline void add_test_row(const char *name, void (*run)(void **), const void *row)
{
    add_test(name, run, NULL, NULL);
    Tests[N_tests - 1].initial_state = (void *)(uintptr_t)row;
}

#define TEST(name)          TEST_IN(name, NULL, NULL)
#define TEST_ON(name, open) TEST_ON_IN(name, open, NULL)
#define TEST_ON_IN(name, open, set)                                                                          \
    static void name##_on(tn_session *s);                                                                    \
    TEST_IN(name, set, NULL)                                                                                 \
    {                                                                                                        \
        tn_session *s = open;                                                                                \
        assert_non_null(s);                                                                                  \
        name##_on(s);                                                                                        \
        assert_int_equal(tn_close(s), TN_OK);                                                                \
    }                                                                                                        \
    static void name##_on(tn_session *s)
#define TEST_IN(name, set, clean)                                                                            \
    static void name(void **state);                                                                          \
    TEST_AGAIN(name, set, clean)                                                                             \
    static void name(__attribute__((unused)) void **state)
#define TEST_AGAIN(name, set, clean) TEST_NUMBER(name, set, clean, __COUNTER__)
#define TEST_NUMBER(...)             TEST_ADD(__VA_ARGS__)
#define TEST_ADD(name, set, clean, number)                                                                   \
    __attribute__((constructor)) static void add_##number##name(void) { add_test(#name, name, set, clean); }

/* v is the number behind --name on the command line, where there is one. */
#define OPTION(v, name) ((v) = (__typeof__(v))option(argc, argv, name, (uint64_t)(v)))

static inline uint64_t option(int argc, char **argv, const char *name, uint64_t standard)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, name)) return strtoull(argv[i + 1], NULL, 10);
    return standard;
}

static inline void only_test(const char *name, void (*run)(void **))
{
    N_tests = 0;
    add_test(name, run, NULL, NULL);
}

/* A name that no test has would run none of them, which is no failure to cmocka. */
static inline bool is_test(const char *name)
{
    bool found = strpbrk(name, "*?") != NULL; /* a pattern */
    for (int i = 0; i < (int)N_tests && !found; i++) found = !strcmp(Tests[i].name, name);
    if (!found) fprintf(stderr, "no test here is called '%s'\n", name);
    return found;
}

static inline int run_all_tests(test_frame *set, test_frame *clean)
{
    setenv("TENSOR_PROFILE", "reference", 0);
    return _cmocka_run_group_tests("tests", Tests, N_tests, set, clean);
}

#define RUN_TESTS(set, clean)                                                                                \
    int main(int argc, char **argv)                                                                          \
    {                                                                                                        \
        if (argc > 1) cmocka_set_test_filter(argv[1]);                                                       \
        return argc > 1 && !is_test(argv[1]) ? 1 : run_all_tests(set, clean);                                \
    }

/* A log that says nothing; it counts its lines where it is given a place for that. */
static inline void quiet(int level, const char *text, void *user)
{
    (void)level, (void)text;
    if (user) ++*(int *)user;
}

static inline int count_text(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

/* ---- numbers that are the same everywhere ---- */

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t x = r->state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline double rng_real(rng *r, double low, double high)
{
    return low + (high - low) * (double)(rng_next(r) >> 11) * 0x1p-53;
}

/* In [0, n). */
static inline int64_t rng_below(rng *r, int64_t n) { return (int64_t)(rng_next(r) % (uint64_t)n); }

static inline uint64_t hash_text(const char *s)
{
    uint64_t h = 1469598103934665603u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}
