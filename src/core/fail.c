/* fail.c - see fail.h. */
#include "fail.h"

#include "print.h"

int tn_err(tn_errbuf *err, int status, const char *fmt, ...)
{
    if (!err) return status;
    va_list ap;
    va_start(ap, fmt);
    tn_vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return status;
}
