/* fuser.h - what the passes share: the loop program of a group, and the text it becomes.
 *
 * A *group* is a set of segment nodes that one kernel computes (two where a reduction is split). Its
 * iteration space is cut into *atoms*: independent loop axes that every node's axes are products of. A node's
 * axis is a list of atoms, outermost first, so reshape (merging, splitting) and permute inside a group cost
 * nothing: the value at a point of the space is the same value whatever its shape says. Broadcast values
 * simply do not vary over some atoms.
 *
 *   context.c   what all passes look up and note; plan.c calls them in order, steps.c is where they write to
 *   simplify.c  what need not run: algebra.c finds values that exist already or are numbers, common.c values
 *               that two nodes have in common
 *   hazard.c    order through memory that an assignment overwrites
 *   fold.c      copies that their producers spare
 *   tile.c      convolutions with a kernel of our own, and what it does besides
 *   domain.c    nodes -> atoms, by propagation along the edges
 *   program.c   nodes + atoms -> fu_prog: values in single assignment, loads, stores, strides over atoms
 *   schedule.c  fu_prog -> form (pointwise, row, column), tiles, split; atoms.c merges and orders the loops,
 *               phases.c tells the passes over them apart
 *   cross.c     row programs that also sum over their rows
 *   second_stage.c   what finishes a reduction that has been split in parts
 *   value.c      the text of single values; kernel.c, the nests beside it: fu_prog -> text
 *   schedule_cuda.c, cuda.c: the same for GPUs; schedule_tile.c: in a convolution's own kernel
 *   cost.c      how long all this takes, by the target profile
 *   group.c     which nodes form a group; asks domain.c, program.c and schedule.c whether one is legal
 *   early.c     sums that gradients wait for
 *   recompute.c   which values their readers compute again; tiles.c, what joins a convolution's kernel
 *   verify_*.c  between the passes: whether what one hands on is what the next may take for granted
 *
 * Read first: fu_prog.
 */
#ifndef TN_FUSER_H
#define TN_FUSER_H

#include "plan.h"

#include <stdarg.h>

enum {
    FU_MAX_ATOMS = 12,
    FU_MAX_MEMBERS = 64,
    FU_MAX_VALUES = 320,
    FU_MAX_STORES = 48,
    FU_MAX_BUFS = TN_MAX_KERNEL_BUFS,
    FU_MAX_SCALARS = 64,
    FU_MAX_PHASES = 8,
    FU_LANES = 32,      /* accumulators of a row reduction: two vectors of 16 floats in flight, or */
    FU_MANY_LANES = 64, /* where a loop has but one such sum, and long rows pay for folding them */
    FU_STASH = 16384,   /* elements of a row that may be kept on the stack between phases */
    FU_PART = 16384,    /* elements summed by one part of a split row reduction */
    FU_RANDOM_TILE = 1024,
    FU_BLOCK = 32,      /* lines of a block that is read crosswise, and */
    FU_BLOCK_TILE = 64, /* their length */
    FU_STREAM_TILE = 64 /* elements computed before they are written past the caches */
};

/* ---- text.c: growing text ---- */
typedef struct fu_text {
    char *p;
    size_t n, cap;
    int indent;
    int failed; /* 0, or the status for which everything after is dropped */
} fu_text;

void fu_put(fu_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What a kernel that checks indices calls. Kernels are compiled several to a unit: the first defines it. */
#define FU_INDEX_FAULT                                                                                       \
    "#if !defined(TN_INDEX_FAULT)\n#define TN_INDEX_FAULT\n"                                                 \
    "static inline void index_fault(const tn_args *a, int64_t where, int64_t value)\n{\n"                    \
    "    if (a->fault->code) return;\n    a->fault->where = (int32_t)where;\n"                               \
    "    a->fault->value = value;\n    a->fault->code = TN_FAULT_INDEX;\n}\n#endif\n\n"
void fu_line(fu_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* indented, with \n */
void fu_open(fu_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* line, then deeper */
void fu_line_v(fu_text *t, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void fu_close(fu_text *t);
void fu_text_free(fu_text *t);

/* What differs between the dialects of generated text. */
typedef struct fu_dialect {
    const char *args;                   /* in front of a member of the kernel's arguments */
    const char *type[TN_DTYPE_COUNT];   /* of a value in a register */
    const char *memory[TN_DTYPE_COUNT]; /* of an element in memory */
    const char *load[TN_DTYPE_COUNT];   /* format with one %s: the element -> the value */
    const char *store[TN_DTYPE_COUNT];  /* format with one %s: the value -> the element */
    const char *inf[2], *nan[2];        /* f32, f64 */
    const char *simd;                   /* line before a loop whose iterations are independent, or NULL */
    int block_pitch;                    /* of a tile that is read crosswise: elements from line to line */
    const char *align;                  /* in front of a local array */
    const char *prefetch;               /* function that asks for a line early */
} fu_dialect;
extern const fu_dialect fu_dialect_c, fu_dialect_cuda;
const fu_dialect *fu_language(const tn_target *t);

tn_dtype fu_compute_dtype(tn_dtype d); /* what a value of d is carried in: f16 and bf16 in f32 */
/* The expression of a row with its operands and K(..) put in. */
void fu_expression(char *out, size_t n, const char *row, tn_dtype operand, const char *const *arg);
void fu_literal(char *out, size_t n, tn_dtype d, double f, int64_t i, bool is_int);
/* A C identifier from any text; reserved words get a tail. */
void fu_identifier(char *out, size_t n, const char *from);

/* ---- the loop program ---- */
typedef enum fu_kind {
    FU_NUMBER, /* literal */
    FU_SCALAR, /* run-time scalar */
    FU_LOAD,   /* with operands: only where arg[0] is true, else it is arg[1] */
    FU_OP,     /* elementwise row, cast or copy of arg[0] */
    FU_REDUCE,
    FU_IOTA,
    FU_INSIDE, /* whether a coordinate lies in [0, extent): false where a pad has put its border */
    FU_RANDOM,
    FU_GIVEN, /* what the kernel around the program hands over: `given` says what */
    FU_INDEX, /* arg[0] as a checked index into `extent` lines */
    FU_PICK   /* load whose address takes arg[0] (an INDEX) times `pick` */
} fu_kind;

/* Of a convolution's kernel: an element of the product; of its column, how many there are, what they are on
 * average, and the sum of squares of their differences from that. */
typedef enum fu_gift { FU_ELEMENT, FU_COUNT, FU_MEAN, FU_M2 } fu_gift;

typedef struct fu_value {
    fu_kind kind;
    fu_gift given;        /* GIVEN */
    tn_op op;             /* OP: the row, TN_OP_cast, or TN_OP_contiguous for a plain copy */
    tn_dtype dtype, from; /* own, and of the operands */
    int n_arg, arg[3];
    uint32_t vary; /* atoms the value changes with */
    /* LOAD PICK: memory; IOTA INSIDE: the coordinate; RANDOM, arg-reductions, an ELEMENT: the logical index
     */
    int64_t stride[FU_MAX_ATOMS];
    int64_t shift;           /* LOAD IOTA INSIDE: added to what the strides come to */
    uint32_t reduces, space; /* REDUCE: atoms it reduces, and all it loops over */
    int64_t extent, pick;    /* extent of a LOAD with operands: how many elements it reads */
    tn_number number;
    int slot; /* LOAD PICK: memory; SCALAR RANDOM: whose scalar or seed and draw */
    int64_t offset;
    int node;         /* segment node this is the value of, or -1 */
    int asker;        /* INDEX: the segment node that indexes */
    const char *hint; /* a name from the user's program, or NULL */
    /* schedule */
    int phase;     /* of a value inside the loops: first phase that can compute it; else: how many
                      phases must be over */
    uint32_t need; /* phases that compute it */
    bool used;
    int stash;   /* phase that computes it and keeps it for later ones, or -1 */
    bool array;  /* COLUMN: kept in an array over the tile */
    bool wide;   /* REDUCE: sums of f32 carried in f64 */
    bool cross;  /* REDUCE of a row program that runs over its rows (cross.c) */
    bool staged; /* LOAD: contiguous along prog.block, read through a tile on the stack */
    bool packed; /* LOAD PICK, CUDA: prog.pack elements are read at once */
    char name[40];
    int buf;
} fu_value;

typedef struct fu_store {
    int value, slot, node;
    int64_t offset;
    tn_dtype dtype;
    int64_t stride[FU_MAX_ATOMS], shift;
    uint32_t dom; /* atoms it is stored over, */
    int mask;     /* where this value is true; -1: everywhere */
    bool late;    /* overwrites memory that the group reads: not before the last phase */
    bool stream;
    bool packed; /* CUDA: prog.pack elements are written at once */
    int phase, buf;
} fu_store;

typedef enum fu_form { FU_POINTWISE, FU_ROW, FU_COLUMN } fu_form;

typedef struct fu_prog {
    const struct fu_ctx *c; /* for the device's numbers, and where operands lie */
    int n_atom;
    int64_t
        extent[FU_MAX_ATOMS]; /* atoms stand outermost first once scheduled; the last one is the vector's */
    uint32_t red;             /* atoms reduced */
    uint32_t cross;           /* atoms that cross reductions run over: all others, or none */
    bool cross_rows;          /* one of them adds up what rows have come to */
    int n_after;              /* stores that the finish makes: they stand behind the n_store others */
    int n_value, n_store;
    const struct fu_lookup *checks; /* it only looks this index through, or NULL */
    fu_value value[FU_MAX_VALUES];
    fu_store store[FU_MAX_STORES];
    bool settled; /* no group is being tried: this one is to run */
    /* schedule */
    fu_form form;
    bool split;   /* partial results of parts go to scratch, a second kernel finishes */
    bool second;  /* this is that second kernel */
    int outer;    /* atom whose extent is an argument (the batch), or -1 */
    int64_t part; /* split: outer reduced iterations (or vector elements) per part */
    int64_t parts;
    int64_t tile; /* of the vector atom in one item; 0: items are elements */
    int block;    /* POINTWISE: atom an item takes FU_BLOCK lines of, because a load runs along it; or -1 */
    int unroll;   /* COLUMN: reduced rows added up before they go to the accumulator */
    int64_t last_bytes; /* of the last cache */
    bool stream;        /* some stores go past the caches */
    int n_phase;
    int lanes;
    int64_t items, chunk;
    /* CUDA: threads of a block; those that share an item; elements a thread takes at once; packs of a row
       that each thread keeps (0: it reads them again); packs it reads before it computes */
    int threads, team, pack, held, ahead;
    bool apart; /* COLUMN with few reduced rows: each line of threads has an item of its own, not some rows */
} fu_prog;

/* Results that are larger are written past the caches. */
static inline int64_t fu_last_bytes(const tn_target *t)
{
    return t->last_bytes ? t->last_bytes : INT64_C(32) << 20;
}

static inline uint32_t fu_bit(int atom)
{
    return 1u << atom;
}

/* An axis runs over the places that its atoms count, outermost first: coordinate = place. Of a *part* that is
 * step * place - shift, and it owns the places where this is in [0, count): what is padded is a part of the
 * pad's axis, and what a slice is taken of one of the slice's, at whose places not all of it is looked at. */
typedef struct fu_axis {
    uint8_t level; /* 0 unknown, 1 a guess, 2 known */
    uint8_t n, atom[FU_MAX_ATOMS];
    bool part;
    int64_t step, shift, count;
} fu_axis;
typedef struct fu_map {
    fu_axis axis[TN_MAX_DIMS];
} fu_map;
typedef struct fu_domain {
    bool strict; /* last round: nothing may change any more */
    int n_atom;
    int64_t extent[FU_MAX_ATOMS];
    uint8_t order[FU_MAX_ATOMS]; /* outermost first */
    int n;
    const int *member;
    fu_map map[FU_MAX_MEMBERS]; /* of each member's own loop space */
} fu_domain;

/* ---- the segment ---- */
/* What a convolution's kernel finds out about its columns as it writes them, as sums over the other axes. */
typedef enum fu_statistic {
    FU_NO_STATISTIC,
    FU_WITHIN, /* a summand: never computed */
    FU_SUM,    /* of x - about */
    FU_SQUARES /* of (x - about)^2 */
} fu_statistic;

typedef struct fu_node {
    tn_tensor *t;
    tn_kind kind;
    bool live, root;
    bool strict; /* 16-bit floats are rounded wherever it is made, as if it were in memory (find_strict) */
    const tn_tensor *same; /* what readers take instead: it has the node's value (simplify). NULL: the node */
    int group;             /* the one that stores it */
    bool spared;           /* what others make as they write (fold.c) */
    /* of a convolution or product with a kernel of our own (tile.c): how, without statistics and with; and
     * how where its image is computed as it is loaded; else NULL */
    const struct fu_conv_tile *tile[2], *loading[2];
    fu_statistic statistic;
    const tn_tensor *about; /* SUM SQUARES: a value of each column, as the summand reads it; NULL: 0 */
    tn_epilogue epilogue;   /* of a product or convolution: applied as it writes */
    int into;               /* the node whose memory the value is written to, or -1: its own */
    int64_t into_offset, into_stride[TN_MAX_DIMS]; /* where in it, in elements; along each own axis */
    int n_copy, cap_copy;
    int *copy; /* groups that compute it again for themselves */
    int n_user, cap_user;
    int *user; /* live nodes that read it, in order; views are looked through */
    int n_after, cap_after;
    int *after; /* nodes that must have run before: producers, and readers of what an assignment overwrites */
} fu_node;

typedef enum fu_room {
    FU_LOOPS,
    FU_GEMM,
    FU_CONV,
    FU_TILE, /* a convolution or product by our own kernel, and what it does as it writes */
    FU_WINDOW,
    FU_SCATTER,
    FU_SCAN,
    FU_CONCAT,
    FU_ATTENTION,
    FU_NOTHING /* its producers have written it */
} fu_room;

typedef struct fu_group {
    fu_room room;
    int n;
    int *member;    /* in id order */
    bool dead;      /* merged into another */
    bool backward;  /* of the gradient walk, not of what the user wrote */
    bool early;     /* a sum that gradients wait for, by itself (early.c) */
    int into;       /* which, when dead */
    int mark, rank; /* rank: order.c */
} fu_group;

/* An index that values are chosen by, or go to, as far as all who use it among as many lines are concerned.
 */
typedef struct fu_lookup {
    const tn_tensor *index;
    int64_t extent; /* lines to choose from */
    int node;       /* the oldest that uses it */
    bool known;     /* no element is out of range */
    bool ahead; /* it can be looked through before anything has run: from what stands in memory by then, */
    int n, *member; /* through these nodes */
    bool undone;    /* neither that nor order: the plan is undone if it fails */
} fu_lookup;

/* Memory that nodes of the segment write, in pieces: piece i lies between edges i and i + 1, and is written
 * by by[begin[i]] .. by[begin[i + 1] - 1], in their order. */
typedef struct fu_written {
    int n_edge;
    uintptr_t *edge;
    int *begin, *by;
} fu_written;

typedef struct fu_ctx {
    const tn_segment *seg;
    const tn_target *target;
    tn_plan *plan;
    tn_errbuf *err;
    tn_arena arena; /* of this build only */
    int n_node, n_leaf;
    fu_node *node;
    /* Views of nodes that readers take something else for. A view's slot is FU_VIEW less its place here. */
    int n_view, cap_view;
    struct fu_view {
        const tn_tensor *of, *same;
    } * view;
    int n_lookup, cap_lookup;
    fu_lookup *lookup;     /* none where nothing is assigned */
    int n_writer, *writer; /* nodes that write memory of others: assignments, placed values */
    fu_written written;    /* that memory */
    int cap_guard;
    fu_group *group;
    int n_group, mark, n_copy;
    int n_rank, *ranked, *waiting; /* group at each rank, -1: none; scratch (order.c) */
    int cap_cut, cap_step, cap_scratch;
    struct fu_scratch {
        int64_t elems;
        tn_dtype dtype;
    } * scratch; /* plan->n_scratch of them */
    fu_prog *prog, *prog2, *prog3;
    fu_domain *domain;
    double far; /* bytes touched from forward to backward */
} fu_ctx;

/* Nodes that one kernel is to compute, and all that decides how its program looks. */
typedef struct fu_candidate {
    int a, b; /* the groups it is made of; both the same: of one. FU_NO_GROUP: none, it stores nothing of
                 theirs */
    int n;
    const int *member; /* in id order */
    bool settled;      /* this is to run, and not only being tried */
    bool tiles_first;  /* what a convolution is of may be computed by its kernel */
    int copied;        /* slot that a lone ASSIGN copies from; 0: its source (slot 0 is never scratch) */
    const fu_lookup *checks;    /* it only looks this index through; NULL: it computes its members */
    const struct fu_tile *tile; /* which of a convolution's programs this is, or NULL */
} fu_candidate;

enum { FU_NO_GROUP = -2 };

enum { FU_VIEW = -2 };

/* ---- context.c ---- */
/* The node of this segment that owns t's memory, or -1 when a leaf does. */
int fu_node_of(const fu_ctx *c, const tn_tensor *t);
/* Where t's first element lies: slot and element offset. false: nowhere (an error of the caller). */
bool fu_place(const fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset);
const tn_tensor *fu_value_of(const fu_ctx *c, const tn_tensor *t); /* after simplification */
/* Operand k of t is not read: only its seed and draw are taken. Its node need not run. */
bool fu_draws(const fu_ctx *c, const tn_tensor *t, int k);
/* 16 bits as f32: who needs them reads the 16 bits, and no kernel writes them wider. */
bool fu_widens(const fu_node *n);
/* `old`, of n entries, with room for one more. NULL: no memory. */
void *fu_grow(tn_arena *a, void *old, int n, int *cap, size_t size);
bool fu_note_user(fu_ctx *c, int node, int user);   /* user reads node. false: no memory */
bool fu_note_copy(fu_ctx *c, int node, int group);  /* group computes node again. false: no memory */
bool fu_note_after(fu_ctx *c, int node, int other); /* node must run after other. false: no memory */
void fu_cut(fu_ctx *c, int from, int to, tn_cut_reason why);
int fu_fail(fu_ctx *c, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- simplify.c ---- */
int fu_simplify(fu_ctx *c);

/* ---- algebra.c, common.c ---- */
/* What has the value of node i, bit for bit: an operand, or a new number. NULL: nothing, or no memory, which
 * *status then says. */
const tn_tensor *fu_algebra(fu_ctx *c, int i, int *status);
/* What node i is the negative of, as it is a product with -1 or a quotient by it; else NULL, likewise. */
const tn_tensor *fu_negated(fu_ctx *c, int i, int *status);
/* The nodes met so far by what they compute. */
typedef struct fu_seen {
    int *slot; /* node or -1, `mask` + 1 of them */
    uint32_t mask;
} fu_seen;
bool fu_seen_open(fu_ctx *c, fu_seen *s);
/* An older node that computes the same from the same, or -1; the node itself is then remembered. */
int fu_common(const fu_ctx *c, fu_seen *s, int i);

/* ---- hazard.c ---- */
typedef enum fu_sight {
    FU_UNSEEN, /* looks into other memory, or at a value of the plan's own */
    FU_OLD,    /* at what the memory held before the writer */
    FU_NEW     /* at what the writer, or one after it, has put there */
} fu_sight;
fu_sight fu_reads(const fu_ctx *c, const tn_tensor *x, const tn_tensor *writer);
int fu_list_writers(fu_ctx *c);
int fu_order_writers(fu_ctx *c);
/* The pieces [*first, *end) of what is written that x, a value, looks into; none: false. */
bool fu_written_pieces(const fu_ctx *c, const tn_tensor *x, int *first, int *end);
/* Of a piece's writers that run, the first with a later id, or the last with no later one. -1: none. */
int fu_writer_near(const fu_ctx *c, int piece, uint32_t id, bool later);
/* Whether x can be read at any time: nothing of the segment writes to its memory. */
bool fu_lasting(const fu_ctx *c, const tn_tensor *x);

/* ---- lookups.c ---- */
/* Lists what is looked up, and puts assignments behind it where it cannot be checked before the run. */
int fu_order_lookups(fu_ctx *c);
/* Whether the node changes what is there when the run begins: it assigns, or adds to a gradient. */
bool fu_lasts(const fu_ctx *c, int i);
/* Whether one kernel of these nodes would assign before it knows of all its indices. */
bool fu_looks_too_late(const fu_ctx *c, int n, const int *member);
/* Makes of p, which stores an index's elements, one that looks through them and stores them in scratch. */
tn_cut_reason fu_check_indices(fu_prog *p, const fu_lookup *l);
/* The steps that look through indices before all others. */
int fu_emit_checks(fu_ctx *c);

/* ---- group.c (group.h has what is grouping's own) ---- */
int fu_group_all(fu_ctx *c);
/* Plans the loops of these nodes into c->prog, or says why they cannot be one kernel. */
tn_cut_reason fu_try(fu_ctx *c, const fu_candidate *k);
fu_candidate fu_candidate_of(const fu_ctx *c, const fu_group *g); /* the group as it is, to run */
int fu_group_of(const fu_ctx *c, int node);
/* The group that g has to wait for on account of after[k] of its member `node`: g itself where that is a
 * value which g computes again. */
int fu_awaited(const fu_ctx *c, int g, int node, int k);
bool fu_has(const fu_group *g, int node);
/* Whether some group reads the node's value from memory: one that computes a user of it, but not the node.
 * With a candidate: once that is one group. */
bool fu_read_outside(const fu_ctx *c, const fu_candidate *k, int node);
bool fu_owns(const fu_ctx *c, const fu_candidate *k,
             int node); /* stores the node, rather than computes it again */

/* ---- fold.c ---- */
void fu_fold(fu_ctx *c);

/* ---- domain.c ---- */
/* The space a node loops over: its input's for a reduction or a copy, else its own shape. */
void fu_space(const tn_tensor *t, int *ndim, const int64_t **shape);
/* Whether operand k of t is read at the same point of the space (a gather's table is not). */
bool fu_pointwise_operand(const tn_tensor *t, int k);
/* Where on axis i of t's space operand k lies. false: it covers it. */
bool fu_part(const tn_tensor *t, int k, int i, int64_t *before, int64_t *count);
/* What lies at start + step * coordinate of axis a, as an axis of `count` of its own. */
void fu_part_axis(const fu_domain *d, fu_axis *a, int64_t start, int64_t step, int64_t count);
bool fu_axis_bounded(const fu_domain *d, const fu_axis *a); /* there are places it does not own */
bool fu_axis_covered(const fu_domain *d, const fu_axis *a); /* each of its coordinates has a place */
/* Adds the stride of one axis to the atoms it is a product of, and to *shift what a part adds besides. */
void fu_spread(const fu_domain *d, const fu_axis *axis, int64_t stride, int64_t *out, int64_t *shift);
tn_cut_reason fu_domain_build(const fu_ctx *c, fu_domain *d, int n, const int *member);

/* ---- program.c ---- */
/* The domain is that of the candidate's members, or of those that one of a tile's programs computes. */
tn_cut_reason fu_program(const fu_ctx *c, const fu_candidate *k, const fu_domain *d, fu_prog *p);

/* ---- program_check.c ---- */
/* Whether the kind of member m can run over parts of axes, if it does. */
bool fu_may_be_part(const fu_ctx *c, const fu_domain *d, int m);
/* Of s, the newest store of p, which overwrites memory; it may have to come late. */
tn_cut_reason fu_overwrites(const fu_candidate *k, const fu_domain *d, const fu_prog *p, fu_store *s);
bool fu_can_be_named(const fu_prog *p); /* what it reads, writes and leaves of its sums, in a kernel */

/* ---- atoms.c, phases.c, schedule.c (schedule.h has what is the schedules' own) ---- */
int fu_vec(const fu_prog *p);                            /* the last atom */
int64_t fu_count(const fu_prog *p, uint32_t atoms);      /* iterations of these */
void fu_reorder(fu_prog *p, const int *position);        /* atom a becomes atom position[a] */
bool fu_full(const fu_prog *p, const fu_value *v);       /* changes inside the loops of a phase */
bool fu_reduced_in(const fu_value *v, int phase);        /* that phase reduces it */
bool fu_store_full(const fu_prog *p, const fu_store *s); /* stored by the vector loop of a phase */
bool fu_chooses(const fu_value *v);                      /* argmax, argmin */
int fu_op_cost(const fu_value *v);                       /* for one element: about how many instructions */
tn_cut_reason fu_schedule(fu_prog *p);

/* ---- cross.c ---- */
bool fu_is_partial(const fu_prog *p, int id); /* a reduction whose parts go to scratch */
int64_t fu_cross_width(const fu_prog *p, const fu_value *v);
bool fu_cross_wide(const fu_prog *p); /* a cross reduction has a sum for each element of a row */

/* ---- second_stage.c ---- */
/* What finishes a split program, and one with cross reductions; scratch[v] is the slot of the partial results
 * of REDUCE value v. The first is scheduled, the second's loops are the finish's own. Cross reductions have
 * one finish for those with a sum for each element of a row (wide), and for what else follows, one for single
 * ones. */
void fu_second_stage(const fu_prog *first, fu_prog *second, const int *scratch);
bool fu_cross_finish(const fu_prog *first, fu_prog *second, const int *scratch,
                     bool wide); /* false: nothing */

/* ---- schedule_cuda.c ---- */
/* Whether the compiler had too few registers for a kernel with one of these values (TN_SEG_LEAN). */
bool fu_lean(const fu_prog *p);

/* ---- steps.c ---- */
tn_step *fu_step_new(fu_ctx *c, tn_step_kind kind, const char *name);
int fu_step_buf(fu_ctx *c, tn_step *s, int slot, int64_t offset); /* index in s->buf */
int fu_scratch_slot(fu_ctx *c, int64_t elems, tn_dtype dtype);
void fu_kernel_name(const fu_ctx *c, const fu_group *g, const fu_prog *p, char *out, size_t n);
int fu_finish_kernel(fu_ctx *c, tn_step *s, fu_text *t); /* hands the text over to the step */

/* ---- the steps of each kind of group ---- */
int fu_emit(fu_ctx *c, const fu_group *g, fu_prog *p);
int fu_emit_gemm(fu_ctx *c, const fu_group *g);
int fu_emit_conv(fu_ctx *c, const fu_group *g);
int fu_emit_window(fu_ctx *c, const fu_group *g);
int fu_emit_scatter(fu_ctx *c, const fu_group *g);
int fu_emit_scan(fu_ctx *c, const fu_group *g);
int fu_emit_concat(fu_ctx *c, const fu_group *g);
int fu_emit_attention(fu_ctx *c, const fu_group *g);
/* Into c->prog the loops that write t's elements one after the other: how many; or an error. Where to is not
 * said yet. */
int64_t fu_dense_program(fu_ctx *c, const tn_tensor *t);
/* A dense copy of t into new scratch: the slot. */
int fu_emit_dense(fu_ctx *c, const tn_tensor *t, int node);

/* ---- plan.c: the passes in order, each for itself ---- */
int fu_begin(fu_ctx *c); /* seg, target, plan and err are set */
int fu_emit_all(fu_ctx *c);
int fu_list_values(fu_ctx *c);

/* ---- verify_graph.c, verify_program.c, verify_steps.c ---- */
/* 0, or TN_E_INTERNAL with the pass, the node and the rule it broke; or TN_E_NOMEM. */
int fu_verify_graph(fu_ctx *c, const char *pass);
int fu_verify_groups(fu_ctx *c);
int fu_verify_program(fu_ctx *c, const fu_prog *p);
int fu_verify_steps(fu_ctx *c);
int fu_broken(fu_ctx *c, const char *pass, int node, const char *rule); /* TN_E_INTERNAL, with that text */

#endif
