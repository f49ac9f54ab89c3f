/* print.c - numbers as text and back in C's locale. Start with tn_c_locale_begin. */
#include "print.h"

#include <locale.h>
#include <stdlib.h>

/* C's own locale is there from the start in the C libraries that have newlocale: nothing is allocated, or
 * freed. */
void *tn_c_locale_begin(void)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c ? (void *)uselocale(c) : NULL;
}

void tn_c_locale_end(void *before)
{
    if (before) uselocale((locale_t)before);
}

int tn_vsnprintf(char *out, size_t n, const char *fmt, va_list ap)
{
    void *before = tn_c_locale_begin();
    int k = vsnprintf(out, n, fmt, ap);
    tn_c_locale_end(before);
    return k;
}

int tn_snprintf(char *out, size_t n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int k = tn_vsnprintf(out, n, fmt, ap);
    va_end(ap);
    return k;
}

int tn_fprintf(FILE *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    void *before = tn_c_locale_begin();
    int k = vfprintf(out, fmt, ap);
    tn_c_locale_end(before);
    va_end(ap);
    return k;
}

double tn_strtod(const char *text, char **end)
{
    void *before = tn_c_locale_begin();
    double v = strtod(text, end);
    tn_c_locale_end(before);
    return v;
}
