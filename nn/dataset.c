/* dataset.c - data sets in host memory: images, and what they share with texts (text.c).
 *
 * Pixels stay bytes (MNIST: 47 MB instead of 188) and become f32 through a table of 256 values when a batch
 * is put together. struct tn_dataset stands in nn.h. Read tn_dataset_idx_with first.
 */
#include "nn.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

tn_dataset *tn_nn_dataset_new(tn_session *s, int64_t n, bool labelled, int ndim, const int64_t *shape,
                              const char *op)
{
    nn_state *st = tn_nn_state(s);
    if (!st) return NULL;
    tn_dataset *d = tn_calloc(1, sizeof(*d));
    if (d && labelled) d->labels = tn_malloc((size_t)n * sizeof(*d->labels));
    if (!d || (labelled && !d->labels)) {
        tn_free_mem(d);
        tn_fail(s, TN_E_NOMEM, op, "no memory for %lld items", (long long)n);
        return NULL;
    }
    d->s = s;
    d->n = n;
    d->ndim = ndim;
    d->item = d->labels_each = 1;
    for (int i = 0; i < ndim; i++) d->item *= d->shape[i] = shape[i];
    *st->last_dataset = d;
    st->last_dataset = &d->next;
    return d;
}

void tn_nn_datasets_destroy(tn_dataset *first)
{
    while (first) {
        tn_dataset *d = first;
        first = d->next;
        tn_nn_loaders_destroy(d->loaders);
        tn_free_mem(d->bytes);
        tn_free_mem(d->floats);
        tn_free_mem(d->corpus);
        tn_free_mem(d->labels);
        tn_free_mem(d);
    }
}

/* Finds dir/name, or dir/name.gz. */
static bool find(char *path, size_t size, const char *dir, const char *name)
{
    int k = snprintf(path, size, "%s/%s", dir, name);
    if (k < 0 || (size_t)k + 4 > size) return false;
    if (!access(path, F_OK)) return true;
    memcpy(path + k, ".gz", 4);
    return !access(path, F_OK);
}

static int read_folder(const char *dir, tn_part part, nn_images *images, unsigned char **labels, nn_why *why)
{
    const char *prefix = part == TN_TEST ? "t10k" : "train",
               *sheet = part == TN_TEST ? "test.png" : "train.png";
    char name[64], path[PATH_MAX];
    int64_t n = 0;
    snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", prefix);
    if (!find(path, sizeof(path), dir, name))
        return tn_nn_why(why, TN_E_IO, "%s: no %s or %s.gz there (data/get_data.sh gets MNIST)", dir, name,
                         name);
    int status = tn_nn_idx_labels(path, labels, &n, why);
    if (status) return status;
    snprintf(name, sizeof(name), "%s-images-idx3-ubyte", prefix);
    if (find(path, sizeof(path), dir, name)) {
        if ((status = tn_nn_idx_images(path, images, why))) return status;
        if (images->n != n)
            return tn_nn_why(why, TN_E_FORMAT, "%s: %lld images for %lld labels", path, (long long)images->n,
                             (long long)n);
        return TN_OK;
    }
    if (!find(path, sizeof(path), dir, sheet))
        return tn_nn_why(why, TN_E_IO, "%s: no %s, %s.gz or %s there", dir, name, name, sheet);
    return tn_nn_sheet(path, n, 28, 28, images, why);
}

tn_dataset *tn_dataset_idx_with(tn_session *s, const char *dir, tn_part part, const tn_idx_options *options)
{
    const tn_idx_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    static const char op[] = "dataset_idx";
    if (!s) return NULL;
    if (!dir) {
        tn_fail(s, TN_E_NULL, op, "dir is NULL");
        return NULL;
    }
    if (part != TN_TRAIN && part != TN_TEST) {
        tn_fail(s, TN_E_ARG, op, "part %d is neither TN_TRAIN nor TN_TEST", (int)part);
        return NULL;
    }
    double std = o->std != 0 ? o->std : 0.3081, mean = o->std != 0 ? o->mean : 0.1307;
    int classes = o->classes ? o->classes : 10;
    if (!(std > 0) || !(mean - mean == 0) || o->limit < 0 || classes < 0) {
        tn_fail(s, TN_E_ARG, op,
                "std %g, mean %g, classes %d, limit %lld: std must be above 0, the rest not below", std, mean,
                classes, (long long)o->limit);
        return NULL;
    }
    nn_images images = {0};
    unsigned char *labels = NULL;
    nn_why why = {0};
    tn_dataset *d = NULL;
    if (read_folder(dir, part, &images, &labels, &why)) {
        tn_fail(s, why.status, op, "%s", why.text);
    } else {
        int64_t n = o->limit && o->limit < images.n ? o->limit : images.n, bad = 0;
        while (bad < n && labels[bad] < classes) bad++;
        if (bad < n)
            tn_fail(s, TN_E_FORMAT, op, "%s: label %d of item %lld is not below %d", dir, labels[bad],
                    (long long)bad, classes);
        else
            d = tn_nn_dataset_new(s, n, true, 3, (int64_t[]){images.h, images.w, 1}, op);
    }
    if (d) {
        d->bytes = images.pixels;
        images.pixels = NULL;
        for (int i = 0; i < 256; i++) d->table[i] = (float)((i / 255.0 - mean) / std);
        for (int64_t i = 0; i < d->n; i++) d->labels[i] = labels[i];
    }
    tn_free_mem(images.pixels);
    tn_free_mem(labels);
    return d;
}

TN_PLACED(tn_dataset *, dataset_idx_with, s, (s, dir, part, options), tn_session *s, const char *dir,
          tn_part part, const tn_idx_options *options)

tn_dataset *tn_dataset_from(tn_session *s, const float *x, const int32_t *labels, int64_t n, int ndim,
                            const int64_t *shape)
{
    static const char op[] = "dataset_from";
    if (!s) return NULL;
    if (!x || !labels || (ndim > 0 && !shape)) {
        tn_fail(s, TN_E_NULL, op, "%s is NULL", !x ? "x" : !labels ? "labels" : "shape");
        return NULL;
    }
    if (n < 1 || n > UINT32_MAX || ndim < 0 || ndim >= TN_MAX_DIMS) {
        tn_fail(s, TN_E_ARG, op, "n %lld must be from 1 to %lld, and ndim %d from 0 to %d", (long long)n,
                (long long)UINT32_MAX, ndim, TN_MAX_DIMS - 1);
        return NULL;
    }
    int64_t item = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 1 || shape[i] > INT32_MAX || item > INT64_MAX / 8 / n / shape[i]) {
            tn_fail(s, TN_E_ARG, op,
                    "shape[%d] is %lld, must be above 0, and all elements few enough to be counted", i,
                    (long long)shape[i]);
            return NULL;
        }
        item *= shape[i];
    }
    float *copy = tn_malloc((size_t)(n * item) * sizeof(float));
    tn_dataset *d = copy ? tn_nn_dataset_new(s, n, true, ndim, shape, op) : NULL;
    if (!d) {
        if (!copy) tn_fail(s, TN_E_NOMEM, op, "no memory for %lld items", (long long)n);
        tn_free_mem(copy);
        return NULL;
    }
    memcpy(copy, x, (size_t)(n * item) * sizeof(float));
    memcpy(d->labels, labels, (size_t)n * sizeof(*labels));
    d->floats = copy;
    return d;
}

TN_PLACED(tn_dataset *, dataset_from, s, (s, x, labels, n, ndim, shape), tn_session *s, const float *x,
          const int32_t *labels, int64_t n, int ndim, const int64_t *shape)

int64_t tn_dataset_count(const tn_dataset *d)
{
    return d ? d->n : 0;
}

int64_t tn_dataset_epoch(const tn_dataset *d)
{
    return d ? d->next_epoch : 0;
}

void tn_nn_dataset_copy(const tn_dataset *d, const uint32_t *order, int64_t first, int64_t n, void *x,
                        int32_t *y)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t k = order ? (int64_t)order[first + i] : first + i;
        if (d->corpus) {
            tn_nn_window(d, order ? k : k * d->item, (int32_t *)x + i * d->item, y ? y + i * d->item : NULL);
            continue;
        }
        float *to = (float *)x + i * d->item;
        if (d->floats) {
            memcpy(to, d->floats + k * d->item, (size_t)d->item * sizeof(float));
        } else {
            const unsigned char *from = d->bytes + k * d->item;
            for (int64_t j = 0; j < d->item; j++) to[j] = d->table[from[j]];
        }
        if (y) y[i] = d->labels[k];
    }
}

tn_tensor *tn_nn_dataset_tensor(const tn_dataset *d, int64_t n, const void *x)
{
    int64_t shape[TN_MAX_DIMS] = {n};
    memcpy(shape + 1, d->shape, (size_t)d->ndim * sizeof(*shape));
    return tn_from(d->s, x, d->corpus ? TN_I32 : TN_F32, d->ndim + 1, shape);
}

tn_tensor *tn_nn_dataset_labels(const tn_dataset *d, int64_t n, const int32_t *y)
{
    int64_t shape[] = {n, d->labels_each};
    return tn_from(d->s, y, TN_I32, d->corpus ? 2 : 1, shape);
}
