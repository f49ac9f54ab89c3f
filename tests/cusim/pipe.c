/* pipe.c - what warps with work of their own tell each other: mbarriers, barriers of some of a block's warps,
 * bulk copies to device memory; what they order is order.c's.
 *
 * Read first: cusim_mbarrier_wait. */
#include "exec.h"

#include <stdlib.h>

enum { MBARRIERS = 64, NAMED = 16 };

typedef struct mbarrier {
    const void *at;
    unsigned all, pending, over; /* arrivals of a phase, those that are missing; phases that are over */
    sim_knowledge come, known;   /* of those that have arrived; the same when the last phase was over */
} mbarrier;

static mbarrier mbarriers[MBARRIERS];
static unsigned n_mbarriers;
static struct {
    unsigned threads, n;
    sim_knowledge come, known;
} named[NAMED];

typedef struct bulk {
    float *to;
    const float *from;
    unsigned bytes;
    bool add;
} bulk;

static struct {
    bulk one[8];
    unsigned n;
} asked[SIM_MAX_THREADS];

void sim_pipe_begin_block(void)
{
    n_mbarriers = 0;
    for (unsigned i = 0; i < NAMED; i++) named[i].n = 0;
    for (unsigned i = 0; i < SIM_MAX_THREADS; i++) asked[i].n = 0;
}

static mbarrier *find(const void *at, bool make)
{
    for (unsigned i = 0; i < n_mbarriers; i++)
        if (mbarriers[i].at == at) return &mbarriers[i];
    if (!make) sim_kernel_fault(TN_CU_LAUNCH_FAILED, "there is no mbarrier at %p", at);
    if (n_mbarriers == MBARRIERS) sim_kernel_fault(TN_CU_LAUNCH_FAILED, "more than %d mbarriers", MBARRIERS);
    mbarriers[n_mbarriers].at = at;
    return &mbarriers[n_mbarriers++];
}

SIM_API void cusim_mbarrier_open(void *at, int arrivals);
SIM_API void cusim_mbarrier_arrive(void *at);
SIM_API void cusim_mbarrier_arrive_copies(void *at);
SIM_API void cusim_mbarrier_wait(void *at, int parity, int line);
SIM_API void cusim_barrier_sync(int number, int threads, int line);
SIM_API void cusim_barrier_arrive(int number, int threads, int line);

void cusim_mbarrier_open(void *at, int arrivals)
{
    mbarrier *b = find(at, true);
    if (!sim_check_shared((uint64_t)(uintptr_t)at, 8) || (uintptr_t)at % 8)
        sim_kernel_fault(SIM_MISALIGNED, "no place for an mbarrier: %p", at);
    sim_check_access((uint64_t)(uintptr_t)at, 8, true);
    b->all = b->pending = (unsigned)arrivals;
    b->over = 0;
    sim_order_use();
    sim_order_forget(&b->come);
    sim_order_forget(&b->known);
}

static void wake(const void *at, sim_thread_state state)
{
    for (unsigned i = 0; i < block.n_threads; i++) {
        sim_thread *t = &block.thread[i];
        if (t->state == state && t->value == (uint64_t)(uintptr_t)at) sim_make_ready(t);
    }
}

static void arrive(mbarrier *b)
{
    sim_check_access((uint64_t)(uintptr_t)b->at, 8, false); /* behind its beginning */
    sim_order_release(&b->come);
    if (--b->pending) return;
    b->known = b->come;
    b->over++;
    b->pending = b->all;
    wake(b->at, SIM_AT_MBARRIER);
}

void cusim_mbarrier_arrive(void *at) { arrive(find(at, false)); }

void cusim_mbarrier_arrive_copies(void *at)
{
    sim_async_arrive(at);
    arrive(find(at, false));
}

void cusim_mbarrier_wait(void *at, int parity, int line)
{
    mbarrier *b = find(at, false);
    while ((b->over & 1) == (unsigned)parity) { /* the phase of that parity goes on */
        block.now->value = (uint64_t)(uintptr_t)at;
        sim_wait(SIM_AT_MBARRIER, line);
    }
    sim_check_access((uint64_t)(uintptr_t)at, 8, false);
    sim_order_acquire(&b->known);
    sim_async_deliver(at);
}

static bool come(int number, int threads)
{
    if (number < 1 || number >= NAMED || threads < 32 || threads % 32)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "barrier %d of %d threads", number, threads);
    sim_order_use();
    if (!named[number].n) sim_order_forget(&named[number].come);
    if (named[number].n && named[number].threads != (unsigned)threads)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "barrier %d of %d threads, and of %u", number, threads,
                         named[number].threads);
    named[number].threads = (unsigned)threads;
    sim_order_release(&named[number].come);
    if (++named[number].n < (unsigned)threads) return false;
    named[number].n = 0;
    named[number].known = named[number].come;
    wake(&named[number], SIM_AT_NAMED);
    return true;
}

void cusim_barrier_arrive(int number, int threads, int line)
{
    (void)line;
    come(number, threads);
}

void cusim_barrier_sync(int number, int threads, int line)
{
    if (!come(number, threads)) {
        block.now->value = (uint64_t)(uintptr_t)&named[number];
        sim_wait(SIM_AT_NAMED, line);
    }
    sim_order_acquire(&named[number].known);
}

/* ---- bulk ---- */

SIM_API void cusim_bulk(float *to, const float *from, int bytes, int add);
SIM_API void cusim_bulk_wait(void);
SIM_API void cusim_bulk_show(void);

static void look(const bulk *b)
{
    for (unsigned i = 0; i < b->bytes; i += 16) {
        const uint64_t from = (uint64_t)(uintptr_t)b->from + i;
        if (!sim_check_shared(from, 16))
            sim_kernel_fault(SIM_ILLEGAL_ADDRESS, "a bulk copy from %p, which is not in shared memory",
                             (const void *)(uintptr_t)from);
        sim_check_access(from, 16, false);
        if (!sim_check_shown(from, 16))
            sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                             "a bulk copy of what a thread wrote: no fence.proxy.async lies "
                             "between");
        sim_check_access((uint64_t)(uintptr_t)b->to + i, 16, true);
    }
}

void cusim_bulk(float *to, const float *from, int bytes, int add)
{
    const unsigned me = block.now->index;
    if (bytes < 16 || bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16)
        sim_kernel_fault(SIM_MISALIGNED, "a bulk copy of %d bytes from %p to %p", bytes, (const void *)from,
                         (void *)to);
    if (asked[me].n == 8) sim_kernel_fault(TN_CU_OUT_OF_MEMORY, "no memory for a bulk copy");
    if (block.now->acquired)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                         "a bulk copy behind what an atomic has told: no fence.proxy.async lies between");
    asked[me].one[asked[me].n] = (bulk){to, from, (unsigned)bytes, add};
    look(&asked[me].one[asked[me].n++]);
}

void cusim_bulk_wait(void)
{
    const unsigned me = block.now->index;
    for (unsigned i = 0; i < asked[me].n; i++) {
        const bulk *b = &asked[me].one[i];
        look(b);
        for (unsigned k = 0; k < b->bytes / sizeof(float); k++)
            b->to[k] = b->add ? b->to[k] + b->from[k] : b->from[k];
    }
    block.now->wrote_in_bulk |= asked[me].n > 0;
    asked[me].n = 0;
}

void cusim_bulk_show(void) { block.now->wrote_in_bulk = block.now->acquired = false; }
