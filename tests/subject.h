/* subject.h - the device that the tests of programs compare with the reference: the CPU, or where
 * TENSOR_DEVICE says cuda, that. Names of ways to run say "cpu" for either. */
#pragma once

#include <stdlib.h>
#include <string.h>
#include <tensor.h>

static inline tn_device_kind subject_device(void)
{
    const char *e = getenv("TENSOR_DEVICE");
    return e && !strcmp(e, "cuda") ? TN_CUDA : TN_CPU;
}
