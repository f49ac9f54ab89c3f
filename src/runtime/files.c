/* files.c - a text into a file, whole or not at all. */
#include "log.h"

#include "../core/whole_file.h"

int tn_put_file(const char *path, const tn_growing *t)
{
    tn_whole_file w;
    int why = tn_whole_open(&w, path);
    if (why) return why;
    if (t->n) fwrite(t->p, 1, t->n, w.f);
    return tn_whole_commit(&w);
}

int tn_write_file(tn_session *s, const char *op, const char *path, const tn_growing *t)
{
    int why = tn_put_file(path, t);
    return why ? tn_fail(s, TN_E_IO, op, "%s cannot be written: %s", path, tn_whole_why(why)) : TN_OK;
}
