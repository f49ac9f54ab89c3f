/* fail.h - the line that goes with an error's status, on its way up to the session that keeps it. */
#pragma once

typedef struct tn_errbuf {
    char text[1024];
} tn_errbuf;

/* Puts a line into err, which may be NULL, and returns the status. */
int tn_err(tn_errbuf *err, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
