/* slurp.c - a whole file as bytes, read or mapped. It stands alone: a fuzzer gives readers bytes without any
 * file. */
#include "nn.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int tn_nn_slurp(const char *path, size_t most, unsigned char **data, size_t *size, nn_why *why)
{
    int status = TN_OK;
    unsigned char *p = NULL;
    /* A FIFO without a writer is no file to wait for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    if (!f) {
        status = tn_nn_why(why, TN_E_IO, "%s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    struct stat st;
    if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        status = tn_nn_why(why, TN_E_IO, "%s: not a plain file", path);
    } else if ((uint64_t)st.st_size > most) {
        status = tn_nn_why(why, TN_E_FORMAT, "%s: %lld bytes, more than such a file can have", path,
                           (long long)st.st_size);
    } else if (!(p = tn_malloc((size_t)st.st_size + 1))) {
        status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %lld bytes", path, (long long)st.st_size);
    } else if (fread(p, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
        status = tn_nn_why(why, TN_E_IO, "%s: %s", path,
                           ferror(f) ? strerror(errno) : "changed while it was read");
    }
    fclose(f);
    if (status) {
        tn_free_mem(p);
        return status;
    }
    p[st.st_size] = 0; /* for readers of text */
    *data = p;
    *size = (size_t)st.st_size;
    return TN_OK;
}

int tn_nn_map(const char *path, nn_file *out, nn_why *why)
{
    struct stat st;
    int status = TN_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *out = (nn_file){.data = NULL};
    if (fd < 0) return tn_nn_why(why, TN_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        status = tn_nn_why(why, TN_E_IO, "%s: not a plain file", path);
    } else if (st.st_size) { /* nothing can be mapped of an empty file */
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = tn_nn_why(why, errno == ENOMEM ? TN_E_NOMEM : TN_E_IO, "%s: cannot be mapped: %s", path,
                               strerror(errno));
        else
            *out = (nn_file){p, (size_t)st.st_size};
    }
    close(fd);
    return status;
}

void tn_nn_unmap(nn_file *f)
{
    if (f->data) munmap((void *)(uintptr_t)f->data, f->size);
    f->data = NULL;
}
