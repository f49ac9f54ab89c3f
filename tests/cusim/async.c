/* async.c - cp.async: copies from device memory to shared memory that arrive when they are waited for.
 *
 * Hardware may deliver them at any time up to the wait. Here that is always the wait, so that what is read
 * before is never there by luck: the place is NaN from the instruction on, and touching it is a fault. The
 * source is looked at when the instruction is given and read at the wait, its address being checked at both.
 *
 *   copy    one instruction of one thread, with the number of the group it belongs to
 *   pending one byte for each four of shared memory: a copy is on its way there
 *
 * Read first: cusim_copy_async. */
#include "exec.h"

#include <stdlib.h>

typedef struct copy {
    char *to;
    const char *from;
    unsigned bytes, given, group;
    const void *mbarrier; /* that it arrives with; NULL: none yet */
    uint32_t time;        /* of the thread, when that was said */
} copy;

typedef struct copies { /* of one thread, oldest first */
    copy *copy;
    unsigned n, room, groups; /* committed so far */
} copies;

static copies of_thread[SIM_MAX_THREADS];
static unsigned char pending[SIM_SHARED_BYTES / 4], pending_dynamic[SIM_SHARED_MOST / 4];
static bool used; /* since the block began */

void sim_async_begin_block(void)
{
    if (!used) return;
    for (int i = 0; i < SIM_MAX_THREADS; i++) of_thread[i].n = of_thread[i].groups = 0;
    memset(pending, 0, sizeof pending);
    memset(pending_dynamic, 0, sizeof pending_dynamic);
    used = false;
}

static unsigned char *mark(uint64_t at)
{
    const char *p = (const char *)(uintptr_t)at;
    if (p >= block.dynamic && p < block.dynamic + SIM_SHARED_MOST)
        return &pending_dynamic[(p - block.dynamic) / 4];
    return &pending[(p - block.module->shared) / 4];
}

bool sim_async_pending(uint64_t at, unsigned bytes)
{
    if (!used) return false;
    for (const unsigned char *m = mark(at), *last = mark(at + bytes - 1); m <= last; m++)
        if (*m) return true;
    return false;
}

SIM_API char *cusim_dynamic_shared(void);
SIM_API void cusim_copy_async(void *to, const void *from, unsigned bytes, unsigned given);
SIM_API void cusim_copy_commit(void);
SIM_API void cusim_copy_wait(unsigned groups);

char *cusim_dynamic_shared(void) { return block.dynamic; }

/* `bytes` arrive: the first `given` are those at `from`, the others 0. */
void cusim_copy_async(void *to, const void *from, unsigned bytes, unsigned given)
{
    copies *c = &of_thread[block.now->index];
    const uint64_t at = (uint64_t)(uintptr_t)to, source = (uint64_t)(uintptr_t)from;
    if (bytes != 4 && bytes != 8 && bytes != 16)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "a cp.async of %u bytes; there are 4, 8 and 16", bytes);
    if (given > bytes)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "a cp.async of %u bytes is given %u", bytes, given);
    if (at % bytes || source % bytes)
        sim_kernel_fault(SIM_MISALIGNED, "a cp.async of %u bytes from %p to %p", bytes, from, to);
    if (!sim_check_shared(at, bytes))
        sim_kernel_fault(SIM_ILLEGAL_ADDRESS, "a cp.async to %p, which is not in shared memory", to);
    if (given) sim_check_access(source, given, false);
    sim_check_access(at, bytes, true);
    if (c->n == c->room) {
        unsigned room = c->room ? 2 * c->room : 32;
        copy *more = realloc(c->copy, room * sizeof *more);
        if (!more) sim_kernel_fault(TN_CU_OUT_OF_MEMORY, "no memory for a cp.async");
        c->copy = more;
        c->room = room;
    }
    c->copy[c->n++] = (copy){to, from, bytes, given, c->groups, NULL, 0};
    memset(to, 0xff, bytes);
    memset(mark(at), 1, bytes / 4);
    used = true;
}

void cusim_copy_commit(void) { of_thread[block.now->index].groups++; }

static void deliver(const copy *one)
{
    const uint64_t at = (uint64_t)(uintptr_t)one->to;
    memset(mark(at), 0, one->bytes / 4);
    if (one->given) sim_check_access((uint64_t)(uintptr_t)one->from, one->given, false);
    sim_check_access(at, one->bytes, true);
    memcpy(one->to, one->from, one->given);
    memset(one->to + one->given, 0, one->bytes - one->given);
}

static void forget(copies *c, unsigned done)
{
    c->n -= done;
    if (c->n && done) memmove(c->copy, c->copy + done, c->n * sizeof *c->copy);
}

/* All but the last `groups` groups that were committed have arrived. */
void cusim_copy_wait(unsigned groups)
{
    copies *c = &of_thread[block.now->index];
    unsigned done = 0;
    for (; done < c->n && c->copy[done].group + groups < c->groups; done++) deliver(&c->copy[done]);
    forget(c, done);
}

void sim_async_arrive(const void *mbarrier)
{
    copies *c = &of_thread[block.now->index];
    for (unsigned i = 0; i < c->n; i++)
        if (!c->copy[i].mbarrier) c->copy[i].mbarrier = mbarrier, c->copy[i].time = block.now->time;
}

/* Each as of the thread that asked for it. */
void sim_async_deliver(const void *mbarrier)
{
    sim_thread *const now = block.now;
    if (!used) return;
    for (unsigned i = 0; i < block.n_threads; i++) {
        copies *c = &of_thread[i];
        unsigned done = 0;
        block.now = &block.thread[i];
        for (unsigned k = 0; k < c->n; k++) /* in order: what was asked for before has arrived too */
            if (c->copy[k].mbarrier == mbarrier) done = k + 1;
        const uint32_t time = block.now->time;
        for (unsigned k = 0; k < done; k++) {
            if (c->copy[k].mbarrier) block.now->time = c->copy[k].time;
            deliver(&c->copy[k]);
        }
        block.now->time = time;
        forget(c, done);
    }
    block.now = now;
}
