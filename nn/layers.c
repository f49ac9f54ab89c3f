/* layers.c - linear, convolution, norms, embedding.
 *
 * Initial values follow PyTorch's reset_parameters (torch/nn/modules/linear.py, conv.py, batchnorm.py,
 * sparse.py): kaiming_uniform with a = sqrt(5) comes down to a uniform draw within 1/sqrt(fan_in), which is
 * the bias's bound too. The weight is drawn before the bias. Read layers.h, then tn_linear_new. */
#include "layers.h"

#include <math.h>
#include <string.h>

/* ---- parts ---- */

static tn_tensor *drawn(tn_session *s, const nn_part *p)
{
    int ndim = 0;
    while (ndim < 4 && p->shape[ndim]) ndim++;
    if (p->init == NN_FULL) return tn_full(s, p->number, p->wide ? TN_F64 : TN_F32, ndim, p->shape);
    bool uniform = p->init == NN_UNIFORM; /* [0, 1) -> [-number, number) */
    tn_tensor *u = uniform ? tn_rand(s, TN_F32, ndim, p->shape) : tn_randn(s, TN_F32, ndim, p->shape);
    tn_tensor *wide = tn_mul_scalar(u, tn_number_f(uniform ? 2 * p->number : p->number));
    tn_free(u);
    if (!uniform) return wide;
    tn_tensor *made = tn_sub_scalar(wide, tn_number_f(p->number));
    tn_free(wide);
    return made;
}

static bool make_part(tn_session *s, const char *op, const char *layer, const nn_part *p)
{
    char name[256];
    if (snprintf(name, sizeof(name), "%s.%s", layer, p->name) >= (int)sizeof(name))
        return tn_nn_fail(s, TN_E_ARG, op, "the name %.32s.. is longer than %zu characters", layer,
                          sizeof(name) - 1);
    tn_tensor *init = drawn(s, p);
    *p->at = !init ? NULL : p->buffer ? tn_buffer(s, name, init) : tn_param(s, name, init);
    tn_free(init);
    return *p->at && tn_nn_tell(s, *p->at, !p->untold, p->state, p->row, p->column, op);
}

bool tn_nn_make(tn_session *s, const char *op, const char *layer, int n, const nn_part *part)
{
    const int params = tn_param_count(s), buffers = tn_buffer_count(s);
    for (int i = 0; i < n; i++)
        if (part[i].name && !make_part(s, op, layer, &part[i])) {
            tn_take_back(s, params, buffers);
            return false;
        }
    return true;
}

const char *tn_nn_layer(const tn_tensor *part, char *out, size_t size)
{
    const char *name = part ? tn_name(part) : "", *dot = strrchr(name, '.');
    if (dot)
        snprintf(out, size, "layer '%.*s'", (int)(dot - name), name);
    else
        snprintf(out, size, "the layer");
    return out;
}

bool tn_nn_check(tn_session *s, const char *op, const char *name, bool ok, const char *fmt, ...)
{
    char text[300];
    va_list args;
    if (!s) return false;
    va_start(args, fmt);
    tn_vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (!name || !*name)
        tn_fail(s, TN_E_NULL, op, "the layer has no name");
    else if (!ok)
        tn_fail(s, TN_E_ARG, op, "'%.64s' needs %s", name, text);
    return !tn_error(s);
}

/* An option {h, w, c}, for n features. */
static bool image_fits(tn_session *s, const char *op, const char *name, const char *option,
                       const int64_t *image, int64_t n)
{
    return tn_nn_check(s, op, name, tn_nn_image_fits(image, n),
                       "a .%s of {h, w, c} whose product is %lld; it is {%lld, %lld, %lld}", option,
                       (long long)n, (long long)image[0], (long long)image[1], (long long)image[2]);
}

/* ---- linear ---- */

TN_DEFINE(tn_linear *, linear_new, s, (s, name, in, out, options), tn_session *s, const char *name,
          int64_t in, int64_t out, const tn_linear_options *options)
{
    static const char op[] = "linear_new";
    NN_OPTIONS(tn_linear_options, o, options);
    if (!tn_nn_check(s, op, name, in > 0 && out > 0 && o->init_std >= 0,
                     "in > 0, out > 0, init_std >= 0; in is %lld, out %lld, init_std %g", (long long)in,
                     (long long)out, o->init_std) ||
        !image_fits(s, op, name, "flattened", o->flattened, in) ||
        !image_fits(s, op, name, "unflattened", o->unflattened, out))
        return NULL;
    tn_linear *l = tn_nn_own(s, sizeof(*l), NULL, op);
    if (!l) return NULL;
    l->in = in;
    l->out = out;
    const bool normal = o->init_std > 0;
    const double bound = 1 / sqrt((double)in);
    const nn_part parts[] = {
        NN_PART("weight", l->weight, normal ? NN_NORMAL : NN_UNIFORM, normal ? o->init_std : bound, {out, in},
                .row = o->unflattened, .column = o->flattened,
                .untold = !o->flattened[0] && !o->unflattened[0]),
        NN_PART(o->no_bias ? NULL : "bias", l->bias, normal ? NN_FULL : NN_UNIFORM, normal ? 0 : bound, {out},
                .row = o->unflattened),
    };
    return NN_MAKE(s, op, name, parts) ? l : NULL;
}

NN_FORWARD(linear_forward, tn_linear, l, x, weight) { return l ? tn_affine(x, l->weight, l->bias) : NULL; }

/* ---- convolution ---- */

/* axes: of the window. A transposed one has a weight [in, .., out / groups], and as in PyTorch fan is that of
 * its last axes. */
static tn_conv *conv_new(tn_session *s, const char *op, const char *name, int64_t in, int64_t out, int kernel,
                         const tn_conv_options *options, int axes, bool transposed)
{
    NN_OPTIONS(tn_conv_options, o, options);
    int groups = o->groups ? o->groups : 1, stride = o->stride ? o->stride : 1;
    bool ok = in > 0 && out > 0 && kernel > 0 && o->stride >= 0 && o->pad >= 0 && o->dilation >= 0 &&
              groups > 0 && in % groups == 0 && out % groups == 0;
    if (!tn_nn_check(
            s, op, name, ok,
            "in, out and kernel > 0, options >= 0, in and out multiples of groups; in is %lld, out %lld, "
            "kernel %d, stride %d, pad %d, dilation %d, groups %d",
            (long long)in, (long long)out, kernel, o->stride, o->pad, o->dilation, groups) ||
        !tn_nn_check(s, op, name, o->output_pad >= 0 && o->output_pad < (transposed ? stride : 1),
                     "an output_pad below stride, where it is transposed, else 0; output_pad is %d",
                     o->output_pad))
        return NULL;
    tn_conv *c = tn_nn_own(s, sizeof(*c), NULL, op);
    if (!c) return NULL;
    *c = (tn_conv){.in = in,
                   .out = out,
                   .kernel = kernel,
                   .stride = stride,
                   .pad = o->pad,
                   .dilation = o->dilation ? o->dilation : 1,
                   .groups = groups,
                   .output_pad = o->output_pad};
    const int64_t first = transposed ? in : out, last = (transposed ? out : in) / groups;
    const double bound = 1 / sqrt((axes > 1 ? (double)kernel * kernel : kernel) * (double)last);
    const int64_t image[3] = {axes > 1 ? kernel : 1, kernel, last};
    const nn_part parts[] = {
        NN_PART("weight", c->weight, NN_UNIFORM, bound,
                {first, kernel, axes > 1 ? kernel : last, axes > 1 ? last : 0}, .column = image),
        NN_PART(o->no_bias ? NULL : "bias", c->bias, NN_UNIFORM, bound, {out}),
    };
    return NN_MAKE(s, op, name, parts) ? c : NULL;
}

#define CONV(name_, axes, transposed)                                                                        \
    TN_DEFINE(tn_conv *, name_##_new, s, (s, name, in, out, kernel, o), tn_session *s, const char *name,     \
              int64_t in, int64_t out, int kernel, const tn_conv_options *o)                                 \
    {                                                                                                        \
        return conv_new(s, #name_ "_new", name, in, out, kernel, o, axes, transposed);                       \
    }                                                                                                        \
    NN_FORWARD(name_##_forward, tn_conv, c, x, weight)                                                       \
    {                                                                                                        \
        if (!c) return NULL;                                                                                 \
        const tn_conv2d_options o = {.stride = c->stride,                                                    \
                                     .pad = c->pad,                                                          \
                                     .dilation = c->dilation,                                                \
                                     .groups = c->groups,                                                    \
                                     .output_pad = c->output_pad,                                            \
                                     .size = sizeof(o)};                                                     \
        return tn_##name_(x, c->weight, c->bias, &o);                                                        \
    }
CONV(conv2d, 2, false)
CONV(conv1d, 1, false)
CONV(conv_transpose2d, 2, true)
CONV(conv_transpose1d, 1, true)

/* ---- norms ---- */

static tn_norm *norm_new(tn_session *s, const char *op, tn_norm_kind kind, const char *name, int groups,
                         int64_t features, const tn_norm_new_options *options)
{
    NN_OPTIONS(tn_norm_new_options, o, options);
    bool ok = features > 0 && groups > 0 && features % groups == 0 && o->eps >= 0 && o->momentum >= 0 &&
              o->momentum <= 1;
    if (!tn_nn_check(
            s, op, name, ok,
            "features > 0, a multiple of groups > 0, eps >= 0 and momentum in [0, 1]; features is %lld, "
            "groups %d, eps %g, momentum %g",
            (long long)features, groups, o->eps, o->momentum) ||
        !image_fits(s, op, name, "flattened", o->flattened, features))
        return NULL;
    tn_norm *n = tn_nn_own(s, sizeof(*n), NULL, op);
    if (!n) return NULL;
    n->kind = kind;
    n->features = features;
    n->groups = groups;
    n->sync = o->sync;
    n->eps = o->eps > 0 ? o->eps : 1e-5;
    n->momentum = o->momentum > 0 ? o->momentum : 0.1;
    const bool weight = !o->no_affine, bias = weight && !o->no_bias && kind != TN_RMS_NORM;
    const bool running = kind == TN_BATCH_NORM && !o->no_running;
#define PART(wanted, part, value, is_buffer)                                                                 \
    NN_PART((wanted) ? #part : NULL, n->part, NN_FULL, value, {features}, .buffer = is_buffer,               \
            .row = o->flattened)
    const nn_part parts[] = {
        PART(weight, weight, 1, false),
        PART(bias, bias, 0, false),
        PART(running, running_mean, 0, true),
        PART(running, running_var, 1, true),
    };
#undef PART
    return NN_MAKE(s, op, name, parts) ? n : NULL;
}

#define NORM(fn, kind)                                                                                       \
    TN_DEFINE(tn_norm *, fn, s, (s, name, features, o), tn_session *s, const char *name, int64_t features,   \
              const tn_norm_new_options *o)                                                                  \
    {                                                                                                        \
        return norm_new(s, #fn, kind, name, 1, features, o);                                                 \
    }
NORM(batch_norm_new, TN_BATCH_NORM)
NORM(layer_norm_new, TN_LAYER_NORM)
NORM(rms_norm_new, TN_RMS_NORM)

TN_DEFINE(tn_norm *, group_norm_new, s, (s, name, groups, features, o), tn_session *s, const char *name,
          int groups, int64_t features, const tn_norm_new_options *o)
{
    return norm_new(s, "group_norm_new", TN_GROUP_NORM, name, groups, features, o);
}

NN_FORWARD(norm_forward, tn_norm, n, x, weight)
{
    if (!n) return NULL;
    const tn_norm_options o = {
        .eps = n->eps, .momentum = n->momentum, .ndim = 1, .sync = n->sync, .size = sizeof(o)};
    if (x && tn_ndim(x) > 0 && tn_dim(x, -1) != n->features) {
        char layer[256];
        return tn_nn_fail(tn_session_of(x), TN_E_SHAPE, "norm_forward", "x has %lld features, %s %lld",
                          (long long)tn_dim(x, -1),
                          tn_nn_layer(n->weight ? n->weight : n->running_mean, layer, sizeof(layer)),
                          (long long)n->features);
    }
    switch (n->kind) {
    case TN_BATCH_NORM:
        if (x && (!tn_nn_scale_moves(tn_session_of(x), n->running_mean) ||
                  !tn_nn_scale_moves(tn_session_of(x), n->running_var)))
            return NULL;
        return tn_batch_norm(x, n->weight, n->bias, n->running_mean, n->running_var, &o);
    case TN_LAYER_NORM: return tn_layer_norm(x, n->weight, n->bias, &o);
    case TN_RMS_NORM: return tn_rms_norm(x, n->weight, &o);
    case TN_GROUP_NORM: return tn_group_norm(x, n->groups, n->weight, n->bias, &o);
    }
    return NULL;
}

/* ---- embedding ---- */

TN_DEFINE(tn_embed *, embedding_new, s, (s, name, count, features, options), tn_session *s, const char *name,
          int64_t count, int64_t features, const tn_embed_options *options)
{
    static const char op[] = "embedding_new";
    NN_OPTIONS(tn_embed_options, o, options);
    if (!tn_nn_check(s, op, name, count > 0 && features > 0 && o->init_std >= 0,
                     "count > 0, features > 0, init_std >= 0; count is %lld, features %lld, init_std %g",
                     (long long)count, (long long)features, o->init_std))
        return NULL;
    tn_embed *e = tn_nn_own(s, sizeof(*e), NULL, op);
    if (!e) return NULL;
    e->count = count;
    e->features = features;
    e->sparse = o->sparse;
    const bool moments = o->sparse == TN_SPARSE_ADAM;
    const nn_part parts[] = {
        NN_PART("weight", e->weight, NN_NORMAL, o->init_std > 0 ? o->init_std : 1, {count, features},
                .buffer = o->sparse != TN_DENSE),
        NN_PART(moments ? "exp_avg" : NULL, e->exp_avg, NN_FULL, 0, {count, features}, .buffer = true,
                .state = true),
        NN_PART(moments ? "exp_avg_sq" : NULL, e->exp_avg_sq, NN_FULL, 0, {count, features}, .buffer = true,
                .state = true),
        NN_PART(moments ? "updates" : NULL, e->updates, NN_FULL, 0, {1}, .buffer = true, .state = true,
                .wide = true),
    };
    return NN_MAKE(s, op, name, parts) ? e : NULL;
}

NN_FORWARD(embedding_forward, tn_embed, e, index, weight)
{
    if (!e || !index) return NULL;
    if (e->sparse == TN_DENSE) return tn_embedding(e->weight, index);
    int64_t shape[TN_MAX_DIMS];
    const int n = tn_ndim(index);
    for (int i = 0; i < n && i < TN_MAX_DIMS - 1; i++) shape[i] = tn_dim(index, i);
    if (n < TN_MAX_DIMS) shape[n < 0 ? 0 : n] = e->features;
    return tn_reshape(tn_nn_sparse_lookup(e, index), n + 1, shape);
}
