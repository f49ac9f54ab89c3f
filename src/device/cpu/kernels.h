/* kernels.h - from kernel texts to functions: table, cache, compiler.
 *
 * Several texts may be compiled as one translation unit. So a text defines nothing at file scope that another
 * could define too, except its entry (renamed where two are equal) and helpers that are `static`; the
 * macros it defines are undefined behind it (batch.h). Where a unit of several does not compile, each is tried alone. */
#pragma once

#include "../device.h"
#include "../kcache.h"

typedef struct tn_kernels tn_kernels;

typedef struct tn_kernels_options {
    tn_kcache_options cache;
    int jobs;           /* compilers at once */
    bool refuse_folder; /* test hook: the cache's folder does not allow execution */
} tn_kernels_options;

const char *tn_kernels_folder(const tn_kernels *k); /* as tn_kcache_folder */
/* The compiler that TENSOR_CC names, where it names one, must run: 0, or TN_E_COMPILE and what to do. */
int tn_kernels_named_compiler(tn_kernels *k, tn_errbuf *err);
bool tn_kernels_no_compiler(const tn_kernels *k); /* a compile has found that there is none */
int tn_kernels_open(const tn_kernels_options *o, tn_kernels **out); /* 0 or TN_E_NOMEM */
void tn_kernels_close(tn_kernels *k);                               /* unloads all; NULL is allowed */

/* struct tn_device.compile. Where it fails, out[i] is NULL for those that have no kernel and only for those.
 */
int tn_kernels_compile(tn_kernels *k, const tn_source *src, int n, tn_kernel **out, tn_device_stats *stats,
                       tn_errbuf *err);
tn_kernel_fn *tn_kernel_entry(const tn_kernel *kernel);
tn_kernel_fn *tn_kernel_finish(const tn_kernel *kernel); /* NULL: it has none */
