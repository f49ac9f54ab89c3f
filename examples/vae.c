/* vae.c - trains a variational autoencoder on images of digits and draws new ones.
 *
 *   build/vae                                  the digits that are shipped: a minute
 *   build/vae --data data/mnist --epochs 10    MNIST (data/get_data.sh gets it)
 *
 * The encoder tells the mean and the logarithm of the variance of a code z, z = mean + e^(log variance / 2)
 * noise, and the decoder the logit of each pixel. The loss is an image's cross entropy plus the divergence of
 * z's distribution from the normal one, both summed over the image (Kingma and Welling 2013). It prints, of
 * images that it has not seen, that loss, and then, from codes that are drawn, digits, a character for 2 x 4
 * pixels:
 *
 *   test loss 130.66 */
#include "args.h"

enum { PIXELS = 28 * 28, DRAWN = 4 };

struct vae {
    tn_linear *in, *code, *out1, *out2;
    long size, hidden;
};

static tn_tensor *decode(const struct vae *m, tn_tensor *z)
{
    return tn_linear_forward(m->out2, tn_relu(tn_linear_forward(m->out1, z)));
}

/* x [n, 28, 28, 1], from 0 to 1 -> the loss of an image, on average */
static tn_tensor *loss_of(tn_session *s, const struct vae *m, tn_tensor *x)
{
    const int64_t n = tn_dim(x, 0);
    x = tn_flatten(x, 1);
    tn_tensor *code = tn_linear_forward(m->code, tn_relu(tn_linear_forward(m->in, x)));
    tn_tensor *mean = tn_narrow(code, 1, 0, m->size), *log_var = tn_narrow(code, 1, m->size, m->size);
    tn_tensor *noise = tn_randn(s, TN_F32, TN_SHAPE(n, m->size));
    tn_tensor *z = tn_add(mean, tn_mul(tn_exp(tn_mul_scalar(log_var, 0.5)), noise));
    tn_tensor *pixels = tn_bce_with_logits(decode(m, z), x, .reduction = TN_REDUCE_SUM);
    tn_tensor *far = tn_sub(tn_add(tn_square(mean), tn_exp(log_var)), tn_add_scalar(log_var, 1.0));
    tn_tensor *divergence = tn_mul_scalar(tn_sum(far, TN_ALL, false), 0.5);
    return tn_div_scalar(tn_add(pixels, divergence), (double)n);
}

static tn_tensor *measure(tn_session *s, const tn_batch *b, void *user) { return loss_of(s, user, b->x); }

/* A row of digits that the decoder makes of random codes. */
static void draw(tn_session *s, const struct vae *m)
{
    static const char shade[] = " .:-=+*#%@";
    float p[DRAWN][28][28];
    tn_step_begin(s);
    tn_no_grad_begin(s);
    tn_tensor *x = tn_sigmoid(decode(m, tn_randn(s, TN_F32, TN_SHAPE(DRAWN, m->size))));
    const int status = tn_read(x, TN_F32, p, sizeof p);
    tn_no_grad_end(s);
    tn_step_end(s);
    for (int row = 0; row < 28 && !status; row += 4) {
        for (int i = 0; i < DRAWN; i++)
            for (int column = 0; column < 28; column += 2) {
                float sum = 0;
                for (int k = 0; k < 8; k++) sum += p[i][row + k / 2][column + k % 2];
                putchar(shade[(int)(sum / 8 * 9.99f)]);
            }
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    struct vae m = {.size = 16, .hidden = 256};
    const struct args_more more[] = {
        {"--code", "numbers in a code", .whole = &m.size, .least = 1, .most = 4096},
        {"--hidden", "width of the layers", .whole = &m.hidden, .least = 1, .most = 1 << 16},
        {.name = NULL}};
    struct args a = {.program = "vae",
                     .purpose = "Trains a variational autoencoder on images of digits.",
                     .data = "data/digits",
                     .epochs = 20,
                     .batch = 64,
                     .lr = 1e-3,
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    tn_dataset *train = tn_dataset_idx(s, a.data, TN_TRAIN, .mean = 0, .std = 1),
               *test = tn_dataset_idx(s, a.data, TN_TEST, .mean = 0, .std = 1);
    m.in = tn_linear_new(s, "in", PIXELS, m.hidden);
    m.code = tn_linear_new(s, "code", m.hidden, 2 * m.size);
    m.out1 = tn_linear_new(s, "out1", m.size, m.hidden);
    m.out2 = tn_linear_new(s, "out2", m.hidden, PIXELS);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = a.lr);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train))
        for (tn_batch b; args_next(&a, &b);) {
            tn_step_begin(s);
            tn_tensor *loss = loss_of(s, &m, b.x);
            tn_backward(loss);
            tn_optim_step(opt);
            if (!a.quiet) tn_progress(a.loader, "loss", loss);
            args_log(&a, loss);
            tn_step_end(s);
        }
    if (interrupted()) return args_finish(&a, s);
    const double loss = tn_evaluate_mean(s, test, measure, &m);
    if (!tn_error(s)) printf("test loss %.2f\n", loss);
    if (!tn_error(s)) draw(s, &m);
    return args_finish(&a, s);
}
