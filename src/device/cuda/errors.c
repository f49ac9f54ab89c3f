/* errors.c - a driver's result becomes a status and a line.
 *
 * Some failures are final: an illegal address in a kernel ends the context, and every later call would fail
 * or, worse, answer with old memory. The device is lost then. It remembers why, and refuses all further work
 * with the same words. Launches run later than they are asked for, so a failing one shows at a later call;
 * the text names those it can have been. With TENSOR_CUDA_SYNC=1 the device waits after each, and names the
 * one.
 *
 * Start with tn_cuda_check.
 */
#include "internal.h"

#include "../../core/print.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tn_cuda_log(const tn_cuda *c, int level, const char *fmt, ...)
{
    char text[1024];
    if (!c->log) return;
    va_list ap;
    va_start(ap, fmt);
    tn_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->log(level, text, c->log_user);
}

/* Returns true where the context does not work on after e. Errors that say that a call was wrong, too early
 * or too much do no harm; all others end the context or cannot be told apart from those that do. */
static bool is_final(tn_cu_result e)
{
    switch (e) {
    case TN_CU_INVALID_VALUE:
    case TN_CU_OUT_OF_MEMORY:
    case TN_CU_INVALID_IMAGE:
    case TN_CU_NO_BINARY:
    case TN_CU_INVALID_HANDLE:
    case TN_CU_NOT_FOUND:
    case TN_CU_NOT_READY:
    case TN_CU_OUT_OF_RESOURCES:
    case TN_CU_NOT_SUPPORTED: return false;
    }
    return e < TN_CU_CAPTURE_UNSUPPORTED || e > TN_CU_CAPTURE_LAST;
}

void tn_cuda_note(tn_cuda *c, const char *name) { c->recent[c->n_recent++ % TN_CUDA_RECENT] = name; }

/* " after launching a, b, c", or nothing. */
static void list_recent(const tn_cuda *c, char *out, size_t room)
{
    uint64_t n = c->n_recent < TN_CUDA_RECENT ? c->n_recent : TN_CUDA_RECENT;
    size_t at = 0;
    out[0] = 0;
    for (uint64_t i = 0; i < n && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%s",
                               i                 ? ", "
                               : c->n_recent > n ? "..., "
                                                 : "",
                               c->recent[(c->n_recent - n + i) % TN_CUDA_RECENT]);
}

static int say_lost(const tn_cuda *c, tn_errbuf *err)
{
    return tn_err(err, TN_E_DEVICE, "%s; this session cannot go on, open a new one", c->why_lost);
}

static void lose(tn_cuda *c, const char *what, const char *name, const char *text)
{
    char recent[480];
    if (c->base.lost) return;
    c->base.lost = true;
    list_recent(c, recent, sizeof recent);
    if (recent[0])
        snprintf(c->why_lost, sizeof c->why_lost,
                 "the GPU failed at or before %.40s: %.60s (%.80s). One of the last launches did it: %s%s",
                 what, name, text, recent, c->sync_each ? "" : " (TENSOR_CUDA_SYNC=1 tells which)");
    else
        snprintf(c->why_lost, sizeof c->why_lost, "the GPU failed at %.40s: %.60s (%.80s)", what, name, text);
    say_lost(c, &c->base.failure);
}

int tn_cuda_check(tn_cuda *c, tn_cu_result e, tn_errbuf *err, const char *what)
{
    const char *name = NULL, *text = NULL;
    char call[80];
    if (!e) return TN_OK;
    snprintf(call, sizeof call, "%s", what);
    char *version = strstr(call, "_v2");
    if (version) *version = 0;
    if (c->api->cuGetErrorName(e, &name) || !name) name = "an unknown error";
    if (c->api->cuGetErrorString(e, &text) || !text) text = "no text";
    if (is_final(e)) {
        lose(c, call, name, text);
        return say_lost(c, err);
    }
    return tn_err(err, e == TN_CU_OUT_OF_MEMORY ? TN_E_NOMEM : TN_E_DEVICE, "%s: %s (%s)", call, name, text);
}

int tn_cuda_enter(tn_cuda *c, tn_errbuf *err)
{
    if (c->base.lost) return say_lost(c, err);
    return TN_CUDA_DO(c, err, cuCtxPushCurrent_v2, c->context);
}

void tn_cuda_leave(tn_cuda *c)
{
    tn_cu_context was;
    c->api->cuCtxPopCurrent_v2(&was);
}

int tn_cuda_wait(tn_cuda *c, tn_errbuf *err)
{
    int status = TN_CUDA_DO(c, err, cuStreamSynchronize, c->stream);
    if (!status) c->n_recent = 0;
    return status;
}
