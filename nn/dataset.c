/* dataset.c - data sets: arrays of n items, that lie in memory or are made item by item.
 *
 * Elements stay as they were found and become what a step wants when a batch is put together: pixels are
 * bytes (MNIST: 47 MB instead of 188) that become f32 through a table, a text is one byte a character and
 * becomes windows of i32. arrays.c takes them from a program and its files, images.c and text.c read files of
 * known formats. struct tn_dataset stands in nn.h. Read tn_nn_item first. */
#include "augment.h"

#include <string.h>

static void drop(void *p)
{
    tn_dataset *d = p;
    for (int i = 0; i < d->arrays; i++) {
        tn_free_mem(d->array[i].own);
        tn_nn_unmap(&d->array[i].file);
    }
    if (d->drop) d->drop(d->of);
}

tn_dataset *tn_nn_dataset_new(tn_session *s, tn_dataset *made, const nn_why *why, const char *op)
{
    tn_dataset *d =
        why->status ? tn_nn_fail(s, why->status, op, "%s", why->text) : tn_nn_own(s, sizeof(*d), drop, op);
    if (!d) {
        drop(made);
        return NULL;
    }
    *d = *made;
    d->s = s;
    nn_state *st = tn_nn_state(s);
    *st->last_dataset = d;
    st->last_dataset = &d->next;
    return d;
}

bool tn_nn_dataset_array(tn_dataset *d, tn_dtype dtype, nn_raw raw, int ndim, const int64_t *shape)
{
    nn_array *a = &d->array[d->arrays++];
    *a = (nn_array){.dtype = dtype, .raw = raw, .ndim = ndim, .item = 1};
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 1 || shape[i] > INT32_MAX || a->item > INT64_MAX / 8 / shape[i] / (d->n ? d->n : 1))
            return false;
        a->item *= a->shape[i] = shape[i];
    }
    return true;
}

size_t tn_nn_raw_size(const nn_array *a)
{
    switch (a->raw) {
    case NN_AS_IS: return tn_dtype_size(a->dtype);
    case NN_PIXELS:
    case NN_I8: return 1;
    case NN_I16:
    case NN_U16: return 2;
    case NN_U32: return 4;
    }
    return 0;
}

void *tn_nn_dataset_room(tn_dataset *d)
{
    nn_array *a = &d->array[d->arrays - 1];
    a->data = a->own = tn_malloc((size_t)(d->n * a->item) * tn_nn_raw_size(a));
    return a->own;
}

bool tn_nn_dataset_pixels(tn_dataset *d, const double *mean, const double *std)
{
    const nn_array *a = &d->array[0];
    for (int64_t c = 0; c < a->shape[2] && c < 4; c++) {
        if (!(std[c] > 0) || !(mean[c] - mean[c] == 0)) return false;
        for (int i = 0; i < 256; i++) d->table[c][i] = (float)((i / 255.0 - mean[c]) / std[c]);
        for (int i = 0; i < 256; i++) d->plain[c][i] = (float)(i / 255.0);
        d->scale[c] = (float)(1 / std[c]);
    }
    return a->ndim == 3 && a->shape[2] <= 4;
}

TN_DEFINE(tn_dataset *, dataset_from, s, (s, x, labels, n, ndim, shape), tn_session *s, const float *x,
          const int32_t *labels, int64_t n, int ndim, const int64_t *shape)
{
    static const char op[] = "dataset_from";
    if (!s) return NULL;
    if (!x || !labels || (ndim > 0 && !shape))
        return tn_nn_fail(s, TN_E_NULL, op, "%s is NULL", !x ? "x" : !labels ? "labels" : "shape");
    if (n < 1 || n > UINT32_MAX || ndim < 0 || ndim >= TN_MAX_DIMS)
        return tn_nn_fail(s, TN_E_ARG, op, "n %lld must be from 1 to %lld, and ndim %d from 0 to %d",
                          (long long)n, (long long)UINT32_MAX, ndim, TN_MAX_DIMS - 1);
    tn_dataset made = {.n = n};
    if (!tn_nn_dataset_array(&made, TN_F32, NN_AS_IS, ndim, shape)) {
        int bad = 0;
        while (bad < ndim - 1 && shape[bad] == made.array[0].shape[bad]) bad++;
        return tn_nn_fail(s, TN_E_ARG, op,
                          "shape[%d] is %lld, must be above 0, and all elements few enough to be counted",
                          bad, (long long)shape[bad]);
    }
    void *values = tn_nn_dataset_room(&made);
    tn_nn_dataset_array(&made, TN_I32, NN_AS_IS, 0, NULL);
    void *y = tn_nn_dataset_room(&made);
    nn_why why = {0};
    if (values && y) {
        memcpy(values, x, (size_t)(n * made.array[0].item) * sizeof(*x));
        memcpy(y, labels, (size_t)n * sizeof(*labels));
    } else {
        tn_nn_why(&why, TN_E_NOMEM, "no memory for %lld items", (long long)n);
    }
    return tn_nn_dataset_new(s, &made, &why, op);
}

#define ASKED(name, value)                                                                                   \
    int64_t tn_dataset_##name(const tn_dataset *d) { return d ? (value) : 0; }
ASKED(count, d->n)
ASKED(epoch, d->next_epoch)
ASKED(classes, d->classes)
ASKED(damaged, d->damaged)

const char *tn_dataset_class(const tn_dataset *d, int64_t label)
{
    return d && d->class_of && label >= 0 && label < d->classes ? d->class_of[label] : NULL;
}

/* ---- items ---- */

#define WIDEN(from_type, to_type)                                                                            \
    for (int64_t i = 0; i < a->item; i++) {                                                                  \
        from_type v;                                                                                         \
        memcpy(&v, from + (size_t)i * sizeof(v), sizeof(v));                                                 \
        ((to_type *)to)[i] = v;                                                                              \
    }                                                                                                        \
    return

/* An item without pixels. */
static void copy(const nn_array *a, const unsigned char *from, void *to)
{
    switch (a->raw) {
    case NN_PIXELS:
    case NN_AS_IS: memcpy(to, from, (size_t)a->item * tn_dtype_size(a->dtype)); return;
    case NN_I8: WIDEN(int8_t, int32_t);
    case NN_I16: WIDEN(int16_t, int32_t);
    case NN_U16: WIDEN(uint16_t, int32_t);
    case NN_U32: WIDEN(uint32_t, int64_t);
    }
}

/* The pixels of item k: where they lie, or at `room`, which has that of two items. NULL: no memory. */
static const unsigned char *pixels_of(const tn_dataset *d, int64_t k, const nn_draw *draw,
                                      unsigned char *room)
{
    const nn_array *x = &d->array[0];
    const unsigned char *from = x->data ? x->data + k * x->item : room;
    if (!draw || draw->how.crop[1] == 0 || d->slow) return from;
    double box[4];
    tn_nn_crop_box(draw, k, x->shape[0], x->shape[1], box);
    const nn_picture image = {x->shape[0], x->shape[1], (unsigned char *)(uintptr_t)from};
    return tn_nn_resize(&image, x->shape[2], box, room + x->item, image.h, image.w) ? NULL : room + x->item;
}

/* Item k of array i, which stands at out already where it has been made, as it is handed over. */
static int hand_over(const tn_dataset *d, int i, int64_t k, const nn_view *v, unsigned char *out, nn_why *why)
{
    const nn_array *a = &d->array[i];
    const size_t bytes = (size_t)a->item * tn_dtype_size(a->dtype);
    if (a->data) copy(a, a->data + (size_t)(k * a->item) * tn_nn_raw_size(a), out);
    if (!(v->flip || v->dy || v->dx) || !tn_nn_follows(d, i)) return TN_OK;
    unsigned char *before = tn_malloc(bytes);
    if (!before) return tn_nn_why(why, TN_E_NOMEM, "no memory for an item");
    memcpy(before, out, bytes);
    tn_nn_follow(a, before, v, out);
    tn_free_mem(before);
    return TN_OK;
}

int tn_nn_item(const tn_dataset *d, int64_t k, const nn_draw *draw, void *const *out, nn_why *why)
{
    const nn_array *x = &d->array[0];
    const bool pixels = d->arrays && x->raw == NN_PIXELS;
    void *to[TN_MAX_ARRAYS];
    unsigned char *room = pixels ? tn_malloc(2 * (size_t)x->item) : NULL;
    nn_view view = {.flip = false};
    int status = pixels && !room ? tn_nn_why(why, TN_E_NOMEM, "no memory for an item") : TN_OK;
    memcpy(to, out, (size_t)d->arrays * sizeof(*to));
    if (pixels) to[0] = room;
    if (draw) tn_nn_view_of(draw, k, &view);
    if (!status && d->make) status = d->make(d, k, draw, to, why);
    const unsigned char *from = pixels && !status ? pixels_of(d, k, draw, room) : NULL;
    if (from)
        tn_nn_show(d, from, &view, out[0]);
    else if (pixels && !status)
        status = tn_nn_why(why, TN_E_NOMEM, "no memory to resize an image");
    for (int i = pixels; i < d->arrays && !status; i++) status = hand_over(d, i, k, &view, out[i], why);
    if (status == NN_DAMAGED) {
        memset(out[0], 0, (size_t)x->item * sizeof(float));
        *(int32_t *)out[1] = NN_NO_LABEL;
    }
    tn_free_mem(room);
    return status;
}

tn_tensor *tn_nn_dataset_tensor(const tn_dataset *d, int i, int64_t n, const void *x)
{
    int64_t shape[TN_MAX_DIMS] = {n};
    memcpy(shape + 1, d->array[i].shape, (size_t)d->array[i].ndim * sizeof(*shape));
    return tn_from(d->s, x, d->array[i].dtype, d->array[i].ndim + 1, shape);
}
