/* kept.h - what an earlier run has compiled, for a machine without a compiler. */
#pragma once

#include "../kcache.h"

/* What stands before the texts of kernels in the cache that can serve this process, tn_free_mem it: they were
 * compiled with this library's prelude, the processor has all instructions of the one they were compiled for,
 * and they are sanitized where this library is. NULL: there are none. Where several compilers have filled the
 * folder it is that of the first file by name, so that it is the same in each run. */
char *tn_kept_common(tn_kcache *cache);
