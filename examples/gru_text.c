/* gru_text.c - trains a recurrent network on the characters of a text and lets it write.
 *
 *   build/gru_text                    the tales that are shipped: a minute
 *   build/gru_text --data FILE        any text
 *
 * Characters are embedded, a GRU of --layers goes along them (PyTorch's torch.nn.GRU, by tn_gru), and a
 * linear layer tells the logits of the next one. Then the network writes: a character at a time, its state
 * handed on from step to step. It ends with the text and a line like
 *
 *   validation loss 0.4739 */
#include "args.h"

struct model {
    tn_embed *token;
    tn_recurrent *gru;
    tn_linear *out;
    long width, layers, ctx, sample;
    double temperature;
};

/* x [n, t] characters -> logits [n, t, vocabulary]; state: NULL, or as tn_recurrent_forward's. */
static tn_tensor *logits_of(const struct model *m, tn_tensor *x, tn_recurrent_state *state)
{
    tn_tensor *h = tn_recurrent_forward(m->gru, tn_embedding_forward(m->token, x), state);
    return tn_linear_forward(m->out, h);
}

static tn_tensor *forward(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return logits_of(user, x, NULL);
}

/* Draws each character from the softmax of logits / temperature: the largest of them with Gumbel noise added.
 */
static void write_sample(tn_session *s, const struct model *m, const tn_dataset *text)
{
    int64_t token = tn_text_token(text, '\n') > 0 ? tn_text_token(text, '\n') : 0;
    tn_tensor *h = tn_buffer(s, "state", tn_zeros(s, TN_F32, TN_SHAPE(m->layers, 1, m->width)));
    tn_train(s, false);
    tn_no_grad_begin(s);
    for (long i = 0; i < m->sample && !interrupted() && !tn_error(s); i++) {
        tn_step_begin(s);
        tn_recurrent_state state = {h, NULL};
        tn_tensor *logits = logits_of(m, tn_from(s, &token, TN_I64, TN_SHAPE(1, 1)), &state);
        tn_tensor *noise = tn_neg(tn_log(tn_neg(tn_log(tn_rand(s, TN_F32, TN_SHAPE(m->token->count))))));
        tn_assign(h, state.h);
        tn_read(tn_argmax(tn_add(tn_div_scalar(logits, m->temperature), noise), 2, false), TN_I64, &token,
                sizeof token);
        tn_step_end(s);
        if (!tn_error(s)) putchar(tn_text_byte(text, token));
    }
    if (m->sample) putchar('\n');
    tn_no_grad_end(s);
    tn_train(s, true);
}

int main(int argc, char **argv)
{
    struct model m = {.width = 192, .layers = 1, .ctx = 48, .sample = 300, .temperature = 0.7};
    const struct args_more more[] = {
        {"--width", "of embedding and state", .whole = &m.width, .least = 1, .most = 1 << 14},
        {"--layers", "of the network", .whole = &m.layers, .least = 1, .most = 16},
        {"--ctx", "characters of a window", .whole = &m.ctx, .least = 1, .most = 1 << 14},
        {"--sample", "characters to write at the end", .whole = &m.sample, .most = 1 << 24},
        {"--temperature", "of what it writes: near 0 the likeliest", .positive = &m.temperature},
        {.name = NULL}};
    struct args a = {.program = "gru_text",
                     .purpose = "Trains a recurrent network on the characters of a text.",
                     .data = "data/tales.txt",
                     .epochs = 0,
                     .steps = 600,
                     .batch = 16,
                     .lr = 4e-3,
                     .one_pass = true,
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    tn_dataset *train = tn_dataset_text(s, a.data, TN_TRAIN, .ctx = m.ctx),
               *held_out = tn_dataset_text(s, a.data, TN_TEST, .ctx = m.ctx);
    m.token = tn_embedding_new(s, "token", tn_text_vocabulary(train), m.width);
    m.gru = tn_gru_new(s, "gru", m.width, m.width, .layers = (int)m.layers);
    m.out = tn_linear_new(s, "out", m.width, tn_text_vocabulary(train));
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = a.lr);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train))
        for (tn_batch b; args_next(&a, &b);) {
            tn_optim_set_lr(opt, tn_lr_cosine(a.at, 20, a.total, a.lr, 0.05 * a.lr));
            tn_step_begin(s);
            tn_tensor *loss = tn_cross_entropy(logits_of(&m, b.x, NULL), b.y);
            tn_backward(loss);
            tn_clip_grad_norm(opt, 1.0);
            tn_optim_step(opt);
            if (!a.quiet) tn_progress(a.loader, "loss", loss);
            args_log(&a, loss);
            tn_step_end(s);
        }
    if (interrupted()) return args_finish(&a, s);
    const double loss = tn_evaluate_loss(s, held_out, forward, &m);
    if (!tn_error(s)) write_sample(s, &m, train);
    if (!tn_error(s)) printf("validation loss %.4f\n", loss);
    return args_finish(&a, s);
}
