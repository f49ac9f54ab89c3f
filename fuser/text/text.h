/* text.h - programs become text: the steps of a plan, and the source of each kernel, in C or in CUDA C.
 *
 * Takes a group and its scheduled program (loops.h) and gives steps (plan.h):
 *
 *   text.c      lines, the dialects' tables, literals, names; steps.c: a plan's steps as they are written
 *   value.c     the text of single values; loop.c: the vector loop; nest.h lists the nests around it, in C
 *   kernel.c    a kernel: operands, items, which nest
 *   cuda.h      lists the nests of a GPU
 *   gemm.c      products and convolutions as calls of a library; product.c: what goes on with a product
 *   raw.h       kernels that are no loop program: windows, scatters, scans
 *   attention.c, cuda_tile.c   kernels whose text is written by hand, and what is put into it
 *
 * Read first: fu_emit in kernel.c. */
#pragma once

#include "../../src/core/growing.h"
#include "../loops/loops.h"

/* ---- text.c ---- */
/* The function that a kernel calls when an index is out of range. Several kernels are compiled as one unit:
 * the first one defines it. */
#define FU_INDEX_FAULT                                                                                       \
    "#if !defined(TN_INDEX_FAULT)\n#define TN_INDEX_FAULT\n"                                                 \
    "static inline void index_fault(const tn_args *a, int64_t where, int64_t value)\n{\n"                    \
    "    if (a->fault->code) return;\n    a->fault->where = (int32_t)where;\n"                               \
    "    a->fault->value = value;\n    a->fault->code = TN_FAULT_INDEX;\n}\n#endif\n\n"
void fu_line(tn_growing *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* indented, with \n */
void fu_open(tn_growing *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* line, then deeper */
void fu_line_v(tn_growing *t, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void fu_close(tn_growing *t);
/* Coordinates of the axes `which`, "i0" and so on, from the row-major number `what` of all of them. */
void fu_decode(tn_growing *t, uint32_t which, const int64_t *extent, const char *what);

/* All that differs between the dialects of generated text. */
typedef struct fu_dialect {
    const char *args;                    /* in front of a member of the kernel's arguments */
    const char *pointer;                 /* format: "const ", type, name, which buffer */
    const char *type[TN_DTYPE_COUNT];    /* of a value in a register */
    const char *memory[TN_DTYPE_COUNT];  /* of an element in memory */
    const char *load[TN_DTYPE_COUNT];    /* format with one %s: the element -> the value */
    const char *store[TN_DTYPE_COUNT];   /* format with one %s: the value -> the element */
    const char *rounded[TN_DTYPE_COUNT]; /* of 16 bits, likewise: the value -> the nearest element's value */
    const char *inf[2], *nan[2];         /* f32, f64 */
    const char *wide;                    /* what sums of many f32 are carried in */
    const char *simd;                    /* line before a loop whose iterations are independent, or NULL */
    int block_pitch;                     /* of a tile that is read crosswise: elements from line to line */
    const char *align;                   /* in front of a local array */
    const char *element;                 /* format: which coordinate -> what a product's kernel hands over */
    const char *prefetch;                /* function that asks for a line early */
    bool typed; /* functions are called by the names for their types, tn_exp_f32, as there is no tn_exp */
} fu_dialect;
extern const fu_dialect fu_dialect_c, fu_dialect_cuda, fu_dialect_c99;
const fu_dialect *fu_language(const tn_target *t);
void fu_put_pointer(tn_growing *t, const fu_dialect *lang, tn_dtype d, const char *name, int buf, bool only);

/* The expression of a row with its operands and K(..) put in. */
void fu_expression(char *out, size_t n, const fu_dialect *lang, const char *row, tn_dtype operand,
                   const char *const *arg);
/* "_f32", what a function's name ends in for operands of d where the dialect is typed; else "". */
const char *fu_suffix(const fu_dialect *lang, tn_dtype d);
void fu_literal(char *out, size_t n, tn_dtype d, double f, int64_t i, bool is_int);
void fu_limit(char *out, size_t n, tn_dtype d, bool low); /* the least value of d, or the largest */
/* A C identifier from any text; reserved words get a tail. */
void fu_identifier(char *out, size_t n, const char *from);

/* ---- steps.c ---- */
tn_step *fu_step_new(fu_ctx *c, tn_step_kind kind, const char *name);
int fu_step_buf(fu_ctx *c, tn_step *s, int slot, int64_t offset); /* index in s->buf */
int fu_step_dim(fu_ctx *c, tn_step *s, int64_t value);            /* index in s->dim */
int fu_scratch_slot(fu_ctx *c, int64_t elems, tn_dtype dtype);
void fu_kernel_name(const fu_ctx *c, const fu_group *g, const fu_prog *p, char *out, size_t n);
/* conv2d_batch_norm_64: the convolution or product, and the call that most of the others come from. */
void fu_tile_name(const fu_ctx *c, const fu_group *g, int conv, int64_t columns, char *out, size_t n);
int fu_finish_kernel(fu_ctx *c, tn_step *s, tn_growing *t); /* hands the text over to the step */

/* ---- gemm.c ---- */
/* The product that `node` is, without pointers, and where its two operands lie; what the library cannot read
 * has been copied. */
int fu_gemm_of(fu_ctx *c, int node, tn_gemm *g, int *slot, int64_t *offset);
void fu_count_gemm(tn_step *s,
                   const tn_tensor *t); /* the work of product t, and the reading of its operands */

void fu_share_operands(
    tn_plan *p); /* tells products that have their second operand in common (tn_gemm.share) */

/* ---- the steps of each kind of group ---- */
int fu_emit(fu_ctx *c, const fu_group *g, fu_prog *p);
int fu_emit_gemm(fu_ctx *c, const fu_group *g);
int fu_emit_product(fu_ctx *c, const fu_group *g); /* one that hands its result to a kernel */
int fu_emit_conv(fu_ctx *c, const fu_group *g);
int fu_emit_window(fu_ctx *c, const fu_group *g);
int fu_emit_scatter(fu_ctx *c, const fu_group *g);
int fu_emit_scan(fu_ctx *c, const fu_group *g);
int fu_emit_concat(fu_ctx *c, const fu_group *g);
int fu_emit_attention(fu_ctx *c, const fu_group *g);
int fu_emit_ranks(fu_ctx *c, const fu_group *g);
int fu_emit_host(fu_ctx *c, const fu_group *g);
/* A dense copy of t into new scratch: the slot. */
int fu_emit_dense(fu_ctx *c, const tn_tensor *t);

/* ---- checks.c ---- */
int fu_emit_checks(fu_ctx *c); /* the steps that look through indices before all others */
