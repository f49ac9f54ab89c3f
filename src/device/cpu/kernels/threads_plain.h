/* Threads of POSIX for what NAME computes: each function that is cut into items is computed by a few, which
 * claim runs of items as they come to them; how they do changes no bit. Between calls they wait, for a short
 * while without sleeping. Read first: NAME_threads, at the end.
 */
#define _POSIX_C_SOURCE 200112L
#include "NAME.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#if PAIR_CHECK
#error "this NAME.h is of another export than this NAME_threads.c"
#endif
#if !defined(__ATOMIC_ACQUIRE)
#error                                                                                                       \
    "this file takes gcc's atomic functions, as gcc and clang have them; NAME.c runs without it, on one thread"
#endif

enum { MOST_THREADS = 1024, TURNS = 4, LOOKS = 400, LOOKS_BUSY = 200 };

typedef struct worker {
    struct NAME_pool *pool;
    pthread_t thread;
    float *room;
} worker;

/* `round` counts calls of run; the members above it are written before it moves on, and read after. */
struct NAME_pool {
    int count;   /* of threads, the caller of run included */
    int started; /* of workers */
    int stop;
    NAME_part *part;
    const void *what;
    long items, each;
    long round, next, left, result; /* next: item that is not claimed; left: workers that are not through */
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    float *rooms;
    worker workers[MOST_THREADS - 1];
};

static long load(const long *x) { return __atomic_load_n(x, __ATOMIC_ACQUIRE); }

/* Waits for a while until *x is no longer `old`; yields, as there may be fewer processors than threads. */
static int looks(const long *x, long old)
{
    for (int i = 0; i < LOOKS; i++) {
        if (load(x) != old) return 1;
        if (i > LOOKS_BUSY) sched_yield();
    }
    return 0;
}

static void work(struct NAME_pool *p, float *room)
{
    for (;;) {
        const long begin = __atomic_fetch_add(&p->next, p->each, __ATOMIC_RELAXED);
        if (begin >= p->items) return;
        const long end = p->items - begin < p->each ? p->items : begin + p->each;
        if (p->part(p->what, room, begin, end)) __atomic_store_n(&p->result, 1, __ATOMIC_RELAXED);
    }
}

static void *work_on(void *mine)
{
    worker *w = (worker *)mine;
    struct NAME_pool *p = w->pool;
    for (long seen = 0;;) {
        if (!looks(&p->round, seen)) {
            pthread_mutex_lock(&p->lock);
            while (load(&p->round) == seen) pthread_cond_wait(&p->begun, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        seen = load(&p->round);
        if (p->stop) return NULL;
        work(p, w->room);
        if (__atomic_sub_fetch(&p->left, 1, __ATOMIC_ACQ_REL)) continue;
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->ended);
        pthread_mutex_unlock(&p->lock);
    }
}

static void begin_round(struct NAME_pool *p)
{
    pthread_mutex_lock(&p->lock);
    __atomic_store_n(&p->round, p->round + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&p->begun);
    pthread_mutex_unlock(&p->lock);
}

static int run_by_all(struct NAME_pool *p, NAME_part *part, const void *what, float *room, int64_t items)
{
    p->part = part;
    p->what = what;
    p->items = (long)items;
    p->each = p->items / (p->count * TURNS) + 1;
    p->next = 0;
    p->result = 0;
    p->left = p->count - 1;
    begin_round(p);
    work(p, room);
    for (long left; (left = load(&p->left)) != 0;) {
        if (looks(&p->left, left)) continue;
        pthread_mutex_lock(&p->lock);
        while (load(&p->left)) pthread_cond_wait(&p->ended, &p->lock);
        pthread_mutex_unlock(&p->lock);
    }
    return (int)p->result;
}

/* Kernels have arrays on the stack, for which the 128 KiB that musl gives a thread may not do. */
static int start(struct NAME_pool *p)
{
    pthread_attr_t how;
    size_t stack;
    int status = pthread_attr_init(&how);
    if (status) return status;
    if (!pthread_attr_getstacksize(&how, &stack) && stack < STACK)
        status = pthread_attr_setstacksize(&how, STACK);
    for (; p->started < p->count - 1 && !status; p->started += !status) {
        worker *w = &p->workers[p->started];
        w->pool = p;
        w->room = p->rooms + (size_t)p->started * ROOM;
        status = pthread_create(&w->thread, &how, work_on, w);
    }
    pthread_attr_destroy(&how);
    return status;
}

static void end(struct NAME_pool *p)
{
    p->stop = 1;
    begin_round(p);
    for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->begun);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p->rooms);
    free(p);
}

int NAME_threads(NAME *m, int count)
{
    if (!m || (uintptr_t)m % 8 || count < 1 || count > MOST_THREADS) return EINVAL;
    if (m->pool) end(m->pool);
    m->pool = NULL;
    m->run = NULL;
    if (count == 1) return 0;
    struct NAME_pool *p = (struct NAME_pool *)calloc(1, sizeof *p);
    if (p) p->rooms = (float *)malloc((size_t)(count - 1) * ROOM * sizeof *p->rooms);
    int status = p && p->rooms ? pthread_mutex_init(&p->lock, NULL) : ENOMEM;
    if (status) {
        if (p) free(p->rooms);
        free(p);
        return status;
    }
    pthread_cond_init(&p->begun, NULL);
    pthread_cond_init(&p->ended, NULL);
    p->count = count;
    status = start(p);
    if (status) {
        end(p);
        return status;
    }
    m->pool = p;
    m->run = run_by_all;
    return 0;
}
