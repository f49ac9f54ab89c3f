/* test_fuzz.c - each fuzz target (tests/fuzz) for a while, with mutations of our own and the same each time.
 *
 *     test_fuzz [--target NAME] [--runs N] [--seed S] [FILE..]
 *
 * Files are inputs that have once been a finding: given one, the target runs it alone. An input that ends the
 * program is left behind as fuzz-NAME.bin. Read first: run. */
#include "tests/test.h"
#include <signal.h>
#include <time.h>

#include "tests/fuzz/targets.h"

static long runs = 8000;
static uint64_t first = 1;
static const fuzz_target *current;
static uint8_t input[1 << 16];
static size_t size;

static void leave_behind(void)
{
    char name[64];
    snprintf(name, sizeof name, "fuzz-%s.bin", current->name);
    FILE *f = fopen(name, "wb");
    if (!f) return;
    fwrite(input, 1, size, f);
    fclose(f);
    fprintf(stderr, "the input is in %s\n", name);
}

static void on_end(int number)
{
    leave_behind();
    signal(number, SIG_DFL);
    raise(number);
}

static void run(void **state)
{
    current = *state;
    uint64_t r = first * 1000003;
    time_t said = time(NULL);
    for (long i = 0; i < runs; i++) {
        if (i % 16 == 0) size = 0; /* from a good input; else from what the last has become */
        size = fuzz_mutate(current, input, size, sizeof input, &r);
        current->one(input, size);
        if (time(NULL) < said + 60) continue;
        said = time(NULL);
        fprintf(stderr, "  %s: %ld runs\n", current->name, i + 1);
    }
    printf("  %s: %ld runs\n", current->name, runs);
}

int main(int argc, char **argv)
{
    const fuzz_target *only = NULL;
    struct CMUnitTest tests[FUZZ_TARGETS];
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--runs"))
            runs = atol(value), i++;
        else if (!strcmp(argv[i], "--seed"))
            first = strtoull(value, NULL, 10), i++;
        else if (!strcmp(argv[i], "--target")) {
            if (!(only = fuzz_find(value))) return fprintf(stderr, "no target %s\n", value), 2;
            i++;
        } else if (only) {
            FILE *f = fopen(argv[i], "rb");
            if (!f) return perror(argv[i]), 2;
            size = fread(input, 1, sizeof input, f);
            fclose(f);
            only->one(input, size);
            printf("%s: fine\n", argv[i]);
            runs = 0;
        }
    }
    if (!runs) return 0;
    signal(SIGSEGV, on_end);
    signal(SIGABRT, on_end);
    for (int i = 0; i < FUZZ_TARGETS; i++)
        tests[i] =
            (struct CMUnitTest){fuzz_targets[i]->name, run, NULL, NULL, (void *)(uintptr_t)fuzz_targets[i]};
    if (!only) return cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < FUZZ_TARGETS; i++)
        if (fuzz_targets[i] == only) tests[0] = tests[i];
    return _cmocka_run_group_tests("fuzz", tests, 1, NULL, NULL);
}
