/* handover.c - how long a line of memory takes from one processor to the other: two threads, each on one of the
 * first two that the process may run on, hand a number to and fro. Processors of one cache take some 50 ns, of
 * two caches several times that: what two processes do at once is worth more there (bench/ranks.py). */
#include "clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum { TIMES = 20000, ROUNDS = 5, APART = 256 };

static _Alignas(APART) atomic_int there;
static _Alignas(APART) atomic_int back;

/* Puts the thread that calls on the k-th processor of those that it may run on. */
static void settle(int k)
{
    cpu_set_t may, one;
    pthread_getaffinity_np(pthread_self(), sizeof may, &may);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &may) && !k--) CPU_SET(i, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *answer(void *arg)
{
    settle(1);
    for (int i = 1; i <= TIMES * ROUNDS; i++) {
        while (atomic_load(&there) != i) {
        }
        atomic_store(&back, i);
    }
    return arg;
}

int main(void)
{
    double ms[ROUNDS];
    pthread_t other;
    if (pthread_create(&other, NULL, answer, NULL)) return 1;
    settle(0);
    for (int r = 0, i = 0; r < ROUNDS; r++) {
        const double since = now_ms();
        for (int k = 0; k < TIMES; k++) {
            atomic_store(&there, ++i);
            while (atomic_load(&back) != i) {
            }
        }
        ms[r] = now_ms() - since;
    }
    pthread_join(other, NULL);
    printf("%.0f ns\n", 1e6 * middle(ms, ROUNDS) / TIMES / 2);
    return 0;
}
