/* sim.h - the state of the simulated GPU, shared by the simulator's files.
 *
 * There is one GPU in a process, so there is one struct sim, behind one lock: a call from any thread holds
 * it from beginning to end (SIM_ENTER), work runs in the thread of the call that waits for it.
 *
 *   sim_region    a piece of device memory, pinned memory or freed memory (memory.c)
 *   sim_op        one piece of work: a launch, a copy, a product, an event (queue.c)
 *   sim_stream    a queue of these that runs when somebody waits for it
 *   sim_function  a kernel of a loaded module (module.c)
 *   sim_thread    a thread of the block that runs (exec.h)
 *
 * Read first: struct sim. */
#pragma once

#include "src/device/cuda/api.h"

#include "constants.h"
#include "cusim.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_API          __attribute__((visibility("default")))
#define SIM_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* The functions of the three libraries, with the signatures the loader believes in. */
#define TN_CU(library, result, name, parameters) SIM_API result name parameters;
#include "src/device/cuda/api.def"

enum {
    SIM_GRANULARITY = 2 << 20,
    SIM_MAX_THREADS = 1024,      /* of a block */
    SIM_SHARED_BYTES = 48 << 10, /* of a block; */
    SIM_SHARED_MOST = 227 << 10, /* of one whose kernel asked for more: on any GPU */
    SIM_SHARED_ALIGN = 1024,     /* of the dynamic array, up to which what stands before it is filled up */
    SIM_PARAMETER_BYTES = 4096,
    SIM_DEVICES = 8
};

/* ---- settings ---- */

/* X(member, its name in cusim_set). */
#define SIM_SETTINGS(X)                                                                                      \
    X(no_device, "no-device")                                                                                \
    X(driver, "driver")                                                                                      \
    X(nvrtc, "nvrtc")                                                                                        \
    X(compile, "compile")                                                                                    \
    X(launch, "launch")                                                                                      \
    X(lost, "lost")                                                                                          \
    X(matmul, "matmul")                                                                                      \
    X(unsupported, "unsupported")                                                                            \
    X(memory, "memory")                                                                                      \
    X(host_memory, "host-memory")                                                                            \
    X(no_virtual, "no-virtual")                                                                              \
    X(shared_most, "shared-most")                                                                            \
    X(processors, "processors")                                                                              \
    X(capability, "capability")                                                                              \
    X(check, "check")                                                                                        \
    X(seed, "seed")                                                                                          \
    X(order, "order")                                                                                        \
    X(real, "real")                                                                                          \
    X(quiet, "quiet")                                                                                        \
    X(spill, "spill")                                                                                        \
    X(slow, "slow")                                                                                          \
    X(devices, "devices")                                                                                    \
    X(oldest_arch, "oldest-arch")                                                                            \
    X(newest_arch, "newest-arch")
typedef struct sim_settings {
#define SIM_X(member, name) long long member;
    SIM_SETTINGS(SIM_X)
#undef SIM_X
} sim_settings;

/* ---- memory ---- */

typedef struct sim_cell sim_cell; /* race.h: who touched four bytes last */

typedef enum sim_region_kind { SIM_DEVICE, SIM_MAPPED, SIM_PINNED, SIM_FREED } sim_region_kind;

typedef struct sim_region {
    uint64_t base, bytes;    /* what the program asked for */
    uint64_t map, map_bytes; /* whole pages around it */
    sim_region_kind kind;
    bool access;                   /* kernels may touch it */
    struct sim_physical *physical; /* of a mapping */
    sim_cell *cells;               /* one for each four bytes, mapped when first needed */
} sim_region;

typedef struct sim_reservation {
    uint64_t base, bytes;
    struct sim_reservation *next;
} sim_reservation;

/* Physical memory of cuMemCreate: a file in memory, so that what it holds outlives a mapping. */
typedef struct sim_physical {
    int file;
    uint64_t bytes;
    int references; /* the handle, and each mapping */
    struct sim_physical *next;
} sim_physical;

/* ---- code ---- */

typedef struct sim_kernel_info { /* as shim.h writes it into each module */
    const char *name;
    void (*run)(void **parameters);
    const unsigned *parameter_bytes; /* of each, then 0 */
    unsigned max_threads;            /* of __launch_bounds__, or 0 */
    const void *address;             /* of the kernel */
} sim_kernel_info;

typedef struct CUmod_st sim_module;
typedef struct CUfunc_st sim_function;
struct CUfunc_st {
    const sim_kernel_info *info;
    sim_module *module;
    unsigned n_parameters, parameters_bytes;
    unsigned dynamic_most; /* shared bytes that a launch may ask for beside the module's own; 0: not said */
};
struct CUmod_st {
    void *library;
    int references; /* the program's, and of work and graphs that use it */
    sim_function *function;
    int n_functions;
    char *shared, *shared_end; /* the section of __shared__ variables */
    char *image, *image_end;   /* where the module lies */
    bool checked;              /* compiled with checks */
    sim_module *next;
};

/* ---- work ---- */

typedef struct CUstream_st sim_stream;
typedef struct CUevent_st sim_event;
typedef struct CUgraph_st sim_graph;

typedef enum sim_op_kind {
    SIM_LAUNCH,
    SIM_COPY,
    SIM_FILL,
    SIM_MATMUL,
    SIM_RECORD,
    SIM_WAIT,
    SIM_HOST,
    SIM_GRAPH
} sim_op_kind;
typedef enum sim_copy_kind { SIM_TO_DEVICE, SIM_TO_HOST, SIM_ON_DEVICE } sim_copy_kind;

typedef struct sim_matrix {
    uint64_t at;
    unsigned type;
    int64_t rows, columns, leading, batch, stride;
    bool row_order;
} sim_matrix;

typedef struct sim_product { /* D = epilogue(alpha op(A) op(B) + beta C) */
    sim_matrix a, b, c, d;
    bool transpose_a, transpose_b, double_precision;
    bool tf32; /* operands are rounded to it */
    unsigned epilogue;
    uint64_t bias;
    unsigned bias_type;
    double alpha, beta;
    uint64_t workspace, workspace_bytes;
} sim_product;

typedef struct sim_op {
    sim_op_kind kind;
    int references; /* queues and graphs that hold it */
    struct {
        sim_function *function;
        unsigned grid[3], block[3], shared_bytes;
        void **parameter;
    } launch;
    struct {
        sim_copy_kind kind;
        uint64_t to, from;
        size_t bytes;
        unsigned char value; /* of a fill */
        void *staged;        /* pageable memory's content at the call */
    } copy;
    struct {
        void (*function)(void *user);
        void *user;
    } host;
    double at; /* by the clock of events, when the host submitted it: it cannot have run before */
    sim_product *product;
    sim_event *event;
    uint64_t ticket; /* of the event's record */
    sim_graph *graph;
} sim_op;

typedef struct sim_ops {
    sim_op **op;
    size_t n, room;
} sim_ops;

struct CUstream_st {
    sim_ops queue; /* from `next` on still to do */
    size_t next;
    bool blocking; /* takes part in the default stream's order */
    sim_graph *capture;
    bool origin, invalid; /* of the capture: began here; broken by a call that is not allowed */
    bool joined;          /* a stream that came in later: what it captured is waited for */
    uint64_t captured;    /* calls it put into the capture */
    unsigned mode;
    pthread_t thread; /* that began the capture */
    struct CUstream_st *list;
};

struct CUevent_st {
    bool timing;
    bool recorded, in_capture;
    uint64_t captured;     /* of its stream, when it was recorded */
    sim_stream *stream;    /* where it was recorded last */
    sim_graph *capture;    /* recorded inside this one */
    uint64_t ticket, done; /* the last record; the last that ran */
    double time;           /* seconds, when it ran */
    struct CUevent_st *list;
};

struct CUgraph_st {
    sim_ops ops; /* in the order of the calls, which every order that is allowed agrees with */
    int references;
    bool handle; /* the program has not destroyed it */
    struct CUgraph_st *list;
};
struct CUgraphExec_st {
    sim_graph *graph;
    struct CUgraphExec_st *list;
};

/* ---- all of it ---- */

typedef struct sim_state {
    pthread_mutex_t lock;
    bool started; /* cuInit was called */
    int contexts; /* references to primary contexts, of all devices */
    int held[SIM_DEVICES];
    double host;         /* the host's time on the clock of events: each call that submits work takes some */
    tn_cu_result sticky; /* after a fault of a kernel everything fails with it */
    char report[2048];
    sim_settings set;
    double clock; /* seconds, that events show */
    struct cusim_counters count;
    uint64_t launches_ever, compiles_ever, matmuls_ever, tickets; /* not reset */
    uint64_t launch_from, compile_from, matmul_from;              /* where the settings began to count */

    sim_region **region; /* sorted by base */
    size_t n_regions, regions_room;
    sim_reservation *reservations;
    sim_physical *physicals;
    uint64_t host_bytes;
    int memory_open; /* kernels or copies run: device memory can be touched */
    bool left_open;  /* as it can although nothing runs */
    uint64_t closings;

    sim_stream null_stream, *streams;
    sim_event *events;
    sim_graph *graphs;
    struct CUgraphExec_st *execs;
    sim_module *modules;
} sim_state;

extern sim_state sim;

/* ---- numbers ---- */

static inline void *sim_pointer(uint64_t at) { return (void *)(uintptr_t)at; }

static inline float sim_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t sim_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float sim_from_half(uint16_t h)
{
    const uint32_t magnitude = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) return sim_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    float x = sim_float(magnitude << 13) * 0x1p112f;
    return sign ? -x : x;
}

/* ---- driver.c ---- */

/* Locks; the code to return if the call cannot go on. A call that needs no context says so. */
tn_cu_result sim_enter(bool context);
tn_cu_result sim_leave(tn_cu_result r);
#define SIM_ENTER() SIM_PASS(sim_enter(true))
#define SIM_PASS(result)                                                                                     \
    do {                                                                                                     \
        tn_cu_result refused = (result);                                                                     \
        if (refused) return sim_leave(refused);                                                              \
    } while (0)

/* A kernel's fault: printed, kept for cusim_report, and what everything fails with from now on. */
void sim_fault(tn_cu_result code, const char *fmt, ...) SIM_PRINTF(2, 3);
bool sim_has_context(void);
int sim_device(void); /* whose context is the calling thread's; -1: none */
bool sim_setting_due(long long nth, uint64_t from, uint64_t now); /* the nth since `from` is `now` */
uint64_t sim_live_objects(void);

/* ---- memory.c ---- */

/* The region that contains [at, at + bytes), or NULL. */
sim_region *sim_find(uint64_t at, uint64_t bytes);
sim_region *sim_find_near(uint64_t at); /* the last that begins at or before `at` */
sim_region *sim_find_pinned(const void *at, size_t bytes);
void sim_memory_open(void); /* calls nest */
void sim_memory_close(void);
void sim_memory_forget(void);                             /* everything, with the context */
bool sim_memory_holds(uint64_t at, uint64_t bytes);       /* all of it device or pinned memory */
void sim_describe(uint64_t at, char *text, size_t bytes); /* "4 bytes past the end of ..." */
uint64_t sim_memory_live(void);

/* ---- check.c ---- */

void sim_check_forget(void); /* regions changed */

/* ---- queue.c ---- */

sim_op *sim_op_new(sim_op_kind kind);
void sim_op_drop(sim_op *op);
bool sim_ops_add(sim_ops *l, sim_op *op); /* takes a reference */
void sim_ops_clear(sim_ops *l, size_t from);
sim_stream *sim_stream_of(tn_cu_stream s); /* NULL: the default stream */
/* Puts it into the stream's queue, or into the graph it captures. Takes op over. */
tn_cu_result sim_submit(sim_stream *s, sim_op *op);
tn_cu_result sim_run_stream(sim_stream *s); /* all of it */
tn_cu_result sim_run_all(void);
void sim_queue_forget(void);
tn_cu_result sim_run_op(const sim_op *op);

/* ---- graph.c ---- */

tn_cu_result sim_unsafe_call(void); /* the error if something captures that forbids this call */
tn_cu_result sim_capture_event(sim_event *e, sim_stream *s); /* records it in the capture of s */
tn_cu_result sim_capture_wait(sim_stream *s, sim_event *e, bool *handled); /* of work that is captured */
void sim_graph_drop(sim_graph *g);
void sim_graph_forget(void);

/* ---- module.c ---- */

void sim_module_drop(sim_module *m);
void sim_module_forget(void);

/* ---- exec.c, blaslt_run.c ---- */

void sim_run_launch(const sim_op *op); /* sets sim.sticky on a fault */
void sim_run_product(const sim_product *p);
