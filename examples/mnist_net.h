/* mnist_net.h - the network of mnist_cnn.c, which bench/fused_vs_eager measures too: conv 32 - batch norm -
 * relu
 * - conv 64 - batch norm - relu - max pool - linear 128 - relu - linear 10. */
#pragma once

#include <tensor_nn.h>

struct net {
    tn_conv *c1, *c2;
    tn_norm *n1, *n2;
    tn_linear *fc1, *fc2;
};

/* For images of side x side; `width` and 2 * width channels, 4 * width features. The example's are 28 and 32.
 */
static inline void make_net(tn_session *s, struct net *net, int64_t side, int64_t width)
{
    net->c1 = tn_conv2d_new(s, "c1", 1, width, 3, .pad = 1);
    net->n1 = tn_batch_norm_new(s, "n1", width, .sync = true);
    net->c2 = tn_conv2d_new(s, "c2", width, 2 * width, 3, .pad = 1);
    net->n2 = tn_batch_norm_new(s, "n2", 2 * width, .sync = true);
    net->fc1 = tn_linear_new(s, "fc1", side / 2 * (side / 2) * 2 * width, 4 * width);
    net->fc2 = tn_linear_new(s, "fc2", 4 * width, 10);
}

/* x [n, side, side, 1] -> logits [n, 10] */
static inline tn_tensor *net_forward(const struct net *net, tn_tensor *x)
{
    tn_tensor *h = tn_relu(tn_norm_forward(net->n1, tn_conv2d_forward(net->c1, x)));
    h = tn_relu(tn_norm_forward(net->n2, tn_conv2d_forward(net->c2, h)));
    h = tn_flatten(tn_max_pool2d(h, 2, .stride = 2), 1);
    return tn_linear_forward(net->fc2, tn_relu(tn_linear_forward(net->fc1, h)));
}
