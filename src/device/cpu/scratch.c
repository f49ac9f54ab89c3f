/* scratch.c - memory that products and convolutions compute in, kept from call to call. Start with
 * tn_cpu_scratch. */
#include "cpu_lib.h"

#include "../../core/alloc.h"

enum { SCRATCH_STEP = 64 << 10, SCRATCH_KEPT = 64 << 20 };

void *tn_cpu_scratch(tn_cpu_lib *lib, tn_scratch use, size_t bytes)
{
    if (lib->scratch[use] && bytes <= lib->scratch_bytes[use]) return lib->scratch[use];
    size_t room = (bytes + SCRATCH_STEP - 1) / SCRATCH_STEP * SCRATCH_STEP;
    void *p = tn_aligned_alloc(64, room);
    if (!p) return NULL; /* what there is may be enough for whoever stands in */
    tn_free_mem(lib->scratch[use]);
    lib->scratch_bytes[use] = room;
    return lib->scratch[use] = p;
}

bool tn_cpu_trim_scratch(tn_cpu_lib *lib)
{
    bool any = false;
    for (int i = 0; i < TN_SCRATCH_USES && !lib->held; i++) {
        if (lib->scratch_bytes[i] <= SCRATCH_KEPT) continue;
        tn_free_mem(lib->scratch[i]);
        lib->scratch[i] = NULL;
        lib->scratch_bytes[i] = 0;
        if (i >= TN_SCRATCH_SHARED) lib->shared[i - TN_SCRATCH_SHARED] = NULL;
        any = true;
    }
    return any;
}
