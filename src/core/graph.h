/* graph.h - what the step graph is: nodes, opcodes and their kinds, calls, storage.
 *
 * A tn_tensor is a node of the graph *and* the handle the user holds. Operators append nodes in program
 * order, so a node's inputs always have smaller ids and the array of nodes is a topological order.
 *
 *   call   what the user wrote: "softmax at train.c:41". A call may be several nodes (a composite); nodes
 *          carry their call so that eager mode, explain and errors know it.
 *   node   op, dtype, shape, inputs, attributes. Reductions always keep their axes as extents of 1 and
 *          broadcasting is always an explicit EXPAND, so that every elementwise node has operands of its
 *          own shape.
 *   view   a VIEW node that strides can say owns no memory: `base` is the node that does, and
 *          `stride`/`offset` (in elements) say where in it. For a node that owns memory base == itself.
 *   value  `buf` of the base, once something has run it.
 *
 * Handles carry a tag. A node stands at an address that is a multiple of TN_NODE_ALIGN, and the pointer the
 * user gets has the low byte of the node's generation added to it. tn_resolve takes it off and compares:
 * a handle kept past its step no longer matches, whoever uses the slot now.
 *
 * Read first: struct tn_tensor, then tn_node_new in graph.c, then build.h, which every operator is made of.
 */
#pragma once

#include "alloc.h"
#include "arena.h"
#include "dtype.h"
#include "spans.h"

struct tn_device;
typedef struct tn_graph tn_graph;
typedef struct tn_call tn_call;
typedef struct tn_storage tn_storage;

/* What all ops of a kind do, or all but one that is asked for by name. */
enum {
    TN_KIND_COMPUTED = 1, /* values come of the operands and nothing else: a second node has the same */
    TN_KIND_ADDS = 2,     /* values of the operands are added up */
    TN_KIND_MOVES = 4     /* values of the operands are moved or chosen, and nothing is rounded */
};

/* The kind of an op, which is what passes look at. Never ask for an op by name where the kind says it. */
#define TN_KINDS(X)                                                                                          \
    X(LEAF, TN_KIND_MOVES) /* memory someone filled: user data, parameters, persistent tensors */            \
    X(NUMBER, 0)           /* a run-time scalar (0-d), or a constant of the text */                          \
    X(IOTA, TN_KIND_COMPUTED | TN_KIND_MOVES) /* the coordinate along one axis */                            \
    X(ELTWISE, TN_KIND_COMPUTED)              /* out[i] = f(x[i], y[i], z[i]) */                             \
    X(CAST, TN_KIND_COMPUTED)                                                                                \
    X(REDUCE, TN_KIND_COMPUTED)              /* over attr.axes, extents become 1 */                          \
    X(SCAN, TN_KIND_COMPUTED | TN_KIND_ADDS) /* cumulative along one axis */                                 \
    X(SORT, TN_KIND_COMPUTED)                /* places of the first along one axis */                        \
    X(VIEW, TN_KIND_COMPUTED | TN_KIND_MOVES)                                                                \
    X(GEMM, TN_KIND_COMPUTED | TN_KIND_ADDS)                                                                 \
    X(CONV, TN_KIND_COMPUTED | TN_KIND_ADDS)                                                                 \
    X(WINDOW, TN_KIND_COMPUTED | TN_KIND_MOVES)                                                              \
    X(GATHER, TN_KIND_COMPUTED | TN_KIND_MOVES) /* each element by an index of its own */                    \
    X(ROWS, TN_KIND_COMPUTED | TN_KIND_MOVES) /* of a table: an index for all that stands across an axis */  \
    X(SCATTER, TN_KIND_COMPUTED | TN_KIND_ADDS | TN_KIND_MOVES)                                              \
    X(RANDOM, 0)                                                                                             \
    X(ATTENTION, TN_KIND_COMPUTED | TN_KIND_ADDS)                                                            \
    X(RANKS, TN_KIND_COMPUTED) /* of all ranks' values, by whoever connects them (tn_together) */            \
    X(HOST, 0)                 /* a function of the user's, each call one of its own (host.h) */             \
    X(ASSIGN, TN_KIND_MOVES)

typedef enum tn_kind {
#define TN_X(name, traits) TN_KIND_##name,
    TN_KINDS(TN_X)
#undef TN_X
} tn_kind;

typedef enum tn_op {
#define TN_ROW(name, ...)   TN_OP_##name,
#define TN_OTHER(name, ...) TN_OP_##name,
#include "ops.def"
    TN_OP_COUNT
} tn_op;

typedef enum tn_result_type { TN_TYPE_NUM, TN_TYPE_FLT, TN_TYPE_ANY, TN_TYPE_TEST } tn_result_type;
enum {
    TN_NEEDS_NONE,
    TN_NEEDS_X = 1,
    TN_NEEDS_Y = 2,
    TN_NEEDS_Z = 4,
    TN_NEEDS_OUT = 8,
    TN_NEEDS_XY = 3,
    TN_NEEDS_XYZ = 7,
    TN_NEEDS_X_OUT = 9
};

typedef struct tn_op_info {
    const char *name;
    tn_kind kind;
    int arity;           /* -1: varies */
    tn_result_type type; /* ELTWISE */
    const char *text;    /* ELTWISE: the row's expression */
    const char *formula; /* ELTWISE */
    const char *back[3]; /* ELTWISE: text of the backward columns */
    double low, high;    /* ELTWISE: test domain */
    double work;         /* ELTWISE: instructions of one vector */
    int epilogue;        /* ELTWISE: a library's name for it (tn_epilogue), or TN_EPI_NONE */
    int start;           /* SCAN: what stands before the first element, */
    const char *by;      /* and the C operator that takes each one in */
} tn_op_info;

const tn_op_info *tn_op_get(tn_op op);
/* Returns which of x, y, z, out the op's backward reads (TN_NEEDS_ bits): they must be kept for it. */
unsigned tn_op_needs(tn_op op);

typedef struct tn_conv_attr {
    int64_t stride[2], pad[4], dilation[2], groups;
    int64_t h, w, kh, kw; /* of the input image and the window: what the two gradients cannot infer */
} tn_conv_attr;

typedef struct tn_pool_attr {
    int64_t window[2], stride[2], pad[4]; /* pad: top, bottom, left, right; bottom and right may differ */
    int64_t h, w, oh, ow;
} tn_pool_attr;

/* The operands of an attention that follow q, k, v and scale, and the keys that a query sees. */
typedef struct tn_attention_attr {
    bool causal;  /* query i the keys up to i */
    bool mask;    /* an operand of the scores' shape: bool, or added to them */
    bool rows;    /* o is laid out, and shaped, as [batch, tq, heads, d] */
    bool strict;  /* a query that sees nothing gives NaN, as softmax does; else 0 */
    bool divided; /* by `scale`, instead of multiplied */
    bool keep;    /* a bernoulli node of the scores' shape: probabilities that are not dropped */
} tn_attention_attr;

enum { TN_MAX_ARGS = 6 };
typedef struct tn_host_attr {
    const struct tn_host *host;
    double number[TN_MAX_ARGS];
    uint32_t wanted; /* of the gradient: bit i for operand i; 0: it is the result */
} tn_host_attr;

typedef struct tn_attr {
    int axis;               /* iota, scan, concat, gather, scatter */
    const char *indexed_by; /* gather, scatter: what the user calls the index; NULL: "index". Not hashed */
    uint32_t axes;          /* reduce: bit i = axis i */
    bool reverse;           /* scan: from the end */
    bool in_range;          /* gather, scatter: whoever recorded it knows that no index is out of range */
    bool first;             /* reduce_max: the gradient is the first largest's, not shared by all of them */
    tn_number number;
    bool weak;           /* a number that takes the dtype of what it meets */
    uint64_t draw, seed; /* random, where it was recorded; not hashed */
    union {
        int64_t v[2][TN_MAX_DIMS]; /* slice: start, step; pad: before, after; permute: v[0] */
        tn_conv_attr conv;
        tn_pool_attr pool;
        tn_attention_attr attention;
        tn_host_attr host;
    };
} tn_attr;

/* Memory with a count of its holders. Device memory; elements are of tn_stored_dtype. */
struct tn_storage {
    void *data;
    size_t bytes;
    int refs;
    bool borrowed;      /* not ours to free: slab segments, host memory of tn_borrow */
    tn_storage *within; /* a window of this one, which it holds; NULL: memory of its own */
    uint32_t mark;      /* scratch of whoever walks: compare with graph->mark */
    int first;          /* then: the first leaf found to look into it */
    void (*release)(void *data, void *user);
    void *release_data, *release_user;
    struct tn_device *device;
};

enum { TN_NODE_ALIGN = 256 };

enum {
    TN_F_REQUIRES_GRAD = 1,
    TN_F_PERSISTENT = 2, /* lives outside the step: leaves, parameters, buffers, kept tensors */
    TN_F_USER = 4,       /* a handle of it was given out */
    TN_F_PARAM = 8,
    TN_F_VERSION = 16,        /* stands in this step for the value the persistent tensor `of` had */
    TN_F_DONE = 32,           /* its value exists */
    TN_F_SAVED = 64,          /* a composite's backward rule will read it: must have a value in memory */
    TN_F_WANTED = 128,        /* a derived backward will read it: keep its value where it has one in memory */
    TN_F_AGAIN = 256,         /* computes again what a checkpoint did not keep, for a gradient */
    TN_F_LOST = 512,          /* version: its memory is overwritten once the assignment `lost_to` has run */
    TN_F_GRADIENT = 1024,     /* persistent: stands for (part of) a gradient slab */
    TN_F_BORROWS_NAME = 2048, /* persistent: its name is not its own */
    TN_F_CONSUMED = 4096,     /* an operator other than a gradient's has read it */
    TN_F_WALKED = 8192,       /* its part of a backward is recorded: nothing is kept for another one */
    TN_F_WATCHED = 16384,     /* tn_watch asked for it before it had a value */
    TN_F_LISTED = 32768,      /* a view: in its base's list of those the user has got */
    TN_F_GIVEN = 65536,       /* in graph->given */
    TN_F_INSIDE = 262144,     /* attention written out has been recorded as one node in its readers' place */
    TN_F_LOSS = 524288,       /* of one element: tn_backward was called on it, and checked mode looks at it */
    TN_F_REFUSED = 2097152,   /* an error ended its run: an assignment that is none, or what has no value */
    TN_F_RESCUES =
        4194304, /* assignment: its target had no value, as TN_F_REFUSED says of a persistent tensor */
    TN_F_WISHED = 1048576, /* an operator made it of what wants no gradient, and tn_requires_grad one for it:
                              to the walk it is a leaf */
    TN_F_STANDS = 131072,  /* assignment: of its target's shape, and its version from then on */
    TN_F_TARGET = 8388608, /* what an assignment writes to */
    TN_F_COMPOSED = 16777216, /* scores of an attention that is several kernels: reports say so */
    TN_F_UPDATES = 33554432,  /* gradient: its parameter's update reads it, and not the slab, */
    TN_F_ASKED = 67108864     /* and it has been given to somebody else, too (runtime/spare.c) */
};

/* Why a node has ended, for the error of using its handle afterwards. */
typedef enum tn_was {
    TN_WAS_OF_STEP,   /* its step ended */
    TN_WAS_OUTSIDE,   /* made by an operator outside a step, until the next one began */
    TN_WAS_OF_SCOPE,  /* made between tn_scope_begin and its end */
    TN_WAS_PERSISTENT /* freed, or taken over */
} tn_was;

/* What is not kept for gradients, which make it again (autograd/again.c), has a region: between
 * tn_checkpoint_begin and its end the how-manieth of the step, and in what the runtime chooses this bit, and
 * what tells parts apart. In TN_REGION_AGAIN each value is by itself. 0: kept where a gradient reads it. */
#define TN_REGION_CHOSEN (1u << 31)
#define TN_REGION_AGAIN  UINT32_MAX

struct tn_tensor {
    uint32_t generation;
    uint32_t id; /* index in graph->nodes; ~0 for a persistent tensor's own handle */
    tn_graph *graph;
    uint16_t op; /* tn_op */
    uint8_t dtype, ndim;
    uint8_t n_in;
    uint8_t was; /* tn_was: why the tensor that had this slot before ended */
    uint8_t pad_[2];
    uint32_t flags;
    uint32_t mark;  /* scratch of whoever walks: compare with graph->mark */
    tn_tensor **in; /* points to in_ unless there are more than three */
    tn_tensor *in_[3];
    tn_attr *attr; /* NULL when the op has none */
    tn_call *call;
    struct tn_rule *rule;   /* of a composite's result */
    struct tn_rule *inside; /* of a composite's inner nodes and result */
    struct tn_rule *saver;  /* TN_F_SAVED: the rule that reads it */
    int64_t shape[TN_MAX_DIMS];
    int64_t stride[TN_MAX_DIMS]; /* elements, within base's buffer */
    int64_t offset;
    tn_tensor *base; /* whose memory this is a window of; itself when it owns memory. A VIEW that is its own
                        base (pad, concat, contiguous, some reshapes) is one a kernel has to make */
    tn_storage *buf; /* of the node that owns memory; NULL until run */
    tn_tensor *grad; /* of a leaf, after a backward walk of step `grad_step` */
    tn_tensor *cot;  /* during a walk: the gradient so far */
    uint32_t grad_step;
    int32_t uses;    /* of a gradient: whose it is, still to be visited */
    int32_t walk;    /* of a forward node: its entry in the walk */
    int32_t kept;    /* persistent: its place in session->kept, if it is there */
    int32_t leaf;    /* scratch of notes: the first leaf that looks into its memory, if that is one of it */
    tn_tensor *of;   /* version, assignment, kept value: the persistent tensor it is one of; persistent: what
                        stands for it now */
    uint32_t walked; /* TN_F_WALKED: how many nodes there were then */
    tn_tensor *lost_to; /* TN_F_LOST: the assignment that takes its memory */
    tn_tensor *lost,
        *lost_next;   /* assignment: the newest that is lost to it; of what is lost: the next one */
    tn_tensor *views; /* the newest view of its memory that the user has got; TN_F_LISTED: the next one */
    uint32_t read;    /* by something that needs a gradient, where it is graph->reads */
    tn_tensor *place; /* write the value into this persistent tensor's buffer (gradient slab, tn_keep) */
    uint32_t region;  /* TN_REGION_ */
    tn_tensor *again; /* of a node in one: the one that gradients read instead */
    const char *name;
    int64_t slot; /* scratch: position in the plan being built */
};

/* A call that the user wrote: "softmax at train.c:41". */
struct tn_call {
    const char *name;
    const char *file;
    int line;
    uint32_t first; /* id of its first node */
    bool backward;  /* made by the gradient walk, for the call `of`: */
    bool again;     /* not its gradient, but what a checkpoint did not keep of it */
    tn_call *of;
    uint32_t mark; /* scratch of notes; where it is theirs, */
    int index;     /* where it stands in the list that is being made */
};

/* A composite's own gradient, where that is better than the one derived node by node. From the gradient g of
 * `out`, fn makes the gradients of args[] (NULL: none) in builder calls. The composite's inner nodes point to
 * the rule too (tn_tensor.inside), so that nothing of theirs is kept for a derived backward. */
typedef struct tn_rule tn_rule;
typedef bool tn_rule_fn(tn_rule *r, tn_tensor *g, tn_tensor **gin);
struct tn_rule {
    tn_rule_fn *fn;
    tn_tensor *out;
    int n_args;
    tn_tensor *args[TN_MAX_ARGS];  /* NULL where an optional one is missing */
    tn_tensor *saved[TN_MAX_ARGS]; /* inner values it reads: marked TN_F_SAVED */
    tn_tensor **list;              /* more of them, as many as there are steps; `out` depends on each */
    int n_list;
    double num[4];
    int64_t whole[4];
    const void *own; /* of an operator of the user: what it was defined as */
};

/* The first error since tn_clear_error. */
typedef struct tn_error_state {
    int status;
    char text[512];
} tn_error_state;

struct tn_graph {
    tn_session *session;
    struct tn_device *device;
    uint32_t generation; /* of the step now recording */
    bool outside;        /* what is recorded now is no step's */
    struct {
        uint32_t first; /* nodes from this id on go with the innermost scope (record/outside.c), and */
        bool ends;      /* do so now */
    } scope;
    uint32_t mark;
    tn_tensor **nodes;
    uint32_t n_nodes;
    int cap_nodes;
    tn_tensor **holder; /* of them, those tied to memory that is assigned to: versions and writers, by id */
    uint32_t n_holders;
    int cap_holders;
    uint32_t n_settled;       /* of the first of them none is still to write */
    uint32_t n_decided;       /* of the first nodes none is still to be decided of (runtime/wanted.h) */
    tn_spans writers, sights; /* those that write; those that may look into memory before it is assigned to */
    tn_tensor **given;        /* nodes the user has got handles of */
    uint32_t n_given;
    int cap_given;
    struct tn_graded {
        tn_tensor *leaf, *grad;
    } * graded; /* what the backward walks of the step have reached */
    uint32_t n_graded;
    int cap_graded;
    bool parked;       /* the nodes are the last step's (runtime/replay.h) */
    bool unrepeatable; /* something happened in this step that recording it again would not repeat */
    void (*unpark)(tn_graph *g); /* called before a call opens, or a node is added, in a parked graph */
    struct tn_aside {
        bool there;
        tn_tensor **nodes, **holder, **given;
        struct tn_graded *graded;
        uint32_t n_nodes, n_holders, n_given, n_graded;
        int cap_nodes, cap_holders, cap_given, cap_graded;
        tn_arena arena;
    } aside;        /* a parked graph, while something is recorded between two steps */
    uint32_t reads; /* counts backwards, from 1: what was read for one before is not needed any more */
    /* nodes there were when gradient memory was last looked into as a whole, and last told to be written */
    uint32_t gradients_seen, gradients_written;
    tn_arena arena; /* calls, attributes, names, long input lists of this step */
    tn_slots slots; /* node memory, reused from step to step, never given back before close */
    tn_call *call;  /* innermost open call; NULL outside */
    int call_depth;
    int pending_assigns; /* recorded inside an open call, not yet run; of calls that run at their end */
    int no_grad;         /* > 0: results do not require a gradient */
    uint32_t region,
        n_regions; /* tn_checkpoint_begin: the open one, or 0; how many there were in this step */
    bool training;
    tn_dtype products; /* what products of f32 are computed in: TN_F32, or a shorter type */
    uint64_t seed, draw;
    uint64_t salt; /* what the draws of the step that runs are keyed by beside the seed: a rank's own */
    tn_error_state error;
    uint64_t total_nodes;
    struct tn_place {
        const char *file;
        int line, depth;
    } place; /* of a public function that is no operator, while it runs */
    struct {
        const char *name, *file;
        int line, depth; /* 0: there is none */
    } inner;             /* the operator that runs within one of the user's own */
};

/* ---- graph.c ---- */
int tn_graph_init(tn_graph *g);
void tn_graph_free(tn_graph *g);
void tn_graph_reset(tn_graph *g); /* drops all nodes of the step (buffers are released), new generation */
/* A step that is to be repeated: handles go stale, the nodes stay. */
void tn_graph_park(tn_graph *g);
/* A parked graph makes room for another, and comes back when that has been reset. */
void tn_graph_set_aside(tn_graph *g);
void tn_graph_take_back(tn_graph *g);
void tn_graph_truncate(tn_graph *g, uint32_t cut);                  /* nodes from id `cut` on go */
bool tn_graph_grade(tn_graph *g, tn_tensor *leaf, tn_tensor *grad); /* notes that leaf has got a gradient */
void tn_node_drop_value(tn_tensor *n);                              /* its memory goes, the node stays */

tn_tensor *tn_handle(tn_tensor *node);          /* node -> what the user holds (tagged) */
tn_tensor *tn_resolve(const tn_tensor *handle); /* what the user holds -> node, or NULL when stale */
/* Says what became of the tensor of a handle that does not resolve: "was used after its step ended". */
const char *tn_stale_text(const tn_tensor *handle);

/* A bare node of the current call; the caller fills shape and attributes. NULL: out of memory (reported).
 * The node's strides are set dense by tn_node_finish, which also derives REQUIRES_GRAD and base. */
tn_tensor *tn_node_new(tn_graph *g, tn_op op, tn_dtype dtype, int ndim, const int64_t *shape, int n_in,
                       tn_tensor *const *in);
tn_attr *tn_node_attr(tn_tensor *n); /* allocates it zeroed at the first call */
/* A node that outlives the step. Free with tn_node_free_persistent. */
tn_tensor *tn_node_new_persistent(tn_graph *g, tn_dtype dtype, int ndim, const int64_t *shape);
void tn_node_free_persistent(tn_graph *g, tn_tensor *n);
void tn_node_drop_name(tn_graph *g, tn_tensor *n); /* a persistent one's */

unsigned tn_kind_traits(tn_kind kind); /* TN_KIND_COMPUTED, .. */

/* What ranks do together: the mean of what all have; of it each rank its lines (tn_rank_share); of each rank
 * its lines, one behind the other. */
typedef enum tn_together { TN_MEAN, TN_SCATTER, TN_GATHER } tn_together;
static inline tn_together tn_together_of(const tn_tensor *n) /* of kind RANKS */
{
    return n->op == TN_OP_ranks_scatter ? TN_SCATTER : n->op == TN_OP_ranks_gather ? TN_GATHER : TN_MEAN;
}

static inline tn_kind tn_kind_of(const tn_tensor *n) { return tn_op_get(n->op)->kind; }
/* out is x at places that in[1] says. */
static inline bool tn_kind_looks_up(tn_kind k) { return k == TN_KIND_GATHER || k == TN_KIND_ROWS; }
/* Every element of x is one number, which stands in no memory. */
static inline bool tn_is_number(const tn_tensor *x) { return tn_kind_of(x->base) == TN_KIND_NUMBER; }
int64_t tn_node_numel(const tn_tensor *n);
bool tn_node_is_dense(const tn_tensor *n); /* row-major without gaps */
bool tn_same_shape(const tn_tensor *a, const tn_tensor *b);
bool tn_same_type(const tn_tensor *a, const tn_tensor *b); /* dtype and shape */
bool tn_same_view(const tn_tensor *a, const tn_tensor *b); /* likewise, of the same elements in memory */
/* The value of n, which has no memory of its own, is target's, and lies where that does. */
void tn_node_stand_in(tn_tensor *n, const tn_tensor *target);
/* True where the number of elements, and of their bytes in any dtype, fits the integers that count them. */
bool tn_countable(int ndim, const int64_t *shape);
int tn_by_id(const void *a, const void *b);                /* of two tn_tensor *, for qsort */
int64_t tn_extent(const int64_t *shape, int from, int to); /* of the axes `from` to `to` - 1 together */
void tn_dense_strides(int ndim, const int64_t *shape, int64_t *stride);
/* Returns the dtype that elements of dtype d have in memory: on the reference device i64 for integers, f64
 * for the rest. */
tn_dtype tn_stored_dtype(const tn_graph *g, tn_dtype d);
size_t tn_elem_size(const tn_graph *g, tn_dtype d); /* of those */
void *tn_node_data(const tn_tensor *n);             /* address of its first element; NULL before it has run */

/* Memory that is known before a value exists: a leaf's, an assignment's target's, a placed node's. The first
 * element's address, and through `holder` the storage it lies in; NULL where none is known. */
void *tn_node_home(const tn_tensor *n, tn_storage **holder);
/* The bytes it lies in, from its first element's to its last one's; false: no home is known, or no elements.
 */
bool tn_node_bytes(const tn_tensor *n, uintptr_t *low, uintptr_t *high);
/* The element of the memory that was allocated at which n begins; while there is none, counted from its base. */
int64_t tn_node_first(const tn_tensor *n);
/* Returns true where the memory of the two may overlap. */
bool tn_node_overlap(const tn_tensor *a, const tn_tensor *b);
/* The tensor whose memory running n writes: an assignment's target, a placed node's place; else NULL. */
const tn_tensor *tn_node_written(const tn_tensor *n);
/* Lists n among the holders: a version, an assignment or a node that has got a place. False: no memory. */
bool tn_node_hold(tn_tensor *n);
/* Calls fn for those of graph->writers or ->sights with ids in [from, end) whose memory meets x's, or for all
 * of them where x is NULL. False: no memory (reported). */
bool tn_graph_meet(tn_graph *g, tn_spans *s, const tn_tensor *x, uint32_t from, uint32_t end, tn_span_fn *fn,
                   void *arg);
/* Writer takes v's memory, whose value nobody asks for again. */
void tn_node_lose(tn_tensor *v, tn_tensor *writer);

tn_storage *tn_storage_new(tn_graph *g, size_t bytes);
tn_storage *tn_storage_wrap(tn_graph *g, void *data, size_t bytes);            /* borrowed */
tn_storage *tn_storage_window(tn_storage *whole, size_t offset, size_t bytes); /* holds `whole` */
void tn_storage_retain(tn_storage *b);
void tn_storage_release(tn_storage *b);

/* Calls: begin/end nest; only the outermost counts ("linear" inside "transformer block" stays one call
 * unless the outer is transparent). */
tn_call *tn_call_begin(tn_graph *g, const char *name, const char *file, int line);
void tn_call_end(tn_graph *g);

/* Gives `out` a rule over args[0..n); nodes from id `first` on are its inside. NULL: no memory (reported). */
tn_rule *tn_rule_set(tn_tensor *out, uint32_t first, tn_rule_fn *fn, int n, tn_tensor *const *args);
void tn_rule_save(tn_rule *r, int i, tn_tensor *value);
void tn_rule_save_list(tn_rule *r, int n, tn_tensor **values); /* in the graph's arena */

/* Errors: the first one is kept. Returns NULL so that operators can `return tn_fail_op(...)`. The text gets
 * the current call's name and place in front: "matmul at train.c:41: ...". */
void *tn_error_set(tn_graph *g, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same in the name of `call`, NULL: of the one that is open. Returns status. */
int tn_error_of(tn_graph *g, tn_call *call, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *tn_shape_text(char *buf, size_t n, int ndim, const int64_t *shape); /* "[2, 3]" */
/* "'fc.weight' [10, 784]", or the shape alone where x has no name. */
const char *tn_tensor_text(char *buf, size_t n, const tn_tensor *x);
/* The same in memory that lasts to the end of the block they stand in. */
#define TN_SHAPE_TEXT(ndim, shape) tn_shape_text((char[160]){0}, 160, ndim, shape)
#define TN_TENSOR_TEXT(x)          tn_tensor_text((char[160]){0}, 160, x)
