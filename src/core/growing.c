/* growing.c - text that grows as it is written. */
#include "growing.h"

#include "print.h"

#include <string.h>

static bool room(tn_growing *t, size_t more)
{
    if (t->failed) return false;
    if (t->n + more + 1 <= t->cap) return true;
    size_t cap = t->cap ? t->cap : 4096;
    while (cap < t->n + more + 1) cap *= 2;
    char *p = tn_realloc(t->p, cap);
    if (!p) {
        t->failed = TN_E_NOMEM;
        return false;
    }
    t->p = p;
    t->cap = cap;
    return true;
}

void tn_put_v(tn_growing *t, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int k = tn_vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (k < 0 || !room(t, (size_t)k)) return;
    tn_vsnprintf(t->p + t->n, (size_t)k + 1, fmt, ap);
    t->n += (size_t)k;
}

void tn_put(tn_growing *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tn_put_v(t, fmt, ap);
    va_end(ap);
}

void tn_put_bytes(tn_growing *t, const char *p, size_t n)
{
    if (!room(t, n)) return;
    memcpy(t->p + t->n, p, n);
    t->p[t->n += n] = 0;
}

void tn_growing_free(tn_growing *t)
{
    tn_free_mem(t->p);
    *t = (tn_growing){0};
}
