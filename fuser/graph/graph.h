/* graph.h - the segment as the fuser sees it: nodes, what must run before them, and the groups they belong
 * to.
 *
 * Takes a segment (plan.h) and gives the same graph with less in it, and more known about it:
 *
 *   context.c   what all passes look up and note; cut.c: why two nodes are not one kernel, in words
 *   simplify.c  what need not run: algebra.c finds values that exist already or are numbers, common.c values
 *               that two nodes have in common
 *   hazard.c    order through memory that an assignment overwrites
 *   lookups.c   what is chosen by an index, which must be in range before anything is assigned
 *   fold.c      copies that their producers spare
 *   groups.c    what a group is, once there are some
 *   verify_graph.c   what later passes may take for granted of all this
 *
 * Knows no loops, no text and no device. Read first: fu_node. */
#pragma once

#include "../plan.h"

enum { FU_MAX_MEMBERS = 64, FU_MAX_JOINED = 32 }; /* operands of a concat that one kernel joins */

/* Statistics of a convolution's columns that its kernel finds out as it writes them: sums over the other
 * axes. */
typedef enum fu_statistic {
    FU_NO_STATISTIC,
    FU_WITHIN, /* a summand of these sums: never computed */
    FU_SUM,    /* of x - about */
    FU_SQUARES /* of (x - about)^2 */
} fu_statistic;

typedef struct fu_node {
    tn_tensor *t;
    tn_kind kind;
    bool live, root;
    bool strict; /* 16-bit floats are rounded wherever it is made, as if it were in memory (find_strict) */
    const tn_tensor *same; /* what readers take instead: it has the node's value (simplify). NULL: the node */
    int group;             /* the group that stores it */
    int lookup;            /* of what chooses by an index: in ctx->lookup; else -1 */
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
    FU_RANKS,
    FU_HOST,
    FU_NOTHING /* its producers have written it */
} fu_room;

typedef struct fu_group {
    fu_room room;
    int n;
    int *member;    /* in id order */
    bool dead;      /* merged into another */
    bool backward;  /* of the gradient walk, not of what the user wrote */
    bool early;     /* a sum that gradients wait for, by itself (early.c) */
    bool frees;     /* assigns, and makes nothing else: plan.c */
    int into;       /* which, when dead */
    int mark, rank; /* rank: order.c */
} fu_group;

/* An index by which values are gathered or scattered. Nodes that use it among the same number of lines share
 * it. */
typedef struct fu_lookup {
    const tn_tensor *index;
    int64_t extent; /* lines to choose from */
    int node;       /* the oldest that uses it */
    bool known;     /* no element is out of range */
    bool ahead; /* it can be looked through before anything has run: from what stands in memory by then, */
    int n, *member; /* through these nodes */
    bool undone;    /* neither that nor order: the plan is undone if it fails */
    bool first;     /* every assignment waits for a kernel that looks it through */
} fu_lookup;

/* Memory that nodes of the segment write, in pieces: piece i lies between edges i and i + 1, and is written
 * by by[begin[i]] .. by[begin[i + 1] - 1], in their order. */
typedef struct fu_written {
    int n_edge;
    uintptr_t *edge;
    int *begin, *by;
} fu_written;

/* The position of a walk over the groups that a group needs (order.c): at a member, and at an entry of its node's `after`. */
typedef struct fu_walk {
    int group, member, k;
} fu_walk;

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
    int n_rank, cap_rank, *ranked, *waiting; /* group at each rank, -1: none; scratch (order.c) */
    fu_walk *stack;                          /* scratch of it */
    int cap_cut, cap_step, cap_scratch;
    struct fu_scratch {
        int64_t elems;
        tn_dtype dtype;
    } * scratch; /* plan->n_scratch of them */
    struct fu_prog *prog, *prog2,
        *prog3;           /* of what is tried, or written: loops, a tile's statistics, its image */
    struct fu_prog *copy; /* of an operand that is copied; NULL: none was so far */
    struct fu_domain *domain;
    double far; /* bytes touched from forward to backward */
} fu_ctx;

enum { FU_VIEW = -2 };

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

/* What kernels of a dialect can do, as far as passes have to know: a row for each dialect, in context.c. */
typedef struct fu_ability {
    bool grid; /* an item has a thread or a team of them; else a thread has many items, in loops of vectors */
    bool tiles;     /* convolutions and products can have kernels of our own (loops/conv_tile.h) */
    bool then;      /* the library's product can hand its result to a kernel part by part (tn_gemm.then) */
    bool meet;      /* a loss and its gradients share kernels and values where that pays */
    bool two_forms; /* a loop may stand there with and without a function's slow cases, chosen as it runs */
    bool undo;      /* an assignment can be taken back: memory is the host's */
    int finishes;   /* loops that may finish the sums of one kernel */
} fu_ability;
const fu_ability *fu_can(const tn_target *t);

/* ---- context.c ---- */
/* The node of this segment that owns t's memory, or -1 when a leaf does. */
int fu_node_of(const fu_ctx *c, const tn_tensor *t);
/* Finds where t's first element lies: slot and element offset. false: nowhere (an error of the caller). */
bool fu_place(const fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset);
const tn_tensor *fu_value_of(const fu_ctx *c, const tn_tensor *t); /* after simplification */
/* Returns true where t takes only the seed and the draw of operand k, and reads none of its elements: the
 * operand's node need not run. */
bool fu_draws(const fu_ctx *c, const tn_tensor *t, int k);
/* Returns true for a cast of 16-bit floats to f32. Its readers read the 16 bits themselves, and no kernel
 * writes the wider values to memory. */
bool fu_widens(const fu_node *n);
/* `old`, of n entries, with room for one more. NULL: no memory. */
void *fu_grow(tn_arena *a, void *old, int n, int *cap, size_t size);
bool fu_note_user(fu_ctx *c, int node, int user);   /* user reads node. false: no memory */
bool fu_note_copy(fu_ctx *c, int node, int group);  /* group computes node again. false: no memory */
bool fu_note_after(fu_ctx *c, int node, int other); /* node must run after other. false: no memory */
void fu_cut(fu_ctx *c, int from, int to, tn_cut_reason why);
int fu_fail(fu_ctx *c, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int fu_broken(fu_ctx *c, const char *pass, int node, const char *rule); /* TN_E_INTERNAL, with that text */
/* What of the name of a tensor (or of none, NULL) stands in a kernel's text: what is behind its last dot, but
 * for digits at the end. Layers that differ in their names alone are then one kernel, compiled once. "":
 * nothing. */
enum { FU_HINT = 24 };
void fu_hint(const char *name, char out[FU_HINT]);
tn_dtype fu_compute_dtype(tn_dtype d); /* what a value of d is carried in: f16 and bf16 in f32 */

/* ---- simplify.c ---- */
int fu_simplify(fu_ctx *c);

/* ---- algebra.c, common.c ---- */
/* Returns a tensor that has the value of node i, bit for bit: an operand, or a new number. NULL: there is
 * none, or no memory, which *status then says. */
const tn_tensor *fu_algebra(fu_ctx *c, int i, int *status);
/* Returns the tensor that node i is the negative of, where it is a product with -1 or a quotient by it; else
 * NULL, with *status as above. */
const tn_tensor *fu_negated(fu_ctx *c, int i, int *status);
/* Returns true where operand k of t is the number v, of the same sign if v is 0. A run-time number is guarded
 * then: the plan serves only those runs in which it has that value. *status as above. */
bool fu_is_number(fu_ctx *c, const tn_tensor *t, int k, double v, int *status);
/* pads.c: a convolution of an image that zeros have been put around becomes one of the image. 0 or
 * TN_E_NOMEM. */
int fu_take_padding(fu_ctx *c, int i);
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
/* Returns true where x can be read at any time: no node of the segment writes to its memory. */
bool fu_lasting(const fu_ctx *c, const tn_tensor *x);

/* ---- lookups.c ---- */
/* Lists what is looked up, where anything is assigned. */
int fu_list_lookups(fu_ctx *c);
/* Returns true where the node changes memory that outlives the run: it assigns, or adds to a gradient. */
bool fu_lasts(const fu_ctx *c, int i);
/* Returns true where one kernel of these nodes would assign before it has checked all the indices that they
 * use. */
bool fu_looks_too_late(const fu_ctx *c, int n, const int *member);
/* Makes the assignments wait for a node that may fail: one that uses an index which cannot be looked through
 * before the run, or a function of the user's. */
int fu_put_behind(fu_ctx *c, int node);

/* ---- fold.c ---- */
void fu_fold(fu_ctx *c);

/* ---- groups.c ---- */
int fu_alive(const fu_ctx *c, int g); /* what g has become part of: g while it is not dead */
int fu_group_of(const fu_ctx *c, int node);
/* The group that g has to wait for on account of after[k] of its member `node`: g itself where that is a
 * value which g computes again. */
int fu_awaited(const fu_ctx *c, int g, int node, int k);
void fu_by_id(int n, int *node); /* sorts a few nodes, as members of groups stand */
bool fu_has(const fu_group *g, int node);
int fu_find(int n, const int *list, int x);        /* where in a list of n numbers x is; -1: nowhere */
bool fu_alone(const fu_ctx *c, const fu_group *g); /* a node of it is to have no company */
int64_t fu_bytes(const tn_tensor *t);              /* of all its elements */
fu_room fu_room_of(const tn_tensor *t);            /* of its node by itself */
fu_candidate fu_candidate_of(const fu_ctx *c, const fu_group *g); /* the group as it is, to run */
/* Returns true where some group reads the node's value from memory: one that computes a user of the node, but
 * not the node itself. With a candidate k: as if k were one group already. */
bool fu_read_outside(const fu_ctx *c, const fu_candidate *k, int node);
/* Lists the groups that compute a user of the node and would read it from memory. Returns how many; -1: more
 * than `most`. */
int fu_readers(const fu_ctx *c, int node, int *out, int most);
/* Returns true where the candidate stores the node, rather than computes a copy of it for itself. */
bool fu_owns(const fu_ctx *c, const fu_candidate *k, int node);

/* ---- verify_graph.c ---- */
/* 0, or TN_E_INTERNAL with the pass, the node and the rule it broke; or TN_E_NOMEM. */
int fu_verify_graph(fu_ctx *c, const char *pass);
int fu_verify_groups(fu_ctx *c);
