/* embed.c - .incbin puts each prelude file into the read-only data as it stands, followed by a NUL.
 *
 * The paths are relative to the top of the source tree, where make runs the compiler.
 */
#include "embed.h"

#define INCBIN(path) ".incbin \"" path "\"\n"
#define EMBED_ALL(symbol, incbins)                                                                           \
    __asm__(".pushsection .rodata, \"a\"\n"                                                                  \
            ".globl " #symbol "\n"                                                                           \
            ".hidden " #symbol "\n"                                                                          \
            ".type " #symbol ", %object\n" #symbol ":\n" incbins ".byte 0\n"                                 \
            ".size " #symbol ", . - " #symbol "\n"                                                           \
            ".popsection\n");                                                                                \
    extern __attribute__((visibility("hidden"))) const char symbol[]
#define EMBED(symbol, path) EMBED_ALL(symbol, INCBIN(path))
/* The kernels of a family stand between what all of them have in common. */
#define CPU                                     "src/device/cpu/kernels/"
#define CUDA                                    "src/device/cuda/kernels/"
#define EMBED_BETWEEN(symbol, begin, path, end) EMBED_ALL(symbol, INCBIN(begin) INCBIN(path) INCBIN(end))
#define EMBED_CONV(symbol, path)                EMBED_BETWEEN(symbol, CUDA "conv_begin.cuh", CUDA path, CUDA "conv_end.cuh")
#define EMBED_ATTENTION_CU(symbol, path)                                                                     \
    EMBED_BETWEEN(symbol, CUDA "attention_begin.cuh", CUDA path, CUDA "attention_end.cuh")
#define ATTENTION_BEGIN INCBIN(CUDA "attention_begin.cuh") INCBIN(CUDA "attention_softmax.cuh")
#define EMBED_ATTENTION_C(symbol, path)                                                                      \
    EMBED_BETWEEN(symbol, CPU "attention_begin.h", CPU path, CPU "attention_end.h")

EMBED(tn_embed_abi_h, "src/device/prelude/abi.h");
EMBED(tn_embed_exact_h, "src/device/prelude/exact.h");
EMBED(tn_embed_math_h, "src/device/prelude/math.h");
EMBED(tn_embed_philox_h, "src/device/prelude/philox.h");
EMBED(tn_embed_half_h, "src/device/prelude/half.h");
EMBED(tn_embed_stream_h, "src/device/prelude/stream.h");
EMBED(tn_embed_transpose_h, "src/device/prelude/transpose.h");
EMBED(tn_embed_portable_h, "src/device/prelude/portable.h");
EMBED(tn_embed_blocks_h, "src/device/prelude/blocks.h");
EMBED_ALL(tn_embed_product_h, INCBIN(CPU "product.h") ".ascii \"\\n\"\n" INCBIN(CPU "winograd_plain.h"));
EMBED(tn_embed_threads_h, CPU "threads_plain.h");
EMBED(tn_embed_cuda_h, "src/device/prelude/cuda.h");
EMBED(tn_embed_conv_cu, "src/device/cuda/kernels/conv.cu");
EMBED(tn_embed_ptx_cuh, "src/device/cuda/kernels/ptx.cuh");
EMBED(tn_embed_wgmma_cuh, "src/device/cuda/kernels/wgmma.cuh");
EMBED_ALL(tn_embed_attention_cu,
          ATTENTION_BEGIN INCBIN(CUDA "attention.cu") INCBIN(CUDA "attention_end.cuh"));
EMBED_ALL(tn_embed_attention_wgmma_cu,
          INCBIN(CUDA "wgmma.cuh") ATTENTION_BEGIN INCBIN(CUDA "attention_wgmma.cu")
              INCBIN(CUDA "attention_end.cuh"));
EMBED_ATTENTION_CU(tn_embed_attention_backward_cu, "attention_backward.cu");
EMBED_ATTENTION_C(tn_embed_attention_c, "attention.c");
EMBED_ATTENTION_C(tn_embed_attention_backward_c, "attention_backward.c");
EMBED_CONV(tn_embed_conv2d_cu, "conv2d.cu");
EMBED_ALL(tn_embed_conv2d_wgmma_cu, INCBIN(CUDA "wgmma.cuh") INCBIN(CUDA "conv_begin.cuh")
                                        INCBIN(CUDA "conv2d.cu") INCBIN(CUDA "conv_end.cuh"));
EMBED_CONV(tn_embed_depthwise_cu, "conv_depthwise.cu");
EMBED_CONV(tn_embed_grouped_cu, "conv_grouped.cu");
EMBED(tn_embed_conv_plain_cuh, "src/device/cuda/kernels/conv_plain.cuh");
EMBED(tn_embed_scatter_cu, "src/device/cuda/kernels/scatter.cu");
EMBED(tn_embed_product_cu, "src/device/cuda/kernels/product.cu");

static const struct {
    const char *name, *text;
} file[TN_EMBED_COUNT] = {
    [TN_EMBED_ABI] = {"abi.h", tn_embed_abi_h},
    [TN_EMBED_EXACT] = {"exact.h", tn_embed_exact_h},
    [TN_EMBED_MATH] = {"math.h", tn_embed_math_h},
    [TN_EMBED_PHILOX] = {"philox.h", tn_embed_philox_h},
    [TN_EMBED_HALF] = {"half.h", tn_embed_half_h},
    [TN_EMBED_STREAM] = {"stream.h", tn_embed_stream_h},
    [TN_EMBED_TRANSPOSE] = {"transpose.h", tn_embed_transpose_h},
    [TN_EMBED_PORTABLE] = {"portable.h", tn_embed_portable_h},
    [TN_EMBED_BLOCKS] = {"blocks.h", tn_embed_blocks_h},
    [TN_EMBED_PRODUCT_H] = {"product.h", tn_embed_product_h},
    [TN_EMBED_THREADS_H] = {"threads_plain.h", tn_embed_threads_h},
    [TN_EMBED_CUDA] = {"cuda.h", tn_embed_cuda_h},
    [TN_EMBED_CONV_CU] = {"conv.cu", tn_embed_conv_cu},
    [TN_EMBED_ATTENTION_C] = {"attention.c", tn_embed_attention_c},
    [TN_EMBED_ATTENTION_BACKWARD_C] = {"attention_backward.c", tn_embed_attention_backward_c},
    [TN_EMBED_PRODUCT_CU] = {"product.cu", tn_embed_product_cu},
    [TN_EMBED_CONV2D_WGMMA_CU] = {"conv2d_wgmma.cu", tn_embed_conv2d_wgmma_cu},
    [TN_EMBED_CONV2D_CU] = {"conv2d.cu", tn_embed_conv2d_cu},
    [TN_EMBED_DEPTHWISE_CU] = {"conv_depthwise.cu", tn_embed_depthwise_cu},
    [TN_EMBED_CONV_PLAIN_CUH] = {"conv_plain.cuh", tn_embed_conv_plain_cuh},
    [TN_EMBED_SCATTER_CU] = {"scatter.cu", tn_embed_scatter_cu},
    [TN_EMBED_GROUPED_CU] = {"conv_grouped.cu", tn_embed_grouped_cu},
    [TN_EMBED_PTX_CUH] = {"ptx.cuh", tn_embed_ptx_cuh},
    [TN_EMBED_WGMMA_CUH] = {"wgmma.cuh", tn_embed_wgmma_cuh},
    [TN_EMBED_ATTENTION_WGMMA_CU] = {"attention_wgmma.cu", tn_embed_attention_wgmma_cu},
    [TN_EMBED_ATTENTION_CU] = {"attention.cu", tn_embed_attention_cu},
    [TN_EMBED_ATTENTION_BACKWARD_CU] = {"attention_backward.cu", tn_embed_attention_backward_cu},
};

const tn_embedded tn_prelude_c[TN_PRELUDE_C_FILES] = {TN_EMBED_ABI,      TN_EMBED_EXACT, TN_EMBED_MATH,
                                                      TN_EMBED_PHILOX,   TN_EMBED_HALF,  TN_EMBED_STREAM,
                                                      TN_EMBED_TRANSPOSE};
const tn_embedded tn_prelude_cuda[TN_PRELUDE_FILES] = {TN_EMBED_ABI,    TN_EMBED_EXACT, TN_EMBED_MATH,
                                                       TN_EMBED_PHILOX, TN_EMBED_HALF,  TN_EMBED_CUDA};

const char *tn_embed_text(tn_embedded which)
{
    return file[which].text;
}

const char *tn_embed_name(tn_embedded which)
{
    return file[which].name;
}
