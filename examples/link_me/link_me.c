/* link_me.c - a program of its own, outside of the library's tree: it fits a line and prints it. Two ways to
 * build it, once the library is installed, stand beside it:
 *
 *   make -C examples/link_me                         with what pkg-config says
 *   cmake -S examples/link_me -B BUILD && cmake --build BUILD      with find_package(libtensor)
 *
 * It prints "y = 2.0 x - 1.0". */
#include <tensor_nn.h>

int main(void)
{
    tn_session *s = tn_open(.device = TN_CPU, .seed = 1);
    tn_linear *line = tn_linear_new(s, "line", 1, 1);
    tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.5);
    tn_tensor *x = tn_rand(s, TN_F32, TN_SHAPE(64, 1));
    for (int i = 0; i < 200; i++) {
        tn_step_begin(s);
        tn_tensor *y = tn_sub_scalar(tn_mul_scalar(x, 2), 1);
        tn_backward(tn_mse_loss(tn_linear_forward(line, x), y));
        tn_optim_step(opt);
        tn_step_end(s);
    }
    const double slope = tn_item(line->weight), start = tn_item(line->bias);
    if (tn_error(s))
        fprintf(stderr, "link_me: %s\n", tn_error_text(s));
    else
        printf("y = %.1f x %c %.1f\n", slope, start < 0 ? '-' : '+', start < 0 ? -start : start);
    return tn_close(s) != TN_OK;
}
