/* fail.c - why a step cannot be written down, and how its text is. */
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

void ex_put(const tn_export *x, tn_growing *t, const char *fmt, ...)
{
    tn_growing named = {0};
    for (const char *c = fmt; *c; c++)
        if (*c == '@')
            tn_put(&named, "%s", x->name);
        else
            tn_put_bytes(&named, c, 1);
    va_list ap;
    va_start(ap, fmt);
    if (named.p) tn_put_v(t, named.p, ap);
    va_end(ap);
    if (named.failed) t->failed = named.failed;
    tn_growing_free(&named);
}
