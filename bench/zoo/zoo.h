/* zoo.h - models of many kinds, whole training steps: what they are made of, and the table of them.
 *
 *   main.c       options, steps, and the lines by which bench/zoo.py asks for rounds
 *   layers.c     layers that are made by their first use, so that a model is one function
 *   images.c     convolutions       sequences.c  transformers, recurrences and the rest
 *   floor.c      each launch beside what it would take at the machine's own speed
 *
 * bench/zoo_models.py has the same models for PyTorch and JAX, layer by layer in the same order: the n-th
 * layer that a model uses is named "n" in both, and that is how they get the same weights.
 *
 * Read first: struct net, then a model in images.c. */
#pragma once

#include <tensor_nn.h>

enum { MOST_LAYERS_USED = 256, INPUTS = 3, NEW_TOKENS = 100, CONTEXT = 256 };

/* A model at work. in[]: its inputs, NULL while it is made: layers are made then, and every operator of NULL
 * is NULL. The last of the inputs is what is to be predicted. */
struct net {
    tn_session *s;
    const struct model *is;
    tn_tensor *in[INPUTS];
    void *layer[MOST_LAYERS_USED];
    char name[16]; /* of the layer that is made */
    int used;      /* layers, by this pass so far */
    bool making;
    tn_cache *cache[8]; /* of a model that writes */
    int64_t at;         /* position in them */
};

/* Normal numbers, or tokens below `below`. */
struct input {
    int ndim;
    int64_t dim[4], below;
};

enum loss { ITS_OWN, CROSS_ENTROPY, SQUARES, INFERENCE, GENERATION };
struct model {
    const char *name;
    tn_tensor *(*forward)(struct net *m); /* -> logits, a prediction, or a loss of its own */
    enum loss loss;
    struct input in[INPUTS];
    double dropout;
    bool random; /* in training: its losses are compared in evaluation mode */
    bool clip;   /* gradients, to norm 1 */
};
extern const struct model images[], sequences[]; /* each ends with one without a name */

/* ---- layers.c: x -> the layer's result; NULL while the model is made ---- */
tn_tensor *conv(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel, tn_conv_options o);
tn_tensor *conv_transpose(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel,
                          tn_conv_options o);
tn_tensor *conv1d(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel, tn_conv_options o);
tn_tensor *batch_norm(struct net *m, tn_tensor *x, int64_t features);
tn_tensor *group_norm(struct net *m, tn_tensor *x, int groups, int64_t features);
tn_tensor *layer_norm(struct net *m, tn_tensor *x, int64_t features);
tn_tensor *rms_norm(struct net *m, tn_tensor *x, int64_t features);
tn_tensor *linear(struct net *m, tn_tensor *x, int64_t in, int64_t out);
tn_tensor *linear_no_bias(struct net *m, tn_tensor *x, int64_t in, int64_t out);
tn_tensor *embedding(struct net *m, tn_tensor *index, int64_t count, int64_t features, tn_tensor **weight);
tn_tensor *recurrent(struct net *m, tn_tensor *x, int64_t width, bool lstm);
tn_tensor *block(struct net *m, tn_tensor *x, int64_t width, int heads, tn_transformer_block_options o);
tn_tensor *cached_block(struct net *m, tn_tensor *x, int64_t width, int heads, int i);
tn_tensor *weight(struct net *m, int ndim,
                  const int64_t *shape); /* a parameter, also while the model is made */

/* ---- floor.c ---- */

/* Runs step(m) with each launch timed and prints those that lose most beside their floor; milliseconds of all
 * floors, negative where it failed. most: lines of launches. */
double zoo_floor(struct net *m, int (*step)(struct net *), int most, FILE *out);
