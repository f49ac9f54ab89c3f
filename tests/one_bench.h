/* one_bench.h - the sessions that all tests of a program compare: RUN_TESTS(open_bench, close_bench). */
#pragma once

#include "tests/check.h"

static bench B;

static int open_bench(void **state)
{
    (void)state;
    bench_open(&B);
    return 0;
}

static int close_bench(void **state)
{
    (void)state;
    bench_close(&B);
    return 0;
}
