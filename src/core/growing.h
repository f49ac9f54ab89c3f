/* growing.h - text that grows as it is written: sources of kernels, plans in words, reports. Numbers are
 * written with a point in every locale (print.h). An error is kept until the text is done: what is written
 * after it is dropped, so that a writer need not look at each call's status. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

typedef struct tn_growing {
    char *p; /* NULL while nothing has been written; from tn_malloc */
    size_t n, cap;
    int indent; /* for who writes lines of a program */
    int failed; /* 0, or the status for which everything after is dropped */
} tn_growing;

void tn_put(tn_growing *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tn_put_v(tn_growing *t, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void tn_put_bytes(tn_growing *t, const char *p, size_t n);
void tn_growing_free(tn_growing *t);
