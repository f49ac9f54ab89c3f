/* print.c - numbers as text and back in C's locale. Start with enter. */
#include "print.h"

#include <locale.h>
#include <stdlib.h>

/* C's own locale is there from the start in the C libraries that have newlocale: nothing is allocated, or
 * freed. */
static locale_t enter(void)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c ? uselocale(c) : c;
}

static void leave(locale_t before)
{
    if (before) uselocale(before);
}

int tn_vsnprintf(char *out, size_t n, const char *fmt, va_list ap)
{
    locale_t before = enter();
    int k = vsnprintf(out, n, fmt, ap);
    leave(before);
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
    locale_t before = enter();
    int k = vfprintf(out, fmt, ap);
    leave(before);
    va_end(ap);
    return k;
}

double tn_strtod(const char *text, char **end)
{
    locale_t before = enter();
    double v = strtod(text, end);
    leave(before);
    return v;
}
