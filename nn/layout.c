/* layout.c - which tensors PyTorch keeps in another order, and in which.
 *
 * An image is [h, w, c] here and [c, h, w] there. A convolution's weight has an image in each row, [oc, h, w,
 * c]. Behind a flatten each row of a linear layer's weight is one, and where what a layer gives becomes an
 * image, the rows themselves are. Nothing in a file or in a shape says so: layers are told (.flattened,
 * .unflattened), and note it here under the name of the tensor. Read tn_nn_turn_of first. */
#include "nn.h"

#include <string.h>

struct nn_told {
    struct nn_told *next;
    bool known, state;
    int64_t row[3], column[3]; /* 0, 0, 0: no image */
    char name[];
};

bool tn_nn_tell(tn_session *s, const tn_tensor *t, bool known, bool state, const int64_t *row,
                const int64_t *column, const char *op)
{
    size_t n = strlen(tn_name(t)) + 1;
    struct nn_told *told = tn_nn_own(s, sizeof(*told) + n, NULL, op);
    if (!told) return false;
    nn_state *st = tn_nn_state(s);
    told->known = known;
    told->state = state;
    if (row) memcpy(told->row, row, sizeof(told->row));
    if (column) memcpy(told->column, column, sizeof(told->column));
    memcpy(told->name, tn_name(t), n);
    told->next = st->told; /* the newest of a name counts: an older layer of that name is gone */
    st->told = told;
    return true;
}

bool tn_nn_image_fits(const int64_t *image, int64_t n)
{
    if (!image[0] && !image[1] && !image[2]) return true;
    return image[0] > 0 && image[1] > 0 && image[2] > 0 && n % image[0] == 0 &&
           n / image[0] % image[1] == 0 && n / image[0] / image[1] == image[2];
}

static void set(int64_t *out, const int64_t *image, int64_t n)
{
    out[0] = image[0] ? image[0] : 1;
    out[1] = image[0] ? image[1] : 1;
    out[2] = image[0] ? image[2] : n;
}

static const struct nn_told *told_of(const nn_state *st, const tn_tensor *t)
{
    const struct nn_told *told = st->told;
    while (told && strcmp(told->name, tn_name(t))) told = told->next;
    return told;
}

bool tn_nn_is_state(const nn_state *st, const tn_tensor *t)
{
    const struct nn_told *told = told_of(st, t);
    return told && told->state;
}

bool tn_nn_turn_of(const nn_state *st, const tn_tensor *t, nn_turn *out)
{
    static const int64_t none[3] = {0};
    const struct nn_told *told = told_of(st, t);
    int ndim = tn_ndim(t);
    set(out->row, told ? told->row : none, ndim ? tn_dim(t, 0) : 1);
    set(out->column, told ? told->column : none, ndim == 2 ? tn_dim(t, 1) : 1);
    if (ndim == 4)
        for (int k = 0; k < 3; k++) out->column[k] = tn_dim(t, k + 1);
    return told ? told->known : ndim != 2;
}

static bool differs(const int64_t *image) { return image[2] > 1 && (image[0] > 1 || image[1] > 1); }

bool tn_nn_turns(const nn_turn *t) { return differs(t->row) || differs(t->column); }

static int64_t place(const int64_t *image, int64_t i)
{
    int64_t c = i % image[2], x = i / image[2] % image[1], y = i / image[2] / image[1];
    return (c * image[0] + y) * image[1] + x;
}

int64_t tn_nn_turn_index(const nn_turn *t, int64_t i)
{
    int64_t columns = t->column[0] * t->column[1] * t->column[2];
    return place(t->row, i / columns) * columns + place(t->column, i % columns);
}

void tn_nn_turn_shape(const nn_turn *t, int ndim, int64_t *shape)
{
    if (ndim < 3 || t->column[2] != shape[ndim - 1] || t->column[1] != shape[ndim - 2]) return;
    memmove(&shape[2], &shape[1], (size_t)(ndim - 2) * sizeof(*shape)); /* what is OHWI here is OIHW there */
    shape[1] = t->column[2];
}
