/* layers.c - linear, convolution, norms, embedding: parameters with names and initial values.
 *
 * Initial values follow PyTorch's reset_parameters (torch/nn/modules/linear.py, conv.py, batchnorm.py,
 * sparse.py): kaiming_uniform with a = sqrt(5) comes down to a uniform draw within 1/sqrt(fan_in), which is
 * the bias's bound too. The weight is drawn before the bias. Read tn_nn_uniform, then tn_linear_new_at.
 */
#include "layers.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

tn_tensor *tn_nn_named(tn_session *s, const char *op, const char *file, int line, const char *layer,
                       const char *part, tn_tensor *init, bool trained)
{
    char name[256];
    if (!init) return NULL;
    if (snprintf(name, sizeof(name), "%s.%s", layer, part) >= (int)sizeof(name)) {
        tn_nn_fail(s, TN_E_ARG, op, file, line, "the name %.32s.. is longer than %zu characters", layer,
                   sizeof(name) - 1);
        return NULL;
    }
    tn_tensor *made =
        trained ? tn_param_new_at(s, name, init, file, line) : tn_buffer_new_at(s, name, init, file, line);
    tn_free(init);
    return made;
}

tn_tensor *tn_nn_uniform(tn_session *s, double bound, int ndim, const int64_t *shape, const char *file,
                         int line)
{
    if (tn_error(s)) return NULL;
    tn_tensor *u = tn_rand_at(s, TN_F32, ndim, shape, file, line); /* [0, 1) -> [-bound, bound) */
    tn_tensor *wide = tn_mul_scalar_at(u, tn_number_f(2 * bound), file, line);
    tn_tensor *made = tn_sub_scalar_at(wide, tn_number_f(bound), file, line);
    tn_free(u);
    tn_free(wide);
    return made;
}

tn_tensor *tn_nn_normal(tn_session *s, double std, int ndim, const int64_t *shape, const char *file, int line)
{
    if (tn_error(s)) return NULL;
    tn_tensor *one = tn_randn_at(s, TN_F32, ndim, shape, file, line);
    tn_tensor *made = tn_mul_scalar_at(one, tn_number_f(std), file, line);
    tn_free(one);
    return made;
}

tn_tensor *tn_nn_full(tn_session *s, double value, int64_t n, const char *file, int line)
{
    return tn_error(s) ? NULL : tn_full_at(s, value, TN_F32, 1, &n, file, line);
}

const char *tn_nn_layer(const tn_tensor *part, char *out, size_t size)
{
    const char *name = tn_name(part), *dot = strrchr(name, '.');
    if (dot)
        snprintf(out, size, "layer '%.*s'", (int)(dot - name), name);
    else
        snprintf(out, size, "the layer");
    return out;
}

bool tn_nn_check(tn_session *s, const char *op, const char *name, bool ok, const char *file, int line,
                 const char *fmt, ...)
{
    char text[300];
    va_list args;
    if (!s) return false;
    va_start(args, fmt);
    tn_vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (!name || !*name)
        tn_nn_fail(s, TN_E_NULL, op, file, line, "the layer has no name");
    else if (!ok)
        tn_nn_fail(s, TN_E_ARG, op, file, line, "'%.64s' needs %s", name, text);
    return !tn_error(s);
}

/* An option {h, w, c}, for n features. */
static bool image_fits(tn_session *s, const char *op, const char *name, const char *option,
                       const int64_t *image, int64_t n, const char *file, int line)
{
    return tn_nn_check(s, op, name, tn_nn_image_fits(image, n), file, line,
                       "a .%s of {h, w, c} whose product is %lld; it is {%lld, %lld, %lld}", option,
                       (long long)n, (long long)image[0], (long long)image[1], (long long)image[2]);
}

/* ---- linear
 * ------------------------------------------------------------------------------------------------ */

tn_linear *tn_linear_new_at(tn_session *s, const char *name, int64_t in, int64_t out,
                            const tn_linear_options *options, const char *file, int line)
{
    static const char op[] = "linear_new";
    const tn_linear_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    if (!tn_nn_check(s, op, name, in > 0 && out > 0 && o->init_std >= 0, file, line,
                     "in > 0, out > 0, init_std >= 0; in is %lld, out %lld, init_std %g", (long long)in,
                     (long long)out, o->init_std))
        return NULL;
    if (!image_fits(s, op, name, "flattened", o->flattened, in, file, line) ||
        !image_fits(s, op, name, "unflattened", o->unflattened, out, file, line))
        return NULL;
    const tn_nn_mark from = tn_nn_begin(s);
    tn_linear *l = tn_nn_own(s, sizeof(*l), op);
    if (!l) return NULL;
    double bound = 1 / sqrt((double)in);
    int64_t shape[] = {out, in};
    l->in = in;
    l->out = out;
    l->weight = tn_nn_named(s, op, file, line, name, "weight",
                            o->init_std > 0 ? tn_nn_normal(s, o->init_std, 2, shape, file, line)
                                            : tn_nn_uniform(s, bound, 2, shape, file, line),
                            true);
    if (!o->no_bias)
        l->bias = tn_nn_named(s, op, file, line, name, "bias",
                              o->init_std > 0 ? tn_nn_full(s, 0, out, file, line)
                                              : tn_nn_uniform(s, bound, 1, &out, file, line),
                              true);
    bool told = o->flattened[0] || o->unflattened[0], whole = l->weight && (l->bias || o->no_bias);
    if (whole) whole = tn_nn_tell(s, l->weight, told, o->unflattened, o->flattened, op);
    if (whole && l->bias) whole = tn_nn_tell(s, l->bias, true, o->unflattened, NULL, op);
    return tn_nn_whole(s, from, whole) ? l : NULL;
}

tn_linear *tn_linear_new(tn_session *s, const char *name, int64_t in, int64_t out,
                         const tn_linear_options *options)
{
    return tn_linear_new_at(s, name, in, out, options, NULL, 0);
}

tn_tensor *tn_linear_forward_at(tn_linear *l, tn_tensor *x, const char *file, int line)
{
    return l ? tn_affine_at(x, l->weight, l->bias, file, line) : NULL;
}

tn_tensor *tn_linear_forward(tn_linear *l, tn_tensor *x)
{
    return tn_linear_forward_at(l, x, NULL, 0);
}

/* ---- convolution
 * ------------------------------------------------------------------------------------------- */

tn_conv *tn_conv2d_new_at(tn_session *s, const char *name, int64_t in, int64_t out, int kernel,
                          const tn_conv_options *options, const char *file, int line)
{
    static const char op[] = "conv2d_new";
    const tn_conv_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    int groups = o->groups ? o->groups : 1;
    bool ok = in > 0 && out > 0 && kernel > 0 && o->stride >= 0 && o->pad >= 0 && o->dilation >= 0 &&
              groups > 0 && in % groups == 0 && out % groups == 0;
    if (!tn_nn_check(
            s, op, name, ok, file, line,
            "in, out and kernel > 0, options >= 0, in and out multiples of groups; in is %lld, out %lld, "
            "kernel %d, stride %d, pad %d, dilation %d, groups %d",
            (long long)in, (long long)out, kernel, o->stride, o->pad, o->dilation, groups))
        return NULL;
    const tn_nn_mark from = tn_nn_begin(s);
    tn_conv *c = tn_nn_own(s, sizeof(*c), op);
    if (!c) return NULL;
    int64_t shape[] = {out, kernel, kernel, in / groups};
    double bound = 1 / sqrt((double)kernel * kernel * (double)(in / groups));
    c->in = in;
    c->out = out;
    c->kernel = kernel;
    c->stride = o->stride ? o->stride : 1;
    c->pad = o->pad;
    c->dilation = o->dilation ? o->dilation : 1;
    c->groups = groups;
    c->weight =
        tn_nn_named(s, op, file, line, name, "weight", tn_nn_uniform(s, bound, 4, shape, file, line), true);
    if (!o->no_bias)
        c->bias =
            tn_nn_named(s, op, file, line, name, "bias", tn_nn_uniform(s, bound, 1, &out, file, line), true);
    return tn_nn_whole(s, from, c->weight && (c->bias || o->no_bias)) ? c : NULL;
}

tn_conv *tn_conv2d_new(tn_session *s, const char *name, int64_t in, int64_t out, int kernel,
                       const tn_conv_options *options)
{
    return tn_conv2d_new_at(s, name, in, out, kernel, options, NULL, 0);
}

tn_tensor *tn_conv2d_forward_at(tn_conv *c, tn_tensor *x, const char *file, int line)
{
    if (!c) return NULL;
    const tn_conv2d_options o = {
        .stride = c->stride, .pad = c->pad, .dilation = c->dilation, .groups = c->groups, .size = sizeof(o)};
    return tn_conv2d_at(x, c->weight, c->bias, &o, file, line);
}

tn_tensor *tn_conv2d_forward(tn_conv *c, tn_tensor *x)
{
    return tn_conv2d_forward_at(c, x, NULL, 0);
}

/* ---- norms
 * ------------------------------------------------------------------------------------------------- */

static tn_norm *norm_new(tn_session *s, const char *op, tn_norm_kind kind, const char *name, int groups,
                         int64_t features, const tn_norm_new_options *options, const char *file, int line)
{
    const tn_norm_new_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    bool ok = features > 0 && groups > 0 && features % groups == 0 && o->eps >= 0 && o->momentum >= 0 &&
              o->momentum <= 1;
    if (!tn_nn_check(
            s, op, name, ok, file, line,
            "features > 0, a multiple of groups > 0, eps >= 0 and momentum in [0, 1]; features is %lld, "
            "groups %d, eps %g, momentum %g",
            (long long)features, groups, o->eps, o->momentum) ||
        !image_fits(s, op, name, "flattened", o->flattened, features, file, line))
        return NULL;
    const tn_nn_mark from = tn_nn_begin(s);
    tn_norm *n = tn_nn_own(s, sizeof(*n), op);
    if (!n) return NULL;
    n->kind = kind;
    n->features = features;
    n->groups = groups;
    n->eps = o->eps > 0 ? o->eps : 1e-5;
    n->momentum = o->momentum > 0 ? o->momentum : 0.1;
    bool weight = !o->no_affine, bias = weight && !o->no_bias && kind != TN_RMS_NORM;
    bool running = kind == TN_BATCH_NORM && !o->no_running;
    if (weight)
        n->weight =
            tn_nn_named(s, op, file, line, name, "weight", tn_nn_full(s, 1, features, file, line), true);
    if (bias)
        n->bias = tn_nn_named(s, op, file, line, name, "bias", tn_nn_full(s, 0, features, file, line), true);
    if (running) {
        n->running_mean = tn_nn_named(s, op, file, line, name, "running_mean",
                                      tn_nn_full(s, 0, features, file, line), false);
        n->running_var = tn_nn_named(s, op, file, line, name, "running_var",
                                     tn_nn_full(s, 1, features, file, line), false);
    }
    ok = (n->weight || !weight) && (n->bias || !bias) && ((n->running_mean && n->running_var) || !running);
    const tn_tensor *part[] = {n->weight, n->bias, n->running_mean, n->running_var};
    for (int k = 0; k < 4 && ok; k++) ok = !part[k] || tn_nn_tell(s, part[k], true, o->flattened, NULL, op);
    return tn_nn_whole(s, from, ok) ? n : NULL;
}

#define NORM(fn, kind)                                                                                       \
    tn_norm *tn_##fn##_at(tn_session *s, const char *name, int64_t features, const tn_norm_new_options *o,   \
                          const char *file, int line)                                                        \
    {                                                                                                        \
        return norm_new(s, "" #fn, kind, name, 1, features, o, file, line);                                  \
    }                                                                                                        \
    tn_norm *tn_##fn(tn_session *s, const char *name, int64_t features, const tn_norm_new_options *o)        \
    {                                                                                                        \
        return tn_##fn##_at(s, name, features, o, NULL, 0);                                                  \
    }
NORM(batch_norm_new, TN_BATCH_NORM)
NORM(layer_norm_new, TN_LAYER_NORM)
NORM(rms_norm_new, TN_RMS_NORM)

tn_norm *tn_group_norm_new_at(tn_session *s, const char *name, int groups, int64_t features,
                              const tn_norm_new_options *o, const char *file, int line)
{
    return norm_new(s, "group_norm_new", TN_GROUP_NORM, name, groups, features, o, file, line);
}

tn_norm *tn_group_norm_new(tn_session *s, const char *name, int groups, int64_t features,
                           const tn_norm_new_options *o)
{
    return tn_group_norm_new_at(s, name, groups, features, o, NULL, 0);
}

tn_tensor *tn_norm_forward_at(tn_norm *n, tn_tensor *x, const char *file, int line)
{
    if (!n) return NULL;
    const tn_norm_options o = {.eps = n->eps, .momentum = n->momentum, .ndim = 1, .size = sizeof(o)};
    if (x && tn_ndim(x) > 0 && tn_dim(x, -1) != n->features) {
        char layer[256];
        tn_nn_fail(tn_session_of(x), TN_E_SHAPE, "norm_forward", file, line, "x has %lld features, %s %lld",
                   (long long)tn_dim(x, -1),
                   tn_nn_layer(n->weight ? n->weight : n->running_mean, layer, sizeof(layer)),
                   (long long)n->features);
        return NULL;
    }
    switch (n->kind) {
    case TN_BATCH_NORM:
        return tn_batch_norm_at(x, n->weight, n->bias, n->running_mean, n->running_var, &o, file, line);
    case TN_LAYER_NORM:
        return tn_layer_norm_at(x, n->weight, n->bias, &o, file, line);
    case TN_RMS_NORM:
        return tn_rms_norm_at(x, n->weight, &o, file, line);
    case TN_GROUP_NORM:
        return tn_group_norm_at(x, n->groups, n->weight, n->bias, &o, file, line);
    }
    return NULL;
}

tn_tensor *tn_norm_forward(tn_norm *n, tn_tensor *x)
{
    return tn_norm_forward_at(n, x, NULL, 0);
}

/* ---- embedding
 * --------------------------------------------------------------------------------------------- */

tn_embed *tn_embedding_new_at(tn_session *s, const char *name, int64_t count, int64_t features,
                              const tn_embed_options *options, const char *file, int line)
{
    static const char op[] = "embedding_new";
    const tn_embed_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    if (!tn_nn_check(s, op, name, count > 0 && features > 0 && o->init_std >= 0, file, line,
                     "count > 0, features > 0, init_std >= 0; count is %lld, features %lld, init_std %g",
                     (long long)count, (long long)features, o->init_std))
        return NULL;
    const tn_nn_mark from = tn_nn_begin(s);
    tn_embed *e = tn_nn_own(s, sizeof(*e), op);
    if (!e) return NULL;
    e->count = count;
    e->features = features;
    e->weight = tn_nn_named(
        s, op, file, line, name, "weight",
        tn_nn_normal(s, o->init_std > 0 ? o->init_std : 1, 2, (int64_t[]){count, features}, file, line),
        true);
    bool whole = e->weight && tn_nn_tell(s, e->weight, true, NULL, NULL, op);
    return tn_nn_whole(s, from, whole) ? e : NULL;
}

tn_embed *tn_embedding_new(tn_session *s, const char *name, int64_t count, int64_t features,
                           const tn_embed_options *options)
{
    return tn_embedding_new_at(s, name, count, features, options, NULL, 0);
}

tn_tensor *tn_embedding_forward_at(tn_embed *e, tn_tensor *index, const char *file, int line)
{
    return e ? tn_embedding_at(e->weight, index, file, line) : NULL;
}

tn_tensor *tn_embedding_forward(tn_embed *e, tn_tensor *index)
{
    return tn_embedding_forward_at(e, index, NULL, 0);
}
