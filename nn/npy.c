/* npy.c - reads NumPy's .npy files: one array, left where it lies in the mapped file.
 *
 * The format: the bytes "\x93NUMPY", two of a version (1, 2 or 3), the length of the header (2 bytes, from
 * version 2 on 4, little-endian), the header, which is a Python dictionary of 'descr', 'fortran_order' and
 * 'shape', and the elements. Read tn_nn_npy first. */
#include "nn.h"

#include <string.h>

typedef struct header {
    const char *path, *at, *end; /* what is left of it */
    nn_why *why;
} header;

static int wrong(const header *h, const char *what)
{
    return tn_nn_why(h->why, TN_E_FORMAT, "%s: its header is none of a .npy file (%s)", h->path, what);
}

static void skip_space(header *h)
{
    while (h->at < h->end && strchr(" \t\r\n", *h->at) && *h->at) h->at++;
}

static bool take(header *h, const char *text)
{
    const size_t n = strlen(text);
    skip_space(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, text, n)) return false;
    h->at += n;
    return true;
}

/* A string between quotes of either kind, without escapes. */
static bool take_string(header *h, char *out, size_t size)
{
    const char quote = take(h, "'") ? '\'' : take(h, "\"") ? '"' : 0;
    size_t n = 0;
    if (!quote) return false;
    for (; h->at < h->end && *h->at != quote; h->at++) {
        if (*h->at == '\\' || n + 1 >= size) return false;
        out[n++] = *h->at;
    }
    out[n] = 0;
    return h->at++ < h->end;
}

static int take_dtype(header *h, nn_array *out)
{
    char name[32];
    if (take(h, "["))
        return tn_nn_why(h->why, TN_E_FORMAT, "%s: its elements are records; save each field by itself",
                         h->path);
    if (!take_string(h, name, sizeof(name))) return wrong(h, "descr");
    const nn_type *t = *name ? tn_nn_type_npy(name + 1) : NULL;
    if (t && t->dtype != TN_DTYPE_COUNT && strchr(t->bytes == 1 ? "<>=|" : "<=", *name)) {
        out->dtype = t->dtype;
        out->raw = t->raw;
        return TN_OK;
    }
    return tn_nn_why(h->why, TN_E_DTYPE, "%s: its elements are '%s'%s", h->path, name,
                     *name == '>' ? ", of the other order of bytes; save x.astype(x.dtype.newbyteorder('<'))"
                                  : ", which no dtype here can hold");
}

static int take_shape(header *h, nn_array *out, int64_t *n)
{
    int ndim = 0;
    if (!take(h, "(")) return wrong(h, "shape");
    while (!take(h, ")")) {
        int64_t extent = 0;
        const char *first = (skip_space(h), h->at);
        for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
            if ((extent = extent * 10 + (*h->at - '0')) > INT64_C(1) << 48)
                return wrong(h, "an extent too large");
        if (h->at == first) return wrong(h, "shape");
        if (!extent) return tn_nn_why(h->why, TN_E_FORMAT, "%s: axis %d is empty", h->path, ndim);
        if (ndim == TN_MAX_DIMS)
            return tn_nn_why(h->why, TN_E_FORMAT, "%s: more than %d axes", h->path, TN_MAX_DIMS);
        if (ndim)
            out->shape[ndim - 1] = extent;
        else
            *n = extent;
        ndim++;
        if (!take(h, ",")) {
            if (!take(h, ")")) return wrong(h, "shape");
            break;
        }
    }
    out->ndim = ndim - 1;
    return ndim ? TN_OK : tn_nn_why(h->why, TN_E_FORMAT, "%s: one number, without an axis of items", h->path);
}

static int take_header(header *h, nn_array *out, int64_t *n)
{
    bool seen[3] = {false, false, false};
    char key[32];
    int status = TN_OK;
    if (!take(h, "{")) return wrong(h, "no dictionary");
    while (!status && !take(h, "}")) {
        if (!take_string(h, key, sizeof(key)) || !take(h, ":")) return wrong(h, "a key");
        if (!strcmp(key, "descr")) {
            status = take_dtype(h, out);
            seen[0] = true;
        } else if (!strcmp(key, "fortran_order")) {
            if (take(h, "True"))
                return tn_nn_why(h->why, TN_E_FORMAT,
                                 "%s: in Fortran's order; save numpy.ascontiguousarray(x)", h->path);
            if (!take(h, "False")) return wrong(h, "fortran_order");
            seen[1] = true;
        } else if (!strcmp(key, "shape")) {
            status = take_shape(h, out, n);
            seen[2] = true;
        } else {
            return wrong(h, "an unknown key");
        }
        if (!status && !take(h, ",")) {
            if (!take(h, "}")) return wrong(h, "no end");
            break;
        }
    }
    return status || (seen[0] && seen[1] && seen[2]) ? status : wrong(h, "a key is missing");
}

static int read_file(const char *path, const nn_file *f, nn_array *out, int64_t *n, nn_why *why)
{
    const unsigned char *p = f->data;
    if (f->size < 10 || memcmp(p, "\x93NUMPY", 6))
        return tn_nn_why(why, TN_E_FORMAT, "%s: not a .npy file", path);
    if (p[6] < 1 || p[6] > 3) return tn_nn_why(why, TN_E_FORMAT, "%s: version %d of the format", path, p[6]);
    const size_t begin = p[6] == 1 ? 10 : 12;
    if (f->size < begin) return tn_nn_why(why, TN_E_FORMAT, "%s: cut off", path);
    size_t length = (size_t)p[8] | (size_t)p[9] << 8;
    if (p[6] > 1) length |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (length > f->size - begin) return tn_nn_why(why, TN_E_FORMAT, "%s: cut off in its header", path);
    header h = {path, (const char *)p + begin, (const char *)p + begin + length, why};
    int status = take_header(&h, out, n);
    if (status) return status;
    const size_t left = f->size - begin - length, room = left / tn_nn_raw_size(out);
    size_t total = (size_t)*n;
    out->item = 1;
    for (int i = 0; i < out->ndim && total <= room; i++)
        total = (size_t)out->shape[i] > room / total ? SIZE_MAX : total * (size_t)out->shape[i];
    if (total != room || left % tn_nn_raw_size(out))
        return tn_nn_why(why, TN_E_FORMAT, "%s: %s: %zu bytes follow its header", path,
                         total > room ? "cut off" : "too long", left);
    for (int i = 0; i < out->ndim; i++) out->item *= out->shape[i];
    out->data = p + begin + length;
    return TN_OK;
}

int tn_nn_npy(const char *path, nn_array *out, int64_t *n, nn_why *why)
{
    *out = (nn_array){.ndim = 0};
    int status = tn_nn_map(path, &out->file, why);
    if (!status) status = read_file(path, &out->file, out, n, why);
    if (status) tn_nn_unmap(&out->file);
    return status;
}
