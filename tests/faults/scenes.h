/* scenes.h - the small trainings that are made to fail. Read first: scenes in scenes.c. */
#pragma once

#include "include/tensor_nn.h"

typedef struct scene_net {
    tn_conv *c1, *c2;
    tn_norm *n1, *n2;
    tn_linear *fc;
    tn_embed *embed;
    tn_transformer_block *block;
    tn_optim *opt;
    tn_dataset *data;
} scene_net;

typedef struct scene {
    const char *name;
    tn_mode mode;
    bool (*init)(tn_session *s, scene_net *net, const char *dir); /* false: an error */
    void (*step)(tn_session *s, const scene_net *net, const tn_batch *b);
    tn_classify_fn *classify;
    tn_precision precision;
} scene;
extern const scene scenes[]; /* until one without a name */

bool scene_files(const char *dir); /* writes the data they read */
