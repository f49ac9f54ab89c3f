/* export.h - a step as a file of C, or of CUDA C: what its parts hand to each other.
 *
 *   export.c   the public door; the segment that runs is planned for C99, its memory sorted into regions
 *   region.c   that memory
 *   weights.c  weights of a forward pass in fewer bits
 *   kernel.c   a kernel's text as a function that stands alone
 *   step.c     the body that calls these functions in order; vars.c: its operands and numbers
 *   threads.c  what threads are given of it, and the second file that has them
 *   pick.c     of the prelude's text what that calls
 *   saved.c    a function that writes a checkpoint of what such a file has come to
 *   data.c     what its struct and its arrays hold
 *   names.c    functions that copy what has a name
 *   file.c     all of it as model.c and model.h
 *   cuda.c     the body of a model.cu: launches, and the kernels' texts; cuda_file.c: all around it
 *
 * Kernels come from the fuser (fuser/text) and memory from the planner (src/runtime/memory.c), as those of
 * any step do. Read first: tn_export_begin in export.c. */
#pragma once

#include <ctype.h>

#include "../../include/tensor_export.h"
#include "../core/growing.h"
#include "../runtime/log.h"

enum { EXPORT_MARKS = 32, EXPORT_NUMBERS = 64, EXPORT_NAME = 64, EXPORT_SCALARS = 128 };

/* What tn_export_input and tn_export_output have named. */
typedef struct ex_mark {
    tn_tensor *node; /* what owns its memory */
    bool out;
    char name[EXPORT_NAME];
    tn_dtype dtype;
    int64_t count;
} ex_mark;

typedef struct ex_number {
    const tn_tensor *number; /* the node */
    bool rate;
    double base, exponent, t;
} ex_number;

/* Memory that outlives the step, or was there before it: a slab, or one tensor's. */
typedef struct ex_region {
    const char *low;
    size_t bytes;
    tn_dtype dtype;
    char name[EXPORT_NAME];
    bool written; /* it is part of the struct; else a constant of the file */
    bool read;    /* by a kernel */
    bool zero;    /* what it holds at first does not matter */
    bool mine;    /* data is a copy made when the step ran; else it is read at the end */
    void *data;
    /* of a weight (weights.c): outputs of so many terms each, and the distances of two; -1: it is none */
    int64_t outputs, terms, by_output, by_term;
    tn_export_weights weights; /* other than f32: data were rounded to what code and scale stand for */
    void *code;
    float *scale;
    double off; /* by so much of its root mean square */
} ex_region;

/* Where the first element of a slot lies. */
typedef struct ex_place {
    enum { EX_NOWHERE, EX_ARENA, EX_REGION, EX_MARK } kind;
    int index; /* region or mark */
    size_t offset, bytes;
    tn_dtype dtype;
} ex_place;

typedef struct tn_export {
    tn_session *s;
    tn_export_options options;
    bool cuda;  /* NAME.cu */
    bool blank; /* what the device's memory holds cannot be known: it is planned for, and not there */
    char *path;
    char name[EXPORT_NAME];
    bool caught;
    uint32_t of_step; /* generation of the step that was */
    int status;       /* what went wrong */
    char asked[200];  /* by whom the first part was */
    ex_mark mark[EXPORT_MARKS];
    int n_mark;
    ex_number number[EXPORT_NUMBERS];
    int n_number;
    ex_region *region;
    int n_region, cap_region;
    uint64_t draws;                                     /* of a step */
    double power[EXPORT_NUMBERS], base[EXPORT_NUMBERS]; /* base^t, as it is after this step */
    int n_power;
    size_t arena_bytes, stack_bytes;
    size_t shared_bytes, room_bytes; /* behind the arena, for products and convolutions (blocks.h) */
    double macs, weights;
    bool slabs;                      /* a parameter is assigned to: all of them are one region */
    bool trains;                     /* something is assigned to */
    int returned;                    /* the mark that model_step returns, or -1 */
    tn_growing kernels, step, table; /* functions; the body that calls them; a line of each */
    int (*tell)(tn_session *s);      /* what a checkpoint has; NULL: nobody knows */
    tn_growing save;                 /* the function that writes one, if there is one */
    /* of a .cu: */
    struct ex_kernel {
        char *text, name[EXPORT_NAME]; /* as the plan has it; as the file calls it */
    } * kernel;
    int n_kernel, cap_kernel;
    uint32_t parts;     /* texts that several kernels have in common, by number (cuda.c) */
    tn_growing numbers; /* the body of the kernel that computes run-time numbers */
    int n_word, n_launch;
    /* while the plan is written: */
    const tn_flush_scratch *f;
    tn_plan *plan;
    ex_place *place; /* of each slot */
    char (*var)[EXPORT_NAME];
    int n_slot;
} tn_export;

static inline bool ex_is_word(char c) /* of C */ { return isalnum((unsigned char)c) || c == '_'; }

/* ---- fail.c ---- */
/* Sets x->status and the error of the session. */
int ex_fail(tn_export *x, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* tn_put, with the file's name in the place of each '@'. */
void ex_put(const tn_export *x, tn_growing *t, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A kernel as a function of its own. */
typedef struct ex_function {
    char name[EXPORT_NAME];
    int n;
    struct ex_param {
        char type[40], name[EXPORT_NAME];
        int buf;
        int same; /* as this parameter, whose memory it has: no parameter of its own, or -1 */
        bool only_read, alone;
    } param[TN_MAX_KERNEL_BUFS];
    int n_scalar, scalar[EXPORT_SCALARS]; /* those it takes, by their numbers in the step */
    bool faults;
    tn_growing body;
} ex_function;

/* ---- kernel.c ---- */
/* Reads the function that begins at `text`, its signature. */
void ex_take_function(tn_export *x, const tn_step *st, ex_function *fn, const char *text);
/* Puts it where no other has its text, names it after `name`, and frees its body. */
void ex_put_function(tn_export *x, const tn_step *st, ex_function *fn, const char *name, bool finish);
bool ex_is_taken(const tn_export *x, const char *name); /* by a variable, a mark or a kernel of a .cu */
/* The calls that a step of the plan came of. */
void ex_put_calls(tn_export *x, const tn_step *st, tn_growing *t);

/* ---- weights.c ---- */
const char *ex_type(const tn_export *x, tn_dtype d); /* of an element; NULL: there is none in such a file */
/* Rounds the weights as the options say; they have been copied, and the plan stands. */
int ex_round_weights(tn_export *x);
int ex_set_params(tn_export *x); /* the session's to the rounded values */
const char *ex_region_type(const tn_export *x, const ex_region *r);
size_t ex_region_bytes(const ex_region *r);        /* as it is written */
const char *ex_pack(const tn_export *x, int slot); /* the function that packs a block of what lies there */
void ex_put_codes(const ex_region *r, int64_t i, char *out, size_t n);
void ex_put_rounding(const tn_export *x, tn_growing *t); /* a line of each */

/* ---- step.c ---- */
int ex_write_step(tn_export *x);
/* Whether a word is C's, or one that files have themselves. */
bool ex_is_reserved(const char *name);
/* Operand k of st; a kernel's scalar: expressions of the body. */
void ex_operand(tn_export *x, const tn_step *st, int k, char *out, size_t n);
void ex_scalar(tn_export *x, const struct tn_scalar_ref *r, char *out, size_t n);
void ex_refuse_dtype(tn_export *x, const tn_tensor *t, tn_dtype d);

/* ---- threads.c ---- */
const char *ex_scalar_type(int word);
bool ex_in_parts(const tn_export *x, const tn_step *st, bool finish); /* it is run(), or called */
void ex_put_part(const tn_step *st, const ex_function *fn, tn_growing *t);
void ex_put_kernel_call(const tn_export *x, const tn_step *st, const ex_function *fn, bool finish,
                        const char *arguments, tn_growing *to);
void ex_put_run(const tn_export *x, tn_growing *t);
void ex_put_threads_header(const tn_export *x, tn_growing *t);
void ex_put_threads(const tn_export *x, unsigned long digest, tn_growing *t);

/* ---- pick.c ---- */
/* Puts those definitions of the prelude that `text` calls, and those that these call. False: there is none of
 * the function `missing`. */
bool ex_pick(tn_growing *out, const char *text, char missing[EXPORT_NAME]);

/* ---- region.c ---- */
int ex_region_of(tn_export *x, const tn_tensor *t,
                 const char **at); /* where a node lies at all times; or -1 */
int ex_copy_constants(tn_export *x);
bool ex_is_member(const tn_export *x, const ex_region *r); /* of the struct; else a constant of the file */
void ex_put_region(const tn_export *x, const ex_region *r, tn_growing *t); /* m->name, or name_data */

/* ---- saved.c ---- */
int ex_ask_what_is_saved(tn_export *x); /* x->save, and regions that the step does not read */

/* ---- names.c ---- */
void ex_put_names(const tn_export *x, tn_growing *t);
const char *ex_stream(const tn_export *x); /* the last parameter of each function of a .cu */

/* ---- data.c ---- */
const char *ex_action(const tn_export *x); /* what NAME_ stands in front of */
/* Parameters of the function that a user calls; members of the struct; arrays of first values. */
void ex_put_parameters(const tn_export *x, tn_growing *t);
void ex_put_members(const tn_export *x, tn_growing *t);
void ex_put_first_numbers(const tn_export *x, tn_growing *t); /* of the members that are no region */
void ex_put_arrays(const tn_export *x, tn_growing *t);
size_t ex_elems(const ex_region *r);
bool ex_begins_as_zero(const ex_region *r);
size_t ex_scratch_bytes(const tn_export *x); /* what a call computes and does not keep */
/* Bytes of constants, and of the struct's members. */
void ex_add_up(const tn_export *x, double *constants, double *state);

/* ---- cuda.c ---- */
enum { EXPORT_CUDA_ALIGN = 256 }; /* of members */
void ex_cuda_step(tn_export *x, const tn_step *st, tn_growing *to);
void ex_cuda_prelude(tn_growing *t);
void ex_cuda_parts(const tn_export *x, tn_growing *t); /* ends the file */

/* ---- cuda_file.c ---- */
void ex_cuda_opening(const tn_export *x, tn_growing *t);
void ex_cuda_header(const tn_export *x, tn_growing *t);
void ex_cuda_functions(const tn_export *x, tn_growing *t);

/* ---- file.c ---- */
int ex_write_files(tn_export *x);
