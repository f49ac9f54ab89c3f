/* gpt.c - trains a small GPT on the characters of a text, and lets it write.
 *
 *   build/gpt                                          the tales that are shipped: two minutes
 *   build/gpt --data data/text/tinyshakespeare.txt     Shakespeare (data/get_data.sh gets it): about 1.91
 *
 * Tokens and positions are embedded; blocks of causal attention and an MLP; layer norm; the output weights
 * are the embedding's. No biases, weights drawn as GPT-2's, AdamW with weight decay on matrices alone,
 * gradients clipped to norm 1, a warm-up and a cosine decay to a tenth of the rate. It writes a sample to
 * stdout and ends with the mean loss, in nats a character, over the last tenth of the text, which it has not
 * seen:
 *
 *   validation loss 1.8912
 *
 * Read train_step first; the rest is plumbing. */
#include "args.h"
#include "gpt_model.h"

enum { WARMUP = 100 };

/* What this example's own options set. */
struct config {
    struct gpt_shape shape;
    long decay, sample;
    double temperature;
};

static tn_tensor *forward(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return gpt_forward(user, x);
}

static void train_step(tn_session *s, struct gpt *m, tn_optim *opt, const tn_batch *b, struct args *a)
{
    tn_step_begin(s);
    tn_tensor *loss = gpt_update(m, opt, b->x, b->y);
    if (!a->quiet) tn_progress(a->loader, "loss", loss);
    args_log(a, loss);
    tn_step_end(s);
}

/* Draws the token after window[0..n): the largest of logit / temperature + Gumbel noise is a draw from their
 * softmax. The caches hold what stands before the last token, until the window moves: then each token stands
 * at another position, and all are encoded. What stands behind place n - 1 cannot be seen from there, so that
 * all windows have one shape. */
static int64_t next_token(tn_session *s, const struct gpt *m, tn_cache *const *cache, const struct config *c,
                          const int32_t *window, int32_t n)
{
    int64_t ctx = m->shape.ctx, token = -1;
    int32_t last = n - 1;
    tn_step_begin(s);
    tn_tensor *h = cache ? gpt_encode_next(m, cache, tn_from(s, window + last, TN_I32, TN_SHAPE(1, 1)), last)
                         : gpt_encode(m, tn_from(s, window, TN_I32, TN_SHAPE(1, ctx)));
    h = tn_squeeze(h, 0);
    if (!cache) h = tn_index_select(h, 0, tn_from(s, &last, TN_I32, TN_SHAPE(1)));
    tn_tensor *logits = tn_affine(h, m->token->weight, NULL),
              *u = tn_rand(s, TN_F32, TN_SHAPE(m->token->count));
    tn_tensor *gumbel = tn_neg(tn_log(tn_neg(tn_log(u))));
    tn_tensor *drawn = tn_argmax(tn_add(tn_div_scalar(logits, c->temperature), gumbel), 1, false);
    tn_read(drawn, TN_I64, &token, sizeof(token));
    tn_step_end(s);
    return token;
}

/* Writes a text that begins after a line's end. The generator goes back to where it was: a training run that
 * goes on from a checkpoint does not depend on whether it wrote in between. */
static void write_sample(tn_session *s, const struct gpt *m, const struct config *c, const tn_dataset *text)
{
    const struct gpt_shape *shape = &m->shape;
    const int64_t ctx = shape->ctx;
    uint64_t draw = tn_rng_draw(s);
    tn_cache *cache[MOST_LAYERS];
    int32_t *window = calloc((size_t)ctx, sizeof(*window)), n = 1;
    bool moved = false;
    if (!window) {
        tn_fail(s, TN_E_NOMEM, "write_sample", "no memory for %lld tokens", (long long)ctx);
        return;
    }
    for (int i = 0; i < shape->layers; i++)
        cache[i] = tn_cache_new(s, 1, (int)shape->heads, ctx, shape->dim / shape->heads, TN_F32);
    window[0] = tn_text_token(text, '\n') > 0 ? tn_text_token(text, '\n') : 0;
    tn_train(s, false);
    tn_no_grad_begin(s);
    for (long i = 0; i < c->sample && !interrupted(); i++) {
        int64_t token = next_token(s, m, moved ? NULL : cache, c, window, n);
        if (tn_error(s)) break;
        putchar(tn_text_byte(text, token));
        moved = n == ctx;
        if (moved) memmove(window, window + 1, (size_t)(--n) * sizeof(*window));
        window[n++] = (int32_t)token;
    }
    if (c->sample) printf("\n");
    tn_no_grad_end(s);
    tn_train(s, true);
    tn_set_rng(s, tn_seed(s), draw);
    for (int i = 0; i < shape->layers; i++) tn_cache_free(cache[i]);
    free(window);
}

int main(int argc, char **argv)
{
    struct config c = {
        .shape = {.layers = 4, .heads = 4, .dim = 128, .ctx = 64}, .sample = 300, .temperature = 0.8};
    const struct args_more more[] = {
        {"--layers", "transformer blocks", .whole = &c.shape.layers, .least = 1, .most = MOST_LAYERS},
        {"--heads", "of attention; divides --dim", .whole = &c.shape.heads, .least = 1, .most = 1024},
        {"--dim", "width of the model", .whole = &c.shape.dim, .least = 1, .most = 1 << 16},
        {"--ctx", "characters it sees", .whole = &c.shape.ctx, .least = 1, .most = 1 << 16},
        {"--checkpoint", "1: less memory and more time for a step", .whole = &c.shape.checkpoint, .most = 1},
        {"--decay", "steps over which the learning rate falls; 0: --steps", .whole = &c.decay,
         .most = 1L << 40},
        {"--sample", "characters to write at the end", .whole = &c.sample, .most = 1 << 24},
        {"--temperature", "of what it writes: near 0 the likeliest", .positive = &c.temperature},
        {.name = NULL}};
    struct args a = {.program = "gpt",
                     .purpose = "Trains a small GPT on the characters of a text.",
                     .data = "data/tales.txt",
                     .epochs = 0,
                     .steps = 2000,
                     .batch = 12,
                     .lr = 1e-3,
                     .one_pass = true,
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    tn_dataset *train = tn_dataset_text(s, a.data, TN_TRAIN, .ctx = c.shape.ctx),
               *held_out = tn_dataset_text(s, a.data, TN_TEST, .ctx = c.shape.ctx);
    struct gpt m;
    make_gpt(s, &m, &c.shape, tn_text_vocabulary(train));
    tn_optim *opt = gpt_optimizer(s, a.lr);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train))
        for (tn_batch b; args_next(&a, &b);) {
            tn_optim_set_lr(opt, tn_lr_cosine(a.at, WARMUP, c.decay ? c.decay : a.total, a.lr, 0.1 * a.lr));
            train_step(s, &m, opt, &b, &a);
        }
    if (!interrupted() && !tn_error(s)) write_sample(s, &m, &c, train);
    if (interrupted()) return args_finish(&a, s);
    double loss = tn_evaluate_loss(s, held_out, forward, &m);
    if (!tn_error(s)) printf("validation loss %.4f\n", loss);
    return args_finish(&a, s);
}
