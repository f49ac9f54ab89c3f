/* loops.h - the loop program of a group: which loops its kernel has, and what each computes, reads and
 * stores.
 *
 * A *group* is a set of segment nodes that one kernel computes (two where a reduction is split). Its
 * iteration space is cut into *atoms*: independent loop axes that every node's axes are products of. A node's
 * axis is a list of atoms, outermost first, so reshape (merging, splitting) and permute inside a group cost
 * nothing: the value at a point of the space is the same value whatever its shape says. Broadcast values
 * simply do not vary over some atoms.
 *
 * Takes a candidate (graph.h) and gives a scheduled fu_prog, or the reason why there is none:
 *
 *   domain.c    nodes -> atoms, by propagation along the edges
 *   program.c   nodes + atoms -> fu_prog: values in single assignment, loads, stores, strides over atoms;
 *               program_check.c: what no program may do
 *   schedule.c  fu_prog -> form (pointwise, row, column), tiles, split; atoms.c merges and orders the loops,
 *               phases.c tells the passes over them apart; schedule_cuda.c: the same for GPUs
 *   blocks.c    what lies crosswise
 *   cross.c     row programs that also sum over their rows
 *   second_stage.c   what finishes a reduction that has been split in parts
 *   try.c       all of these, one after the other
 *   lookahead.c   programs that look indices through before the run
 *   tile.c      convolutions with a kernel of our own, and what it does besides; schedule_tile.c, conv_tile.c
 *   cost.c      how long a kernel takes, by the target profile
 *   verify_program.c   what the text may take for granted
 *
 * Read first: fu_prog. */
#pragma once

#include "../graph/graph.h"

enum {
    FU_MAX_ATOMS = 12,
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
    FU_BLOCK = 32,         /* lines of a block that is read crosswise, and */
    FU_BLOCK_TILE = 64,    /* their length, where nothing is reduced; else */
    FU_BLOCK_ROOM = 65536, /* the bytes of all such blocks */
    FU_STREAM_TILE = 64    /* elements computed before they are written past the caches */
};

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
    int node;           /* segment node this is the value of, or -1 */
    int asker;          /* INDEX: the segment node that indexes */
    char hint[FU_HINT]; /* a name from the user's program, or "" */
    /* schedule */
    int phase;     /* of a value inside the loops: first phase that can compute it; else: how many
                      phases must be over */
    uint32_t need; /* phases that compute it */
    bool used;
    int stash;   /* phase that computes it and keeps it for later ones, or -1 */
    bool array;  /* COLUMN: kept in an array over the tile */
    bool wide;   /* REDUCE: sums of f32 carried in f64, or on a GPU with what they round away */
    bool apart;  /* REDUCE of a program that folds: each column for itself */
    bool cross;  /* REDUCE of a row program that runs over its rows (cross.c) */
    bool staged; /* LOAD: contiguous along prog.block, read through a block on the stack */
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
    bool staged; /* contiguous along prog.block, written through a block on the stack */
    int phase, buf;
} fu_store;

typedef enum fu_form { FU_POINTWISE, FU_ROW, FU_COLUMN } fu_form;

typedef struct fu_prog {
    const fu_ctx *c; /* for the device's numbers, and where operands lie */
    int n_atom;
    int64_t
        extent[FU_MAX_ATOMS]; /* atoms stand outermost first once scheduled; the last one is the vector's */
    uint32_t red;             /* atoms reduced */
    uint32_t cross;           /* atoms that cross reductions run over: all others, or none */
    bool cross_rows;          /* one of them sums over rows the sums along them */
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
    int block;    /* atom that a load or a store runs along, of which an item therefore takes */
    int lines;    /* so many lines, COLUMN: all; -1: none */
    int unroll;   /* COLUMN: reduced rows added up before they go to the accumulator */
    int64_t fold; /* COLUMN: so many columns side by side have one sum; else 0. Which of these sums it is,
                     stride[n_atom] counts, and extent[n_atom] is how many there are (fu_fold_columns) */
    int64_t last_bytes; /* of the last cache */
    bool stream;        /* some stores go past the caches */
    int n_phase;
    int lanes;
    int64_t items, chunk;
    /* CUDA: threads of a block; those that share an item; elements a thread takes at once; packs of a row
       that each thread keeps (0: it reads them again); packs it reads before it computes; items side by side
       that the teams of a block take turn about, thread by thread */
    int threads, team, pack, held, ahead, abreast;
    bool apart; /* COLUMN with few reduced rows: each line of threads has an item of its own, not some rows */
} fu_prog;

/* Results that are larger are written past the caches. */
static inline int64_t fu_last_bytes(const tn_target *t)
{
    return t->last_bytes ? t->last_bytes : INT64_C(32) << 20;
}

static inline uint32_t fu_bit(int atom) { return 1u << atom; }

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

/* ---- domain.c ---- */
/* The space a node loops over: its input's for a reduction or a copy, else its own shape. */
void fu_space(const tn_tensor *t, int *ndim, const int64_t **shape);
/* Returns true where operand k of t is read at the same point of the loop space (a gather's table is not). */
bool fu_pointwise_operand(const tn_tensor *t, int k);
/* Finds which part of axis i of t's loop space operand k covers: `count` coordinates behind the first
 * `before`. false: it covers all of the axis. */
bool fu_part(const tn_tensor *t, int k, int i, int64_t *before, int64_t *count);
/* Turns a into an axis of `count` coordinates, of which start + step * q is what was coordinate q of a. */
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
/* Returns true unless member m runs over parts of axes, and its kind of node cannot. */
bool fu_may_be_part(const fu_ctx *c, const fu_domain *d, int m);
/* Checks s, the newest store of p, which overwrites memory, and marks it as late where it has to come
 * last. */
tn_cut_reason fu_overwrites(const fu_candidate *k, const fu_domain *d, const fu_prog *p, fu_store *s);
/* Makes of p, which stores an index's elements, one that looks through them and stores them in scratch. */
tn_cut_reason fu_check_indices(fu_prog *p, const fu_lookup *l);
/* Whether one kernel of n programs has names enough for all that they read, write and leave of their sums,
 * for `others` besides, and for their run-time numbers. */
bool fu_can_be_named(int n, const fu_prog *const *p, int others);

/* ---- atoms.c, phases.c, schedule.c (schedule.h has what is the schedules' own) ---- */
int fu_vec(const fu_prog *p);                       /* the last atom */
int64_t fu_count(const fu_prog *p, uint32_t atoms); /* iterations of these */
/* Of which a load or store with these strides meets so many elements. */
int64_t fu_elements(const fu_prog *p, const int64_t *stride, uint32_t atoms);
void fu_reorder(fu_prog *p, const int *position);        /* atom a becomes atom position[a] */
bool fu_full(const fu_prog *p, const fu_value *v);       /* changes inside the loops of a phase */
bool fu_reduced_in(const fu_value *v, int phase);        /* that phase reduces it */
bool fu_store_full(const fu_prog *p, const fu_store *s); /* stored by the vector loop of a phase */
bool fu_chooses(const fu_value *v);                      /* argmax, argmin */
int fu_op_cost(const fu_value *v);                       /* for one element: about how many instructions */
tn_cut_reason fu_schedule(fu_prog *p);
/* ---- blocks.c ---- */
int64_t fu_block_pitch(const fu_prog *p); /* CPU: elements from line to line of a block */
bool fu_has_line(const fu_prog *p, const fu_value *v, int phase); /* LOAD: copied to a line before the loop */
int64_t fu_line_length(const fu_prog *p);                         /* its elements for one row */

/* ---- phases.c: what a phase holds ---- */
uint32_t fu_all_atoms(const fu_prog *p);
bool fu_runtime(const fu_prog *p, int atom); /* its extent is an argument */
bool fu_computed_in(const fu_prog *p, const fu_value *v, int phase);
bool fu_phase_reduces(const fu_prog *p, int phase);
bool fu_phase_streams(const fu_prog *p, int phase); /* it writes past the caches */
bool fu_index_inside(const fu_prog *p, int phase);
/* Returns the id of the value that is the row's largest x, where v is e^(x - that) and has a shorter form;
 * -1: v is nothing of the kind. */
int fu_low_top(const fu_prog *p, const fu_value *v);
bool fu_wants_least(const fu_prog *p, int id); /* value id is such a largest one */

/* ---- cross.c ---- */
bool fu_is_partial(const fu_prog *p, int id); /* a reduction whose parts go to scratch */
int64_t fu_cross_width(const fu_prog *p, const fu_value *v);

/* ---- second_stage.c ---- */
/* Builds the program that finishes a split program (fu_second_stage), or one with cross reductions
 * (fu_cross_finish); scratch[v] is the slot of the partial results of REDUCE value v. `first` is scheduled,
 * the loops of `second` are the finish's own. Cross reductions have one finish for those with a sum for each
 * element of a row, and what follows from these (wide), and another for single sums. */
void fu_second_stage(const fu_prog *first, fu_prog *second, const int *scratch);
bool fu_cross_finish(const fu_prog *first, fu_prog *second, const int *scratch,
                     bool wide); /* false: nothing */

/* ---- schedule_cuda.c ---- */
/* Returns true where the compiler had too few registers for a kernel with one of these values
 * (TN_SEG_LEAN). */
bool fu_lean(const fu_prog *p);

/* ---- try.c ---- */
/* Tries whether the candidate can be one kernel: writes its programs into c->prog, prog2 and prog3, or
 * returns the reason why not. */
tn_cut_reason fu_try(fu_ctx *c, const fu_candidate *k);
tn_cut_reason fu_try_loops(fu_ctx *c, const fu_candidate *k); /* where no convolution is in it */

/* ---- lookahead.c ---- */
/* Decides for each lookup whether it is looked through before the run, or which assignments wait for it. */
int fu_order_lookups(fu_ctx *c);
bool fu_lookahead_program(fu_ctx *c, const fu_lookup *l); /* what looks l through, into c->prog */
/* Into c->prog the loops that write t's elements, as those of a part of a dense tensor of shape `whole` lie:
 * how many; or an error. Where to is not said yet. */
int64_t fu_copy_program(fu_ctx *c, const tn_tensor *t, const int64_t *whole);

/* ---- verify_program.c ---- */
int fu_verify_program(fu_ctx *c, const fu_prog *p); /* as fu_verify_graph */
