/* exported.c - a training step as one file of C beside the session that wrote it, and beside a program by
 * other hands on the same model: one thread, the same numbers in, in turns;
 * and how much faster the file is by two threads.
 *
 *   build/bench/exported MODEL FOLDER [ROUNDS [PEER.so]]
 *
 *   cnn   the network of examples/mnist_cnn.c, batch 64
 *   gpt   that of examples/gpt.c: 4 layers of width 128, 12 windows of 64
 *   kann  the network of KANN's example of MNIST, batch 64
 *   llmc  a GPT-2 as llm.c has it (biases, gelu by tanh), with the sizes of gpt
 *
 * "by two": the file with its second one (tn_export_options), and two threads.
 *
 * The session takes WARM steps; the one after is written to FOLDER as model.c and compiled there by $CC (cc)
 * with -std=c99 -O3 -march=native. PEER.so is made of bench/exported by its run.sh: it is given the
 * parameters as they are by then, so that all begin with the same loss. A line gives medians in milliseconds
 * and the losses of the first and the last step.
 *
 * Read first: main. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <tensor_nn.h>
#include <tensor_export.h>

#include "bench/clock.h"
#include "examples/gpt_model.h"
#include "examples/mnist_net.h"

enum { WARM = 5, MOST_ROUNDS = 1000, IMAGES = 64, WINDOWS = 12, CONTEXT = 64, VOCABULARY = 64, CLASSES = 10 };

/* What a step is given: an image [n, 28, 28, 1] and labels, or tokens and those that follow. */
typedef struct data {
    float image[IMAGES * 28 * 28], share[IMAGES * CLASSES];
    int32_t label[IMAGES], token[WINDOWS * CONTEXT], next[WINDOWS * CONTEXT];
} data;

typedef struct model {
    struct net cnn;
    struct gpt gpt;
    tn_conv *c1, *c2;
    tn_linear *fc1, *fc2;
    tn_optim *optim;
} model;

static void draw(data *d)
{
    uint32_t r = 1;
#define RANDOM (r = r * 1664525u + 1013904223u)
    for (int i = 0; i < IMAGES * 28 * 28; i++) d->image[i] = (float)(RANDOM >> 8) * 0x1p-24f;
    for (int i = 0; i < IMAGES; i++) d->label[i] = (int32_t)(RANDOM >> 8) % CLASSES;
    for (int i = 0; i < IMAGES * CLASSES; i++) d->share[i] = d->label[i / CLASSES] == i % CLASSES;
    for (int i = 0; i < WINDOWS * CONTEXT; i++) d->token[i] = (int32_t)(RANDOM >> 8) % VOCABULARY;
    for (int i = 0; i < WINDOWS * CONTEXT; i++) d->next[i] = d->token[(i + 1) % (WINDOWS * CONTEXT)];
}

/* ---- the models ---- */

static void make_cnn(tn_session *s, model *m)
{
    make_net(s, &m->cnn, 28, 32);
    m->optim = tn_adamw(s, tn_all_params(s), .lr = 1e-3, .weight_decay = 0.01);
}

static tn_tensor *image_of(tn_session *s, const data *d)
{
    tn_tensor *x = tn_from(s, d->image, TN_F32, TN_SHAPE(IMAGES, 28, 28, 1));
    tn_export_input(x, "x");
    return x;
}

static tn_tensor *step_cnn(tn_session *s, model *m, const data *d)
{
    tn_tensor *x = image_of(s, d), *y = tn_from(s, d->label, TN_I32, TN_SHAPE(IMAGES));
    tn_export_input(y, "y");
    return tn_cross_entropy(net_forward(&m->cnn, x), y);
}

static void make_kann(tn_session *s, model *m)
{
    m->c1 = tn_conv2d_new(s, "c1", 1, 32, 3, .no_bias = true);
    m->c2 = tn_conv2d_new(s, "c2", 32, 32, 3, .no_bias = true);
    m->fc1 = tn_linear_new(s, "fc1", 12 * 12 * 32, 128);
    m->fc2 = tn_linear_new(s, "fc2", 128, CLASSES);
    m->optim = tn_rmsprop(s, tn_all_params(s), .lr = 1e-3, .alpha = 0.9, .eps = 1e-3);
}

static tn_tensor *step_kann(tn_session *s, model *m, const data *d)
{
    tn_tensor *h = tn_relu(tn_conv2d_forward(m->c2, tn_relu(tn_conv2d_forward(m->c1, image_of(s, d)))));
    tn_tensor *y = tn_from(s, d->share, TN_F32, TN_SHAPE(IMAGES, CLASSES));
    tn_export_input(y, "y");
    h = tn_dropout(tn_flatten(tn_max_pool2d(h, 2, .stride = 2), 1), 0.2);
    h = tn_dropout(tn_relu(tn_linear_forward(m->fc1, h)), 0.2);
    return tn_bce_with_logits(tn_linear_forward(m->fc2, h), y);
}

static const struct gpt_shape shape = {.layers = 4, .heads = 4, .dim = 128, .ctx = CONTEXT};

static void make_small_gpt(tn_session *s, model *m)
{
    make_gpt(s, &m->gpt, &shape, VOCABULARY);
    m->optim = gpt_optimizer(s, 1e-3);
}

static void make_llmc(tn_session *s, model *m)
{
    char name[32];
    m->gpt.shape = shape;
    m->gpt.token = tn_embedding_new(s, "token", VOCABULARY, shape.dim, .init_std = 0.02);
    m->gpt.position = tn_embedding_new(s, "position", CONTEXT, shape.dim, .init_std = 0.02);
    for (int i = 0; i < shape.layers; i++) {
        snprintf(name, sizeof name, "block.%d", i);
        m->gpt.block[i] =
            tn_transformer_block_new(s, name, shape.dim, (int)shape.heads, .causal = true, .gelu_tanh = true);
    }
    m->gpt.norm = tn_layer_norm_new(s, "norm", shape.dim);
    m->optim = tn_adamw(s, tn_all_params(s), .lr = 1e-3, .weight_decay = 0.1);
}

static tn_tensor *step_gpt(tn_session *s, model *m, const data *d)
{
    tn_tensor *x = tn_from(s, d->token, TN_I32, TN_SHAPE(WINDOWS, CONTEXT)),
              *y = tn_from(s, d->next, TN_I32, TN_SHAPE(WINDOWS, CONTEXT));
    tn_export_input(x, "x");
    tn_export_input(y, "y");
    return tn_cross_entropy(gpt_forward(&m->gpt, x), y);
}

static const struct kind {
    const char *name;
    void (*make)(tn_session *s, model *m);
    tn_tensor *(*loss)(tn_session *s, model *m, const data *d);
    bool clip;
    size_t x, y; /* members of data */
} kinds[] = {
    {"cnn", make_cnn, step_cnn, false, offsetof(data, image), offsetof(data, label)},
    {"gpt", make_small_gpt, step_gpt, true, offsetof(data, token), offsetof(data, next)},
    {"kann", make_kann, step_kann, false, offsetof(data, image), offsetof(data, share)},
    {"llmc", make_llmc, step_gpt, false, offsetof(data, token), offsetof(data, next)},
};

/* ---- who takes turns ---- */

typedef float step_function(void *m, const void *x, const void *y);

static double session_step(tn_session *s, const struct kind *k, model *m, const data *d)
{
    tn_step_begin(s);
    tn_tensor *loss = k->loss(s, m, d);
    tn_export_output(loss, "loss");
    tn_backward(loss);
    if (k->clip) tn_clip_grad_norm(m->optim, 1.0);
    tn_optim_step(m->optim);
    tn_tensor *kept = tn_keep(loss);
    tn_step_end(s);
    const double v = tn_item(kept);
    tn_free(kept);
    return v;
}

static void *load(const char *path, const char *what)
{
    void *library = dlopen(path, RTLD_NOW), *f = library ? dlsym(library, what) : NULL;
    if (!f) fprintf(stderr, "%s\n", dlerror());
    return f;
}

static void *load_of(const char *path, const char *name, const char *what)
{
    char symbol[80];
    snprintf(symbol, sizeof symbol, "%s_%s", name, what);
    return load(path, symbol);
}

/* NAME.c of the folder, with its second file where there are to be threads. */
static void *load_file(const char *folder, const char *name, int threads, void **memory)
{
    const char *cc = getenv("CC");
    char line[1200];
    snprintf(line, sizeof line,
             "cd '%s' && %s -std=c99 -O3 -march=native -Wall -Wextra -fPIC -pthread -shared %s.c %s%s -o "
             "%s.so",
             folder, cc ? cc : "cc", name, threads ? name : "", threads ? "_threads.c" : "", name);
    if (system(line)) return NULL;
    snprintf(line, sizeof line, "%s%s/%s.so", *folder == '/' ? "" : "./", folder, name);
    void *bytes = load_of(line, name, "bytes"), *init = load_of(line, name, "init"),
         *set = threads ? load_of(line, name, "threads") : NULL;
    if (!bytes || !init || (threads && !set)) return NULL;
    const size_t n = (*(size_t(**)(void)) & bytes)();
    *memory = aligned_alloc(64, (n + 63) / 64 * 64);
    (*(void (**)(void *)) & init)(*memory);
    if (set && (*(int (**)(void *, int)) & set)(*memory, threads)) return NULL;
    return load_of(line, name, "step");
}

/* The peer's function parameter(name, values, count) takes them one by one. */
static void *load_peer(tn_session *s, const char *path)
{
    void *take = load(path, "peer_parameter");
    for (int i = 0; take && i < tn_param_count(s); i++) {
        tn_tensor *p = tn_param_at(s, i);
        const size_t count = (size_t)tn_numel(p);
        float *values = malloc(count * sizeof *values);
        tn_read(p, TN_F32, values, count * sizeof *values);
        (*(void (**)(const char *, const float *, size_t)) & take)(tn_name(p), values, count);
        free(values);
    }
    return take ? load(path, "peer_step") : NULL;
}

enum { SESSION, ONE, TWO, PEER, TURNS };

int main(int argc, char **argv)
{
    static const char *const name[] = {"session", "file", "by two", "peer"};
    static data d;
    static double ms[TURNS][MOST_ROUNDS];
    double first[TURNS] = {0}, last[TURNS] = {0};
    const struct kind *k = NULL;
    for (size_t i = 0; argc > 2 && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, argv[1])) k = &kinds[i];
    int rounds = argc > 3 ? atoi(argv[3]) : 20;
    if (!k || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "use: %s cnn|gpt|kann|llmc FOLDER [ROUNDS [PEER.so]]\n", argv[0]);
        return 2;
    }
    char path[1000], pair[1000];
    snprintf(path, sizeof path, "%s/model.c", argv[2]);
    snprintf(pair, sizeof pair, "%s/pair.c", argv[2]);
    tn_session *s = tn_open(.device = TN_CPU, .seed = 1, .threads = 1);
    model m;
    draw(&d);
    k->make(s, &m);
    for (int i = 0; i < WARM && !tn_error(s); i++) {
        if (i == WARM - 2) tn_export_begin(s, pair, .threads = true);
        if (i == WARM - 1) tn_export_begin(s, path);
        session_step(s, k, &m, &d);
        if (i >= WARM - 2) tn_export_end(s);
    }
    if (!s || tn_error(s)) {
        if (s) fprintf(stderr, "%s\n", tn_error_text(s));
        return 1;
    }
    const char *c = (const char *)&d;
    void *memory[TURNS] = {NULL}, *step[TURNS] = {NULL};
    step[ONE] = load_file(argv[2], "model", 0, &memory[ONE]);
    step[TWO] = load_file(argv[2], "pair", 2, &memory[TWO]);
    if (argc > 4) step[PEER] = load_peer(s, argv[4]);
    if (!step[ONE] || !step[TWO] || (argc > 4 && !step[PEER])) return 1;
    (*(step_function **)&step[TWO])(memory[TWO], c + k->x, c + k->y); /* is one step behind */
    for (int i = 0; i < rounds; i++)
        for (int who = 0; who < TURNS; who++) {
            if (who && !step[who]) continue;
            const double begin = now_ms();
            last[who] = who == SESSION
                            ? session_step(s, k, &m, &d)
                            : (double)(*(step_function **)&step[who])(memory[who], c + k->x, c + k->y);
            ms[who][i] = now_ms() - begin;
            if (i == 0) first[who] = last[who];
        }
    const double own = middle(ms[SESSION], rounds), one = middle(ms[ONE], rounds);
    for (int who = 0; who < TURNS; who++) {
        if (who && !step[who]) continue;
        const double t = middle(ms[who], rounds);
        printf("%-5s %-8s %9.2f ms  %5.2f x the session  %5.2f x as fast as the file  loss %.5f .. %.5f\n",
               k->name, name[who], t, t / own, one / t, first[who], last[who]);
    }
    free(memory[ONE]); /* the other has threads that wait for its next call */
    return tn_close(s);
}
