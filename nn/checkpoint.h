/* checkpoint.h - what saving and loading share: the list of everything that makes up a training run. */
#pragma once

#include "optim.h"

enum { NN_NAME = 320 };

typedef struct nn_item {
    char name[NN_NAME];
    tn_tensor *tensor;           /* what is saved and loaded ... */
    tn_optim *optim;             /* ... or of this optimizer the counts ... */
    const nn_optim_entry *entry; /* ... or state `which` of this entry */
    int which;
    bool param;
    bool state;            /* of training: in no file of weights */
    const nn_saved *saved; /* loading: where it comes from; NULL: the file has no such state */
    tn_tensor *made;       /* loading, a buffer: its new value */
} nn_item;

typedef struct nn_items {
    nn_item *items;
    int n, room;
    bool failed;
} nn_items;

/* Everything that may be in a file, whether it is or not. Free l->items, also after an error. */
int tn_nn_make_items(tn_session *s, nn_state *st, nn_items *l, const char *op);
/* Of the tensors, or of those found in a file: the first in another order in PyTorch, the first
 * convolution's, and the first of which nobody has told whether it stands behind a flatten. */
typedef struct nn_orders {
    const nn_item *turns, *conv, *untold;
} nn_orders;
nn_orders tn_nn_orders_of(const nn_state *st, const nn_items *l, bool found);
/* TN_E_ARG where one may stand behind the flatten of an image. */
int tn_nn_check_told(tn_session *s, const char *op, const char *path, const nn_orders *o);
int tn_nn_item_shape(const nn_item *i, int64_t *shape); /* returns ndim */
tn_dtype tn_nn_item_dtype(const nn_item *i);
