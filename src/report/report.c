/* report.c - writing what a session has to tell into files, when it is asked or, where TENSOR_REPORT names
 * one, as it is closed. Start with tn_report. */
#include "view.h"

#include "../../include/tensor_extend.h"
#include "../core/settings.h"

#include <string.h>

TN_DEFINE(int, report, s, (s, path), tn_session *s, const char *path)
{
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, "report", "path is NULL");
    if (tn_rank(s)) return TN_OK; /* the first one's tells for all */
    tn_growing t = {0};
    int status = tn_report_text(s, path, &t);
    if (status == TN_E_ARG)
        tn_fail(s, status, "report", "%s: the name must end in .html, .json, .txt or .plan", path);
    else if (status)
        tn_fail(s, status, "report", "no memory");
    else
        status = tn_write_file(s, "report", path, &t);
    tn_growing_free(&t);
    return status;
}

/* A session that never ran a step has nothing to tell, and leaves what another one has told. */
static void report_at_close(void *session)
{
    tn_session *s = session;
    const char *path = tn_settings_read(NULL, NULL).report;
    const int status = path && tn_step_log_told(s) ? tn_report(s, path) : TN_OK;
    if (status) tn_warn(s, "TENSOR_REPORT: %s cannot be written: %s", path, tn_status_text(status));
}

tn_session *tn_open_with(const tn_options *options)
{
    tn_session *s = tn_session_open(options);
    const char *path = s ? tn_settings_read(NULL, NULL).report : NULL;
    if (path) {
        tn_profile(s, !strstr(path, ".plan")); /* whose text is without times */
        tn_on_close(s, report_at_close, s);
    }
    return s;
}
