/* layers.h - what layers.c and attention.c share: naming and drawing parameters. */
#ifndef TN_LAYERS_H
#define TN_LAYERS_H

#include "nn.h"

/* The parameter (or buffer) "layer.part"; NULL when init is or the name is taken. */
tn_tensor *tn_nn_named(tn_session *s, const char *op, const char *file, int line, const char *layer,
                       const char *part, tn_tensor *init, bool trained);
/* f32, uniform in [-bound, bound). */
tn_tensor *tn_nn_uniform(tn_session *s, double bound, int ndim, const int64_t *shape, const char *file,
                         int line);
/* f32, N(0, std^2). */
tn_tensor *tn_nn_normal(tn_session *s, double std, int ndim, const int64_t *shape, const char *file,
                        int line);
/* Whether a layer may be made; reports "'fc' needs <wants>" where not ok. */
bool tn_nn_check(tn_session *s, const char *op, const char *name, bool ok, const char *wants,
                 const char *file, int line);

#endif
