/* plan.h - from a segment of the step graph to a list of launches.
 *
 * A segment is what one flush has to run: nodes in id order, and the leaves they read. A plan names them by
 * slot, never by pointer, so that it can be replayed on another segment with the same record:
 *
 *   slot 0 .. n_node-1                      the segment's nodes, in order
 *   slot n_node .. n_node+n_leaf-1          its leaves: nodes that have a value already (views with their
 *                                           strides), or NUMBERs
 *   slot n_node+n_leaf ..                   scratch buffers of the plan
 *
 * Read first: tn_plan_build in plan.c, which runs the passes in order: simplify, group, schedule, emit.
 */
#pragma once

#include "../src/core/graph.h"
#include "../src/device/device.h"

typedef struct tn_segment {
    tn_graph *graph;
    tn_tensor **node; /* in id order; VIEW nodes whose base is another node only as leaves or inputs */
    int n_node;
    tn_tensor **leaf;
    int n_leaf;
    const uint8_t *root; /* of each node: TN_SEG_ROOT, TN_SEG_KEEP or 0 */
    const int *twin; /* of each leaf: the first one that looks at the same elements of the same memory, or is
                        the same run-time number; NULL: every leaf is taken for another */
    bool unguarded;  /* run-time numbers have changed before: none is folded */
} tn_segment;

enum {
    TN_SEG_ROOT = 1,   /* must have a value in memory afterwards */
    TN_SEG_KEEP = 2,   /* if it gets one, that outlives the plan */
    TN_SEG_ALONE = 4,  /* shares its kernel with no other node: a group with it was found wrong */
    TN_SEG_AGAIN = 16, /* makes again what a checkpoint does not keep: is no forward node's value */
    TN_SEG_LEAN = 8    /* its kernel asked for more registers than there are: keep less in them */
};

typedef enum tn_step_kind {
    TN_STEP_KERNEL,
    TN_STEP_GEMM,
    TN_STEP_CONV,
    TN_STEP_RANKS,
    TN_STEP_HOST
} tn_step_kind;

/* dim of a step of ranks: elements of the whole, their bytes, a tn_together, lines of the whole. */
enum { TN_RANKS_ALL, TN_RANKS_SIZE, TN_RANKS_HOW, TN_RANKS_LINES };

typedef struct tn_step {
    tn_step_kind kind;
    char name[64];    /* what it does: "gelu_4096", "softmax_768", "matmul" */
    const char *does; /* the same at length, for the user, where it is more than its operators say; or NULL */
    tn_source
        source; /* KERNEL, and a GEMM that hands its result to one (then): owned by the plan. Else NULL */
    tn_kernel *kernel; /* filled by the runtime after compiling */
    int n_buf;
    int *buf; /* slots whose first element's address, moved on by offset[i] elements of the slot's dtype,
                 becomes args.buf[i], outputs included. GEMM: a, b, bias or -1, c; or a, b, -1 and
                 what its kernel reads and writes.
                 CONV: in0, in1, bias or -1, out. RANKS: in, out, dense; dim is TN_RANKS_.. HOST: its
                 node's operands, dense, and out */
    int64_t *offset;
    int n_out; /* the last n_out of them are written */
    int n_dim;
    int64_t *dim; /* args.dim */
    int n_scalar;
    struct tn_scalar_ref {
        int slot; /* of a NUMBER leaf or of a RANDOM node */
        enum { TN_WORD_F64, TN_WORD_I64, TN_WORD_SEED, TN_WORD_DRAW } what;
    } * scalar;   /* args.scalar[i] */
    tn_grid grid; /* device->launch */
    const struct fu_conv_tile
        *tile; /* KERNEL: how `conv` is cut into tiles (conv_tile.h); NULL: it is none */
    union {
        tn_gemm gemm;        /* pointers unset */
        tn_conv2d_desc conv; /* pointers unset; of a KERNEL with a tile: what it computes */
    };
    /* Slots that may lie in one place if no later step reads `from`: this one reads each element of it only
       where it then writes the element of `to` at the same place, of the same size. */
    struct tn_over {
        int from, to;
    } * over;
    int n_over;
    int64_t bytes; /* read and written at least: each operand once */
    struct tn_traffic {
        int64_t bytes;
        bool past; /* the caches */
    } * traffic;   /* of each operand; all 0: not known */
    double flops;
    double work; /* KERNEL: instructions for an element; 0: not known */
    struct {
        int64_t bytes;
        double work;
    } finish;   /* KERNEL: how much of both its finish reads and computes */
    bool early; /* KERNEL: a sum made beforehand, so that gradients need not wait for the rest of its call */
    double predicted_ms;
    int first_node, n_nodes; /* into tn_plan.node_of: which nodes this step computes */
} tn_step;

/* Why two nodes with an edge between them are computed by different kernels, and what would help. X(name,
 * could be done away with, text, remedy) */
#define TN_CUT_REASONS(X)                                                                                    \
    X(NONE, false, "not cut", "none needed")                                                                 \
    X(WRONG, true, "checked mode found their kernel wrong",                                                  \
      "none in the program: report the kernel, its source is in the kernel cache")                           \
    X(LIBRARY, false, "one side is a library call",                                                          \
      "none needed: products and convolutions run at the library's speed")                                   \
    X(TILE, false,                                                                                           \
      "a product's or a convolution's kernel takes along only what belongs to one element, or one column, "  \
      "of its result",                                                                                       \
      "none needed: the rest is one pass over what it reads or writes")                                      \
    X(ATTENTION, true, "attention that its one kernel does not take: the scores stand in memory",            \
      "f32, f16 or bf16, heads up to 256 wide, values as wide as keys, a mask without gradient, at most "    \
      "two "                                                                                                 \
      "axes in front; written out, all in one chain (tn_scaled_dot_product_attention in tensor_ops.h)")      \
    X(OWN_KERNEL, true, "one side has a kernel of its own",                                                  \
      "none for pooling, scatter, running sums, padding; do without it, or bring it to the end")             \
    X(CYCLE, true, "another kernel between the two depends on the first and feeds the second",               \
      "take the value in between from elsewhere, or compute it after the second")                            \
    X(SHAPES, true, "the two do not loop over one space",                                                    \
      "give both the same shape, or bring the reshape or transpose to the end")                              \
    X(EMPTY, false, "one side has no elements", "none needed: there is nothing to compute")                  \
    X(SLICED, true, "the value is read through a slice", "slice the operands instead of the result")         \
    X(GATHERED, true, "the value is read at computed positions",                                             \
      "compute after the gather, on the rows it picks")                                                      \
    X(REDUCED_AXES, true, "the two reduce different axes",                                                   \
      "reduce over the same axes, or reduce the second from the first's result")                             \
    X(SHORT, false, "many short rows are computed side by side, which a sum over the rows would forbid",     \
      "none needed: another pass over what is small takes less")                                             \
    X(JOINED, true, "a reduction would look for each element which of the joined values it is of",           \
      "reduce the values that are joined, and then their results")                                           \
    X(SLOWER, true, "in one kernel both would loop over a few elements at a time, or jump in memory",         \
      "bring the reshape, transpose or slice between them to the end")                                       \
    X(SPLIT, true, "the reduction is split among many parts and what follows needs all of them",             \
      "none for one long sum; sums over rows leave each row to one thread")                                  \
    X(REPEATED, true, "the value would be written several times",                                            \
      "compute it before it is broadcast, or use it in the shape it has")                                    \
    X(ALIAS, true, "an assignment would overwrite what the kernel still reads",                              \
      "assign after the last read of the old value")                                                         \
    X(UNCHECKED, false, "an assignment waits until computed indices are known to be in range",               \
      "none needed: one kernel would assign some elements before it finds a bad index")                      \
    X(RANDOM, true, "random numbers do not run along the vectorised axis",                                   \
      "draw the numbers in the shape they are used in")                                                      \
    X(BACKWARD, false, "forward would have to keep it for the backward pass, which can make it itself",      \
      "none needed: keeping it would move more")                                                             \
    X(SIZE, false, "the kernel would be too large", "none needed: a larger kernel would spill its registers")

typedef enum tn_cut_reason {
#define TN_X(name, removable, text, remedy) TN_CUT_##name,
    TN_CUT_REASONS(TN_X)
#undef TN_X
} tn_cut_reason;
const char *tn_cut_text(tn_cut_reason r);
const char *tn_cut_remedy(tn_cut_reason r);
bool tn_cut_removable(tn_cut_reason r); /* by a change of the program */

typedef struct tn_cut {
    int from, to; /* segment nodes */
    tn_cut_reason reason;
    double saves_ms; /* predicted, if it were not there; negative: cannot be told */
} tn_cut;

enum { TN_PLAN_ALIGN = 256 }; /* bytes: values start at multiples of it, and take whole ones */

/* A value in memory that the plan makes: a node's output or scratch. */
typedef struct tn_plan_value {
    int slot;
    size_t elems; /* of dtype, dense row-major (a node's own shape) */
    tn_dtype dtype;
    int first, last; /* steps that write it first and read it last; roots live on */
    int alias;       /* slot whose memory it takes over (ASSIGN: the target leaf's), or -1 */
    bool root, keep; /* as the segment's bits say */
    int part,
        n_part; /* in plan.part, by their places: what lives shorter than the rest. 0: all lives as long */
    /* of neither; set by the runtime's memory planner: */
    size_t offset; /* in the plan's memory: lent_bytes that are lent, then the arena */
    bool taken;    /* the step that reads it last writes another value in its place */
} tn_plan_value;

/* Bytes of a value, and the steps that write them first and read them last: as a recurrence goes on, the
 * products of inputs behind it are free, and gradients that are joined step by step need no room ahead of it. */
typedef struct tn_plan_part {
    size_t low, high;
    int first, last;
} tn_plan_part;

/* Bytes of the slab of f32 gradients that are nobody's before step `until`, which writes or reads them. */
typedef struct tn_lent {
    size_t low, high;
    int until;
} tn_lent;

/* The plan was made for this value of a run-time number, and serves no other. */
typedef struct tn_guard {
    int leaf;
    tn_number number;
} tn_guard;

/* What ranks do together (RANKS) in parts, each of which begins once its values are there. */
typedef struct tn_begin {
    int step, after;  /* whose part it is; the step behind which it begins, ahead of `step`; -1: at once */
    int64_t first, n; /* elements */
    int buf;          /* among the buffers of all steps, one after the other: the first of `step` */
} tn_begin;

typedef struct tn_plan {
    int n_step;
    tn_step *step;
    int n_value;
    tn_plan_value *value;
    int n_part;
    tn_plan_part *part;
    int n_scratch; /* scratch slots follow the leaves' */
    int n_cut;
    tn_cut *cut;
    int *node_of;
    int n_common, n_folded; /* nodes whose value another one, or an operand or a number, has already */
    int n_guard;
    tn_guard *guard;
    int together; /* the number behind the last step that makes means over ranks (RANKS), or, where there is
                     none, that gathers; 0: there is none. They are in the same order on each rank */
    int n_begin;  /* parts of all RANKS steps, in the order in which they begin */
    tn_begin *begin;
    bool undo; /* a step may fail after another has assigned: what is assigned is saved before */
    /* set by the runtime's memory planner: of the values that die with the plan, all together as they are
       laid out, each for itself, and the most that is alive at once, but for what steps write over */
    size_t arena_bytes, naive_bytes, least_bytes;
    int n_lent; /* set by the runtime before: by `low`; they do not overlap */
    tn_lent *lent;
    size_t lent_bytes;       /* how far they reach, and what keeps the arena apart; 0: none are used */
    double predicted_ms;     /* of all steps */
    uint64_t used;           /* set by the runtime: when, by the plan cache's clock */
    uint64_t digest;         /* likewise: of the calls that ranks have in common (ranks.h) */
    uint64_t ready;          /* likewise: its library calls have their memory (device.h) */
    int refs;                /* holders beside the first: tn_plan_free lets go of one */
    struct tn_note *note;    /* set by the runtime: what it was made of, in words */
    struct tn_plan_run *run; /* likewise: what it keeps on the device, */
    void (*run_free)(struct tn_plan_run *run); /* and what takes that back when the plan goes */
    tn_arena arena;                            /* owns everything above */
} tn_plan;

/* 0 or a negative tn_status with a line in err. */
int tn_plan_build(const tn_segment *seg, const tn_target *target, tn_plan **out, tn_errbuf *err);
void tn_plan_free(tn_plan *p);
/* Fills in the times that the target profile lets expect, once memory is planned. 0 or TN_E_NOMEM. */
int tn_plan_predict(const tn_segment *seg, const tn_target *target, tn_plan *p);
/* Whether [low, high) of the lent bytes are free up to step `last`. */
bool tn_plan_lends(const tn_plan *p, size_t low, size_t high, int last);
/* After its memory has been planned: 0, or TN_E_INTERNAL with the rule that is broken. */
int tn_plan_verify_memory(const tn_plan *p, tn_errbuf *err);
/* Returns true where the plan may run for these leaves, which are of a segment with the same record as the
 * plan. */
bool tn_plan_serves(const tn_plan *p, tn_tensor *const *leaf);
