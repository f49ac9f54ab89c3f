/* arrays.c - a program's own data: arrays in its memory or in files, and items that a function of it makes.
 *
 * Read tn_dataset_arrays first. */
#include "nn.h"

#include <string.h>

/* ---- arrays ---- */

/* The items of a file: those of a .npy file have its shape, or, where one is given, that of as many elements.
 */
static int take_file(tn_dataset *d, const tn_array *given, nn_array *a, nn_why *why)
{
    int64_t n = 0;
    nn_array found = *a;
    int status;
    if (tn_nn_ends_with(given->path, ".npy")) {
        if ((status = tn_nn_npy(given->path, &found, &n, why))) return status;
        if (a->ndim && a->item == found.item) {
            found.ndim = a->ndim;
            memcpy(found.shape, a->shape, sizeof(found.shape));
        } else if (a->ndim) {
            status = tn_nn_why(why, TN_E_SHAPE, "%s: items of %lld elements do not fit a shape of %lld",
                               given->path, (long long)found.item, (long long)a->item);
        }
    } else {
        if ((status = tn_nn_map(given->path, &found.file, why))) return status;
        const size_t each = (size_t)found.item * tn_dtype_size(found.dtype);
        found.data = found.file.data;
        n = (int64_t)(found.file.size / each);
        if (found.file.size % each)
            status = tn_nn_why(why, TN_E_FORMAT, "%s: %zu bytes are not items of %zu", given->path,
                               found.file.size, each);
    }
    *a = found;
    if (!status && (n < 1 || (d->n && n != d->n)))
        status = tn_nn_why(why, n < 1 ? TN_E_FORMAT : TN_E_SHAPE, "%s: %lld items, %lld expected",
                           given->path, (long long)n, (long long)(d->n ? d->n : 1));
    d->n = n;
    return status;
}

static int take_pixels(tn_dataset *d, const tn_array *given, int i, nn_why *why)
{
    nn_array *a = &d->array[0];
    if (i || a->raw != NN_AS_IS || a->dtype != TN_U8 || !tn_nn_dataset_pixels(d, given->mean, given->std))
        return tn_nn_why(
            why, TN_E_ARG,
            "array %d has a std: that is for the first, of u8 [h, w, 1 to 4], and takes numbers above 0 and "
            "means of each channel",
            i);
    a->dtype = TN_F32;
    a->raw = NN_PIXELS;
    return TN_OK;
}

static int take(tn_dataset *d, const tn_array *given, int i, nn_why *why)
{
    int ndim = 0;
    while (ndim < TN_MAX_DIMS - 1 && given->shape[ndim]) ndim++;
    if ((unsigned)given->dtype >= TN_DTYPE_COUNT)
        return tn_nn_why(why, TN_E_ARG, "array %d: dtype %d is none", i, (int)given->dtype);
    if (!tn_nn_dataset_array(d, given->dtype, NN_AS_IS, ndim, given->shape))
        return tn_nn_why(why, TN_E_ARG,
                         "array %d: extents must be above 0, and elements few enough to be counted", i);
    nn_array *a = &d->array[i];
    int status = TN_OK;
    if (given->data && given->path) return tn_nn_why(why, TN_E_ARG, "array %d has data and a path", i);
    a->data = given->data;
    if (given->path) status = take_file(d, given, a, why);
    if (!status && !a->data && !d->make)
        status = tn_nn_why(why, TN_E_NULL, "array %d has neither data nor a path", i);
    return status || given->std[0] == 0 ? status : take_pixels(d, given, i, why);
}

static void drop(void *of) { tn_free_mem(of); }

/* ---- items that a function makes ---- */

typedef struct callback {
    tn_item_fn *fn;
    void *user;
} callback;

static int call(const tn_dataset *d, int64_t k, const nn_draw *draw, void *const *out, nn_why *why)
{
    (void)draw;
    const callback *c = d->of;
    const int status = c->fn(k, out, c->user);
    if (!status) return TN_OK;
    return tn_nn_why(why, status < 0 && status >= TN_E_INTERNAL ? status : TN_E_ARG,
                     "the function gave %d for item %lld", status, (long long)k);
}

static tn_dataset *make(tn_session *s, int64_t n, const callback *c, int narrays, const tn_array *arrays,
                        const char *op)
{
    tn_dataset made = {.n = n};
    nn_why why = {0};
    if (!s) return NULL;
    if (n < 0 || n > UINT32_MAX || narrays < 0 || narrays > TN_MAX_ARRAYS || (narrays && !arrays) ||
        (c && !c->fn))
        return tn_nn_fail(s, (c && !c->fn) || (narrays && !arrays) ? TN_E_NULL : TN_E_ARG, op,
                          "%lld items (up to %lld), %d arrays (up to %d)%s", (long long)n,
                          (long long)UINT32_MAX, narrays, TN_MAX_ARRAYS,
                          c && !c->fn          ? ", no function"
                          : narrays && !arrays ? ", which are NULL"
                                               : "");
    if (c) {
        if (!(made.of = tn_malloc(sizeof(*c))))
            return tn_nn_fail(s, TN_E_NOMEM, op, "no memory for a data set");
        *(callback *)made.of = *c;
        made.make = call;
        made.drop = drop;
    }
    for (int i = 0; i < narrays && !why.status; i++) take(&made, &arrays[i], i, &why);
    if (!why.status && (made.n < 1 || made.n > UINT32_MAX))
        tn_nn_why(&why, TN_E_ARG, "%lld items, must be from 1 to %lld", (long long)made.n,
                  (long long)UINT32_MAX);
    for (int i = 0; i < narrays && !why.status; i++) /* n may have come with a later one */
        if (made.array[i].item > INT64_MAX / 8 / made.n)
            tn_nn_why(&why, TN_E_ARG, "array %d: too many elements", i);
    return tn_nn_dataset_new(s, &made, &why, op);
}

TN_DEFINE(tn_dataset *, dataset_arrays, s, (s, n, narrays, arrays), tn_session *s, int64_t n, int narrays,
          const tn_array *arrays)
{
    return make(s, n, NULL, narrays, arrays, "dataset_arrays");
}

TN_DEFINE(tn_dataset *, dataset_fn, s, (s, n, fn, user, narrays, arrays), tn_session *s, int64_t n,
          tn_item_fn *fn, void *user, int narrays, const tn_array *arrays)
{
    return make(s, n, &(callback){fn, user}, narrays, arrays, "dataset_fn");
}
