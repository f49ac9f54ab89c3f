/* session.h - what a session is, and how a public operator enters and leaves it.
 *
 * Every public function follows one pattern (record.c):
 *
 *     tn_tensor *tn_relu_at(tn_tensor *x, const char *file, int line)
 *     {
 *         tn_scope sc = tn_enter("relu", file, line, 1, &x);         handles -> nodes, checks, opens a call
 *         return tn_leave(&sc, sc.ok ? tn_mk1(TN_OP_relu, x) : NULL); closes it, runs it if eager, -> handle
 *     }
 *
 * Read first: record.c (tn_enter, tn_leave), then flush.c, which runs what was recorded. */
#pragma once

#include "../../fuser/plan.h"
#include "../core/build.h"
#include "replay.h"

typedef struct tn_plan_cache tn_plan_cache;

/* The parameters of one dtype live in a slab from birth on: an address range that never moves. */
typedef struct tn_slab {
    tn_tensor *values, *gradients; /* persistent, flat */
    char *value_base, *gradient_base;
    size_t reserved; /* bytes of each range */
    int64_t count;   /* elements handed out, gaps included */
} tn_slab;

enum { TN_SLAB_ALIGN = 64 }; /* elements: 256 bytes of f32 */

struct tn_session {
    tn_graph graph;
    tn_device *device;
    tn_target target;
    struct tn_target_profile *profile; /* read from a file; NULL: the reference serves */
    struct tn_tune *tune;              /* tiles chosen by timing (tune.h); NULL: none are */
    tn_mode mode;
    tn_options options;
    tn_plan_cache *plans;
    bool in_step;
    int checkpoints; /* tn_checkpoint_begin that are open */
    struct tn_budget {
        int64_t bytes;         /* that a step's values may take; 0: any number */
        int64_t estimate;      /* of what they take as they are now, */
        double ratio;          /* and how much that has been too little; 0: not known yet */
        int tries;             /* at knowing it, and changes of mind */
        int cut, parts, again; /* how many parts were asked for, how many there are, how many of them are
                                  computed again */
        bool at_least;         /* no choice fits */
        int64_t all, dear;     /* bytes that backward reads; of those that no elementwise operator makes */
        struct {
            int cut, again;
            int64_t taken;
            double share; /* taken of all; 0: there is none yet */
        } best;           /* of the choices that steps have run with */
        enum { TN_BUDGET_LEARNS, TN_BUDGET_WITHOUT, TN_BUDGET_SETTLED } state;
    } budget; /* budget.c */
    bool f16; /* computes in it, or has */
    struct {
        tn_tensor *(*fn)(tn_tensor *loss, void *arg);
        void *arg;
    } scale; /* of losses then; NULL: none */

    tn_tensor **params, **buffers, **kept; /* persistent nodes */
    int n_params, n_buffers, n_kept, cap_params, cap_buffers, cap_kept;
    tn_tensor **named; /* parameters and buffers, a table by their names */
    int n_named, cap_named;
    tn_slab slab[TN_DTYPE_COUNT];
    size_t apart; /* bytes of a parameter from which on an update of its own is worth a launch (spare.c) */
    uint32_t flushed; /* nodes of this step with a smaller id are past their flush */
    bool region_ends; /* tn_op_end is running what its operator leaves: inner results are not kept */
    bool ending;      /* tn_step_end is running what is pending: nothing is kept for later */
    struct tn_watch_slot {
        tn_tensor *node; /* of this step, NULL once it is read */
        double value;    /* the newest that is finished */
        bool posted;     /* the device holds it: peek */
        tn_dtype dtype;
    } * watch; /* by order of the calls within a step */
    int n_watch, cap_watch;
    int n_watched; /* of the step that ended last */

    struct tn_closer {
        void (*fn)(void *);
        void *arg;
    } * closers;
    int n_closers, cap_closers;

    tn_stats stats;
    struct tn_failures {
        uint64_t first, last; /* runs, by their numbers */
    } failures[256];
    int n_failures;                   /* a ring: the newest is at (n_failures - 1) % 256 */
    uint64_t step_runs, step_draw;    /* runs and draws there were when the last step began */
    uint64_t drawn;                   /* draws up to the last of its runs that did not fail */
    struct tn_explain_state *explain; /* explain.h */
    struct tn_flush_scratch *scratch; /* flush.c's lists, kept from flush to flush */
    void *arena;                      /* of values that die with their plan; as large as the largest plan's */
    size_t arena_bytes, arena_range;  /* range: addresses it has, where the device has memory of its own */
    tn_plan **ran; /* device_run.c: plans that index and have run since a fault was last looked for */
    int n_ran, cap_ran;
    char not_recorded[256]; /* why a step of late was not run as one launch */
    size_t live_high;       /* device bytes at the end of the last steps: growth alarm */
    int growing;            /* steps running that have ended with more than any before */
    size_t growth_least;    /* by how much at least */
    uint64_t growth_plans;  /* plans made when it was last looked at */
    int went_back_outside;  /* tn_backward outside of steps, since the last one */
    bool went_back;         /* tn_backward was called in this step, and no gradient asked for */
    bool told_to_free;      /* that parameters are not freed by hand */
    struct tn_outside {
        uint64_t calls, next; /* of operators outside of steps since the last one began; when to look again */
        uint32_t freed;       /* results of theirs, since it was last seen whether any is held */
        int told;             /* how many there were when it was said that they pile up */
        size_t told_bytes;
    } outside;
    struct tn_outer {
        uint32_t first; /* graph->scope.first of what is around the scope */
        tn_arena_mark arena;
        uint64_t calls, next; /* of `outside` as it began */
        bool in_step;         /* began in one */
    } * scope;                /* those that are open */
    int n_scopes, cap_scopes;
    char no_gradient[240]; /* where tn_grad gave a NULL, for the errors of those it is passed on to; "" */
    tn_fault fault;
    tn_tape tape;
    double rank_weight;                                   /* tn_weigh_rank */
    struct tn_ranks *ranks;                               /* ranks.h; NULL: this process stands alone */
    void (*log)(int level, const char *text, void *user); /* the program's own, of such a session */
    void *log_user;
    struct tn_export *export; /* a step is to be written down (src/export), */
    int (*caught)(tn_session *s,
                  struct tn_flush_scratch *f); /* which looks at what is about to run; or NULL */
};

/* What products of f32 are computed in. */
static inline tn_dtype tn_products_of(tn_precision p)
{
    return p == TN_PRECISION_BF16 ? TN_BF16 : p == TN_PRECISION_F16 ? TN_F16 : TN_F32;
}

/* Returns true where operators wait to be run together: in a step in fused mode. Else each one runs at its
 * call. */
static inline bool tn_deferred(const tn_session *s) { return s->mode == TN_FUSED && s->in_step; }

/* ---- record.c ---- */
typedef struct tn_scope {
    tn_graph *g; /* NULL: no argument told the session */
    bool ok;
    uint32_t first;  /* id of the first node made inside */
    int note;        /* its entry on the tape that is being recorded, or -1 */
    tn_entry *entry; /* the entry it repeats: nothing is to be made (ok is false), tn_leave has the results */
} tn_scope;

/* Begins the definition of tn_NAME_at, of these parameters, `file` and `line`, behind that of tn_NAME, which
 * has no place: TN_AT(tn_tensor *, exp, (x), tn_tensor *x) { .. } */
#define TN_AT(type, name, args, ...)                                                                         \
    type(tn_##name)(__VA_ARGS__) { return tn_##name##_at(TN_LIST_ args, NULL, 0); }                          \
    type tn_##name##_at(__VA_ARGS__, const char *file, int line)
#define TN_LIST_(...) __VA_ARGS__

/* Takes n handles in place to the nodes that stand for them now. A NULL makes ok false. */
#define tn_enter(name, file, line, n, ...)                                                                   \
    tn_enter_named(NULL, name, file, line, #__VA_ARGS__, n, 0, __VA_ARGS__)
/* The same for a call that can be repeated (replay.h): key says what it depends on besides its tensors. After
 * the n tensors follow n_optional that may be NULL. */
#define tn_enter_as(key, name, file, line, n, n_optional, ...)                                               \
    tn_enter_named(key, name, file, line, #__VA_ARGS__, n, n_optional, __VA_ARGS__)
/* args: the arguments as they are written, "&x, &weight": what errors call them. */
tn_scope tn_enter_named(const tn_op_key *key, const char *name, const char *file, int line, const char *args,
                        int n, int n_optional, ...);
/* Likewise for n of them, up to TN_MAX_OPERANDS, the last of which are a list: args is "xs[]", "loss,
 * inputs[]". */
enum { TN_MAX_OPERANDS = 260 };
tn_scope tn_enter_list_as(const tn_op_key *key, const char *name, const char *file, int line,
                          const char *args, int n, tn_tensor **x);
tn_scope tn_enter_session_as(const tn_op_key *key, tn_session *s, const char *name, const char *file,
                             int line);
tn_scope tn_enter_session(tn_session *s, const char *name, const char *file, int line);
tn_tensor *tn_leave(tn_scope *sc, tn_tensor *result);
/* Leaves without a result: tn_leave_error(&sc, status, format, ..), as tn_error_set has it. */
#define tn_leave_error(sc, ...) tn_leave(sc, tn_error_set((sc)->g, __VA_ARGS__))
int tn_leave_many(tn_scope *sc, int n, tn_tensor **results); /* nodes in, handles out */

/* The session of a handle that may be stale; NULL for NULL. */
tn_session *tn_slot_session(const tn_tensor *handle);
/* tn_resolve, for functions that are no operators: a stale one is an error of `op`. */
tn_tensor *tn_resolve_or_fail(const tn_tensor *handle, const char *op);
/* The node that stands for a resolved handle in the step now recording. */
tn_tensor *tn_use(tn_tensor *n);

/* ---- say.c ---- */
void tn_say(const tn_options *o, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* TN_E_DEVICE with what the device says of its last failure behind `what`. NULL. */
void *tn_device_error(tn_session *s, const char *what);

/* ---- failure.c ---- */
void tn_note_failure(tn_session *s, uint64_t first); /* the runs from number `first` on have failed */
/* After a run: turns a fault word that a kernel set into the session's error. */
int tn_check_fault(tn_session *s);

/* ---- pending.c ---- */
/* Returns true where a node that was recorded before id `before` and has not run will write to x's memory. */
bool tn_is_awaited(tn_session *s, const tn_tensor *x, uint32_t before);
bool tn_write_pending(tn_session *s, const tn_tensor *x); /* the same, before x is read */

/* ---- flush.c ---- */
/* Runs what the n nodes need; where operators wait, everything that does. 0 or a status (also set in the
 * graph). */
int tn_run(tn_session *s, int n, tn_tensor *const *roots);
void tn_flush_free(tn_session *s);

/* ---- outside.c ---- */
/* An operator has run outside of steps. */
void tn_outside_made(tn_session *s);
/* The user wants no more of n, its result. */
void tn_outside_free(tn_session *s, tn_tensor *n);
/* Nor do nodes that stand for p, a persistent tensor that is freed, hold its memory. */
void tn_outside_let_go(tn_session *s, const tn_tensor *p);
/* What is made now goes with the step, or the scope, that is open. */
static inline bool tn_is_passing(const tn_session *s) { return s->in_step || s->n_scopes; }
/* Ends the scopes that a step, which ends, has left open. */
void tn_scopes_left(tn_session *s);

/* ---- session.c ---- */
/* Everything recorded so far dies: handles become stale, values go back to the pool. */
void tn_end_scope(tn_session *s);
/* Runs what the open call leaves behind: n results, its assignments, handles nothing in it consumed. */
int tn_run_open_ends(tn_session *s, int n, tn_tensor *const *results);

/* ---- read.c ---- */
/* The step's watched values have run: keeps them for the step to come. */
void tn_watch_collect(tn_session *s);

/* ---- profile.c ---- */
/* The target profile of a session that has just been opened: TENSOR_PROFILE's, the one a calibration has left
 * for this machine and number of threads, or the reference. */
void tn_profile_choose(tn_session *s);

/* ---- plan_cache.c ---- */
tn_plan_cache *tn_plan_cache_new(int max_plans);
void tn_plan_cache_free(tn_plan_cache *c);
int tn_plan_cache_count(const tn_plan_cache *c);
size_t tn_plan_cache_arena(const tn_plan_cache *c);     /* of the plan that wants most */
void tn_plan_cache_touch(tn_plan_cache *c, tn_plan *p); /* p is used, without having been looked for */
/* leaf: of the segment with this record; NULL: any will do. *other: the plan there is was made for other
 * values of their run-time numbers (NULL is returned then). */
tn_plan *tn_plan_cache_find(tn_plan_cache *c, const void *key, size_t bytes, tn_tensor *const *leaf,
                            bool *other);
/* Takes the plan over, also when it fails (TN_E_NOMEM). One of the same record goes. */
int tn_plan_cache_add(tn_plan_cache *c, const void *key, size_t bytes, tn_plan *p);

/* ---- create.c ---- */
tn_tensor *tn_persist(tn_session *s, tn_dtype dtype, int ndim, const int64_t *shape); /* with storage */

/* ---- assign.c ---- */
/* p (persistent) takes source's value. target: p's version node, or a reshape of it with source's shape.
 * defer: the assignment runs when the open call ends, with what else it leaves behind. */
/* Lines of a target; NULL: all of it. */
typedef struct tn_lines {
    int axis;
    tn_tensor *index;
    bool in_range;
} tn_lines;
int tn_assign_node(tn_tensor *p, tn_tensor *target, const tn_lines *lines, tn_tensor *source, bool defer);

/* ---- state.c ---- */
void tn_state_free(tn_session *s);

/* ---- spare.c ---- */
/* Before what waits is run: gradients that only an update reads have a place in the slab where it has to be
 * taken that somebody asks for them. 0 or the error. */
int tn_spare_gradients(tn_session *s);
/* The gradient of parameter p is given out. */
void tn_ask_gradient(tn_tensor *p);
/* What x looks into is about to be written or read: the part of it that is of gradients has memory from now
 * on. 0 or the error. */
int tn_gradient_room(tn_session *s, const tn_tensor *x);
