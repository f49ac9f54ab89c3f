/* exec.h - the block that runs: its threads, and how they wait for one another.
 *
 * Blocks run one after the other. A thread runs on a fiber, a stack of its own, only for as long as it must:
 * one fiber runs thread after thread as plain calls, and only when a thread has to wait for others does it
 * keep its fiber, and another takes over the threads that have not begun. A kernel that never waits runs on
 * one fiber without a switch.
 *
 * Time within a block is a clock that each barrier and each warp collective advances. A thread remembers the
 * clock at its last block barrier (block_time) and at its last barrier or collective of any kind (warp_time);
 * what another thread did at an earlier time is visible to it (race.c). Its own accesses bear its `time`, which
 * goes on besides where it tells others what it did up to there (order.c).
 *
 * Read first: struct sim_block. */
#pragma once

#include "sim.h"

typedef struct sim_fiber sim_fiber;

typedef enum sim_thread_state {
    SIM_UNSTARTED,
    SIM_RUNNING,
    SIM_READY,       /* waited, and may go on */
    SIM_AT_BARRIER,  /* waits for the block */
    SIM_AT_WARP,     /* waits for lanes of its warp */
    SIM_AT_MBARRIER, /* `value`: which */
    SIM_AT_NAMED,    /* likewise, at a barrier of some warps */
    SIM_ENDED
} sim_thread_state;

/* As shim.h numbers them. */
typedef enum sim_collective {
    SIM_SYNC_WARP,
    SIM_BALLOT,
    SIM_ANY,
    SIM_ALL,
    SIM_SHUFFLE,
    SIM_SHUFFLE_UP,
    SIM_SHUFFLE_DOWN,
    SIM_SHUFFLE_XOR,
    SIM_MMA_TF32, /* from here on matrix.c's: all lanes, `value` points to what each has */
    SIM_MMA_F16,
    SIM_MMA_BF16,
    SIM_LDMATRIX,
    SIM_LDMATRIX_TRANS,
    SIM_WGMMA_F16, /* from here on wgmma.c's */
    SIM_WGMMA_BF16,
    SIM_WGMMA_OPEN,
    SIM_WGMMA_CLOSE,
    SIM_WGMMA_WAIT,
    SIM_WGMMA_NONE /* compiled for a GPU that has none */
} sim_collective;

typedef struct sim_thread {
    sim_thread_state state;
    unsigned index; /* within the block, x fastest; its warp is index / 32 */
    sim_fiber *fiber;
    int line; /* where it waits */
    /* of a collective: */
    sim_collective kind;
    unsigned lanes;
    uint64_t value, result;
    int lane, width;
    /* the order of accesses: of its own, and of its warp's and its block's before which they are over for it */
    uint32_t time, warp_time, block_time;
    uint32_t fence_time, fence_warp_time, fence_block_time; /* at its last __threadfence, plus 1; 0: none */
    uint32_t show_time, show_block_time;                    /* at its last fence.proxy.async, likewise */
    bool wrote_in_bulk, acquired; /* and no fence.proxy.async since: a bulk copy is done, an atomic was */
} sim_thread;

/* shim.h's built-in variables. */
extern SIM_API struct cusim_builtins {
    unsigned thread[3], block[3], threads[3], blocks[3];
} cusim_builtins;

typedef struct sim_block {
    const sim_op *op; /* the launch; NULL: no kernel runs */
    const sim_module *module;
    uint32_t launch;          /* number of the launch, never 0 */
    uint32_t serial;          /* number of the block among all that ever ran, never 0 */
    uint64_t index, n_blocks; /* of the block in the grid */
    unsigned n_threads;
    sim_thread thread[SIM_MAX_THREADS], *now;
    unsigned unstarted, first, step; /* threads yet to begin: how many, and the order */
    unsigned live, at_barrier, at_warp, ended;
    unsigned ready[SIM_MAX_THREADS], n_ready;
    uint32_t clock;
    bool failed, checked;
    char *dynamic; /* shared memory beside the module's own, of as many bytes as the launch asked for */
    char *stack, *stack_end; /* of the fiber that runs */
    uint64_t random;
} sim_block;

extern sim_block block;

/* ---- exec.c ---- */

/* The thread that runs waits until it is in the ready list and its turn has come. */
void sim_wait(sim_thread_state state, int line);
void sim_make_ready(sim_thread *t);
/* A fault of the kernel: the launch ends, the text names kernel, block and thread. Does not return. */
void sim_kernel_fault(tn_cu_result code, const char *fmt, ...) SIM_PRINTF(2, 3) __attribute__((noreturn));
unsigned sim_random(unsigned n); /* below n */
void sim_thread_name(char text[64], uint64_t block_index, unsigned thread);

/* ---- warp.c ---- */

void sim_warp_lane_ended(const sim_thread *t); /* a lane that others wait for will not come */

/* ---- matrix.c ---- */

/* The operation of the warp whose first lane is t, on what the lanes' values point to. */
void sim_warp_matrix(sim_collective kind, const sim_thread *t);
float sim_toward_zero(double x);

/* ---- wgmma.c ---- */

void sim_wgmma_begin_block(void);
void sim_warp_wgmma(sim_collective kind, const sim_thread *t); /* as sim_warp_matrix */
void sim_wgmma_lane_ended(const sim_thread *t);

/* ---- pipe.c ---- */

void sim_pipe_begin_block(void);

/* ---- order.c: what threads know of each other by other means than barriers of all and warps' operations ---- */

typedef struct sim_knowledge { /* of each thread's accesses: before which time they are over, */
    uint32_t over[SIM_MAX_THREADS], shown[SIM_MAX_THREADS]; /* and shown to the asynchronous proxy */
} sim_knowledge;

void sim_order_begin_block(void);
bool sim_order_used(void);
void sim_order_use(void);                          /* the block has such barriers */
void sim_order_release(sim_knowledge *to);         /* what the thread that runs did, and knows of */
void sim_order_acquire(const sim_knowledge *from); /* by it */
void sim_order_forget(sim_knowledge *of);
void sim_order_share(const sim_thread *first,
                     unsigned lanes); /* by a warp's operation; by a barrier of all */
void sim_order_share_all(void);
void sim_order_show(void);                            /* fence.proxy.async */
bool sim_order_over(uint32_t thread, uint32_t time);  /* for the thread that runs */
bool sim_order_shown(uint32_t thread, uint32_t time); /* likewise */

/* ---- async.c ---- */

/* What the thread has asked for arrives with the mbarrier, and has. */
void sim_async_arrive(const void *mbarrier);
void sim_async_deliver(const void *mbarrier);

void sim_async_begin_block(void);
/* Whether some of these bytes of shared memory await a cp.async. */
bool sim_async_pending(uint64_t at, unsigned bytes);

/* ---- check.c ---- */

bool sim_check_shared(uint64_t at, unsigned bytes);             /* all of it is the block's shared memory */
void sim_check_access(uint64_t at, unsigned bytes, bool write); /* as of the thread that runs */
bool sim_check_shown(uint64_t at, unsigned bytes); /* whatever was written there, to the asynchronous proxy */

/* ---- race.c ---- */

void sim_race_begin_launch(void);
void sim_race_begin_block(void);
void sim_race_end_launch(void);
