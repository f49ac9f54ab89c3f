/* dataset.c - data sets in host memory, whatever their items are made of.
 *
 * Pixels stay bytes (MNIST: 47 MB instead of 188) and become f32 through a table of 256 values when a batch
 * is put together; a text stays one byte a character and becomes windows of i32. images.c and text.c read
 * them from files. struct tn_dataset stands in nn.h. Read tn_nn_dataset_copy first.
 */
#include "nn.h"

#include <string.h>

static void destroy(void *p)
{
    tn_dataset *d = p;
    tn_free_mem(d->bytes);
    tn_free_mem(d->floats);
    tn_free_mem(d->corpus);
    tn_free_mem(d->labels);
}

tn_dataset *tn_nn_dataset_new(tn_session *s, int64_t n, bool labelled, int ndim, const int64_t *shape,
                              const char *op)
{
    tn_dataset *d = tn_nn_own(s, sizeof(*d), destroy, op);
    if (!d) return NULL;
    if (labelled && !(d->labels = tn_malloc((size_t)n * sizeof(*d->labels)))) {
        tn_nn_drop(s, d);
        tn_fail(s, TN_E_NOMEM, op, "no memory for %lld items", (long long)n);
        return NULL;
    }
    d->s = s;
    d->n = n;
    d->ndim = ndim;
    d->item = d->labels_each = 1;
    for (int i = 0; i < ndim; i++) d->item *= d->shape[i] = shape[i];
    nn_state *st = tn_nn_state(s);
    *st->last_dataset = d;
    st->last_dataset = &d->next;
    return d;
}

TN_DEFINE(tn_dataset *, dataset_from, s, (s, x, labels, n, ndim, shape), tn_session *s, const float *x,
          const int32_t *labels, int64_t n, int ndim, const int64_t *shape)
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

int64_t tn_dataset_count(const tn_dataset *d)
{
    return d ? d->n : 0;
}

int64_t tn_dataset_epoch(const tn_dataset *d)
{
    return d ? d->next_epoch : 0;
}

void tn_nn_window(const tn_dataset *d, int64_t from, int32_t *x, int32_t *y)
{
    const nn_corpus *c = d->corpus;
    for (int64_t i = 0; i < d->item; i++) {
        bool inside = from + i + 1 < c->n;
        x[i] = inside ? c->tokens[from + i] : 0;
        if (y) y[i] = inside ? c->tokens[from + i + 1] : NN_NO_LABEL;
    }
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
