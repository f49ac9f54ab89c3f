/* pool.c - threads that share out the chunks of one call.
 *
 * The state is one 64-bit ticket: the call's generation in the upper half, the next unclaimed chunk in the
 * lower. A claim, of that chunk and perhaps some behind it, is one compare-and-swap on it. It can only
 * succeed while that very chunk of that very call is unclaimed, and until it is claimed and done the caller
 * does not touch the call's fields: so what a late worker read of them before its swap is right whenever the
 * swap succeeds, and unused otherwise.
 *
 * Nobody waits for a thread that has not claimed anything: the caller works through the chunks itself and
 * waits for those others hold. Waiting is spinning for SPIN_NS, then a futex. Where there are more threads
 * than cores to run them on, nobody spins.
 *
 * A page that the kernel wipes in a forked child says that the workers stayed behind; the first call there
 * starts new ones. Read first: tn_pool_run, then work, then worker. */
#include "pool.h"

#include "../../core/alloc.h"
#include "fpu.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 50000,
    MAX_THREADS = 1024,
    STEER_CPUS = 16, /* with more, the scheduler finds an idle one */
    LINE = 64,
};
/* From the kernel's own linux/futex.h, which a libc other than glibc comes without. */
enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129 };
#define MAX_CHUNKS ((int64_t)1 << 31) /* of one generation; longer calls take several */
#define CLOSED     UINT32_MAX         /* as the next chunk: none to claim */

typedef void chunk_fn(void *arg, int64_t begin, int64_t end);

struct tn_pool {
    _Alignas(LINE) _Atomic uint64_t ticket; /* generation << 32 | next chunk */

    /* The call. Release stores and acquire loads: who sees a new field sees the closed ticket too. */
    _Alignas(LINE) _Atomic(chunk_fn *) fn;
    _Atomic(void *) arg;
    _Atomic int64_t base, n, chunk; /* items [base, n) */
    _Atomic uint32_t chunks;
    _Atomic uint64_t fpu;

    _Alignas(LINE) _Atomic uint32_t bell; /* the generation again: what idle workers watch */
    _Atomic uint32_t sleepers, stop;

    _Alignas(LINE) _Atomic uint32_t done; /* finished chunks: what the caller watches */
    _Atomic uint32_t caller_sleeps;

    _Alignas(LINE) atomic_flag busy; /* a call is under way: another one runs inline */
    int threads, workers;            /* wanted, with the caller; running, without */
    bool rehearses;                  /* calls do nothing */
    bool spin;
    bool steer;              /* keep workers off the caller's processor */
    int kept_off;            /* the processor they keep off now; -1: none */
    cpu_set_t allowed, mask; /* at their start; now, unless the host has changed it */
    pid_t pid;
    volatile uint32_t
        *here; /* 1 in the process that made the workers, 0 in its children; NULL: ask for pid */
    pthread_t *worker;
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Spins until *word is no longer `seen`; false when that took too long. */
static bool spin_while(const tn_pool *p, _Atomic uint32_t *word, uint32_t seen)
{
    if (!p->spin) return atomic_load_explicit(word, memory_order_acquire) != seen;
    int64_t start = 0;
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
        pause_cpu();
        if (i % 32) continue;
        int64_t t = now_ns();
        if (!start) start = t;
        if (t - start > SPIN_NS) return false;
    }
}

/* Returns how many of the chunks that are left a thread takes at once: neighbours, so that it walks through
 * memory without a break, and the fewer the fewer are left, so that all threads end together. */
static uint32_t several(const tn_pool *p, uint32_t left)
{
    enum { ROUNDS = 8 };
    uint32_t fair = left / ((uint32_t)p->threads * ROUNDS);
    return fair ? fair : 1;
}

/* Claims and runs chunks of the call under way until there is none left. */
static void work(tn_pool *p)
{
    uint32_t mine = 0;
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    for (;;) {
        uint32_t i = (uint32_t)ticket;
        uint32_t chunks = atomic_load_explicit(&p->chunks, memory_order_acquire);
        if (i >= chunks) break; /* CLOSED too */
        chunk_fn *fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&p->arg, memory_order_acquire);
        int64_t base = atomic_load_explicit(&p->base, memory_order_acquire);
        int64_t n = atomic_load_explicit(&p->n, memory_order_acquire);
        int64_t chunk = atomic_load_explicit(&p->chunk, memory_order_acquire);
        uint64_t fpu = atomic_load_explicit(&p->fpu, memory_order_acquire);
        uint32_t take = several(p, chunks - i);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket + take, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        tn_fpu_set(fpu);
        mine += take;
        for (; take; take--, i++) {
            int64_t begin = base + (int64_t)i * chunk;
            fn(arg, begin, n - begin > chunk ? begin + chunk : n);
        }
        ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    /* While one of my chunks is uncounted the call cannot end, so all of `mine` belong to this call; `chunks`
     * may have changed only if none was mine. */
    if (mine) {
        uint32_t all = atomic_load_explicit(&p->chunks, memory_order_relaxed);
        uint32_t before = atomic_fetch_add(&p->done, mine);
        if (before + mine == all && atomic_load(&p->caller_sleeps)) futex_wake(&p->done, 1);
    }
}

static void *worker(void *arg)
{
    tn_pool *p = arg;
    uint32_t seen = 0;
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        if (!spin_while(p, &p->bell, seen)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->bell) == seen) futex_wait(&p->bell, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = atomic_load_explicit(&p->bell, memory_order_acquire);
        work(p);
    }
    return NULL;
}

/* Moves the workers off the processor the caller is on. */
static void steer(tn_pool *p)
{
    int cpu = sched_getcpu();
    if (!p->steer || cpu == p->kept_off || cpu < 0 || cpu >= CPU_SETSIZE) return;
    cpu_set_t mask = p->allowed, now;
    CPU_CLR(cpu, &mask);
    for (int i = 0; i < p->workers && p->steer; i++)
        p->steer = !pthread_getaffinity_np(p->worker[i], sizeof now, &now) && CPU_EQUAL(&now, &p->mask) &&
                   !pthread_setaffinity_np(p->worker[i], sizeof mask, &mask);
    p->mask = mask;
    p->kept_off = cpu;
}

static void start_workers(tn_pool *p)
{
    CPU_ZERO(&p->allowed);
    bool known = sched_getaffinity(0, sizeof p->allowed, &p->allowed) == 0;
    int cpus = CPU_COUNT(&p->allowed);
    p->spin = !known || cpus >= p->threads;
    p->steer = known && cpus >= p->threads && cpus <= STEER_CPUS;
    p->kept_off = -1;
    p->mask = p->allowed;
    /* Those that an instruction raises stay open: blocked, they would end the process without asking anybody.
     */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, old;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the host's signals are for the host's threads */
    pthread_attr_t
        how; /* musl gives a thread 128 KiB: kernels and products have blocks of more on their stack */
    const bool sized = !pthread_attr_init(&how);
    if (sized) pthread_attr_setstacksize(&how, (size_t)8 << 20);
    for (p->workers = 0; p->workers < p->threads - 1; p->workers++)
        if (pthread_create(&p->worker[p->workers], sized ? &how : NULL, worker, p)) break;
    if (sized) pthread_attr_destroy(&how);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    p->pid = getpid();
    if (p->here) *p->here = 1;
}

static bool forked(const tn_pool *p) { return p->here ? !*p->here : p->pid != getpid(); }

/* In a forked child: the workers are gone, and what they were doing with the counters with them. */
static void revive(tn_pool *p)
{
    p->workers = 0;
    atomic_store(&p->ticket, 0);
    atomic_store(&p->chunks, 0);
    atomic_store(&p->bell, 0);
    atomic_store(&p->sleepers, 0);
    atomic_flag_clear(&p->busy);
#if !defined(__SANITIZE_THREAD__) /* which allows no thread after a fork */
    start_workers(p);
#else
    p->pid = getpid();
    if (p->here) *p->here = 1;
#endif
}

int tn_pool_open(int threads, tn_pool **out)
{
    *out = NULL;
    if (threads < 1 || threads > MAX_THREADS) return TN_E_ARG;
    tn_pool *p = tn_aligned_alloc(LINE, sizeof *p);
    if (!p) return TN_E_NOMEM;
    memset(p, 0, sizeof *p);
    atomic_flag_clear(&p->busy);
    p->threads = threads;
    if (threads > 1) {
        p->worker = tn_calloc((size_t)threads - 1, sizeof *p->worker);
        if (!p->worker) {
            tn_free_mem(p);
            return TN_E_NOMEM;
        }
        void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED) {
            if (madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) == 0)
                p->here = page;
            else
                munmap(page, (size_t)sysconf(_SC_PAGESIZE));
        }
        start_workers(p);
    }
    *out = p;
    return 0;
}

void tn_pool_close(tn_pool *p)
{
    if (!p) return;
    if (p->workers && !forked(p)) {
        atomic_store(&p->stop, 1);
        atomic_fetch_add(&p->bell, 1);
        futex_wake(&p->bell, INT_MAX);
        for (int i = 0; i < p->workers; i++) pthread_join(p->worker[i], NULL);
    }
    if (p->here) munmap((void *)(uintptr_t)p->here, (size_t)sysconf(_SC_PAGESIZE));
    tn_free_mem(p->worker);
    tn_free_mem(p);
}

int tn_pool_threads(const tn_pool *p) { return p->threads; }

static void run_inline(chunk_fn *fn, void *arg, int64_t begin, int64_t n, int64_t chunk)
{
    while (n - begin > chunk) {
        fn(arg, begin, begin + chunk);
        begin += chunk;
    }
    fn(arg, begin, n);
}

/* One generation: items [base, n), at most MAX_CHUNKS chunks of them. */
static void run_shared(tn_pool *p, chunk_fn *fn, void *arg, int64_t base, int64_t n, int64_t chunk)
{
    uint32_t chunks = (uint32_t)((n - base - 1) / chunk + 1);
    uint32_t generation = (uint32_t)(atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&p->ticket, (uint64_t)generation << 32 | CLOSED, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->arg, arg, memory_order_release);
    atomic_store_explicit(&p->base, base, memory_order_release);
    atomic_store_explicit(&p->n, n, memory_order_release);
    atomic_store_explicit(&p->chunk, chunk, memory_order_release);
    atomic_store_explicit(&p->fpu, tn_fpu_get(), memory_order_release);
    atomic_store_explicit(&p->done, 0, memory_order_release);
    atomic_store_explicit(&p->caller_sleeps, 0, memory_order_release);
    atomic_store_explicit(&p->chunks, chunks, memory_order_release);
    atomic_store_explicit(&p->ticket, (uint64_t)generation << 32, memory_order_release);
    atomic_store(&p->bell, generation);
    uint32_t sleepers = atomic_load(&p->sleepers);
    if (sleepers) {
        steer(p);
        futex_wake(&p->bell, (int)(chunks - 1 < sleepers ? chunks - 1 : sleepers));
    }

    work(p);

    uint32_t done = atomic_load_explicit(&p->done, memory_order_acquire);
    while (done != chunks) {
        if (!spin_while(p, &p->done, done)) {
            atomic_store(&p->caller_sleeps, 1);
            done = atomic_load(&p->done);
            if (done != chunks) futex_wait(&p->done, done);
        }
        done = atomic_load_explicit(&p->done, memory_order_acquire);
    }
}

void tn_pool_run(tn_pool *p, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg, int64_t n,
                 int64_t chunk)
{
    if (n <= 0 || p->rehearses) return;
    if (chunk < 1 || chunk > n) chunk = n;
    if (p->threads > 1 && chunk < n && forked(p)) revive(p);
    if (chunk == n || !p->workers || atomic_flag_test_and_set_explicit(&p->busy, memory_order_acquire)) {
        run_inline(fn, arg, 0, n, chunk);
        return;
    }
    int64_t span = chunk > INT64_MAX / MAX_CHUNKS ? n : chunk * MAX_CHUNKS;
    for (int64_t base = 0; base<n; base = n - base> span ? base + span : n)
        run_shared(p, fn, arg, base, n - base > span ? base + span : n, chunk);
    atomic_flag_clear_explicit(&p->busy, memory_order_release);
}

void tn_pool_rehearse(tn_pool *p, bool on) { p->rehearses = on; }

bool tn_pool_rehearses(const tn_pool *p) { return p->rehearses; }
