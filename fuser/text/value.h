/* value.h - what the parts of the emitter share: the state of one kernel's text.
 *
 * A scope is a block of the text being written. A value is defined where it is first asked for and forgotten
 * when that block closes; the loop nest asks early for what should stand outside of inner loops. */
#pragma once

#include "text.h"

/* One turn of a vector loop: where its element stands, as the text of indices. */
typedef struct fu_lane {
    const char *at;            /* within the tile: index of arrays over it */
    const char *piece;         /* within what is written together, or NULL */
    const char *pack;          /* CUDA: within what was read together, or NULL */
    char stash[160], bits[80]; /* index of values kept between phases, and of random bits made for the tile */
    bool lines, rows;          /* lines of what it would jump along; several rows stand in it */
    bool local;                /* accumulators are the loop's own variables */
    bool near, low;            /* which short forms serve (fu_loop) */
} fu_lane;

typedef struct fu_em {
    fu_ctx *c;
    fu_prog *p;
    tn_growing t, head; /* the body, and what stands before it */
    tn_step *s;
    const fu_dialect *lang;
    int depth, defined[FU_MAX_VALUES]; /* depth of the scope that defines the value, 0: none */
    bool hot[FU_MAX_VALUES];           /* asked for by something inside the loops */
    int phase;                         /* whose loop is being written; n_phase after the last */
    const fu_lane *lane;               /* of the vector loop that is being written; NULL: outside of one */
    int where[FU_MAX_VALUES];          /* INDEX: which of args.dim is its node, or -1 */
    const struct fu_cuts *cut;         /* the stretch of an atom that the nest is written for, or NULL */
    int ready;                         /* phases whose column results stand in arrays */
    int n_pointer, pointer_slot[FU_MAX_BUFS];
    int64_t pointer_offset[FU_MAX_BUFS];
    char pointer[FU_MAX_BUFS][40];
    uint8_t pointer_dtype[FU_MAX_BUFS];
    int n_name;
    char taken[FU_MAX_VALUES + FU_MAX_BUFS][40];
    uint32_t helpers; /* which helper functions the text needs */
} fu_em;

enum { FU_HELP_FAULT = 1 };

void fu_scope_open(fu_em *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void fu_scope_close(fu_em *e);
void fu_unique(fu_em *e, const char *want, char *out, size_t n);
int fu_pointer(fu_em *e, int slot, int64_t offset, tn_dtype dtype, const char *want);
/* The next buffer, whatever others there are. */
int fu_pointer_more(fu_em *e, int slot, int64_t offset, tn_dtype dtype, const char *want);
int fu_dim(fu_em *e, int64_t value);
int fu_scalar(fu_em *e, int slot, int what);
/* sum of coordinate * stride over the atoms of `which`, as text */
void fu_index(const fu_em *e, const int64_t *stride, uint32_t which, char *out, size_t n);
/* The text of value id in the present scope, defining it (and what it needs) if it is not. */
const char *fu_ask(fu_em *e, int id);
void fu_load_place(const fu_em *e, const fu_value *v, char *out,
                   size_t n); /* the index of a LOAD's element */
void fu_name(fu_em *e, fu_value *v);
const char *fu_type(const fu_em *e, tn_dtype d);
void fu_put_store(fu_em *e, const fu_store *s);
/* One step of a reduction: `acc` takes `value`, found at position `at` for those that choose one. */
void fu_accumulate(fu_em *e, const fu_value *v, const char *acc, const char *at, const char *value);
void fu_reduce_start(const fu_value *v, char *out, size_t n);
const char *fu_acc_type(const fu_em *e, const fu_value *v);
const char *fu_place_type(const fu_em *e, const fu_value *v);
/* The row of a function that is much shorter where its argument is at most TN_NEAR, written with that form of
 * it; false where there is none. */
bool fu_near_form(const fu_value *v, char *out, size_t n);
/* cuts.c: what test `id` comes to in the stretch being written, 1 or 0; -1: it is not known. The value that
 * has the value of `id` there: the other one of a load that is never taken, or `id` itself. */
int fu_known(const fu_em *e, int id);
int fu_settled(const fu_em *e, int id);
bool fu_never(const fu_em *e, const fu_store *s); /* nothing is stored there */
/* join.c: one step of a reduction that takes a product in one rounding; false, with nothing written,
 * where there is no such product. */
bool fu_accumulate_product(fu_em *e, const fu_value *v, const char *acc);
