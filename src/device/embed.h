/* embed.h - texts of src/device/prelude, src/device/cpu/kernels and src/device/cuda/kernels that are compiled
 * at run time, carried inside the library. */
#pragma once

/* embed.def lists them. */
#define TN_EMBED(id, name, text) TN_EMBED_##id,
typedef enum tn_embedded {
#include "embed.def"
    TN_EMBED_COUNT
} tn_embedded;

/* The files that stand in front of a generated kernel, in order: of C and of CUDA C. */
enum { TN_PRELUDE_C_FILES = 7, TN_PRELUDE_FILES = 6 };
extern const tn_embedded tn_prelude_c[TN_PRELUDE_C_FILES], tn_prelude_cuda[TN_PRELUDE_FILES];

/* One file, NUL-terminated. */
const char *tn_embed_text(tn_embedded which);
const char *tn_embed_name(tn_embedded which); /* "abi.h" */
