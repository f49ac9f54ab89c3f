/* put.c - texts among the words of a page or of JSON, in which some of their characters mean something else,
 * and words printed where a caller wants them. */
#include "view.h"

#include <string.h>

void tn_put_parts(tn_growing *t, const char *const *part)
{
    for (int i = 0; part[i]; i++)
        for (const char *c = part[i]; *c; c++) tn_put(t, i % 2 && strchr("<>&\"", *c) ? "&#%d;" : "%c", *c);
}

void tn_put_string(tn_growing *t, const char *s)
{
    tn_put(t, "\"");
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        tn_put(t, c == '"' || c == '\\' ? "\\%c" : c < 0x20 ? "\\u%04x" : "%c", c);
    }
    tn_put(t, "\"");
}

void tn_put_members(tn_growing *t, const char *const *part)
{
    for (; part[0]; part += 2) {
        tn_put(t, "\"%s\":", part[0]);
        tn_put_string(t, part[1]);
        tn_put(t, ",");
    }
}

int tn_put_out(tn_growing *t, int status, FILE *out)
{
    if (!status && t->failed) status = TN_E_NOMEM;
    if (!status && t->p && fputs(t->p, out) < 0) status = TN_E_IO;
    tn_growing_free(t);
    return status;
}
