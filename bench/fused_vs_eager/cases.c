/* cases.c - the fusions that are measured, one function each. n x c is the large shape; what is dominated by
 * a product is smaller. Start with the table at the end. */
#include "bench.h"

#define FIELD(kind_, gradient_, ...)                                                                         \
    (struct field)                                                                                           \
    {                                                                                                        \
        .kind = kind_, .gradient = gradient_,                                                                \
        .ndim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .dim = {                          \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

/* ---- inputs ---- */

static int one(int64_t n, int64_t c, struct field *f, struct field *g)
{
    f[0] = FIELD('n', true, n, c);
    *g = FIELD('n', false, n, c);
    return 1;
}

static int two(int64_t n, int64_t c, struct field *f, struct field *g)
{
    one(n, c, f, g);
    f[1] = FIELD('n', false, n, c);
    return 2;
}

static int normed(int64_t n, int64_t c, struct field *f, struct field *g)
{
    one(n, c, f, g);
    f[1] = FIELD('u', true, c);
    f[2] = FIELD('n', true, c);
    return 3;
}

static int scaled(int64_t n, int64_t c, struct field *f, struct field *g) { return normed(n, c, f, g) - 1; }

static int residual(int64_t n, int64_t c, struct field *f, struct field *g)
{
    one(n, c, f, g);
    f[1] = FIELD('n', true, n, c);
    f[2] = FIELD('u', true, c);
    f[3] = FIELD('n', true, c);
    return 4;
}

static int labelled(int64_t n, int64_t c, struct field *f, struct field *g)
{
    one(n, c, f, g);
    f[1] = FIELD('i', false, n);
    f[1].below = c;
    return 2;
}

static int product(int64_t n, int64_t c, struct field *f, struct field *g)
{
    int64_t m = n / 16;
    f[0] = FIELD('n', true, m, c);
    f[1] = FIELD('n', true, c, c);
    f[2] = FIELD('n', true, c);
    *g = FIELD('n', false, m, c);
    return 3;
}

static int image(int64_t n, int64_t c, struct field *f, struct field *g)
{
    int64_t b = n / 1024 ? n / 1024 : 1;
    (void)c;
    f[0] = FIELD('n', true, b, 28, 28, 32);
    f[1] = FIELD('n', true, 64, 3, 3, 32);
    f[2] = FIELD('n', true, 64);
    *g = FIELD('n', false, b, 28, 28, 64);
    return 3;
}

static int viewed(int64_t n, int64_t c, struct field *f, struct field *g)
{
    f[0] = FIELD('n', true, n, c);
    f[1] = FIELD('n', true, n / 2, c);
    *g = FIELD('n', false, n / 2, 64, c / 64);
    return 2;
}

static int looked_up(int64_t n, int64_t c, struct field *f, struct field *g)
{
    two(n, c, f, g);
    f[2] = FIELD('i', false, n);
    f[2].below = n;
    return 3;
}

static int heads(int64_t n, int64_t c, struct field *f, struct field *g)
{
    (void)c;
    for (int k = 0; k < 3; k++) f[k] = FIELD('n', true, n / 2048 ? n / 2048 : 1, 4, 256, 64);
    *g = f[0];
    return 3;
}

/* ---- what is computed ---- */

static int chain(struct in *i, tn_tensor **out)
{
    tn_tensor *t = tn_relu(tn_mul_scalar(tn_add(i->t[0], i->t[1]), 2.0));
    out[0] = tn_sigmoid(tn_sub_scalar(t, 1.0));
    return 1;
}

static int siblings(struct in *i, tn_tensor **out)
{
    out[0] = tn_sin(i->t[0]);
    out[1] = tn_cos(i->t[0]);
    return 2;
}

static int multi_consumer(struct in *i, tn_tensor **out)
{
    tn_tensor *a = tn_mul(i->t[0], i->t[1]);
    out[0] = tn_relu(a);
    out[1] = tn_square(a);
    return 2;
}

static int chain_reduce(struct in *i, tn_tensor **out)
{
    out[0] = tn_mean(tn_square(tn_sub(i->t[0], i->t[1])), TN_ALL, false);
    return 1;
}

static int softmax(struct in *i, tn_tensor **out)
{
    out[0] = tn_softmax(i->t[0], 1);
    return 1;
}

static int layer_norm(struct in *i, tn_tensor **out)
{
    out[0] = tn_layer_norm(i->t[0], i->t[1], i->t[2]);
    return 1;
}

static int rms_norm(struct in *i, tn_tensor **out)
{
    out[0] = tn_rms_norm(i->t[0], i->t[1]);
    return 1;
}

static int add_norm(struct in *i, tn_tensor **out)
{
    out[0] = tn_add(i->t[0], i->t[1]);
    out[1] = tn_layer_norm(out[0], i->t[2], i->t[3]);
    return 2;
}

static int layer_norm_gelu(struct in *i, tn_tensor **out)
{
    out[0] = tn_gelu(tn_layer_norm(i->t[0], i->t[1], i->t[2]));
    return 1;
}

static int rms_norm_silu(struct in *i, tn_tensor **out)
{
    out[0] = tn_silu(tn_rms_norm(i->t[0], i->t[1]));
    return 1;
}

static int residual_dropout_norm(struct in *i, tn_tensor **out)
{
    out[0] = tn_add(i->t[0], tn_dropout(i->t[1], 0.1));
    out[1] = tn_layer_norm(out[0], i->t[2], i->t[3]);
    return 2;
}

static int batch_norm_relu(struct in *i, tn_tensor **out)
{
    out[0] = tn_relu(tn_batch_norm(i->t[0], i->t[1], i->t[2], NULL, NULL));
    return 1;
}

static int cross_entropy(struct in *i, tn_tensor **out)
{
    out[0] = tn_cross_entropy(i->t[0], i->t[1]);
    return 1;
}

static int linear_gelu(struct in *i, tn_tensor **out)
{
    out[0] = tn_gelu(tn_affine(i->t[0], i->t[1], i->t[2]));
    return 1;
}

static int conv_bias_relu(struct in *i, tn_tensor **out)
{
    out[0] = tn_relu(tn_conv2d(i->t[0], i->t[1], i->t[2], .pad = 1));
    return 1;
}

static int views(struct in *i, tn_tensor **out)
{
    int64_t n = tn_dim(i->t[1], 0), c = tn_dim(i->t[1], 1);
    tn_tensor *t = tn_add(tn_slice(i->t[0], 0, 0, TN_END, 2), i->t[1]);
    t = tn_reshape(t, TN_SHAPE(n, c / 64, 64));
    out[0] = tn_relu(tn_permute(t, 3, (const int[]){0, 2, 1}));
    return 1;
}

static int gather(struct in *i, tn_tensor **out)
{
    out[0] = tn_add(tn_embedding(i->t[0], i->t[2]), i->t[1]);
    return 1;
}

static int attention(struct in *i, tn_tensor **out)
{
    out[0] = tn_scaled_dot_product_attention(i->t[0], i->t[1], i->t[2], .causal = true);
    return 1;
}

/* Must move, forward, backward and the whole step. A backward reads what forward had to keep (x, or softmax's
 * result) and g, and writes the gradients; a whole step reads inputs and g and writes gradients, once each:
 *   chain                 x y -> out         x y g -> dx         x y g -> dx
 *   siblings              x -> sin cos       x g -> dx           x g -> dx
 *   multi_consumer        x y -> two         x y g -> dx         x y g -> dx
 *   chain_reduce          a b ->             a b -> da           a b -> da
 *   softmax, norms        x -> out           x g -> dx           x g -> dx
 *   add_norm              x y -> h out       h g -> dx           x y g -> dx (dy is the same)
 *   residual_dropout_norm x y -> h out       h g -> dx dy        x y g -> dx dy
 *   cross_entropy         x ->               x -> dx             x -> dx
 *   views (of halves)     x y -> out         out g -> dx (whole) dy    x y g -> dx (whole) dy
 *   gather                table y -> out     g -> dtable         table y g -> dtable
 * A channel norm has to read x twice, as its statistics come first; that second time is not counted. */
#define NONE {0, 0}, {0, 0}, {0, 0}, 0, 0
const struct fusion fusions[] = {
    {"chain", two, chain, false, {2, 1}, {3, 1}, {3, 1}, .90, .90},
    {"siblings", one, siblings, false, {1, 2}, {2, 1}, {2, 1}, .80, .80},
    {"multi_consumer", two, multi_consumer, false, {2, 2}, {3, 1}, {3, 1}, .90, .90},
    {"chain_reduce", two, chain_reduce, true, {2, 0}, {2, 1}, {2, 1}, .90, .90},
    {"softmax", one, softmax, false, {1, 1}, {2, 1}, {2, 1}, .80, .80},
    {"layer_norm", normed, layer_norm, false, {1, 1}, {2, 1}, {2, 1}, .90, .70},
    {"rms_norm", scaled, rms_norm, false, {1, 1}, {2, 1}, {2, 1}, .90, .70},
    {"add_norm", residual, add_norm, false, {2, 2}, {2, 1}, {3, 1}, .90, .70},
    {"layer_norm_gelu", normed, layer_norm_gelu, false, {1, 1}, {2, 1}, {2, 1}, .80, .70},
    {"rms_norm_silu", scaled, rms_norm_silu, false, {1, 1}, {2, 1}, {2, 1}, .80, .70},
    {"residual_dropout_norm", residual, residual_dropout_norm, false, {2, 2}, {2, 2}, {3, 2}, .80, .70},
    {"batch_norm_relu", normed, batch_norm_relu, false, {1, 1}, {2, 1}, {2, 1}, 0, 0},
    {"cross_entropy", labelled, cross_entropy, true, {1, 0}, {1, 1}, {1, 1}, .80, .80},
    {"linear_gelu", product, linear_gelu, false, NONE},
    {"conv_bias_relu", image, conv_bias_relu, false, NONE},
    {"views", viewed, views, false, {1, .5}, {1, 1.5}, {1.5, 1.5}, 0, 0},
    {"gather", looked_up, gather, false, {2, 1}, {1, 1}, {3, 1}, 0, 0},
    {"attention", heads, attention, false, NONE},
};
const int n_fusions = (int)(sizeof fusions / sizeof *fusions);
