/* generate.c - lets a GPT write that build/gpt has trained: each character costs one token's work, as the
 * keys and values of those before it stand in caches (tn_cache).
 *
 *   build/gpt --save build/gpt.safetensors
 *   build/generate --resume build/gpt.safetensors --prompt "The otter"
 *
 * Layers, heads, width and context, and the text, whose characters are the tokens, are to be those of the
 * training. It writes until the context is full, from the prompt on, which is read in one go, and says how
 * fast that was:
 *
 *   55 characters, 480 a second; 28 plans, 49 of 55 steps replayed */
#include "args.h"
#include "gpt_model.h"

struct config {
    struct gpt_shape shape;
    const char *prompt;
    double temperature;
};

/* n tokens behind the first `at`, -> the one that follows, drawn from the softmax of logits / temperature:
 * the largest with Gumbel noise added. */
static int64_t next_token(tn_session *s, const struct gpt *m, tn_cache *const *cache, const struct config *c,
                          const int64_t *tokens, int64_t n, int64_t at)
{
    int64_t drawn = -1;
    tn_step_begin(s);
    tn_tensor *x = tn_embedding_forward(m->token, tn_from(s, tokens, TN_I64, TN_SHAPE(1, n)));
    tn_tensor *h = tn_add(x, tn_narrow(m->position->weight, 0, at, n));
    for (int i = 0; i < m->shape.layers; i++) h = tn_transformer_block_cached(m->block[i], h, cache[i], at);
    h = tn_reshape(tn_narrow(tn_norm_forward(m->norm, h), 1, n - 1, 1), TN_SHAPE(1, m->shape.dim));
    tn_tensor *logits = tn_affine(h, m->token->weight, NULL);
    tn_tensor *noise = tn_neg(tn_log(tn_neg(tn_log(tn_rand(s, TN_F32, TN_SHAPE(m->token->count))))));
    tn_read(tn_argmax(tn_add(tn_div_scalar(logits, c->temperature), noise), 1, false), TN_I64, &drawn,
            sizeof drawn);
    tn_step_end(s);
    return drawn;
}

static void generate(tn_session *s, const struct gpt *m, const struct config *c, const tn_dataset *text)
{
    const int64_t ctx = m->shape.ctx, n = (int64_t)strlen(c->prompt);
    int64_t *token = calloc((size_t)ctx + 1, sizeof *token), at = 0, end = n < ctx ? n : ctx;
    tn_cache *cache[MOST_LAYERS];
    if (!token || !n) {
        tn_fail(s, token ? TN_E_ARG : TN_E_NOMEM, "generate", token ? "the prompt is empty" : "no memory");
        free(token);
        return;
    }
    for (int i = 0; i < m->shape.layers; i++)
        cache[i] = tn_cache_new(s, 1, (int)m->shape.heads, ctx, m->shape.dim / m->shape.heads, TN_F32);
    for (int64_t i = 0; i < end; i++) {
        token[i] = tn_text_token(text, (unsigned char)c->prompt[i]);
        if (token[i] < 0)
            tn_fail(s, TN_E_ARG, "generate", "the text has no '%c', which stands in the prompt",
                    c->prompt[i]);
    }
    printf("%s", c->prompt);
    const double start = args_clock();
    long steps = 0;
    while (end < ctx && !tn_error(s) && !interrupted()) {
        token[end] = next_token(s, m, cache, c, token + at, end - at, at);
        at = end++;
        if (!tn_error(s)) putchar(tn_text_byte(text, token[at]));
        steps++;
    }
    tn_stats st = {.size = sizeof st};
    tn_get_stats(s, &st);
    if (!tn_error(s))
        printf("\n%ld characters, %.0f a second; %d plans, %d of %ld steps replayed\n", steps,
               1e3 * (double)steps / (args_clock() - start + 1e-3), (int)st.plans, (int)st.replayed, steps);
    for (int i = 0; i < m->shape.layers; i++) tn_cache_free(cache[i]);
    free(token);
}

int main(int argc, char **argv)
{
    struct config c = {
        .shape = {.layers = 4, .heads = 4, .dim = 128, .ctx = 64}, .prompt = "The ", .temperature = 0.8};
    const struct args_more more[] = {
        {"--layers", "transformer blocks", .whole = &c.shape.layers, .least = 1, .most = MOST_LAYERS},
        {"--heads", "of attention; divides --dim", .whole = &c.shape.heads, .least = 1, .most = 1024},
        {"--dim", "width of the model", .whole = &c.shape.dim, .least = 1, .most = 1 << 16},
        {"--ctx", "characters it sees", .whole = &c.shape.ctx, .least = 1, .most = 1 << 16},
        {"--prompt", "what to go on from", .text = &c.prompt, .label = "TEXT"},
        {"--temperature", "of what it writes: near 0 the likeliest", .positive = &c.temperature},
        {.name = NULL}};
    struct args a = {.program = "generate",
                     .purpose = "Lets a GPT write that build/gpt has trained and saved.",
                     .data = "data/tales.txt",
                     .batch = 1,
                     .lr = 1e-3,
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    tn_dataset *text = tn_dataset_text(s, a.data, TN_TRAIN, .ctx = c.shape.ctx);
    struct gpt m;
    make_gpt(s, &m, &c.shape, tn_text_vocabulary(text));
    gpt_optimizer(s, a.lr); /* whose state the file holds, too */
    if (a.resume) tn_load(s, a.resume);
    tn_train(s, false);
    tn_no_grad_begin(s);
    if (!tn_error(s)) generate(s, &m, &c, text);
    return args_finish(&a, s);
}
