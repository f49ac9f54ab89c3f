/* random.c - random models, each trained by some ranks and gone on with by others:
 *
 *   mpirun -np 2 random FOLDER SEEDS FROM TO [FILE]
 *
 * takes the models of seeds 1 to SEEDS from step FROM, of 0 or of what FOLDER has, to step TO, and leaves
 * them in FOLDER; the first rank writes all parameters to FILE. A model has layers of odd sizes in f64 and
 * f32, one that nothing reads, one that is frozen for a while, and what optimizers can do with ranks:
 * accumulate, clip, average, share their state. So does the same model in one process, with the whole batch.
 * Start with train. */
#include <tensor_extend.h>
#include <tensor_nn.h>

#include <math.h>
#include <stdlib.h>

enum { BATCH = 12, MOST = 5, WIDEST = 90, FLUSHED = 3 };

static unsigned pick(uint64_t *state, unsigned n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33) % n;
}

struct model {
    int layers;
    int64_t width[MOST + 1];
    tn_dtype type[MOST];
    tn_tensor *weight[MOST], *bias[MOST];
    int read_early;
};

static tn_tensor *parameter(tn_session *s, const char *kind, int i, tn_dtype d, int64_t n, int64_t m,
                            uint64_t *r)
{
    static double v[WIDEST * WIDEST];
    char name[32];
    snprintf(name, sizeof(name), "%s%d", kind, i);
    for (int64_t k = 0; k < n * m; k++) v[k] = (pick(r, 2001) / 1000.0 - 1) / sqrt((double)n);
    tn_tensor *t = tn_from(s, v, TN_F64, 2, (int64_t[]){n, m});
    tn_tensor *p = tn_param(s, name, tn_cast(t, d));
    tn_free(t);
    return p;
}

static void make(tn_session *s, struct model *m, uint64_t *r)
{
    m->layers = 1 + (int)pick(r, MOST);
    m->width[0] = 1 + pick(r, WIDEST);
    for (int i = 0; i < m->layers; i++) {
        const tn_dtype d = m->type[i] = pick(r, 3) ? TN_F64 : TN_F32;
        m->width[i + 1] = 1 + pick(r, i + 1 < m->layers ? WIDEST : 7);
        m->weight[i] = parameter(s, "weight", i, d, m->width[i], m->width[i + 1], r);
        m->bias[i] = pick(r, 3) ? parameter(s, "bias", i, d, 1, m->width[i + 1], r) : NULL;
        if (!pick(r, 4)) parameter(s, "unread", i, d, 1 + pick(r, 5), 1 + pick(r, WIDEST), r);
    }
    m->read_early = (int)pick(r, FLUSHED);
}

static tn_tensor *forward(const struct model *m, tn_tensor *h)
{
    for (int i = 0; i < m->layers; i++) {
        h = tn_matmul(tn_cast(h, m->type[i]), m->weight[i]);
        if (m->bias[i]) h = tn_add(h, m->bias[i]);
        if (i + 1 < m->layers) h = i % 2 ? tn_gelu(h) : tn_tanh(h);
    }
    return h;
}

/* Items of the step's whole batch that are this rank's. */
static tn_tensor *items(tn_session *s, int step, int64_t width)
{
    static double v[BATCH * WIDEST];
    const int64_t n = BATCH / tn_ranks(s), first = n * tn_rank(s);
    for (int64_t i = 0; i < n * width; i++) v[i] = sin((double)((first * width + i) * 7 + step * 13));
    return tn_from(s, v, TN_F64, 2, (int64_t[]){n, width});
}

static tn_optim *optimizer(tn_session *s, uint64_t *r, bool shard)
{
    const tn_params all = tn_all_params(s);
    const int accumulate = 1 + (int)pick(r, 3);
    switch (pick(r, 3)) {
    case 0: return tn_sgd(s, all, .lr = 0.05, .momentum = 0.9, .accumulate = accumulate, .shard = shard);
    case 1: return tn_rmsprop(s, all, .lr = 0.01, .eps = 1e-2, .accumulate = accumulate, .shard = shard);
    }
    return tn_adamw(s, all, .lr = 0.01, .eps = 1e-2, .weight_decay = 0.1, .accumulate = accumulate,
                    .shard = shard);
}

static int train(const char *folder, int seed, int from, int to, FILE *f)
{
    uint64_t r = (uint64_t)seed * 7919;
    char path[1000];
    struct model m;
    tn_session *s = tn_open(.seed = (uint64_t)seed, .threads = 1);
    if (!s) return 1;
    make(s, &m, &r);
    const bool shard = pick(&r, 2);
    tn_optim *opt = optimizer(s, &r, shard),
             *mean = pick(&r, 2) ? tn_ema(s, tn_all_params(s), .decay = 0.5, .shard = shard) : NULL;
    const double clip = pick(&r, 2) ? 0.2 : 0;
    const bool frozen = pick(&r, 2) && m.layers > 1;
    snprintf(path, sizeof(path), "%s/%d.safetensors", folder, seed);
    if (from) tn_load(s, path);
    for (int step = from; step < to; step++) {
        if (frozen) tn_freeze(s, "*0", step % 4 == 1 || step % 4 == 2);
        tn_step_begin(s);
        tn_tensor *loss = tn_mean(tn_square(forward(&m, items(s, step, m.width[0]))), TN_ALL, false);
        if (step % FLUSHED == m.read_early) tn_item(loss);
        tn_backward(loss);
        if (clip > 0) tn_clip_grad_norm(opt, clip);
        tn_optim_step(opt);
        if (mean) tn_optim_step(mean);
        tn_step_end(s);
    }
    tn_save(s, path);
    if (mean) tn_ema_swap(mean);
    for (int i = 0; i < tn_param_count(s); i++) {
        static double v[WIDEST * WIDEST];
        const int64_t n = tn_numel(tn_param_at(s, i));
        tn_read(tn_param_at(s, i), TN_F64, v, (size_t)n * sizeof(*v));
        for (int64_t k = 0; k < n && f; k++) fprintf(f, "%.17g\n", v[k]);
    }
    if (tn_error(s)) fprintf(stderr, "seed %d, rank %d: %s\n", seed, tn_rank(s), tn_error_text(s));
    return tn_close(s) != 0;
}

int main(int argc, char **argv)
{
    int wrong = argc < 5;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    FILE *f = argc > 5 && (!rank || !atoi(rank)) ? fopen(argv[5], "w") : NULL;
    for (int seed = 1; !wrong && seed <= atoi(argv[2]); seed++)
        wrong = train(argv[1], seed, atoi(argv[3]), atoi(argv[4]), f);
    if (f) fclose(f);
    return wrong;
}
