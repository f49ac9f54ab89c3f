/* embed.c - .incbin puts each text of embed.def into the read-only data as it stands, followed by a NUL.
 *
 * The paths are relative to the top of the source tree, where make runs the compiler.
 */
#include "embed.h"

#define INCBIN(path)             ".incbin \"src/device/" path "\"\n"
#define PRELUDE(file)            INCBIN("prelude/" file)
#define CPU(file)                INCBIN("cpu/kernels/" file)
#define GPU(file)                INCBIN("cuda/kernels/" file)
#define CONV(file)               GPU("conv_begin.cuh") GPU(file) GPU("conv_end.cuh")
#define ATTENTION(softmax, file) GPU("attention_begin.cuh") GPU(softmax) GPU(file) GPU("attention_end.cuh")

#define EMBED(symbol, incbins)                                                                               \
    __asm__(".pushsection .rodata, \"a\"\n"                                                                  \
            ".globl " #symbol "\n"                                                                           \
            ".hidden " #symbol "\n"                                                                          \
            ".type " #symbol ", %object\n" #symbol ":\n" incbins ".byte 0\n"                                 \
            ".size " #symbol ", . - " #symbol "\n"                                                           \
            ".popsection\n");                                                                                \
    extern __attribute__((visibility("hidden"))) const char symbol[];
#define TN_EMBED(id, name, text) EMBED(tn_embed_##id, text)
#include "embed.def"

#define TN_EMBED(id, name, text) {name, tn_embed_##id},
static const struct {
    const char *name, *text;
} file[] = {
#include "embed.def"
};

const tn_embedded tn_prelude_c[TN_PRELUDE_C_FILES] = {TN_EMBED_ABI,      TN_EMBED_EXACT, TN_EMBED_MATH,
                                                      TN_EMBED_PHILOX,   TN_EMBED_HALF,  TN_EMBED_STREAM,
                                                      TN_EMBED_TRANSPOSE};
const tn_embedded tn_prelude_cuda[TN_PRELUDE_FILES] = {TN_EMBED_ABI,    TN_EMBED_EXACT, TN_EMBED_MATH,
                                                       TN_EMBED_PHILOX, TN_EMBED_HALF,  TN_EMBED_CUDA};

const char *tn_embed_text(tn_embedded which) { return file[which].text; }

const char *tn_embed_name(tn_embedded which) { return file[which].name; }
