/* nest.h - what the three loop nests share: the range of the vector's coordinate, the pieces of a loop,
 * and one entry for each form.
 *
 *   kernel.c     a kernel: operands, items, which nest            (start here: fu_emit)
 *   pointwise.c  nothing is reduced
 *   row.c        the vector's atom is reduced
 *   column.c     the vector's atom is kept, others are reduced
 *   loop.c       the vector loop itself, and what stands around it
 *   random.c     random bits for it
 *   strided.c    lines on the stack for what it would jump along
 *   block.c      what lies crosswise, through blocks on the stack
 *   ahead.c      lines of memory that are asked for early
 *   cuts.c       a nest once for each stretch between borders
 *   spread.c     exponentials of how far elements lie below their row's largest */
#pragma once

#include "value.h"

typedef struct fu_range {
    char lo[64], hi[64]; /* of the vector's coordinate; hi is the count where lo is not 0 (tiles) */
    int64_t count;       /* or -1 */
    bool part;           /* the outer reduced iterations run from r0 to r1 */
} fu_range;

/* The vector loop that is being written. */
typedef struct fu_loop {
    int phase;
    const char *first; /* the coordinate along the vector where the tile or row begins */
    const char *rows;  /* COLUMN: the coordinate of several rows added at once, or NULL */
    bool worst;        /* it may meet bad indices, counts them and reports them behind the loop */
    bool by_pieces;    /* random bits are made with each piece of it */
    bool lines;        /* what it would jump along was copied before it (strided.c) */
    bool near;         /* its arguments were found small: see fu_near_form */
    bool low;          /* the row's exponentials are normal numbers: see fu_low_top */
} fu_loop;

/* ---- operands.c ---- */
fu_em *fu_em_new(fu_ctx *c);           /* NULL with the error told: no memory */
void fu_turn_to(fu_em *e, fu_prog *p); /* to another program of the same kernel */
bool fu_loads(const fu_em *e, int id); /* value id is read from memory */
/* Operands the program reads: those whose slots are among the n that are listed, or all others. */
void fu_take_inputs(fu_em *e, int n, const int *slot, bool listed);
void fu_take_outputs(fu_em *e); /* a buffer for each store of the program */
/* They become the step's buffers, those from n_in on its results. 0 or an error. */
int fu_take_buffers(fu_em *e, int n_in);
/* Writes out the function that was written into e->t, behind its head, "{" included, as printf does. */
void fu_put_function(fu_em *e, const char *head, ...) __attribute__((format(printf, 2, 3)));
/* Defines the operands of the function e->p; the kernel's first n_in are only read. */
void fu_put_operands(fu_em *e, int n_in, const int *scratch);
void fu_describe(fu_em *e, const fu_group *g);
void fu_count_traffic(fu_em *e); /* adds what the function e->p moves and computes to the step */

/* ---- kernel.c ---- */
/* Lists what may be written over, pairs of an operand and a result (tn_step.over). `last`: the programs of the
 * kernel's finish, NULL where there is none. */
int fu_note_over(fu_em *e, fu_prog *const *last);

/* ---- loop.c ---- */
/* The vector loop's statements: accumulation into lane `acc`, values kept for later phases, stores. */
void fu_write_body(fu_em *e, int phase, const fu_lane *lane, const char *acc);
void fu_simd(fu_em *e, bool worst);
void fu_lane_of(const fu_em *e, const fu_loop *l, const char *at,
                fu_lane *out); /* not in pieces, nor in packs */
void fu_report_worst(fu_em *e);
void fu_plain_loop(fu_em *e, const fu_loop *l, const char *lo, const char *hi); /* over [lo, hi) */
/* Arrays for a piece of each such result, and their way to memory: `count` elements from the coordinate
 * `first` on. */
void fu_declare_pieces(fu_em *e, int phase);
void fu_put_pieces(fu_em *e, int phase, const char *first, const char *count);
/* fu_tests_arguments returns true where the phase has functions with a shorter form for small arguments, and
 * looking at all these arguments first costs little. fu_test_arguments writes that look, for a loop over the
 * elements: it sets `far` where an argument is not small. */
bool fu_tests_arguments(const fu_prog *p, int phase);
void fu_test_arguments(fu_em *e, int phase, const fu_lane *lane);
/* Defines what no loop changes; and the run-time extent where it bounds a loop, unless `uncounted`. */
void fu_put_constants(fu_em *e, bool uncounted);
/* Defines what the vector loop uses and does not change along it. */
void fu_hoist(fu_em *e, int phase, bool inside);
void fu_extent(const fu_prog *p, int atom, char out[32]); /* as text: an argument's name, or a number */
/* Opens loops over the outer reduced atoms but the last `leave`; returns how many scopes. */
int fu_open_outer(fu_em *e, const fu_range *r, int leave);
/* An accumulator array of n elements, at the reduction's neutral element. */
void fu_declare(fu_em *e, fu_value *v, const char *kind, int64_t n);
void fu_declare_kept_rows(fu_em *e); /* arrays for what is kept between phases */
/* Stores of what no loop of the phases changes, under `only` and where coordinates they lack are 0. */
void fu_write_kept(fu_em *e, const char *only);
/* Stores the partial results of a split reduction, scratch[part][kept point]: each value's name with `tail`
 * behind it. */
void fu_put_partials(fu_em *e, const int *scratch, const char *tail);

/* ---- block.c: an item of several lines, where p->block says so; else nothing ---- */
void fu_open_block(fu_em *e, const fu_range *r);
void fu_close_block(fu_em *e, const fu_range *r);

/* ---- random.c ---- */
void fu_put_bound(fu_em *e, const fu_value *v); /* of a bernoulli: what its bits are compared with */
void fu_fill_bits(fu_em *e, const fu_loop *l, fu_value *v,
                  const char *count); /* of the range, into an array */
/* Of all that the phase computes; by pieces only the arrays, and each piece of the loop takes its own
 * `count`, from `at` on behind the first of the tile or row. */
void fu_fill_random(fu_em *e, const fu_loop *l, const char *count);
bool fu_random_by_pieces(const fu_prog *p, int phase); /* as far as the bits are concerned */
void fu_take_random(fu_em *e, const fu_loop *l, const char *at, const char *count);

/* ---- strided.c ---- */
void fu_fill_lines(fu_em *e, fu_loop *l,
                   const char *count); /* of the range; sets l->lines where there are any */

/* ---- ahead.c ---- */
void fu_prefetch_next(fu_em *e, int phase, const char *at, int n);
const fu_value *fu_find_picked(fu_em *e);

/* ---- cuts.c ---- */
enum { FU_MAX_CUTS = 2 * FU_MAX_JOINED };
/* Where a nest is cut: along one atom, at n places, in order. [from, to) is the stretch being written. */
typedef struct fu_cuts {
    int atom, n;
    int64_t at[FU_MAX_CUTS + 1], from, to;
} fu_cuts;
bool fu_find_cuts(const fu_prog *p, fu_cuts *c); /* false: none */
void fu_go_to_cut(const fu_prog *p, fu_cuts *c, int k);

/* ---- spread.c ---- */
void fu_declare_least(fu_em *e, const fu_value *v);
void fu_put_least(fu_em *e, const fu_value *v, const char *lane, const char *x);
void fu_fold_least(fu_em *e, const fu_value *v);
/* Writes the condition under which the short form serves all of the phase's exponentials; false where
 * there is no short form. */
bool fu_low_condition(const fu_prog *p, int phase, char *out, size_t n);

/* ---- the forms: the statements of one item ---- */
void fu_nest_pointwise(fu_em *e, const fu_range *r);
void fu_nest_row(fu_em *e, const fu_range *r, const int *scratch);
void fu_nest_column(fu_em *e, const fu_range *r, const int *scratch);
/* Adds the results of the row to the cross sums of single values; `guard` stands in front. */
void fu_sum_rows(fu_em *e, const char *guard);
/* ---- column.c: between two phases, for each element of the tile or pack ---- */
bool fu_declare_columns(fu_em *e, int done,
                        int64_t n); /* arrays of n for what is made after so many phases */
fu_value *fu_next_draw(const fu_em *e, int done, int *from); /* random numbers among these, or NULL */
void fu_make_columns(fu_em *e, int done);
bool fu_stores_columns(const fu_prog *p, int done, bool late);
void fu_store_columns(fu_em *e, int done);
bool fu_wants_array(const fu_prog *p, int id); /* COLUMN: computed once for the tile, between phases */
