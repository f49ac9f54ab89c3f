/* report.c - writing what a session has to tell into files. Start with tn_report. */
#include "view.h"

#include "../../include/tensor_extend.h"
#include "../core/whole_file.h"

int tn_report(tn_session *s, const char *path)
{
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, "report", "path is NULL");
    tn_growing t = {0};
    int status = tn_report_text(s, path, &t);
    if (status == TN_E_ARG)
        tn_fail(s, status, "report", "%s: the name must end in .html, .json or .txt", path);
    else if (status)
        tn_fail(s, status, "report", "no memory");
    else
        status = tn_write_file(s, "report", path, &t);
    tn_growing_free(&t);
    return status;
}

TN_PLACED(int, report, s, (s, path), tn_session *s, const char *path)
