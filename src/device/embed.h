/* embed.h - texts of src/device/prelude, src/device/cpu/kernels and src/device/cuda/kernels that are compiled
 * at run time, carried inside the library. */
#ifndef TN_EMBED_H
#define TN_EMBED_H

#include <stddef.h>

typedef enum tn_embedded {
    TN_EMBED_ABI,
    TN_EMBED_EXACT,
    TN_EMBED_MATH,
    TN_EMBED_PHILOX,
    TN_EMBED_HALF,
    TN_EMBED_STREAM,
    TN_EMBED_TRANSPOSE,
    TN_EMBED_CUDA,
    TN_EMBED_CONV_CU, /* of src/device/cuda/kernels, as the next */
    TN_EMBED_PRODUCT_CU,
    TN_EMBED_PTX_CUH,
    TN_EMBED_WGMMA_CUH,
    TN_EMBED_ATTENTION_WGMMA_CU,
    TN_EMBED_ATTENTION_CU,
    TN_EMBED_ATTENTION_BACKWARD_CU,
    TN_EMBED_CONV2D_CU,
    TN_EMBED_CONV2D_WGMMA_CU, /* the same text behind wgmma.cuh */
    TN_EMBED_DEPTHWISE_CU,
    TN_EMBED_GROUPED_CU,
    TN_EMBED_CONV_PLAIN_CUH,
    TN_EMBED_SCATTER_CU,
    TN_EMBED_ATTENTION_C, /* of src/device/cpu/kernels */
    TN_EMBED_ATTENTION_BACKWARD_C,
    TN_EMBED_PORTABLE, /* of the file that src/export writes, in the place of exact.h */
    TN_EMBED_BLOCKS,
    TN_EMBED_PRODUCT_H, /* of src/device/cpu/kernels, for that file */
    TN_EMBED_THREADS_H, /* of the same, beside that file */
    TN_EMBED_COUNT
} tn_embedded;

/* The files that stand in front of a generated kernel, in order: of C and of CUDA C. */
enum { TN_PRELUDE_C_FILES = 7, TN_PRELUDE_FILES = 6 };
extern const tn_embedded tn_prelude_c[TN_PRELUDE_C_FILES], tn_prelude_cuda[TN_PRELUDE_FILES];

/* One file, NUL-terminated. */
const char *tn_embed_text(tn_embedded which);
const char *tn_embed_name(tn_embedded which); /* "abi.h" */

#endif
