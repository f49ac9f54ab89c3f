/* report.c - files that appear whole or not at all: written beside their name, synced, renamed. */
#include "explain.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

int tn_write_file(tn_session *s, const char *op, const char *path, const fu_text *t)
{
    size_t n = strlen(path);
    char *temp = tn_malloc(n + 40);
    if (!temp) return tn_fail(s, TN_E_NOMEM, op, "no memory");
    snprintf(temp, n + 40, "%s.%ld.tmp", path, (long)getpid());
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool wrote = fd >= 0 && write_all(fd, t->p ? t->p : "", t->n) && !fsync(fd);
    if (fd >= 0 && close(fd)) wrote = false;
    if (wrote && rename(temp, path)) wrote = false;
    int why = errno;
    if (!wrote && fd >= 0) unlink(temp);
    tn_free_mem(temp);
    return wrote ? TN_OK : tn_fail(s, TN_E_IO, op, "%s cannot be written: %s", path, strerror(why));
}

int tn_report(tn_session *s, const char *path)
{
    if (!s || !path) return TN_E_NULL;
    fu_text t = {0};
    int status = tn_report_text(s, path, &t);
    if (status == TN_E_ARG)
        tn_fail(s, status, "report", "%s: the name must end in .html, .json or .txt", path);
    else if (status)
        tn_fail(s, status, "report", "no memory");
    else
        status = tn_write_file(s, "report", path, &t);
    fu_text_free(&t);
    return status;
}
