/* fail.c - why a step cannot be written down. */
#include "../core/print.h"
#include "export.h"

int ex_fail(tn_export *x, int status, const char *fmt, ...)
{
    char line[480];
    va_list ap;
    va_start(ap, fmt);
    tn_vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    x->status = status;
    return tn_fail(x->s, status, "export", "%s", line);
}
