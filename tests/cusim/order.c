/* order.c - what the threads of a block know of each other by mbarriers and by barriers of some warps (pipe.c):
 * which accesses of each other thread are over, and which of them a fence.proxy.async has shown to the
 * asynchronous proxy on their way.
 *
 * A thread that arrives leaves what it did, and what it knows of others, with the barrier; who has waited for
 * that knows it too. From then on the thread's accesses bear a later time. Knowledge that came by barriers of
 * all, or within a warp, is not kept here but where it applies (race.c: seen); it is handed on from here.
 *
 * Read first: sim_order_release.
 */
#include "exec.h"

static sim_knowledge of_thread[SIM_MAX_THREADS];
static uint32_t shown_to_all[SIM_MAX_THREADS]; /* that a barrier of all came behind */
static bool news[SIM_MAX_THREADS];             /* since the lanes of its warp did something together */
static bool used;                              /* since the block began */

void sim_order_begin_block(void) { used = false; }

bool sim_order_used(void) { return used; }

void sim_order_use(void)
{
    if (used) return;
    used = true;
    for (unsigned i = 0; i < block.n_threads; i++) sim_order_forget(&of_thread[i]);
    memset(news, 0, sizeof news);
    memset(shown_to_all, 0, sizeof shown_to_all);
}

void sim_order_forget(sim_knowledge *of)
{
    memset(of->over, 0, block.n_threads * sizeof *of->over);
    memset(of->shown, 0, block.n_threads * sizeof *of->shown);
}

static void raise(uint32_t *to, const uint32_t *from)
{
    for (unsigned i = 0; i < block.n_threads; i++)
        if (to[i] < from[i]) to[i] = from[i];
}

/* The lanes of the thread's warp, in whose accesses before `time` it takes part. */
static void raise_warp(uint32_t *to, const sim_thread *t, uint32_t time)
{
    const unsigned first = t->index / 32 * 32;
    for (unsigned i = first; i < first + 32 && i < block.n_threads; i++)
        if (to[i] < time) to[i] = time;
}

void sim_order_release(sim_knowledge *to)
{
    sim_thread *me = block.now;
    sim_knowledge *own = &of_thread[me->index];
    raise_warp(own->over, me, me->warp_time);
    own->over[me->index] = me->time + 1;
    raise(to->over, own->over);
    raise(to->shown, own->shown);
    me->time = ++block.clock;
}

void sim_order_acquire(const sim_knowledge *from)
{
    raise(of_thread[block.now->index].over, from->over);
    raise(of_thread[block.now->index].shown, from->shown);
    news[block.now->index] = true;
}

void sim_order_share(const sim_thread *first, unsigned lanes)
{
    static sim_knowledge all;
    bool any = false;
    if (!used) return;
    for (unsigned l = 0; l < 32; l++) any |= lanes >> l & 1 && news[first->index + l];
    if (!any) return;
    sim_order_forget(&all);
    for (unsigned l = 0; l < 32; l++)
        if (lanes >> l & 1) {
            raise(all.over, of_thread[first->index + l].over);
            raise(all.shown, of_thread[first->index + l].shown);
        }
    for (unsigned l = 0; l < 32; l++)
        if (lanes >> l & 1) {
            of_thread[first->index + l] = all;
            news[first->index + l] = false;
        }
}

void sim_order_share_all(void)
{
    if (!used) return;
    for (unsigned i = 0; i < block.n_threads; i++) raise(shown_to_all, of_thread[i].shown);
}

void sim_order_show(void)
{
    sim_thread *me = block.now;
    if (!used) return;
    sim_knowledge *own = &of_thread[me->index];
    raise(own->shown, own->over);
    raise_warp(own->shown, me, me->warp_time);
    own->shown[me->index] = me->time + 1;
    news[me->index] = true;
}

bool sim_order_over(uint32_t thread, uint32_t time)
{
    return used && time < of_thread[block.now->index].over[thread];
}

bool sim_order_shown(uint32_t thread, uint32_t time)
{
    return used && (time < of_thread[block.now->index].shown[thread] || time < shown_to_all[thread]);
}
