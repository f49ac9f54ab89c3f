/* optim.h - what the files of the optimizers share.
 *
 *   optimizers.c   which there are: a row of struct nn_method each, its formula, and its constructor
 *   optim.c        making one of a row, parameter groups, learning rates
 *   optim_factor.c what an update multiplies by, one number or one for each parameter
 *   optim_step.c   an update: what a formula is given, and what becomes of its result; clipping
 *   optim_state.c  what is kept from step to step
 *
 * What an optimizer owns of one dtype is a row of blocks of the parameter slab (NN_BLOCK elements each, and
 * every parameter begins one), from the first to the last parameter that has had a gradient. The optimizer's
 * state stands in flat tensors of the row's shape, so that an update is a few operators on whole rows,
 * whatever the number of parameters. Where the gradients of large parameters can be read as they are made
 * (tn_update_gradient), each has an update of its own, and so do the small ones between two of them: these
 * are the row's parts. Read struct nn_method first. */
#ifndef TN_OPTIM_H
#define TN_OPTIM_H

#include "nn.h"

enum { NN_BLOCK = 64 };
/* What a method keeps, and the gradients summed since the last update (.accumulate). */
enum { NN_MOMENTS = 3, NN_SUM = NN_MOMENTS, NN_STATES };
enum { NN_ROWS = 2 };    /* f32, f64 */
enum { NN_NUMBERS = 3 }; /* of a method's own */
enum { NN_LATE = 32 };   /* updates before it is asked whether the oldest of them took place */
enum { NN_SPREADS = 4 }; /* of the quantities of optim_step.c those that seldom change */

typedef struct nn_update nn_update;

/* (1 - number[number]^t)^exponent */
typedef struct nn_unbias {
    int number;
    double exponent;
} nn_unbias;

/* An optimizer. With d what `step` returns,
 *   p = p - lr * rate(t) * d,   where a parameter's updates are counted by t from 1.
 * Weight decay is added to the gradient that `step` is given, or taken from p where it is decoupled. */
typedef struct nn_method {
    const char *name;              /* "adamw": of the operator, in errors and in checkpoints */
    const char *state[NN_MOMENTS]; /* PyTorch's names of what is kept for each parameter; zeros at first */
    bool decoupled;
    bool follows; /* p stays: `step` is given p in the place of its gradient, which need not be there */
    double (*rate)(const double *number, double t); /* NULL: 1 */
    double (*gain)(const double *number, double t); /* of tn_nn_gained; NULL: 1 */
    nn_unbias rate_as, gain_as; /* what they are, for an export; exponent 0: it cannot say */
    /* g and state[] are flat tensors over many parameters; state[] takes the new values. */
    tn_tensor *(*step)(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state);
} nn_method;

tn_tensor *tn_nn_gained(const nn_update *u, tn_tensor *x); /* x * gain(t) */
tn_tensor *tn_nn_times(tn_tensor *x, double v);
static inline tn_tensor *tn_nn_where(tn_tensor *mask, tn_tensor *yes, tn_tensor *no) /* mask NULL: yes */
{
    return mask ? tn_where(mask, yes, no) : yes;
}

typedef struct nn_optim_entry {
    tn_tensor *param;
    int row, part;        /* of the row, and the how-manieth of its parts is this parameter alone, or -1 */
    int64_t first, count; /* its elements of the slab */
    double lr_factor, weight_decay;
    int64_t steps; /* updates done; PyTorch's state["step"] */
    bool fresh;    /* has a gradient in this step */
    bool summed;   /* the row's NN_SUM holds gradients of it */
    int idle;      /* steps in a row without a gradient */
} nn_optim_entry;

static inline int64_t tn_nn_blocks(const nn_optim_entry *e) { return (e->count + NN_BLOCK - 1) / NN_BLOCK; }

/* A tensor [blocks, 1] with a number (or a bool) of each parameter in its blocks, and the numbers it was
 * filled with. */
typedef struct nn_spread {
    tn_tensor *vector;
    double *value; /* [n of the optimizer] */
} nn_spread;

typedef struct nn_row {
    tn_dtype dtype;
    int64_t first, blocks; /* of the slab, in blocks; none until something has a gradient */
    tn_tensor *values, *gradients;
    int64_t own_first,
        own; /* of these, the blocks that are updated here: all, or this rank's share (.shard) */
    tn_tensor *own_values;
    tn_tensor *state[NN_STATES]; /* NULL where there is none; of the own blocks, NN_SUM of all */
    tn_tensor *brought;          /* a state of all ranks while a checkpoint is written */
    bool summed;                 /* state[NN_SUM] counts */
    nn_spread spread[NN_SPREADS];
    struct nn_row *part; /* over the same blocks, in order: rows whose tensors are windows of this one's, */
    int n_part;
    const struct nn_optim_entry *of; /* or one parameter, and values, gradients and state are in its shape */
    const struct nn_row *whole;      /* of a part: the row */
} nn_row;

/* The parameter has elements, and stands in the row. */
static inline bool tn_nn_has(const nn_row *r, const nn_optim_entry *e)
{
    const int64_t block = e->first / NN_BLOCK;
    return e->count && (e->row != 0) == (r->dtype == TN_F64) && block >= r->first &&
           block < r->first + r->blocks;
}

static inline bool tn_nn_is_sharded(const nn_row *r) { return r->own < r->blocks; }

/* What was counted before an update that was recorded, for where its run fails. */
typedef struct nn_before {
    uint64_t run; /* that was to come then, and has the update */
    int gathered;
    bool swapped;
    bool row_summed[NN_ROWS];
    struct nn_count {
        int64_t steps;
        bool summed;
    } * entry; /* [n] */
} nn_before;

struct tn_optim {
    tn_session *s;
    tn_optim *next;
    const nn_method *method;
    double lr, number[NN_NUMBERS]; /* number: what the method's functions are given */
    int accumulate;                /* steps an update takes, 1 or more */
    bool shard;
    int gathered; /* steps since the last update */
    bool swapped; /* tn_ema_swap: the averages are where the weights belong, and the other way round */
    int exported; /* the step that is written down has updated (tn_export_checkpoint) */
    nn_before before[NN_LATE];
    int n_before;    /* the newest behind the others: updates of which it is not known that they took place */
    double unscale;  /* of this step's gradients; 1: they are not scaled */
    tn_tensor *fine; /* of one bool: whether those of the last update are finite, */
    bool flagged;    /* if that was asked for */
    tn_tensor *norm; /* of tn_clip_grad_norm, for the coming update ... */
    double max_norm;
    uint64_t norm_step; /* ... in this step */
    int n;
    nn_optim_entry *entries;
    nn_row rows[NN_ROWS];
};

/* scale.c: the gradients of this step are those of a scaled loss; the factor for them; a bool tensor of
 * whether all of g is finite. Takes note of what an update of this step has found; what all have found so
 * far, NULL where none has looked; makes a tensor for it. Looks at what was found in steps before. */
void tn_nn_scale_begin(tn_session *s, nn_state *st);
bool tn_nn_scaled(tn_session *s);
double tn_nn_unscale(tn_session *s);
tn_tensor *tn_nn_finite(tn_tensor *g);
int tn_nn_scale_note(tn_session *s, tn_tensor *fine);
tn_tensor *tn_nn_scale_told(tn_session *s);
bool tn_nn_flag(tn_session *s, tn_tensor **flag);
void tn_nn_scale_settle(tn_session *s, nn_state *st);

/* An optimizer of this row; NULL is an error already reported. `accumulate` 0 means 1, `lr` 0 means 1e-3. */
tn_optim *tn_nn_optim_new(tn_session *s, const nn_method *method, tn_params params, double lr,
                          double weight_decay, int accumulate, bool shard, const double *number);
bool tn_nn_bad_number(double x); /* infinite, NaN or below 0 */

int tn_nn_tell_export(tn_session *s); /* checkpoint.c: what one has, to who exports a step */

/* Takes back what was counted for updates that were recorded and then failed to run. */
void tn_nn_optim_settle(tn_optim *o);
/* Whether the last update has not run: with the next one it will run or fail. Where it has, remember notes
 * what is counted up to here. */
bool tn_nn_optim_waits(const tn_optim *o);
int tn_nn_optim_remember(tn_optim *o);
/* PyTorch's key of a state: "exp_avg"; NULL where the optimizer has none. */
const char *tn_nn_state_name(const tn_optim *o, int which);

/* Lets the optimizer's rows cover every entry that has a gradient or a summed one; what the state held stays.
 */
int tn_nn_optim_cover(tn_optim *o);
/* Cuts the row into parts for the update that is recorded now, where some of its gradients can be read as
 * they are made; where none can, or not `apart`, n_part is 0. */
int tn_nn_optim_split(tn_optim *o, nn_row *r, bool apart);
/* The row's tensor of state `which`, made of zeros when it is not there yet; NULL on error. */
tn_tensor *tn_nn_optim_state(tn_optim *o, nn_row *r, int which);
void tn_nn_row_free(nn_row *r, bool tensors); /* tensors: those too, which tn_close does by itself */
/* For checkpoints. Of a state each rank has a share of, or a sum of its own: all ranks bring it together, and
 * let go of it. */
int tn_nn_optim_bring(tn_optim *o, int which);
void tn_nn_optim_let_go(tn_optim *o);
/* Reads an entry's part of a state into `out`; zeros where there is none. */
int tn_nn_optim_read(const tn_optim *o, const nn_optim_entry *e, int which, void *out);
/* The tensor that an entry's part of a state lies in, from element *first on; NULL: nothing has come there.
 */
tn_tensor *tn_nn_optim_where(const tn_optim *o, const nn_optim_entry *e, int which, int64_t *first);
/* Replaces all state by entries' steps, and for each state and entry by the elements at
 * data[which * o->n + entry] (NULL: zeros). prepare changes nothing yet: commit does, discard forgets. */
typedef struct nn_restored {
    nn_row rows[NN_ROWS];
    bool swapped;
} nn_restored;
int tn_nn_optim_prepare(tn_optim *o, const int64_t *steps, const unsigned char *const *data,
                        nn_restored *out);
void tn_nn_optim_commit(tn_optim *o, const int64_t *steps, const unsigned char *const *data, int gathered,
                        nn_restored *in);
void tn_nn_optim_discard(nn_restored *in);

/* ---- optim_factor.c ---- */

/* What may differ from parameter to parameter. */
typedef enum nn_quantity {
    NN_LR_FACTOR,
    NN_DECAY, /* weight decay */
    NN_FRESH, /* has a gradient in this step */
    NN_DUE,   /* takes part in the update */
    NN_RATE,  /* of the method, from here on: of the learning rate at this update ... */
    NN_GAIN   /* ... and of its formula */
} nn_quantity;

/* A number times columns, to multiply tensors of the row by. Of a part a column may be one number throughout:
 * the bits are those of the whole row's update. */
typedef struct nn_factor {
    double number;
    tn_tensor *column[2]; /* or NULL, and */
    double alike[2];      /* what it is throughout */
    int columns;
    bool failed;
    bool counts;              /* one of the columns depends on counts of updates */
    bool rate;                /* the number is proportional to the learning rate, */
    double base, exponent, t; /* and to (1 - base^t)^exponent (tn_export_number) */
} nn_factor;

bool tn_nn_is_due(const nn_optim_entry *e); /* it takes part in the update */
/* Blocks of the row's parameters of which NN_FRESH (or NN_DUE) holds. */
int64_t tn_nn_blocks_with(const tn_optim *o, const nn_row *r, nn_quantity q);
/* A column of the row: each parameter's q in its blocks; one that seldom changes is kept until one of its
 * numbers does. */
tn_tensor *tn_nn_column(const tn_optim *o, nn_row *r, nn_quantity q);
nn_factor tn_nn_factor(tn_optim *o, nn_row *r, double number, int n, const nn_quantity *q);
#define FACTOR(o, r, number, ...)                                                                            \
    tn_nn_factor(o, r, number, (int)(sizeof((const nn_quantity[]){__VA_ARGS__}) / sizeof(nn_quantity)),      \
                 (const nn_quantity[]){__VA_ARGS__})
tn_tensor *tn_nn_scaled_by(tn_tensor *x, const nn_factor *f);
bool tn_nn_is_zero(const nn_factor *f);
/* For an export: how the factor's number depends on the count of updates. */
void tn_nn_say_how(const tn_optim *o, nn_factor *f, bool varies, nn_unbias as);

#endif
