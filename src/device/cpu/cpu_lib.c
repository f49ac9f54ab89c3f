/* cpu_lib.c - checks requests for a product or a convolution, settles the edge cases, and chooses the code
 * that serves it. The choice depends on shapes and dtype only. Read first: tn_cpu_gemm. */
#include "cpu_lib.h"

#include "../../core/alloc.h"
#include "../../core/convert.h"
#include "pool.h"
#include "winograd.h"

#include <string.h>

int tn_cpu_lib_open(tn_cpu_lib **out)
{
    tn_cpu_lib *lib = tn_calloc(1, sizeof *lib);
    *out = lib;
    if (!lib) return TN_E_NOMEM;
    return TN_OK;
}

void tn_cpu_lib_close(tn_cpu_lib *lib)
{
    if (!lib) return;
    for (int i = 0; i < TN_SCRATCH_USES; i++) tn_free_mem(lib->scratch[i]);
    tn_free_mem(lib);
}

void tn_cpu_lib_prefer(tn_cpu_lib *lib, tn_cpu_impl impl) { lib->impl = impl; }

void tn_cpu_lib_log(tn_cpu_lib *lib, tn_log_fn *log, void *user)
{
    lib->log = log;
    lib->log_user = user;
}

/* Returns true where the convolution of any kind has to do the work, as there was no memory for what is
 * faster. That is logged once: sums then run in another order. */
static bool stand_in(tn_cpu_lib *lib, int status)
{
    if (status == TN_OK) return false;
    if (!lib->told && lib->log)
        lib->log(
            TN_LOG_WARN,
            "no memory for the fastest convolutions: others stand in, which are slower and may differ in "
            "the last bits",
            lib->log_user);
    lib->told = true;
    return true;
}

/* ---- products ---- */

/* C = act(bias) row by row: what a product over nothing leaves. */
static void fill_epilogue(const tn_gemm *g, int64_t batches)
{
    size_t es = tn_dtype_size(g->dtype);
    for (int64_t e = 0; e < batches; e++) {
        int64_t off = 0;
        for (int64_t d = g->batch_ndim - 1, i = e; d >= 0; i /= g->batch[d], d--)
            off += i % g->batch[d] * g->c_batch[d];
        for (int64_t i = 0; i < g->m; i++) {
            char *row = (char *)g->c + (off + i * g->c_row) * (int64_t)es;
            memset(row, 0, (size_t)g->n * es);
            for (int64_t j = 0; g->bias && j < g->n; j++) {
                const char *b = (const char *)g->bias + j * (int64_t)es;
                if (g->epilogue == TN_EPI_RELU && tn_load_f64(b, g->dtype, 0) < 0) continue;
                memcpy(row + j * (int64_t)es, b, es);
            }
        }
    }
}

int tn_cpu_gemm(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *request, tn_device_stats *stats,
                tn_errbuf *err)
{
    tn_gemm g = *request;
    int64_t batches = 0;
    if (!tn_dtype_is_float(g.dtype) && !tn_dtype_is_int(g.dtype))
        return tn_err(err, TN_E_DTYPE, "gemm: %s is not supported", tn_dtype_name(g.dtype));
    const int refused = tn_gemm_check(&g, &batches, err);
    if (refused || batches <= 0) return refused;
    if (stats) stats->library_calls++;
    if (g.k == 0) {
        if (!tn_pool_rehearses(pool)) fill_epilogue(&g, batches);
        return TN_OK;
    }
    /* A stride along an extent of 1 says nothing: make it the unit one where neither is. */
    if (g.a_row != 1 && g.a_col != 1) {
        if (g.k == 1)
            g.a_col = 1;
        else if (g.m == 1)
            g.a_row = 1;
    }
    if (g.b_row != 1 && g.b_col != 1) {
        if (g.n == 1)
            g.b_col = 1;
        else if (g.k == 1)
            g.b_row = 1;
    }
    if ((g.a_row != 1 && g.a_col != 1) || (g.b_row != 1 && g.b_col != 1))
        return tn_err(err, TN_E_ARG, "gemm: strides of A (%lld, %lld) and B (%lld, %lld): one must be 1",
                      (long long)g.a_row, (long long)g.a_col, (long long)g.b_row, (long long)g.b_col);
    const int s = tn_gemm_plain(lib, pool, &g, err);
    tn_cpu_trim_scratch(lib);
    return s;
}

/* ---- convolutions ---- */

int tn_cpu_conv2d(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_device_stats *stats,
                  tn_errbuf *err)
{
    const int refused = tn_conv2d_check(c, err);
    if (refused) return refused;
    if (c->n == 0) {
        size_t weights = (size_t)(c->oc * c->kh * c->kw * (c->c / c->groups));
        if (c->pass == TN_CONV_WEIGHT_GRAD && !tn_pool_rehearses(pool))
            memset(c->out, 0, weights * tn_dtype_size(c->dtype));
        return TN_OK;
    }
    if (stats) stats->library_calls++;
    tn_conv2d_desc d = *c;
    if (d.pass != TN_CONV_FORWARD) d.bias = NULL, d.epilogue = TN_EPI_NONE;
    const int tile = lib->impl == TN_CPU_AUTO      ? tn_winograd_tile(&d)
                     : !tn_winograd_serves(&d)     ? 0
                     : lib->impl == TN_CPU_TILES_2 ? 2
                     : lib->impl == TN_CPU_TILES_4 ? 4
                                                   : 0;
    const bool depthwise = lib->impl == TN_CPU_AUTO && tn_conv2d_is_depthwise(&d);
    int s = depthwise ? tn_conv2d_depthwise(lib, pool, &d, err)
            : tile    ? tn_winograd_conv2d(lib, pool, &d, tile, err)
                      : TN_OK;
    if (!(depthwise || tile) || stand_in(lib, s) || tn_pool_rehearses(pool))
        s = tn_conv2d_plain(lib, pool, &d, err);
    tn_cpu_trim_scratch(lib);
    return s;
}

/* ---- memory beforehand ---- */

int tn_cpu_ready(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *g, const tn_conv2d_desc *c,
                 tn_errbuf *err)
{
    lib->held = true;
    tn_pool_rehearse(pool, true);
    int s = g ? tn_cpu_gemm(lib, pool, g, NULL, err) : tn_cpu_conv2d(lib, pool, c, NULL, err);
    tn_pool_rehearse(pool, false);
    return s;
}

bool tn_cpu_settle(tn_cpu_lib *lib)
{
    lib->held = false;
    memset(lib->shared, 0, sizeof lib->shared);
    return tn_cpu_trim_scratch(lib);
}
