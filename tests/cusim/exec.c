/* exec.c - runs a kernel: blocks in shuffled order, threads on fibers.
 *
 * A fiber is a stack made once with makecontext; from then on switching costs a __builtin_longjmp, which
 * saves three words and makes no system call. A fiber calls the kernel's entry (shim.h: cusim_caller), which
 * calls cusim_next before each thread. Where no thread is left to begin, the fiber gives itself back and the
 * next one that can go on takes over. A fiber that was given back, or whose launch failed, starts anew from
 * its bottom frame; what lay above is forgotten, which code that owns nothing can bear.
 *
 * Read first: sim_run_launch, cusim_next, sim_wait. */
#include "exec.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 128 << 10, GUARD = 4096, JUMP_WORDS = 5 };

struct sim_fiber {
    void *bottom[JUMP_WORDS], *here[JUMP_WORDS];
    char *stack;
    ucontext_t context;
    sim_fiber *next;
    bool unused; /* in the list of free ones */
};

struct cusim_builtins cusim_builtins;
sim_block block;

static sim_fiber *free_fibers, *current;
static void *host[JUMP_WORDS];
static _Alignas(SIM_SHARED_ALIGN) char dynamic[SIM_SHARED_MOST];
static ucontext_t creator;

/* ---- switching ---- */

static __attribute__((noinline, noreturn)) void jump(void **to) { __builtin_longjmp(to, 1); }

static __attribute__((noinline, noreturn)) void fiber_main(void)
{
    sim_fiber *self = current;
    if (!__builtin_setjmp(self->bottom)) swapcontext(&self->context, &creator);
    block.op->launch.function->info->run(block.op->launch.parameter);
    jump(host); /* cusim_next only returns 0 where this is meant */
}

static sim_fiber *make_fiber(void)
{
    sim_fiber *volatile f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->stack = mmap(NULL, GUARD + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack + GUARD, STACK, PROT_READ | PROT_WRITE)) {
        free(f);
        return NULL;
    }
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack + GUARD;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, fiber_main, 0);
    sim_fiber *before = current;
    current = f;
    swapcontext(&creator, &f->context); /* until it has its bottom frame */
    current = before;
    return f;
}

static sim_fiber *take_fiber(void)
{
    sim_fiber *f = free_fibers;
    if (!f) return make_fiber();
    free_fibers = f->next;
    f->unused = false;
    return f;
}

static void give_back(sim_fiber *f)
{
    if (f->unused) return;
    f->unused = true;
    f->next = free_fibers;
    free_fibers = f;
}

static void run_on(sim_fiber *f)
{
    current = f;
    block.stack = f->stack + GUARD;
    block.stack_end = f->stack + GUARD + STACK;
}

static __attribute__((noinline)) void switch_from(sim_fiber *self, sim_fiber *to, bool anew)
{
    if (!__builtin_setjmp(self->here)) jump(anew ? to->bottom : to->here);
}

/* ---- threads ---- */

unsigned sim_random(unsigned n)
{
    uint64_t x = block.random += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (unsigned)((x >> 32) * n >> 32);
}

static void become(sim_thread *t)
{
    unsigned x = block.op->launch.block[0], y = block.op->launch.block[1];
    block.now = t;
    t->state = SIM_RUNNING;
    cusim_builtins.thread[0] = t->index % x;
    cusim_builtins.thread[1] = t->index / x % y;
    cusim_builtins.thread[2] = t->index / x / y;
}

static void start_thread(void)
{
    sim_thread *t = &block.thread[block.first];
    block.first = (block.first + block.step) % block.n_threads;
    block.unstarted--;
    t->fiber = current;
    become(t);
}

void sim_make_ready(sim_thread *t)
{
    t->state = SIM_READY;
    block.ready[block.n_ready++] = t->index;
}

static sim_thread *take_ready(void)
{
    unsigned i = sim.set.order ? 0 : sim_random(block.n_ready), index = block.ready[i];
    block.ready[i] = block.ready[--block.n_ready];
    return &block.thread[index];
}

static void give_up(void) __attribute__((noreturn));

/* Whether a thread that has not begun is next, or one that waited. */
static bool begin_another(void)
{
    if (!block.unstarted) return false;
    return !block.n_ready || sim.set.order || sim_random(4);
}

static void end_thread(sim_thread *t)
{
    t->state = SIM_ENDED;
    block.live--;
    block.ended++;
    block.now = NULL;
    if (block.at_barrier)
        for (unsigned i = 0; i < block.n_threads; i++)
            if (block.thread[i].state == SIM_AT_BARRIER) {
                block.now = t;
                sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                                 "divergent barrier: this thread left the kernel while thread %u waits at "
                                 "__syncthreads() in line %d",
                                 i, block.thread[i].line);
            }
    block.now = t;
    sim_wgmma_lane_ended(t);
    block.now = NULL;
    if (block.at_warp) sim_warp_lane_ended(t);
}

SIM_API int cusim_next(void);

int cusim_next(void)
{
    if (block.now) end_thread(block.now);
    if (begin_another()) {
        start_thread();
        return 1;
    }
    give_back(current);
    if (!block.live) jump(host);
    if (!block.n_ready) give_up();
    sim_thread *t = take_ready();
    become(t);
    run_on(t->fiber);
    jump(t->fiber->here);
}

void sim_wait(sim_thread_state state, int line)
{
    sim_thread *self = block.now;
    if (self->state != SIM_READY) self->state = state;
    self->line = line;
    if (begin_another()) {
        sim_fiber *f = take_fiber();
        if (!f) sim_kernel_fault(TN_CU_OUT_OF_MEMORY, "no memory for the stack of a thread");
        block.now = NULL;
        run_on(f);
        switch_from(self->fiber, f, true);
        return;
    }
    if (!block.n_ready) give_up();
    sim_thread *t = take_ready();
    become(t);
    if (t == self) return;
    run_on(t->fiber);
    switch_from(self->fiber, t->fiber, false);
}

/* ---- barriers ---- */

SIM_API void cusim_barrier(int line);

void cusim_barrier(int line)
{
    sim_thread *self = block.now;
    if (block.ended)
        sim_kernel_fault(
            TN_CU_LAUNCH_FAILED,
            "divergent barrier: this thread waits at __syncthreads() in line %d, %u of the block's "
            "threads have left the kernel",
            line, block.ended);
    if (++block.at_barrier < block.live) {
        sim_wait(SIM_AT_BARRIER, line);
        return;
    }
    sim_order_share_all();
    block.clock++;
    for (unsigned i = 0; i < block.n_threads; i++) {
        sim_thread *t = &block.thread[i];
        if (t != self && t->line != line)
            sim_kernel_fault(
                TN_CU_LAUNCH_FAILED,
                "divergent barrier: this thread waits at __syncthreads() in line %d, thread %u in "
                "line %d",
                line, i, t->line);
        t->time = t->warp_time = t->block_time = block.clock;
    }
    block.at_barrier = 0;
    for (unsigned i = 0; i < block.n_threads; i++) sim_make_ready(&block.thread[i]);
    sim_wait(SIM_AT_BARRIER, line);
}

/* ---- faults ---- */

void sim_thread_name(char text[64], uint64_t block_index, unsigned thread)
{
    snprintf(text, 64, "block %llu thread %u", (unsigned long long)block_index, thread);
}

void sim_kernel_fault(tn_cu_result code, const char *fmt, ...)
{
    char what[1024], where[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    sim_thread_name(where, block.index, block.now ? block.now->index : 0);
    sim_fault(code, "kernel %s, %s: %s", block.op->launch.function->info->name, where, what);
    block.failed = true;
    jump(host);
}

/* No thread can go on: some wait for what others will never do. */
static void give_up(void)
{
    const sim_thread *first = NULL;
    char text[512] = "";
    int groups = 0;
    for (unsigned i = 0; i < block.n_threads; i++) {
        const sim_thread *t = &block.thread[i];
        if (t->state < SIM_AT_BARRIER || t->state > SIM_AT_NAMED) continue;
        if (first && first->state == t->state && first->line == t->line && first->lanes == t->lanes) continue;
        first = t;
        size_t n = strlen(text);
        if (groups++ >= 4) continue;
        if (t->state == SIM_AT_BARRIER)
            snprintf(text + n, sizeof text - n, "%s thread %u at __syncthreads() in line %d", n ? "," : "", i,
                     t->line);
        else if (t->state != SIM_AT_WARP)
            snprintf(text + n, sizeof text - n, "%s thread %u at %s in line %d", n ? "," : "", i,
                     t->state == SIM_AT_MBARRIER ? "an mbarrier" : "a barrier of some warps", t->line);
        else
            snprintf(text + n, sizeof text - n,
                     "%s thread %u at a warp operation in line %d for lanes 0x%08x", n ? "," : "", i, t->line,
                     t->lanes);
    }
    block.now = first ? &block.thread[first->index] : NULL;
    sim_kernel_fault(TN_CU_LAUNCH_FAILED, "the block waits forever:%s", text);
}

/* ---- blocks ---- */

static unsigned divisor(unsigned a, unsigned b)
{
    while (b) {
        unsigned c = a % b;
        a = b;
        b = c;
    }
    return a;
}

/* A start and a step with which a walk round n meets each number once. */
static void shuffle(unsigned n, unsigned *first, unsigned *step)
{
    *first = 0;
    *step = 1;
    if (sim.set.order || n < 3) return;
    *first = sim_random(n);
    do *step = 1 + sim_random(n - 1);
    while (divisor(n, *step) != 1);
}

static __attribute__((noinline)) void enter(sim_fiber *f)
{
    if (!__builtin_setjmp(host)) jump(f->bottom);
}

static bool run_block(void)
{
    memset(block.module->shared, 0xff, (size_t)(block.module->shared_end - block.module->shared));
    memset(dynamic, 0xff, block.op->launch.shared_bytes);
    sim_async_begin_block();
    sim_wgmma_begin_block();
    sim_pipe_begin_block();
    sim_order_begin_block();
    for (unsigned i = 0; i < block.n_threads; i++)
        block.thread[i] = (sim_thread){.index = i, .time = 1, .warp_time = 1, .block_time = 1};
    shuffle(block.n_threads, &block.first, &block.step);
    block.unstarted = block.live = block.n_threads;
    block.at_barrier = block.at_warp = block.ended = block.n_ready = 0;
    block.now = NULL;
    block.clock = 1;
    if (!++block.serial) block.serial = 1;
    sim_race_begin_block();
    sim_fiber *f = take_fiber();
    if (!f) {
        sim_fault(TN_CU_OUT_OF_MEMORY, "no memory for the stack of a thread");
        return false;
    }
    run_on(f);
    enter(f);
    return !block.failed;
}

/* Fibers whose threads waited when the launch failed. */
static void collect_fibers(void)
{
    if (current) give_back(current);
    for (unsigned i = 0; i < block.n_threads; i++) {
        const sim_thread *t = &block.thread[i];
        if (t->state != SIM_ENDED && t->state != SIM_UNSTARTED) give_back(t->fiber);
    }
}

void sim_run_launch(const sim_op *op)
{
    const unsigned *grid = op->launch.grid, *threads = op->launch.block;
    sim.count.launches++;
    uint64_t number = ++sim.launches_ever;
    if (sim_setting_due(sim.set.launch, sim.launch_from, number)) {
        sim_fault(TN_CU_LAUNCH_FAILED, "kernel %s failed, as cusim_set asked for",
                  op->launch.function->info->name);
        return;
    }
    block.op = op;
    block.module = op->launch.function->module;
    block.launch = (uint32_t)number ? (uint32_t)number : 1;
    block.n_blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    block.n_threads = threads[0] * threads[1] * threads[2];
    if (block.n_threads > sim.count.largest_block) sim.count.largest_block = block.n_threads;
    block.checked = sim.set.check && block.module->checked;
    block.failed = false;
    block.dynamic = dynamic;
    block.random = (uint64_t)sim.set.seed * 1000003 + number;
    for (int i = 0; i < 3; i++) cusim_builtins.threads[i] = threads[i], cusim_builtins.blocks[i] = grid[i];
    sim.count.blocks += block.n_blocks;
    sim.count.threads += block.n_blocks * block.n_threads;
    unsigned first, step, n = block.n_blocks > UINT32_MAX ? UINT32_MAX : (unsigned)block.n_blocks;
    shuffle(n, &first, &step);
    sim_race_begin_launch();
    uint64_t ticks = 0, at = first;
    for (unsigned i = 0; i < n; i++, at = (at + step) % n) {
        block.index = at;
        cusim_builtins.block[0] = (unsigned)(at % grid[0]);
        cusim_builtins.block[1] = (unsigned)(at / grid[0] % grid[1]);
        cusim_builtins.block[2] = (unsigned)(at / grid[0] / grid[1]);
        bool good = run_block();
        ticks += block.clock;
        if (good) continue;
        collect_fibers();
        break;
    }
    if (sim.set.slow && (long long)op->launch.shared_bytes >= sim.set.slow) ticks *= 1000;
    sim.clock += 2e-6 + 1e-9 * (double)ticks / (double)sim.set.processors;
    sim_race_end_launch();
    block.op = NULL;
    block.now = NULL;
}
