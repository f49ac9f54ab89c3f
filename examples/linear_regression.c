/* linear_regression.c - the smallest training program: fits a plane to points that scatter around one.
 *
 *   build/linear_regression
 *
 * The points are made up here: y = 3 x0 - 2 x1 + 0.5 and noise of 0.1. They go through a data set of arrays,
 * in batches; the last line says what was found, and how far from it the points still are:
 *
 *   y = 3.00 x0 - 2.00 x1 + 0.50, root mean square error 0.100
 *
 * Read main first. */
#include "args.h"

enum { POINTS = 2000 };

static void make_points(tn_session *s, float *x, float *y)
{
    tn_tensor *a = tn_randn(s, TN_F32, TN_SHAPE(POINTS, 2)), *b = tn_randn(s, TN_F32, TN_SHAPE(POINTS));
    tn_read(a, TN_F32, x, 2 * POINTS * sizeof(*x));
    tn_read(b, TN_F32, y, POINTS * sizeof(*y));
    for (int i = 0; i < POINTS; i++) y[i] = 3 * x[2 * i] - 2 * x[2 * i + 1] + 0.5f + 0.1f * y[i];
    tn_free(a);
    tn_free(b);
}

static tn_tensor *error_of(tn_session *s, const tn_batch *b, void *user)
{
    (void)s;
    return tn_mse_loss(tn_linear_forward(user, b->x), b->y);
}

int main(int argc, char **argv)
{
    static float x[2 * POINTS], y[POINTS];
    struct args a = {.program = "linear_regression",
                     .purpose = "Fits a plane to points that scatter around one.",
                     .data = "",
                     .epochs = 10,
                     .batch = 50,
                     .lr = 0.1};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    make_points(s, x, y);
    tn_dataset *points =
        tn_dataset_arrays(s, POINTS, TN_ARRAYS({.data = x, .shape = {2}}, {.data = y, .shape = {1}}));
    tn_linear *plane = tn_linear_new(s, "plane", 2, 1);
    tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = a.lr);
    if (a.resume) tn_load(s, a.resume);
    while (args_pass(&a, points))
        for (tn_batch b; args_next(&a, &b);) {
            tn_optim_set_lr(opt, tn_lr_cosine(a.at, 0, a.total, a.lr, 0));
            tn_step_begin(s);
            tn_tensor *loss = tn_mse_loss(tn_linear_forward(plane, b.x), b.y);
            tn_backward(loss);
            tn_optim_step(opt);
            if (!a.quiet) tn_progress(a.loader, "loss", loss);
            args_log(&a, loss);
            tn_step_end(s);
        }
    float w[2] = {0, 0};
    tn_read(plane ? plane->weight : NULL, TN_F32, w, sizeof(w));
    const double start = plane ? tn_item(plane->bias) : NAN,
                 error = tn_evaluate_mean(s, points, error_of, plane);
    if (!tn_error(s))
        printf("y = %.2f x0 %c %.2f x1 %c %.2f, root mean square error %.3f\n", (double)w[0],
               w[1] < 0 ? '-' : '+', fabs((double)w[1]), start < 0 ? '-' : '+', fabs(start), sqrt(error));
    return args_finish(&a, s);
}
