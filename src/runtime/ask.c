/* ask.c - what can be asked of a session, and set in it: device, random numbers, training or not, counters.
 */
#include "ranks.h"

#include "../../include/tensor_extend.h"

#include <string.h>

#define ASKED(type, name, value, without)                                                                    \
    type tn_##name(const tn_session *s) { return s ? (value) : (without); }
ASKED(const char *, device_name, s->device->name, "none")
ASKED(int, threads, s->device->threads, 0)
ASKED(uint64_t, seed, s->graph.seed, 0)
ASKED(uint64_t, rng_draw, s->graph.draw, 0)
ASKED(double, rank_weight, s->rank_weight, 1)
ASKED(bool, is_training, s->graph.training, false)
ASKED(bool, uses_f16, s->f16, false)
ASKED(bool, in_step, s->in_step, false)
ASKED(tn_mode, get_mode, s->mode, TN_MODE_AUTO)

int tn_synchronize(tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (s->graph.error.status) return s->graph.error.status;
    const int status = s->device->sync(s->device);
    if (status) return tn_fail(s, status, "synchronize", "%s", s->device->failure.text);
    tn_check_fault(s);
    return s->graph.error.status;
}

int tn_set_rng(tn_session *s, uint64_t seed, uint64_t draw)
{
    if (!s) return TN_E_NULL;
    if (seed != s->graph.seed && !s->graph.error.status && tn_flush(s)) return s->graph.error.status;
    if (!s->in_step && !s->graph.error.status && tn_synchronize(s)) /* it would take draws back later on */
        return s->graph.error.status;
    s->graph.seed = seed;
    s->graph.draw = s->drawn = s->step_draw = draw;
    return TN_OK;
}

int tn_train(tn_session *s, bool on)
{
    if (!s) return TN_E_NULL;
    if (s->graph.training && !on) tn_ranks_part(s);
    s->graph.training = on;
    return TN_OK;
}

void tn_weigh_rank(tn_session *s, double weight)
{
    if (s) s->rank_weight = weight;
}

int tn_set_precision(tn_session *s, tn_precision precision)
{
    if (!s) return TN_E_NULL;
    const tn_precision wide = s->target.tf32 ? TN_PRECISION_TF32 : TN_PRECISION_F32;
    if (precision != wide && precision != TN_PRECISION_BF16 && precision != TN_PRECISION_F16)
        return tn_fail(s, TN_E_ARG, "set_precision",
                       "precision is %d, must be %s, TN_PRECISION_BF16 or TN_PRECISION_F16", (int)precision,
                       s->target.tf32 ? "TN_PRECISION_TF32, which this session was opened with"
                                      : "TN_PRECISION_F32");
    s->graph.products = tn_products_of(precision);
    s->f16 |= precision == TN_PRECISION_F16;
    return TN_OK;
}

void tn_on_backward(tn_session *s, tn_tensor *(*fn)(tn_tensor *loss, void *arg), void *arg)
{
    s->scale.fn = fn;
    s->scale.arg = arg;
}

tn_precision tn_get_precision(const tn_session *s)
{
    return !s                             ? TN_PRECISION_F32
           : s->graph.products == TN_BF16 ? TN_PRECISION_BF16
           : s->graph.products == TN_F16  ? TN_PRECISION_F16
           : s->target.tf32               ? TN_PRECISION_TF32
                                          : TN_PRECISION_F32;
}

int tn_set_mode(tn_session *s, tn_mode mode)
{
    if (!s) return TN_E_NULL;
    if (s->in_step)
        return tn_fail(s, TN_E_STATE, "set_mode", "within a step; the mode is that of whole steps");
    if (mode != TN_FUSED && mode != TN_EAGER)
        return tn_fail(s, TN_E_ARG, "set_mode", "mode is %d, must be TN_FUSED or TN_EAGER", (int)mode);
    s->mode = mode;
    return TN_OK;
}

int tn_no_grad_begin(tn_session *s)
{
    if (!s) return TN_E_NULL;
    s->graph.no_grad++;
    return TN_OK;
}

TN_DEFINE(int, no_grad_end, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (s->graph.no_grad <= s->n_scopes)
        return tn_fail(s, TN_E_STATE, "no_grad_end", "without tn_no_grad_begin");
    s->graph.no_grad--;
    return TN_OK;
}

int tn_get_stats(const tn_session *s, tn_stats *out)
{
    if (!s || !out) return TN_E_NULL;
    tn_stats v = s->stats;
    v.size = sizeof v;
    v.nodes = s->graph.total_nodes;
    v.replayed = s->tape.hits;
    v.copies = s->device->stats.copies;
    v.compiled = s->device->stats.compiled;
    v.cache_hits = s->device->stats.cache_hits;
    v.bytes_now = s->device->stats.bytes_now;
    v.bytes_peak = s->device->stats.bytes_peak;
    memcpy(out, &v, out->size && out->size < sizeof v ? out->size : sizeof v);
    return TN_OK;
}
