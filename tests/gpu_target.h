/* gpu_target.h - the GPU that kernels are planned for where there is none: an H100, of which the reference
 * profile is, or, with the compute capability 80, one of the generation before with as many multiprocessors.
 */
#pragma once

#include "src/device/device.h"

static inline tn_target gpu_target(int capability)
{
    const bool newer = capability >= 90;
    return (tn_target){.dialect = TN_DIALECT_CUDA,
                       .vector_bytes = 16,
                       .l1_bytes = newer ? 228 << 10 : 192 << 10,
                       .l2_bytes = 50 << 20,
                       .last_bytes = 50 << 20,
                       .capability = capability,
                       .processors = 132,
                       .max_threads = 2048,
                       .shared_bytes = 48 << 10,
                       .shared_most = newer ? 227 << 10 : 163 << 10,
                       .wgmma = newer};
}
