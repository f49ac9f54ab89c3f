/* fail.h - the line that goes with an error's status, on its way up to the session that keeps it. */
#ifndef TN_FAIL_H
#define TN_FAIL_H

typedef struct tn_errbuf {
    char text[1024];
} tn_errbuf;

/* Puts a line into err, which may be NULL, and returns the status. */
int tn_err(tn_errbuf *err, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
