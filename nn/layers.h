/* layers.h - what the layers are written in: a layer is a list of parts, and a function of them.
 *
 * A constructor tn_NAME_new checks its arguments (tn_nn_check), fills its public struct (tn_nn_own), and
 * lists the parts that tn_nn_make is to make; tn_NAME_forward applies them. Both have an _at form, by
 * TN_PLACED and NN_FORWARD. Read tn_linear_new in layers.c for the pattern. */
#pragma once

#include "nn.h"

/* The initial values of a part: uniform in [-number, number), normal N(0, number^2), or number throughout. */
typedef enum nn_init { NN_UNIFORM, NN_NORMAL, NN_FULL } nn_init;

/* A tensor of a layer, f32 where nothing else is said. */
typedef struct nn_part {
    const char *name; /* "weight": the parameter "layer.weight"; NULL: this layer does without */
    tn_tensor **at;
    nn_init init;
    double number;
    int64_t shape[4]; /* up to the first 0 */
    bool buffer;      /* without gradient */
    bool state;       /* of training, no weight */
    bool wide;        /* NN_FULL alone: f64 */
    /* For weights from PyTorch (layout.c): {h, w, c} where the rows, or the columns, are an image, else NULL
     * or zeros. untold: whether they are was not said, and a file may have to be refused. */
    const int64_t *row, *column;
    bool untold;
} nn_part;
#define NN_PART(its_name, its_place, its_init, its_number, ...)                                              \
    {                                                                                                        \
        .name = its_name, .at = &(its_place), .init = its_init, .number = its_number, .shape = __VA_ARGS__   \
    }

/* Makes the parts of `layer`, in this order. False, with the error reported, where one cannot be made; then
 * none stays. */
bool tn_nn_make(tn_session *s, const char *op, const char *layer, int n, const nn_part *part);
#define NN_MAKE(s, op, layer, parts) tn_nn_make(s, op, layer, (int)(sizeof(parts) / sizeof(*(parts))), parts)

/* Returns ok; where it is false, reports "'fc' needs <what is wanted, and what was given>". */
bool tn_nn_check(tn_session *s, const char *op, const char *name, bool ok, const char *fmt, ...)
    TN_FORMAT(5, 6);
/* "layer 'fc'" from a parameter "fc.weight" of it; "the layer" where it has none. */
const char *tn_nn_layer(const tn_tensor *part, char *out, size_t size);

/* sparse.c: the rows of a table, [n, features], noted for its update. */
tn_tensor *tn_nn_sparse_lookup(tn_embed *e, tn_tensor *index);

/* The session of a layer's part, or of x where the layer has none. */
static inline tn_session *tn_nn_session(const tn_tensor *part, const tn_tensor *x)
{
    return part ? tn_session_of(part) : x ? tn_session_of(x) : NULL;
}
/* Begins the definition of tn_NAME(type *layer, tn_tensor *x), with its _at form; `part` is a parameter that
 * the layer has. */
#define NN_FORWARD(name, type, layer, x, part)                                                               \
    TN_DEFINE(tn_tensor *, name, tn_nn_session(layer ? layer->part : NULL, x), (layer, x), type *layer,      \
              tn_tensor *x)
