/* say.c - what a session says: errors, which it keeps, with the line of the program they came of, and
 * warnings, which go to its log. Start with tn_fail. */
#include "session.h"

#include <stdarg.h>

void tn_say(const tn_options *o, int level, const char *fmt, ...)
{
    char text[1400];
    va_list ap;
    va_start(ap, fmt);
    tn_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    o->log(level, text, o->log_user);
}

const char *tn_version(void) { return "0.1.0"; }

const char *tn_status_text(int status)
{
    switch (status) {
#define TN_X(name, value, text)                                                                              \
    case value: return text;
        TN_STATUSES(TN_X)
#undef TN_X
    }
    return "unknown status";
}

int tn_error(const tn_session *s) { return s ? s->graph.error.status : TN_E_NULL; }

const char *tn_error_text(const tn_session *s)
{
    return !s ? "no session" : s->graph.error.status ? s->graph.error.text : "";
}

int tn_fail(tn_session *s, int status, const char *op, const char *format, ...)
{
    if (!s) return status;
    char text[400];
    va_list ap;
    va_start(ap, format);
    tn_vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    tn_call here = {.name = op};
    if (!s->graph.call) return tn_error_of(&s->graph, &here, status, "%s", text);
    return tn_error_of(&s->graph, NULL, status, "%s: %s", op, text);
}

void tn_place_begin(tn_session *s, const char *file, int line)
{
    if (s && s->graph.place.depth++ == 0) {
        s->graph.place.file = file;
        s->graph.place.line = line;
    }
}

void tn_place_end(tn_session *s)
{
    if (s && s->graph.place.depth && --s->graph.place.depth == 0) s->graph.place.file = NULL;
}

void tn_warn(const tn_session *s, const char *format, ...)
{
    if (!s) return;
    char text[1400];
    va_list ap;
    va_start(ap, format);
    tn_vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    tn_say(&s->options, TN_LOG_WARN, "%s", text);
}

void *tn_device_error(tn_session *s, const char *what)
{
    const char *why = s->device->failure.text;
    return tn_error_set(&s->graph, TN_E_DEVICE, "%s%s%s", what, why[0] ? ": " : "", why);
}
