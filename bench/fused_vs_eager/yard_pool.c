/* yard_pool.c - the threads of the yardsticks: a plain pool that spins a little, sleeps, and claims chunks.
 * Start with yard_run. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "yardstick.h"

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#else
#define relax() ((void)0)
#endif

struct yard_pool {
    int threads;
    pthread_t thread[YARD_WORKERS];
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_int round, busy;
    bool stop;
    yard *y;
    yard_part *fn;
    int64_t items, chunk;
    _Atomic int64_t next;
    struct yard_seat {
        yard_pool *pool;
        int number;
    } seat[YARD_WORKERS];
};

static void work(yard_pool *p, int worker)
{
    for (int64_t at; (at = atomic_fetch_add(&p->next, p->chunk)) < p->items;)
        p->fn(p->y, at, at + p->chunk < p->items ? at + p->chunk : p->items, worker);
}

static void *serve(void *arg)
{
    struct yard_seat *seat = arg;
    yard_pool *p = seat->pool;
    for (int seen = 0;; seen++) {
        for (int spin = 0; spin < 2000 && atomic_load(&p->round) == seen; spin++) relax();
        pthread_mutex_lock(&p->lock);
        while (atomic_load(&p->round) == seen && !p->stop) pthread_cond_wait(&p->wake, &p->lock);
        bool stop = p->stop;
        pthread_mutex_unlock(&p->lock);
        if (stop) return NULL;
        work(p, seat->number);
        atomic_fetch_sub(&p->busy, 1);
    }
}

yard_pool *yard_pool_new(int threads)
{
    yard_pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (p->threads = 1; p->threads < threads && p->threads < YARD_WORKERS; p->threads++) {
        p->seat[p->threads] = (struct yard_seat){p, p->threads};
        if (pthread_create(&p->thread[p->threads], NULL, serve, &p->seat[p->threads])) break;
    }
    return p;
}

void yard_pool_free(yard_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->threads; i++) pthread_join(p->thread[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p);
}

int yard_threads(const yard_pool *p) { return p->threads; }

void yard_run(yard *y, yard_part *fn, int64_t items)
{
    yard_pool *p = y->pool;
    p->y = y;
    p->fn = fn;
    p->items = items;
    p->chunk = items / (8 * p->threads) ? items / (8 * p->threads) : 1;
    atomic_store(&p->next, 0);
    atomic_store(&p->busy, p->threads - 1);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    work(p, 0);
    for (int spin = 0; atomic_load(&p->busy); spin++)
        if (spin < 2000)
            relax();
        else
            sched_yield();
}
