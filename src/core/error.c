/* error.c - the first error of a graph, in the name of the call that is open and with its line; and shapes as
 * text. Start with tn_error_set. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../device/device.h"
#include "graph.h"

static void set(tn_graph *g, int status, const char *fmt, va_list ap)
{
    if (g->error.status) return;
    const char *lost = g->device && g->device->lost ? g->device->failure.text : NULL;
    g->error.status = lost ? TN_E_DEVICE : status; /* whatever did not work for it */
    size_t size = sizeof g->error.text, n = 0;
    const tn_call *c = g->call;
    if (c) {
        const tn_call *named = c->of ? c->of : c;
        const char *file = named->file ? named->file : g->place.file, *way = c->of ? " backward" : "";
        int line = named->file ? named->line : g->place.line;
        int k = !named->file && g->inner.depth
                    ? snprintf(g->error.text, size, "%s, %s at %s:%d: ", named->name, g->inner.name,
                               g->inner.file, g->inner.line)
                : file ? snprintf(g->error.text, size, "%s%s at %s:%d: ", named->name, way, file, line)
                       : snprintf(g->error.text, size, "%s%s: ", named->name, way);
        n = k < 0 ? 0 : (size_t)k < size ? (size_t)k : size - 1;
    }
    tn_vsnprintf(g->error.text + n, size - n, fmt, ap);
    n = strlen(g->error.text);
    if (lost && !strstr(g->error.text, lost)) snprintf(g->error.text + n, size - n, ": %s", lost);
}

void *tn_error_set(tn_graph *g, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(g, status, fmt, ap);
    va_end(ap);
    return NULL;
}

int tn_error_of(tn_graph *g, tn_call *call, int status, const char *fmt, ...)
{
    tn_call *open = g->call;
    va_list ap;
    if (call) g->call = call;
    va_start(ap, fmt);
    set(g, status, fmt, ap);
    va_end(ap);
    g->call = open;
    return status;
}

const char *tn_shape_text(char *buf, size_t n, int ndim, const int64_t *shape)
{
    size_t k = 0;
    k += (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < ndim && k < n; i++)
        k += (size_t)snprintf(buf + k, n - k, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (k < n) snprintf(buf + k, n - k, "]");
    return buf;
}

const char *tn_tensor_text(char *buf, size_t n, const tn_tensor *x)
{
    int k = x->name && *x->name ? snprintf(buf, n, "'%.40s' ", x->name) : 0;
    if (k >= 0 && (size_t)k < n) tn_shape_text(buf + k, n - (size_t)k, x->ndim, x->shape);
    return buf;
}
