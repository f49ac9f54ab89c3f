/* cuda_source.h - CUDA text as the device compiles it, behind the prelude, and what NVRTC makes of it.
 *
 * Read first: cuda_fits. */
#pragma once

#include "src/device/embed.h"
#include "tests/nvrtc.h"

/* The text behind the prelude and, where `ptx`, the instructions of tensor cores; freed by the caller. */
static inline char *cuda_source(const char *text, bool ptx)
{
    size_t n = 0, room = strlen(text) + strlen(tn_embed_text(TN_EMBED_PTX_CUH)) + 2;
    for (int i = 0; i < TN_PRELUDE_FILES; i++) room += strlen(tn_embed_text(tn_prelude_cuda[i])) + 1;
    char *all = malloc(room);
    if (!all) abort();
    for (int i = 0; i < TN_PRELUDE_FILES; i++)
        n += (size_t)snprintf(all + n, room - n, "%s\n", tn_embed_text(tn_prelude_cuda[i]));
    snprintf(all + n, room - n, "%s%s", ptx ? tn_embed_text(TN_EMBED_PTX_CUH) : "", text);
    return all;
}

/* Whether NVRTC takes the text behind the prelude for arch ("sm_90") without a warning and its kernels spill
 * no register. *log, to be freed, says why not. */
static inline bool cuda_fits(const nvrtc *n, const char *text, const char *arch, nvrtc_said *said, char **log)
{
    char *whole = cuda_source(text, false);
    const int status = nvrtc_compile(n, whole, arch, log);
    free(whole);
    *said = nvrtc_read(*log);
    return !status && !said->warned && !said->spilling && said->kernels > 0;
}
