/* test_threads.c - sessions in threads of the program, and sessions of several threads: each computes what
 * one alone on one thread does, to the bit. ThreadSanitizer looks at these too (make tsan). */
#include <pthread.h>

#include "small_net.h"

enum { SESSIONS = 8 };

TEST(sessions_in_threads_agree)
{
    struct run alone = {.threads = 1}, r[SESSIONS] = {{0}};
    pthread_t thread[SESSIONS];
    train(&alone);
    assert_same_run(&alone, &alone);
    assert_true(alone.loss[0] != alone.loss[1]); /* it does train */
    for (int i = 0; i < SESSIONS; i++) {
        r[i].threads = 1 + i % 2;
        assert_int_equal(pthread_create(&thread[i], NULL, train, &r[i]), 0);
    }
    for (int i = 0; i < SESSIONS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < SESSIONS; i++) assert_same_run(&alone, &r[i]);
}

TEST(thread_counts_agree)
{
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++) {
        struct run r[3] = {{.threads = 1}, {.threads = 2}, {.threads = 3}};
        for (int i = 0; i < 3; i++) {
            r[i].mode = (tn_mode)mode;
            train(&r[i]);
        }
        for (int i = 0; i < 3; i++) assert_same_run(&r[0], &r[i]);
    }
}

RUN_TESTS(NULL, NULL)
