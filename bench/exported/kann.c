/* kann.c - the network of KANN's example of MNIST and its training step (kann_train_fnn1) as a peer of
 * bench/exported.c: compiled with the folder of its checkout on the include path (bench/exported/run.sh),
 * with the parameters of the model that exported.c calls kann. Its images are [channels, h, w], ours [h, w,
 * channels]. */
#include "kann.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, FILTERS = 32, PIXELS = 12 * 12, FEATURES = 128, CLASSES = 10 };

static kann_t *net;
static float *squares;

static void make(void)
{
    kad_node_t *t = kad_feed(4, 1, 1, 28, 28);
    t->ext_flag |= KANN_F_IN;
    t = kad_relu(kann_layer_conv2d(t, FILTERS, 3, 3, 1, 1, 0, 0));
    t = kad_relu(kann_layer_conv2d(t, FILTERS, 3, 3, 1, 1, 0, 0));
    t = kann_layer_dropout(kad_max2d(t, 2, 2, 2, 2, 0, 0), 0.2f);
    t = kann_layer_dropout(kad_relu(kann_layer_dense(t, FEATURES)), 0.2f);
    net = kann_new(kann_layer_cost(t, CLASSES, KANN_C_CEB), 0);
    squares = calloc((size_t)kann_size_var(net), sizeof *squares);
    kann_set_batch_size(net, BATCH);
    kann_switch(net, 1);
}

/* All have different sizes. */
void peer_parameter(const char *name, const float *values, size_t count)
{
    if (!net) make();
    for (int i = 0; i < net->n; i++) {
        kad_node_t *p = net->v[i];
        if (!kad_is_var(p) || (size_t)kad_len(p) != count) continue;
        if (!strcmp(name, "c2.weight") || !strcmp(name, "fc1.weight")) {
            const size_t inner = !strcmp(name, "c2.weight") ? 9 : PIXELS, each = FILTERS * inner;
            for (size_t k = 0; k < count; k++) {
                const size_t place = k % each / FILTERS, channel = k % FILTERS;
                p->x[k / each * each + channel * inner + place] = values[k];
            }
        } else {
            memcpy(p->x, values, count * sizeof *values);
        }
    }
}

float peer_step(void *none, const void *image, const void *share)
{
    float *x = (float *)image, *y = (float *)share;
    (void)none;
    kann_feed_bind(net, KANN_F_IN, 0, &x);
    kann_feed_bind(net, KANN_F_TRUTH, 0, &y);
    const float cost = kann_cost(net, 0, 1);
    kann_RMSprop(kann_size_var(net), 1e-3f, NULL, 0.9f, net->g, net->x, squares);
    return cost;
}
