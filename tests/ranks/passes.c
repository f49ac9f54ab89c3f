/* passes.c - random trainings over a data set that ranks cannot share evenly:
 *
 *   mpirun -np 2 passes FOLDER FROM TO FILE SEED..
 *
 * as random.c does, of each SEED from step FROM to TO; the first rank writes to FILE what has become of them. A
 * training has batches of some items, the last of a pass of less, at times of less than there are ranks; batch norms
 * over all of them, one optimizer or two, groups, accumulation, clipping, averages, shared state and frozen layers;
 * and in each second one an item has a label that is none, so that the step that comes to it is refused on all ranks,
 * and goes on with the next. So does the same training in one process. Start with train. */
#include <tensor_nn.h>

#include <stdlib.h>
#include <string.h>

enum { BATCH = 12, MOST = 60, WIDEST = 70, CLASSES = 5 };

static unsigned pick(uint64_t *state, unsigned n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33) % n;
}

struct model {
    tn_linear *in, *mid, *out;
    tn_norm *norm[2]; /* NULL: none */
};

static tn_tensor *forward(tn_session *s, tn_tensor *x, void *user)
{
    const struct model *m = user;
    (void)s;
    tn_tensor *h = tn_linear_forward(m->in, x);
    h = tn_tanh(m->norm[0] ? tn_norm_forward(m->norm[0], h) : h);
    h = tn_linear_forward(m->mid, h);
    return tn_linear_forward(m->out, tn_gelu(m->norm[1] ? tn_norm_forward(m->norm[1], h) : h));
}

static tn_optim *optimizer(tn_session *s, uint64_t *r, tn_params of)
{
    const bool shard = pick(r, 2);
    const int accumulate = 1 + (int)pick(r, 3);
    switch (pick(r, 4)) {
    case 0:
        return tn_sgd(s, of, .lr = 0.05, .momentum = 0.9, .nesterov = pick(r, 2), .accumulate = accumulate,
                      .shard = shard);
    case 1: return tn_rmsprop(s, of, .lr = 0.01, .eps = 0.1, .accumulate = accumulate, .shard = shard);
    case 2: return tn_adagrad(s, of, .lr = 0.01, .eps = 0.1, .accumulate = accumulate, .shard = shard);
    }
    return tn_adamw(s, of, .lr = 0.01, .eps = 0.1, .weight_decay = 0.1, .accumulate = accumulate,
                    .shard = shard);
}

static tn_dataset *random_data(tn_session *s, uint64_t *r, int64_t width, bool norms)
{
    static float x[MOST * WIDEST];
    static int32_t y[MOST];
    int64_t n = BATCH + 1 + pick(r, MOST - BATCH - 4);
    if (norms && n % BATCH < 4) n += 4; /* a norm of two items may make much of how little they differ */
    for (int64_t i = 0; i < n * width; i++) x[i] = (float)pick(r, 2001) / 1000 - 1;
    for (int64_t i = 0; i < n; i++) y[i] = (int32_t)pick(r, CLASSES);
    if (pick(r, 2)) y[pick(r, (unsigned)n)] = 77;
    return tn_dataset_from(s, x, y, n, 1, &width);
}

/* What is trained, and how, but for the data. */
struct training {
    struct model m;
    tn_optim *opt[2], *mean;
    double clip;
    bool freezes;
    unsigned look; /* at the loss of one step in four, ahead of backward */
};

static void make(tn_session *s, struct training *t, uint64_t *r, int64_t width)
{
    struct model *m = &t->m;
    const int64_t hidden = 1 + pick(r, WIDEST);
    m->in = tn_linear_new(s, "in", width, hidden);
    m->mid = tn_linear_new(s, "mid", hidden, hidden);
    m->out = tn_linear_new(s, "out", hidden, CLASSES);
    for (int i = 0; i < 2; i++)
        m->norm[i] = pick(r, 2) ? tn_batch_norm_new(s, i ? "two" : "one", hidden, .sync = true) : NULL;
    if (pick(r, 3)) {
        t->opt[0] = optimizer(s, r, tn_all_params(s));
        if (pick(r, 2)) tn_optim_group(t->opt[0], "*.bias", .lr_factor = 0.3, .weight_decay = 0.01);
    } else {
        t->opt[0] = optimizer(s, r, TN_PARAMS(m->in->weight, m->in->bias, m->out->weight));
        t->opt[1] = optimizer(s, r, TN_PARAMS(m->mid->weight, m->mid->bias, m->out->bias));
    }
    if (pick(r, 2)) t->mean = tn_ema(s, tn_all_params(s), .decay = 0.5, .shard = pick(r, 2));
    t->clip = pick(r, 2) ? 0.1 : 0;
    t->freezes = !pick(r, 3);
    t->look = pick(r, 4);
}

/* A step that is refused for the label is over; any other error stays. */
static void take_step(tn_session *s, struct training *t, const tn_batch *b, int step)
{
    if (t->freezes) tn_freeze(s, "mid*", step % 4 == 1);
    tn_step_begin(s);
    tn_tensor *loss = tn_cross_entropy(forward(s, b->x, &t->m), b->y);
    if ((unsigned)step % 4 == t->look) tn_item(loss);
    tn_backward(loss);
    for (int i = 0; i < 2 && t->clip > 0; i++)
        if (t->opt[i]) tn_clip_grad_norm(t->opt[i], t->clip);
    for (int i = 0; i < 2; i++)
        if (t->opt[i]) tn_optim_step(t->opt[i]);
    if (t->mean) tn_optim_step(t->mean);
    tn_step_end(s);
    if (!tn_error(s) || !strstr(tn_error_text(s), "] is 77")) return;
    tn_clear_error(s);
}

static void put(tn_session *s, FILE *f)
{
    for (int i = 0; i < tn_param_count(s) + tn_buffer_count(s); i++) {
        static double v[WIDEST * WIDEST];
        tn_tensor *p = i < tn_param_count(s) ? tn_param_at(s, i) : tn_buffer_at(s, i - tn_param_count(s));
        tn_read(p, TN_F64, v, (size_t)tn_numel(p) * sizeof(*v));
        for (int64_t k = 0; k < tn_numel(p) && f; k++) fprintf(f, "%.9g\n", v[k]);
    }
}

static int train(const char *folder, int seed, int from, int to, FILE *f)
{
    uint64_t r = (uint64_t)seed * 7919 + (seed % 2 ? 0 : 5);
    struct training t = {0};
    char path[1000];
    const tn_mode mode = pick(&r, 5) ? TN_FUSED : TN_EAGER;
    tn_session *s = tn_open(.seed = (uint64_t)seed, .threads = 1, .mode = mode);
    if (!s) return 1;
    const int64_t width = 1 + pick(&r, WIDEST);
    make(s, &t, &r, width);
    const bool shuffle = pick(&r, 2);
    tn_dataset *d = random_data(s, &r, width, t.m.norm[0] || t.m.norm[1]);
    snprintf(path, sizeof(path), "%s/%d.safetensors", folder, seed);
    if (from) tn_load(s, path);
    for (int step = from; step < to && !tn_error(s);) {
        tn_batch b;
        tn_loader *l = tn_loader_open(d, .batch = BATCH / tn_ranks(s), .shuffle = shuffle);
        bool more = true; /* at its end a pass is closed */
        while (step < to && (more = tn_next(l, &b))) take_step(s, &t, &b, step++);
        if (step == to) tn_save(s, path);
        if (more) tn_loader_close(l);
    }
    if (t.mean) tn_ema_swap(t.mean);
    const double accuracy = tn_evaluate(s, d, forward, &t.m);
    if (f) fprintf(f, "%.9g\n", accuracy);
    put(s, f);
    if (tn_error(s)) fprintf(stderr, "seed %d, rank %d: %s\n", seed, tn_rank(s), tn_error_text(s));
    return tn_close(s) != 0;
}

int main(int argc, char **argv)
{
    int wrong = argc < 6;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    FILE *f = !wrong && (!rank || !atoi(rank)) ? fopen(argv[4], "w") : NULL;
    for (int i = 5; !wrong && i < argc; i++)
        wrong = train(argv[1], atoi(argv[i]), atoi(argv[2]), atoi(argv[3]), f);
    if (f) fclose(f);
    return wrong;
}
