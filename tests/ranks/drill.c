/* drill.c - a program for tests/test_ranks.sh to run as several ranks:
 *
 *   mpirun -np 4 drill train BATCH STEPS FILE     trains; the first rank writes loss after loss and all
 *                                                 parameters
 *   drill same FILE FILE TOLERANCE                whether two of these files agree; 0: to the bit
 *   mpirun -np 3 drill NAME..                     drills, of those in the table at the end
 *
 * A drill in which ranks are to fail prints each rank's error in a line and ends with 0. Start with main.
 */
#include <tensor_extend.h>
#include <tensor_nn.h>

#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ITEMS = 101, WIDTH = 12, CLASSES = 5, BLOCKS = 9 }; /* BLOCKS: of 64 parameters in the net */

static float x[ITEMS][WIDTH];
static int32_t y[ITEMS];

static void make_data(void)
{
    unsigned v = 1;
    for (int i = 0; i < ITEMS; i++) {
        for (int k = 0; k < WIDTH; k++)
            x[i][k] = (float)((v = v * 1664525 + 1013904223) >> 8) / (1 << 23) - 1;
        y[i] = (int32_t)((v >> 16) % CLASSES);
    }
}

struct net {
    tn_linear *in, *out;
    tn_norm *norm;
    tn_optim *opt;
};

static void make_net(tn_session *s, struct net *n, int64_t width, int accumulate, bool shard)
{
    n->in = tn_linear_new(s, "in", WIDTH, width);
    n->norm = tn_batch_norm_new(s, "norm", width, .sync = true);
    n->out = tn_linear_new(s, "out", width, CLASSES);
    n->opt =
        tn_sgd(s, tn_all_params(s), .lr = 0.05, .momentum = 0.9, .accumulate = accumulate, .shard = shard);
}

static tn_tensor *forward(const struct net *n, tn_tensor *v)
{
    return tn_linear_forward(n->out, tn_tanh(tn_norm_forward(n->norm, tn_linear_forward(n->in, v))));
}

static tn_tensor *classify(tn_session *s, tn_tensor *v, void *user)
{
    (void)s;
    return forward(user, v);
}

static const char *drill = ""; /* that goes on */

static void say(tn_session *s, const char *what)
{
    char line[1200];
    const int n = snprintf(line, sizeof(line), "%s %d: %s\n", drill, tn_rank(s), what);
    if (write(1, line, (size_t)n) != n) exit(3); /* at once: lines of ranks do not mix */
}

static int put_parameters(tn_session *s, FILE *f)
{
    for (int i = 0; f && i < tn_param_count(s) + tn_buffer_count(s); i++) {
        tn_tensor *p = i < tn_param_count(s) ? tn_param_at(s, i) : tn_buffer_at(s, i - tn_param_count(s));
        float v[4096];
        if (tn_read(p, TN_F32, v, (size_t)tn_numel(p) * sizeof(*v))) return 1;
        for (int64_t k = 0; k < tn_numel(p); k++) fprintf(f, "%.9g\n", (double)v[k]);
    }
    return 0;
}

/* Options of a training: each drill's are a few. */
struct training {
    int64_t batch, steps;
    const char *file, *save, *resume;
    int kill_at, accumulate;
    double clip;
    bool dropout, shard;
};

static int train(const struct training *t)
{
    tn_session *s = tn_open(.seed = 3, .threads = 1);
    if (!s) return 1;
    make_data();
    FILE *f = t->file && !tn_rank(s) ? fopen(t->file, "w") : NULL;
    struct net n;
    make_net(s, &n, 16, t->accumulate, t->shard);
    tn_dataset *d = tn_dataset_from(s, &x[0][0], y, ITEMS, 1, (int64_t[]){WIDTH});
    if (t->resume) tn_load(s, t->resume);
    int64_t step = 0;
    while (step < t->steps && !tn_error(s)) {
        tn_batch b;
        tn_loader *l = tn_loader_open(d, .batch = t->batch, .shuffle = true);
        bool more = true; /* at its end a pass is closed */
        while (step < t->steps && (more = tn_next(l, &b))) {
            step++;
            tn_step_begin(s);
            tn_tensor *h = t->dropout ? tn_dropout(b.x, 0.3) : b.x;
            tn_tensor *loss = tn_cross_entropy(forward(&n, h), b.y);
            tn_backward(loss);
            if (t->kill_at == step) tn_item(tn_mean_over_ranks(loss)); /* all have come to here */
            if (t->kill_at == step && tn_rank(s) == 1) raise(SIGKILL);
            if (t->clip > 0) tn_clip_grad_norm(n.opt, t->clip);
            tn_optim_step(n.opt);
            tn_step_end(s);
            if (t->save) tn_save(s, t->save);
        }
        if (more) tn_loader_close(l);
    }
    const double accuracy = tn_evaluate(s, d, classify, &n), loss = tn_evaluate_loss(s, d, classify, &n);
    if (f) fprintf(f, "%.9g\n%.9g\n", accuracy, loss);
    if (!tn_error(s)) put_parameters(s, f);
    if (f) fclose(f);
    if (tn_error(s)) say(s, tn_error_text(s));
    return tn_close(s) != 0;
}

static int same(const char *one, const char *two, double tolerance)
{
    FILE *f = fopen(one, "r"), *g = fopen(two, "r");
    double a, b, most = 0;
    int n = 0;
    for (; f && g; n++) {
        const int p = fscanf(f, "%lf", &a), q = fscanf(g, "%lf", &b);
        if (p != q) return printf("%s and %s are not of one length\n", one, two);
        if (p != 1) break;
        const double off = fabs(a - b) / (fabs(a) > 0.1 ? fabs(a) : 0.1);
        if (!(off <= most)) most = off;
    }
    printf("%d numbers, at most %g apart\n", n, most);
    return n < 100 || !(most <= tolerance);
}

/* ---- drills ---- */

/* Of a pass that ranks do not share evenly items weigh what makes them count the same; what comes behind it
 * weighs as if there had been none. How much is wrong. */
static int weights(tn_session *s)
{
    float image[64] = {0};
    int32_t label[64] = {0};
    const int n = tn_ranks(s) + 1, own = tn_rank(s) ? 1 : 2;
    tn_dataset *d = tn_dataset_from(s, image, label, n, 0, NULL);
    tn_batch b;
    int wrong = 0, batches = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 2); tn_next(l, &b); batches++)
        wrong += b.n != own || fabs(tn_rank_weight(s) - (double)own * tn_ranks(s) / n) > 1e-12;
    return wrong + (batches != 1) + (tn_rank_weight(s) != 1);
}

/* Means of random numbers, whose seed each rank makes for all of them, in several modes. */
static int means(void)
{
    int wrong = 0;
    for (int mode = 0; mode < 3; mode++) {
        tn_session *s = tn_open(.seed = (uint64_t)mode, .threads = 1, .device = mode == 2 ? TN_REF : TN_CPU,
                                .mode = mode == 1 ? TN_EAGER : TN_FUSED);
        if (!s) return 1;
        const int ranks = tn_ranks(s);
        wrong += weights(s);
        for (int64_t n = 1; n < 5000; n = n * 7 + 3) {
            float *v = calloc((size_t)n, sizeof(*v)), *all = calloc((size_t)n, sizeof(*all));
            double *exact = calloc((size_t)n, sizeof(*exact));
            for (int r = 0; r < ranks; r++)
                for (int64_t i = 0; i < n; i++) {
                    const double here = sin((double)(i * 31 + r * 17 + n));
                    exact[i] += (double)(float)here / ranks;
                    if (r == tn_rank(s)) v[i] = (float)here;
                }
            tn_tensor *t = tn_from(s, v, TN_F32, 1, &n), *w = tn_from(s, v, TN_F32, 1, &n);
            tn_requires_grad(t, true);
            tn_step_begin(s);
            tn_tensor *m = tn_mean_over_ranks(tn_mul_scalar(t, 2)), *g[1];
            tn_grad(tn_sum(tn_mul(m, w), TN_ALL, false), 1, &t, g); /* 2 * the mean of w */
            float *back = calloc((size_t)n, sizeof(*back));
            tn_read(m, TN_F32, all, (size_t)n * sizeof(*all));
            tn_read(g[0], TN_F32, back, (size_t)n * sizeof(*back));
            tn_step_end(s);
            for (int64_t i = 0; i < n; i++)
                wrong += !(fabs((double)all[i] - 2 * exact[i]) < 1e-6) +
                         !(fabs((double)back[i] - 2 * exact[i]) < 1e-6);
            tn_free(t);
            tn_free(w);
            free(v);
            free(all);
            free(exact);
            free(back);
        }
        if (tn_error(s) || wrong) say(s, tn_error(s) ? tn_error_text(s) : "a mean is wrong");
        wrong += tn_close(s) != 0;
    }
    return wrong != 0;
}

/* Ranks of different seeds: the same parameters. Draws of steps differ, others and those of a second run do
 * not. */
static int draws(void)
{
    double step[2] = {0, 0};
    int wrong = 0;
    for (int run = 0; run < 2; run++) {
        tn_session *s = tn_open(.seed = 5, .threads = 1);
        if (!s) return 1;
        tn_param(s, "p", tn_full(s, tn_rank(s) + 1, TN_F32, TN_SHAPE(3)));
        tn_tensor *out = tn_rand(s, TN_F32, TN_SHAPE(1));
        const double outside = tn_item(out);
        tn_step_begin(s);
        tn_tensor *r = tn_rand(s, TN_F32, TN_SHAPE(1));
        const double mean = tn_item(tn_mean_over_ranks(r)), mean_outside = tn_item(tn_mean_over_ranks(out));
        wrong += run && tn_item(r) != step[0];
        step[0] = tn_item(r);
        wrong += !(fabs(mean - step[0]) > 1e-5) || fabs(mean_outside - outside) > 1e-6;
        wrong += tn_item(tn_sum(tn_find(s, "p"), TN_ALL, false)) != 3;
        tn_step_end(s);
        if (wrong || tn_error(s)) say(s, tn_error(s) ? tn_error_text(s) : "draws or parameters are wrong");
        wrong += tn_close(s) != 0;
    }
    return wrong;
}

/* ---- optimizer state that ranks share ---- */

typedef enum rule { ADAMW, ADAMW_EAGER, ADAMW_REF, ADAMW_F16, ADAMW_GROWING, SGD, MIXED, RULES } rule;

/* Of MIXED the first of three. */
static tn_optim *make_rule(tn_session *s, rule r, const struct net *n, bool shard)
{
    const tn_params all = tn_all_params(s);
    switch (r) {
    case ADAMW:
    case ADAMW_EAGER:
    case ADAMW_REF:
    case ADAMW_F16:
    case ADAMW_GROWING: return tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1, .shard = shard);
    case SGD:
        return tn_sgd(s, all, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .accumulate = 2,
                      .shard = shard);
    case MIXED:
        return tn_rmsprop(s, TN_PARAMS(n->in->weight, n->in->bias), .lr = 0.01, .momentum = 0.5,
                          .centered = true, .shard = shard);
    case RULES: break;
    }
    return NULL;
}

/* Trains a few steps, saves, and writes all parameters and norms to v; returns how many there are. *state:
 * bytes of what the optimizer keeps for a block of those that are this rank's. */
static int train_sharded(rule r, bool shard, const char *save, float *v, size_t *state)
{
    tn_session *s = tn_open(.seed = 3, .threads = 1, .device = r == ADAMW_REF ? TN_REF : TN_CPU,
                            .mode = r == ADAMW_EAGER ? TN_EAGER : TN_FUSED,
                            .precision = r == ADAMW_F16 ? TN_PRECISION_F16 : TN_PRECISION_F32);
    struct net n;
    tn_stats before = {.size = sizeof(before)}, after = before;
    int at = 0;
    if (!s) return -1;
    make_net(s, &n, 16, 1, false);
    tn_optim *opt = make_rule(s, r, &n, shard), *more[2] = {NULL, NULL};
    if (r == ADAMW) more[0] = tn_ema(s, tn_all_params(s), .shard = shard);
    if (r == MIXED)
        more[0] = tn_adagrad(s, TN_PARAMS(n.norm->weight, n.norm->bias), .lr_decay = 0.1, .shard = shard);
    if (r == MIXED)
        more[1] = tn_lion(s, TN_PARAMS(n.out->weight, n.out->bias), .weight_decay = 0.1, .shard = shard);
    if (r != MIXED) tn_optim_group(opt, "out.*", .lr_factor = 0.5, .weight_decay = 0.01);
    if (r == ADAMW_F16) tn_set_loss_scale(s, 1e38, 2); /* the first steps are left out */
    if (r == ADAMW_GROWING) tn_freeze(s, "in.*", true);
    for (int step = 0; step < 5; step++) {
        if (r == ADAMW_GROWING && step == 2) tn_freeze(s, "in.*", false);
        tn_step_begin(s);
        tn_tensor *h = tn_from(s, x[8 * tn_rank(s) + step], TN_F32, TN_SHAPE(8, WIDTH));
        tn_tensor *label = tn_from(s, y + 8 * tn_rank(s) + step, TN_I32, TN_SHAPE(8));
        tn_backward(tn_cross_entropy(forward(&n, h), label));
        tn_tensor *norm = r == ADAMW_GROWING ? NULL : tn_clip_grad_norm(opt, 0.3);
        if (step == 0)
            tn_flush(s); /* gradients have their memory, which is nothing that an optimizer keeps */
        if (step == 0) tn_get_stats(s, &before);
        tn_optim_step(opt);
        if (step == 0) tn_get_stats(s, &after);
        for (int k = 0; k < 2; k++)
            if (more[k]) tn_optim_step(more[k]);
        if (norm) v[at++] = (float)tn_item(norm);
        tn_step_end(s);
        if (step == 3) tn_save(s, save);
    }
    if (r == ADAMW) tn_ema_swap(more[0]);
    *state = (after.bytes_now - before.bytes_now) / (size_t)(shard ? tn_rank_share(s, BLOCKS, NULL) : BLOCKS);
    for (int i = 0; i < tn_param_count(s); i++) {
        tn_tensor *p = tn_param_at(s, i);
        tn_read(p, TN_F32, v + at, (size_t)tn_numel(p) * sizeof(*v));
        at += (int)tn_numel(p);
    }
    if (tn_error(s)) say(s, tn_error_text(s));
    return tn_close(s) ? -1 : at;
}

static bool same_files(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int p, q;
    if (!f || !g) return false;
    do {
        p = getc(f);
        q = getc(g);
    } while (p == q && p != EOF);
    fclose(f);
    fclose(g);
    return p == q;
}

/* Sharded and not: the same bits of weights, norms and checkpoints. */
static int sharded(const char *folder)
{
    int wrong = 0;
    char path[2][1000];
    make_data();
    for (rule r = 0; r < RULES; r++) {
        static float v[2][4096];
        size_t state[2];
        int n[2], off = 0;
        for (int k = 0; k < 2; k++) {
            snprintf(path[k], sizeof(path[k]), "%s/%d.%d.safetensors", folder, (int)r, k);
            n[k] = train_sharded(r, k, path[k], v[k], &state[k]);
        }
        for (int i = 0; i < n[0]; i++) off += memcmp(&v[0][i], &v[1][i], sizeof(float)) != 0;
        const bool files = same_files(path[0], path[1]);
        const bool fine = n[0] > 100 && n[0] == n[1] && !off && files;
        printf("rule %d: %d and %d numbers, %d differ, files %s, %zu and %zu bytes a block\n", (int)r, n[0],
               n[1], off, files ? "the same" : "differ", state[0], state[1]);
        wrong += !fine || (r == ADAMW && state[1] != state[0]);
    }
    return wrong;
}

/* A sparse table, each rank's items being its part of the same twelve, of which the first has fewer with a label. */
static int table(const char *file)
{
    tn_session *s = tn_open(.seed = 3, .threads = 1);
    if (!s) return 1;
    make_data();
    tn_embed *e = tn_embedding_new(s, "table", 20, WIDTH, .sparse = TN_SPARSE_ADAM);
    tn_linear *out = tn_linear_new(s, "out", WIDTH, CLASSES);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .shard = true);
    const int64_t n = 12 / tn_ranks(s);
    for (int step = 0; step < 5; step++) {
        int32_t at[12], of[12];
        double own = 0, all = 0;
        for (int i = 0; i < 12; i++) {
            at[i] = (i * 7 + step) % 9;
            of[i] = i && i < 4 ? -100 : y[i];
            all += of[i] >= 0;
            own += of[i] >= 0 && i / n == tn_rank(s);
        }
        tn_weigh_rank(s, own * tn_ranks(s) / all);
        tn_step_begin(s);
        tn_tensor *index = tn_from(s, at + n * tn_rank(s), TN_I32, TN_SHAPE(n));
        tn_tensor *label = tn_from(s, of + n * tn_rank(s), TN_I32, TN_SHAPE(n));
        tn_backward(tn_cross_entropy(tn_linear_forward(out, tn_embedding_forward(e, index)), label));
        tn_embedding_step(e, .lr = 0.05);
        tn_optim_step(opt);
        tn_step_end(s);
    }
    FILE *f = tn_rank(s) ? NULL : fopen(file, "w");
    if (!tn_error(s)) put_parameters(s, f);
    if (f) fclose(f);
    if (tn_error(s)) say(s, tn_error_text(s));
    return tn_close(s) != 0;
}

/* By the launcher, where no session is open yet. */
static int rank_to_be(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    return rank ? atoi(rank) : 0;
}

/* A GPT's steps on the device that TENSOR_DEVICE names, from the first rank's weights, with a bad label in
 * one of them; the last five run as one launch where the device can. */
static int gpt(const char *file, bool shard)
{
    enum { VOCABULARY = 11, DIM = 16, CTX = 8, BATCH = 4, STEPS = 7 };
    tn_session *s = tn_open(.seed = 3 + (uint64_t)rank_to_be(), .threads = 1);
    if (!s) return 1;
    tn_embed *token = tn_embedding_new(s, "token", VOCABULARY, DIM);
    tn_transformer_block *block =
        tn_transformer_block_new(s, "block", DIM, 2, .causal = true, .no_bias = true);
    tn_norm *norm = tn_layer_norm_new(s, "norm", DIM);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 0.01, .weight_decay = 0.1, .shard = shard);
    const int64_t n = BATCH / tn_ranks(s);
    FILE *f = tn_rank(s) ? NULL : fopen(file, "w");
    for (int step = 0; step < STEPS; step++) {
        int32_t at[BATCH * CTX], next[BATCH * CTX];
        for (int i = 0; i < BATCH * CTX; i++) {
            at[i] = (i * i + step) % VOCABULARY;
            next[i] = (i * 3 + step) % VOCABULARY;
        }
        if (step == 1 && tn_rank(s) == 1) next[n * CTX + 3] = -77; /* refused on all */
        tn_step_begin(s);
        tn_tensor *index = tn_from(s, at + n * CTX * tn_rank(s), TN_I32, TN_SHAPE(n, CTX));
        tn_tensor *label = tn_from(s, next + n * CTX * tn_rank(s), TN_I32, TN_SHAPE(n * CTX));
        tn_tensor *h = tn_transformer_block_forward(block, tn_embedding_forward(token, index));
        h = tn_matmul(tn_norm_forward(norm, h), tn_transpose(token->weight, 0, 1));
        tn_tensor *loss = tn_cross_entropy(tn_reshape(h, 2, (int64_t[]){n * CTX, VOCABULARY}), label);
        tn_backward(loss);
        tn_tensor *length = tn_clip_grad_norm(opt, 1);
        tn_optim_step(opt);
        tn_tensor *mean = tn_mean_over_ranks(tn_cast(loss, TN_F64));
        const double both = tn_item(tn_add(mean, tn_cast(length, TN_F64)));
        tn_step_end(s);
        if (step == 1 && tn_ranks(s) > 1) {
            say(s, tn_error_text(s));
            tn_clear_error(s);
        } else if (f)
            fprintf(f, "%.9g\n", both);
    }
    if (!tn_error(s)) put_parameters(s, f);
    if (f) fclose(f);
    if (tn_error(s)) say(s, tn_error_text(s));
    if (!tn_rank(s)) tn_explain(s, stdout);
    return tn_close(s) != 0;
}

/* One rank goes another way in the third step. */
typedef enum way {
    LABEL,
    LABEL_FIRST,
    LABEL_EAGER,
    CALL,
    SILENT,
    GONE,
    SHAPE,
    FULL,
    SKIPPED,
    INFINITE /* in checked mode */
} way;

static int astray(way w)
{
    if (w == INFINITE) setenv("TENSOR_CHECK", "1", 1);
    tn_session *s = tn_open(.seed = 3, .threads = 1, .mode = w == LABEL_EAGER ? TN_EAGER : TN_FUSED);
    unsetenv("TENSOR_CHECK");
    if (!s) return 1;
    const bool odd = tn_rank(s) == 1;
    make_data();
    struct net n;
    make_net(s, &n, w == SHAPE && odd ? 15 : 16, 1, false);
    double before = 0, after = 0, mean = 0;
    for (int step = 1; step <= 5 && !tn_error(s); step++) {
        const bool here = odd && step == 3;
        int32_t label[8];
        memcpy(label, y, sizeof(label));
        if (here && w <= LABEL_EAGER) label[5] = 77;
        if (here && w == SILENT) sleep(4);
        if (here && w == GONE) break;
        if (!tn_rank(s) && step == 3 && w == FULL) tn_save(s, "/proc/there/is/no/such.safetensors");
        if (here && w == SKIPPED) continue;
        before = tn_error(s) ? before
                             : tn_item(tn_find(s, "norm.running_mean")
                                           ? tn_sum(tn_find(s, "norm.running_mean"), TN_ALL, false)
                                           : NULL);
        tn_step_begin(s);
        tn_tensor *h = tn_from(s, x, TN_F32, TN_SHAPE(8, WIDTH));
        if (here && w == CALL)
            h = tn_relu(h);
        else
            h = tn_abs(h);
        h = forward(&n, h);
        const float scale = here ? INFINITY : 1; /* behind the norm, which is over all ranks */
        if (w == INFINITE) h = tn_mul(h, tn_from(s, &scale, TN_F32, TN_SHAPE(1)));
        tn_tensor *loss = tn_cross_entropy(h, tn_from(s, label, TN_I32, TN_SHAPE(8)));
        if (w == LABEL_FIRST) tn_item(loss);
        tn_backward(loss);
        tn_optim_step(n.opt);
        tn_step_end(s);
    }
    if (tn_error(s)) say(s, tn_error_text(s));
    if (w == SILENT) usleep(300000); /* a launcher that ends all with the first one lets the others say it */
    if (w == LABEL ||
        w == INFINITE) { /* refused on all ranks: nothing has moved, and the step can be done again */
        tn_clear_error(s);
        after = tn_item(tn_sum(tn_find(s, "norm.running_mean"), TN_ALL, false));
        tn_step_begin(s);
        tn_tensor *loss = tn_cross_entropy(forward(&n, tn_from(s, x, TN_F32, TN_SHAPE(8, WIDTH))),
                                           tn_from(s, y, TN_I32, TN_SHAPE(8)));
        tn_backward(loss);
        tn_optim_step(n.opt);
        mean = tn_item(tn_mean_over_ranks(loss));
        tn_step_end(s);
        say(s, tn_error(s)                      ? tn_error_text(s)
               : after != before || !(mean > 0) ? "something has moved"
                                                : "goes on");
    }
    tn_close(s);
    return 0;
}

/* A rank with another seed, or with less data. */
static int apart(bool seed)
{
    const bool odd = rank_to_be() == 1;
    tn_session *s = tn_open(.seed = odd && seed ? 4 : 3, .threads = 1);
    if (!s) return 1;
    tn_dataset *d = tn_dataset_from(s, &x[0][0], y, odd && !seed ? ITEMS - 1 : ITEMS, 1, (int64_t[]){WIDTH});
    tn_loader *l = tn_loader_open(d, .batch = 4, .shuffle = true);
    if (tn_error(s)) say(s, tn_error_text(s));
    tn_close(s);
    return l != NULL;
}

static int host_mpi(void)
{
    int level = 0, size = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level)) return 1;
    const int status = means();
    MPI_Comm_size(MPI_COMM_WORLD, &size); /* ours still */
    return MPI_Finalize() || status || size < 2;
}

static int host_single(void)
{
    int level = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &level)) return 1;
    tn_session *s = level < MPI_THREAD_SERIALIZED ? tn_open(.threads = 1) : NULL;
    tn_close(s);
    MPI_Finalize();
    return s != NULL;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    static const struct {
        const char *name;
        way w;
    } ways[] = {{"label", LABEL},
                {"label_first", LABEL_FIRST},
                {"label_eager", LABEL_EAGER},
                {"call", CALL},
                {"silent", SILENT},
                {"gone", GONE},
                {"shape", SHAPE},
                {"full", FULL},
                {"skipped", SKIPPED},
                {"infinite", INFINITE}};
    int known = 0;
    for (int k = 1; k < argc; k++)
        for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
            if (strcmp(argv[k], ways[i].name)) continue;
            drill = argv[k];
            known++;
            if (astray(ways[i].w)) return 1;
        }
    for (int k = 1; k < argc; k++) {
        const char *name = drill = argv[k];
        const bool mean = !strcmp(name, "means"), draw = !strcmp(name, "draws"), seed = !strcmp(name, "seed");
        if (!mean && !draw && !seed && strcmp(name, "data")) continue;
        known++;
        if (mean ? means() : draw ? draws() : apart(seed)) return 1;
    }
    if (known) return 0;
    drill = what;
    if (!strcmp(what, "sharded") && argc > 2) return sharded(argv[2]);
    if (!strcmp(what, "table") && argc > 2) return table(argv[2]);
    if (!strcmp(what, "gpt") && argc > 2) return gpt(argv[2], argc > 3);
    if (!strcmp(what, "host")) return host_mpi();
    if (!strcmp(what, "host_single")) return host_single();
    if (!strcmp(what, "same") && argc == 5) return same(argv[2], argv[3], atof(argv[4]));
    struct training t = {.accumulate = 1};
    if (strcmp(what, "train") || argc < 5) return 2;
    t.batch = atoi(argv[2]);
    t.steps = atoi(argv[3]);
    t.file = argv[4];
    for (int i = 5; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "save")) t.save = argv[i + 1];
        if (!strcmp(argv[i], "resume")) t.resume = argv[i + 1];
        if (!strcmp(argv[i], "kill")) t.kill_at = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "accumulate")) t.accumulate = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "clip")) t.clip = atof(argv[i + 1]);
        if (!strcmp(argv[i], "dropout")) t.dropout = true;
        if (!strcmp(argv[i], "shard")) t.shard = true;
    }
    return train(&t);
}
