/* idx.c - reads IDX files (the format of MNIST), plain or gzip.
 *
 * The format: two zero bytes, a type code (8: unsigned byte), the number of axes, one big-endian 32-bit
 * extent per axis, then the elements row-major. Nothing in a file is believed until the bytes are there: the
 * extents say how much memory is wanted, the file's size bounds how much there can be.
 *
 * A `source` gives the bytes whether they are packed or not. Read tn_nn_idx first. */
#include "nn.h"

#include <string.h>
#ifdef TN_HAVE_ZLIB
#include <zlib.h>
#endif

enum { MOST_FILE = 1 << 30, MOST_AXES = 3 };
/* deflate cannot pack better than 1032 to 1, so a header that wants more is lying. */
enum { MOST_RATIO = 1032 };

typedef struct source {
    const char *path;
    const unsigned char *in;
    size_t left;
    size_t given;
    bool packed;
#ifdef TN_HAVE_ZLIB
    z_stream z;
#endif
} source;

#ifdef TN_HAVE_ZLIB
static void *zalloc(void *user, unsigned n, unsigned size)
{
    (void)user;
    return tn_calloc(n, size);
}
static void zfree(void *user, void *p)
{
    (void)user;
    tn_free_mem(p);
}
#endif

static int source_open(source *src, const char *path, const unsigned char *in, size_t size, nn_why *why)
{
    memset(src, 0, sizeof(*src));
    src->path = path;
    src->in = in;
    src->left = size;
    if (size < 2 || in[0] != 0x1f || in[1] != 0x8b) return TN_OK;
#ifdef TN_HAVE_ZLIB
    src->z.zalloc = zalloc;
    src->z.zfree = zfree;
    src->z.next_in = (z_const Bytef *)in;
    src->z.avail_in = (uInt)size;
    if (inflateInit2(&src->z, 16 + MAX_WBITS) != Z_OK)
        return tn_nn_why(why, TN_E_NOMEM, "%s: no memory to unpack it", path);
    src->packed = true;
    return TN_OK;
#else
    return tn_nn_why(why, TN_E_UNSUPPORTED, "%s: this build has no zlib; unpack it with gunzip", path);
#endif
}

static void source_close(source *src)
{
#ifdef TN_HAVE_ZLIB
    if (src->packed) inflateEnd(&src->z);
#endif
    src->packed = false;
}

/* Exactly n bytes into out; fewer are an error. */
static int source_read(source *src, unsigned char *out, size_t n, nn_why *why)
{
    if (!src->packed) {
        if (n > src->left)
            return tn_nn_why(why, TN_E_FORMAT, "%s: cut off: %zu bytes, %zu expected", src->path,
                             src->given + src->left, src->given + n);
        memcpy(out, src->in, n);
        src->in += n;
        src->left -= n;
        src->given += n;
        return TN_OK;
    }
#ifdef TN_HAVE_ZLIB
    src->z.next_out = out;
    src->z.avail_out = (uInt)n;
    while (src->z.avail_out) {
        uInt before = src->z.avail_out;
        int rc = inflate(&src->z, Z_NO_FLUSH);
        src->given += before - src->z.avail_out;
        if (!src->z.avail_out) break;
        if (rc == Z_STREAM_END || rc == Z_BUF_ERROR)
            return tn_nn_why(why, TN_E_FORMAT, "%s: cut off: %zu bytes unpacked, %zu expected", src->path,
                             src->given, src->given + src->z.avail_out);
        if (rc == Z_MEM_ERROR) return tn_nn_why(why, TN_E_NOMEM, "%s: no memory to unpack it", src->path);
        if (rc != Z_OK)
            return tn_nn_why(why, TN_E_FORMAT, "%s: corrupt after %zu unpacked bytes: %s", src->path,
                             src->given, src->z.msg ? src->z.msg : "bad gzip data");
    }
#endif
    return TN_OK;
}

/* Nothing may follow, and the check sum of a packed file must be there and right. */
static int source_end(source *src, nn_why *why)
{
    if (!src->packed) {
        if (!src->left) return TN_OK;
        return tn_nn_why(why, TN_E_FORMAT, "%s: %zu bytes too many", src->path, src->left);
    }
#ifdef TN_HAVE_ZLIB
    unsigned char extra;
    src->z.next_out = &extra;
    src->z.avail_out = 1;
    int rc = inflate(&src->z, Z_NO_FLUSH);
    if (!src->z.avail_out)
        return tn_nn_why(why, TN_E_FORMAT, "%s: more data than its header says", src->path);
    if (rc == Z_BUF_ERROR || rc == Z_OK)
        return tn_nn_why(why, TN_E_FORMAT, "%s: cut off: the check sum is missing", src->path);
    if (rc != Z_STREAM_END)
        return tn_nn_why(why, TN_E_FORMAT, "%s: corrupt: %s", src->path,
                         src->z.msg ? src->z.msg : "bad check sum");
    if (src->z.avail_in)
        return tn_nn_why(why, TN_E_FORMAT, "%s: %u bytes too many", src->path, src->z.avail_in);
#endif
    return TN_OK;
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* *axes 0: as many as it has, up to MOST_AXES. */
static int read_header(source *src, int *axes, size_t room, int64_t *dim, size_t *total, nn_why *why)
{
    unsigned char h[4 + 4 * MOST_AXES];
    int status = source_read(src, h, 4, why);
    if (status) return status;
    if (h[0] || h[1])
        return tn_nn_why(why, TN_E_FORMAT, "%s: not an IDX file: it begins with %02x%02x%02x%02x, not 0000",
                         src->path, h[0], h[1], h[2], h[3]);
    if (h[2] != 8)
        return tn_nn_why(why, TN_E_FORMAT,
                         "%s: elements of IDX type 0x%02x, only unsigned bytes (0x08) are read", src->path,
                         h[2]);
    if (!*axes && h[3] && h[3] <= MOST_AXES) *axes = h[3];
    if (!*axes)
        return tn_nn_why(why, TN_E_FORMAT, "%s: %d axes, 1 to %d are read", src->path, h[3], MOST_AXES);
    if (h[3] != *axes) return tn_nn_why(why, TN_E_FORMAT, "%s: %d axes, %d expected", src->path, h[3], *axes);
    if ((status = source_read(src, h + 4, 4 * (size_t)*axes, why))) return status;
    for (int i = 0; i < *axes; i++) {
        dim[i] = big_endian(h + 4 + 4 * i);
        if (!dim[i]) return tn_nn_why(why, TN_E_FORMAT, "%s: axis %d is empty", src->path, i);
    }
    *total = 1;
    for (int i = 0; i < *axes; i++) {
        const size_t extent = (size_t)dim[i];
        if (extent > room || *total > room / extent)
            return tn_nn_why(why, TN_E_FORMAT,
                             "%s: its header asks for more elements than a file of this size holds",
                             src->path);
        *total *= extent;
    }
    return TN_OK;
}

int tn_nn_idx(const char *path, int *axes, int64_t *dim, unsigned char **out, nn_why *why)
{
    unsigned char *file = NULL, *data = NULL;
    size_t size = 0, total = 0;
    source src;
    int status = tn_nn_slurp(path, MOST_FILE, &file, &size, why);
    if (status) return status;
    if (!(status = source_open(&src, path, file, size, why))) {
        size_t room = src.packed ? size * MOST_RATIO : size;
        if (room > INT32_MAX) room = INT32_MAX;
        status = read_header(&src, axes, room, dim, &total, why);
        if (!status && !(data = tn_malloc(total)))
            status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %zu bytes", path, total);
        if (!status) status = source_read(&src, data, total, why);
        if (!status) status = source_end(&src, why);
        source_close(&src);
    }
    tn_free_mem(file);
    if (status) {
        tn_free_mem(data);
        return status;
    }
    *out = data;
    return TN_OK;
}

int tn_nn_idx_images(const char *path, nn_images *out, nn_why *why)
{
    int64_t dim[3];
    int axes = 3, status = tn_nn_idx(path, &axes, dim, &out->pixels, why);
    if (status) return status;
    out->n = dim[0];
    out->h = dim[1];
    out->w = dim[2];
    return TN_OK;
}

int tn_nn_idx_labels(const char *path, unsigned char **labels, int64_t *n, nn_why *why)
{
    int axes = 1;
    return tn_nn_idx(path, &axes, n, labels, why);
}
