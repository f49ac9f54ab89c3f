/* test_export_cuda.c - exported files in CUDA C++ (model.cu) beside the session that wrote them: losses of
 * many steps, weights, outputs, two models at once, an index out of range, a checkpoint that a session goes
 * on with; what nvcc says of them; what cannot be exported. The files run on the simulated GPU
 * (tests/cusim/runtime.c), and nvcc compiles them for sm_80 and sm_90 where it is installed.
 *
 * Read first: trains_alike. */
#include <tensor_export.h>
#include <tensor_nn.h>

#include "tests/export_cuda_rig.h"
#include "examples/gpt_model.h"
#include "examples/mnist_net.h"

#include <math.h>

enum {
    BATCH = 4,
    SIDE = 8,
    PIXELS = SIDE * SIDE,
    WINDOWS = 3,
    CONTEXT = 12,
    TOKENS = 11,
    MOST_TOKENS = 12 * 64
};

/* ---- programs ---- */

typedef enum kind { CNN, GPT, MIXED, LONG /* a GPT on so many tokens that they are sorted */ } kind;

typedef struct program {
    kind kind;
    tn_session *s;
    tn_optim *optim;
    struct net net;
    struct gpt gpt;
    tn_linear *a, *b;
    uint32_t random;
    float image[BATCH * PIXELS];
    int windows, context;
    int32_t first[MOST_TOKENS], second[MOST_TOKENS];
} program;

static program make(kind k, const char *device)
{
    program p = {.kind = k == LONG ? GPT : k,
                 .random = 5,
                 .windows = k == LONG ? 12 : WINDOWS,
                 .context = k == LONG ? 64 : CONTEXT};
    setenv("TENSOR_DEVICE", device, 1);
    if (strchr(device, ':'))
        unsetenv("TENSOR_CUDA_NVRTC"); /* the simulator's makes nothing for one that is planned */
    p.s = tn_open(.seed = 7, .log = log_keep);
    unsetenv("TENSOR_DEVICE");
    setenv("TENSOR_CUDA_NVRTC", CUSIM_LIBRARY, 1);
    if (!p.s) fail_msg("%s", logged);
    if (p.kind == GPT) {
        make_gpt(p.s, &p.gpt, &(struct gpt_shape){.layers = 1, .heads = 2, .dim = 64, .ctx = p.context},
                 TOKENS);
        p.optim = gpt_optimizer(p.s, 3e-3);
        return p;
    }
    if (k == CNN) make_net(p.s, &p.net, SIDE, 4);
    if (k == MIXED) {
        p.a = tn_linear_new(p.s, "a", PIXELS, 24);
        p.b = tn_linear_new(p.s, "b", 24, 10);
    }
    p.optim = tn_adamw(p.s, tn_all_params(p.s), .lr = 1e-2, .weight_decay = 0.1);
    return p;
}

static uint32_t draw(program *p) { return (p->random = p->random * 1664525u + 1013904223u) >> 8; }

/* The next batch: images are a label's stripes, and a token is the sum of the two before it. */
static void draw_batch(program *p)
{
    for (int w = 0; p->kind == GPT && w < p->windows; w++) {
        int32_t a = 1, b = (int32_t)draw(p) % TOKENS;
        for (int i = 0; i < p->context; i++) {
            const int32_t sum = (a + b) % TOKENS;
            p->first[w * p->context + i] = b;
            p->second[w * p->context + i] = sum;
            a = b;
            b = sum;
        }
    }
    for (int b = 0; p->kind != GPT && b < BATCH; b++) {
        p->second[b] = (int32_t)draw(p) % 10;
        for (int i = 0; i < PIXELS; i++)
            p->image[b * PIXELS + i] =
                (float)draw(p) * 0x1p-24f + (i / SIDE == p->second[b] % SIDE ? 1.0f : 0.0f);
    }
}

static const void *input(const program *p, size_t *bytes)
{
    *bytes = p->kind == GPT ? sizeof p->first : sizeof p->image;
    return p->kind == GPT ? (const void *)p->first : p->image;
}

static tn_tensor *forward(program *p)
{
    if (p->kind == GPT) {
        tn_tensor *x = tn_from(p->s, p->first, TN_I32, TN_SHAPE(p->windows, p->context));
        tn_export_input(x, "first");
        return tn_reshape(gpt_forward(&p->gpt, x), TN_SHAPE(p->windows * p->context, TOKENS));
    }
    tn_tensor *x = tn_from(p->s, p->image, TN_F32, TN_SHAPE(BATCH, SIDE, SIDE, 1));
    tn_export_input(x, "first");
    if (p->kind == CNN) return net_forward(&p->net, x);
    /* dropout, a product in f16, one in f64 */
    tn_tensor *h = tn_dropout(tn_gelu(tn_linear_forward(p->a, tn_flatten(x, 1))), 0.25);
    tn_tensor *w = tn_cast(tn_transpose(tn_param_at(p->s, 2), 0, 1), TN_F16);
    h = tn_add(tn_cast(tn_matmul(tn_cast(h, TN_F16), w), TN_F32), tn_linear_forward(p->b, h));
    double turn[100] = {0};
    for (int i = 0; i < 10; i++) turn[i * 10 + (i + 3) % 10] = 1.5;
    return tn_cast(tn_matmul(tn_cast(h, TN_F64), tn_from(p->s, turn, TN_F64, TN_SHAPE(10, 10))), TN_F32);
}

/* A training step; its loss. */
static double step(program *p)
{
    const int n = p->kind == GPT ? p->windows * p->context : BATCH;
    tn_step_begin(p->s);
    tn_tensor *x = forward(p), *y = tn_from(p->s, p->second, TN_I32, TN_SHAPE(n));
    tn_export_input(y, "second");
    tn_tensor *loss = tn_cross_entropy(x, y);
    tn_export_output(loss, "loss");
    tn_backward(loss);
    tn_optim_step(p->optim);
    tn_tensor *kept = tn_keep(loss);
    tn_step_end(p->s);
    const double v = tn_item(kept);
    tn_free(kept);
    if (tn_error(p->s)) fail_msg("%s", tn_error_text(p->s));
    return v;
}

/* The same by a file. */
static double its_step(const model *m, const program *p)
{
    size_t bytes;
    const void *from = input(p, &bytes);
    void *a = on_gpu(from, bytes), *b = on_gpu(p->second, sizeof p->second), *out = on_gpu(NULL, 16);
    float loss = NAN;
    assert_int_equal(m->act(m->m, NULL, b, out, m->stream), cudaErrorInvalidValue);
    assert_int_equal(m->act(m->m, (char *)a + 4, b, out, m->stream), cudaErrorMisalignedAddress);
    assert_int_equal(m->act(m->m, a, b, out, m->stream), 0);
    const int status = m->wait(m->m, m->stream);
    if (status < 0) fail_msg("%s", sim.report());
    if (!status) gpu.copy(&loss, out, sizeof loss, cudaMemcpyDeviceToHost);
    gpu.free(a);
    gpu.free(b);
    gpu.free(out);
    return (double)loss;
}

/* The largest distance of a parameter or buffer from the session's, by all their names. */
static double weights_apart(const program *p, const model *m)
{
    double worst = 0;
    const int params = tn_param_count(p->s);
    for (int i = 0; i < params + tn_buffer_count(p->s); i++) {
        tn_tensor *t = i < params ? tn_param_at(p->s, i) : tn_buffer_at(p->s, i - params);
        /* the bias in front of a norm is moved by noise, and so is the mean that it takes away */
        if (!strcmp(tn_name(t), "c1.bias") || !strcmp(tn_name(t), "c2.bias") ||
            strstr(tn_name(t), "running_mean"))
            continue;
        const int64_t count = tn_numel(t);
        float *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
        assert_int_equal(m->get(m->m, tn_name(t), a, count, m->stream), count);
        assert_int_equal(tn_read(t, TN_F32, b, (size_t)count * sizeof *b), 0);
        for (int64_t k = 0; k < count; k++)
            if (!(fabs((double)a[k] - (double)b[k]) <= worst)) worst = fabs((double)a[k] - (double)b[k]);
        free(a);
        free(b);
    }
    return worst;
}

static void export_step(program *p, int before)
{
    for (int i = 0; i < before; i++) {
        draw_batch(p);
        if (i == before - 1) assert_int_equal(tn_export_begin(p->s, in_base("model.cu")), 0);
        step(p);
    }
    if (tn_export_end(p->s)) fail_msg("%s", tn_error_text(p->s));
}

/* ---- on the simulated GPU ---- */

/* The session trains, the file trains on beside it, and so does a second model of it, whose learning rate is
 * 0 and which goes on from the first one's parameters only later. */
static void trains_alike(kind k, int steps)
{
    program p = make(k, "cuda");
    export_step(&p, 3);
    model m = build("model");
    model other = build("model");
    assert_true(weights_apart(&p, &m) == 0);
    assert_int_equal(other.rate(other.m, 0, other.stream), 0);
    double worst = 0, first = 0, last = 0, still = weights_apart(&p, &other);
    assert_true(still == 0);
    for (int i = 0; i < steps; i++) {
        draw_batch(&p);
        if (i < 3) its_step(&other, &p);
        const double own = step(&p), its = its_step(&m, &p);
        if (!(fabs(own - its) <= worst)) worst = fabs(own - its);
        if (i == 0) first = own;
        last = own;
    }
    const double apart = weights_apart(&p, &m), others = weights_apart(&p, &other);
    print_message("%d steps: losses %g apart, weights %g; %g -> %g\n", steps, worst, apart, first, last);
    assert_true(worst < 1e-5 && apart < 1e-3);
    assert_true(last < first);
    assert_true(others > 10 * apart && others > 1e-2); /* which has not moved */

    /* an index out of range moves nothing, nor do the steps behind it until somebody waits */
    const int32_t right = p.second[1];
    p.second[1] = 77;
    assert_true(isnan(its_step(&m, &p)));
    assert_true(weights_apart(&p, &m) == apart);
    p.second[1] = right;
    const double own = step(&p), its = its_step(&m, &p);
    assert_true(fabs(own - its) < 1e-5);
    unload(&m);
    unload(&other);
    assert_int_equal(tn_close(p.s), 0);
}

TEST(a_convolutional_network_trains_on_in_its_file) { trains_alike(CNN, 24); }

TEST(a_gpt_trains_on_in_its_file) { trains_alike(GPT, 24); }

TEST(dropout_and_products_of_other_types_train_on_in_their_file) { trains_alike(MIXED, 24); }

/* One launch of a graph is a step, with its own random numbers and counts: nothing of the host's is in it. */
TEST(a_step_can_be_captured_in_a_graph)
{
    program p = make(MIXED, "cuda");
    export_step(&p, 3);
    model m = build("model");
    tn_cu_graph graph;
    tn_cu_graph_exec exec;
    const tn_cu_stream stream = (tn_cu_stream)m.stream;
    void *a = on_gpu(NULL, sizeof p.image), *b = on_gpu(NULL, sizeof p.second), *out = on_gpu(NULL, 16);
    assert_int_equal(gpu.capture(stream, TN_CU_CAPTURE_THREAD_LOCAL), 0);
    assert_int_equal(m.act(m.m, a, b, out, m.stream), 0);
    assert_int_equal(gpu.captured(stream, &graph), 0);
    assert_int_equal(gpu.instantiate(&exec, graph, 0), 0);
    double before = 0;
    for (int i = 0; i < 8; i++) {
        float its = NAN;
        if (i % 2 == 0) draw_batch(&p); /* twice the same: dropout is not */
        gpu.copy(a, p.image, sizeof p.image, cudaMemcpyHostToDevice);
        gpu.copy(b, p.second, sizeof p.second, cudaMemcpyHostToDevice);
        const double own = step(&p);
        assert_int_equal(gpu.launch(exec, stream), 0);
        assert_int_equal(m.wait(m.m, m.stream), 0);
        gpu.copy(&its, out, sizeof its, cudaMemcpyDeviceToHost);
        if (!(fabs(own - (double)its) < 1e-5)) fail_msg("step %d: %g, the session's %g", i, (double)its, own);
        assert_true(own != before);
        before = own;
    }
    assert_true(weights_apart(&p, &m) < 1e-3);
    gpu.drop(exec);
    gpu.drop_graph(graph);
    gpu.free(a);
    gpu.free(b);
    gpu.free(out);
    unload(&m);
    assert_int_equal(tn_close(p.s), 0);
}

/* A long index is sorted, by two digits here: the kernels' text stands at the end, for all of them. */
TEST_ON(an_index_that_is_sorted, tn_open(.device = TN_CUDA, .seed = 1, .log = log_keep))
{
    enum { N = 600, ENTRIES = 300 };
    int32_t index[N];
    assert_non_null(s);
    tn_embed *e = tn_embedding_new(s, "e", ENTRIES, 8);
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.1);
    for (int i = 0; i < N; i++) index[i] = i * 7 % ENTRIES;
    for (int i = 0; i < 3; i++) {
        if (i == 2) assert_int_equal(tn_export_begin(s, in_base("model.cu")), 0);
        tn_step_begin(s);
        tn_backward(tn_mean(tn_square(tn_embedding_forward(e, tn_from(s, index, TN_I32, TN_SHAPE(N)))),
                            TN_ALL, false));
        tn_optim_step(o);
        tn_step_end(s);
    }
    if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
    char *text = text_of(in_base("model.cu"));
    assert_non_null(strstr(text, "index_add_sort_on_8_finish"));
    free(text);
    model m = build("model");
    unload(&m);
}

/* ---- back into a session ---- */

/* A session trains, its file trains on, and a new session goes on with what that has come to: as one that
 * never left. */
static void comes_back(kind k)
{
    enum { BEFORE = 3, AWAY = 6, AFTER = 4 };
    program stays = make(k, "cuda"), leaves = make(k, "cuda");
    export_step(&stays, BEFORE); /* the same program and numbers */
    export_step(&leaves, BEFORE);
    assert_int_equal(tn_close(leaves.s), 0);
    model m = build("model");
    for (int i = 0; i < AWAY; i++) {
        draw_batch(&stays);
        its_step(&m, &stays);
        step(&stays);
    }
    const size_t bytes = m.save(m.m, NULL, 0, m.stream);
    char *file = calloc(bytes + 1, 1);
    assert_int_equal(m.save(m.m, file, bytes / 2, m.stream), bytes);
    assert_true(file[bytes / 2] == 0 && file[bytes / 2 + 1] == 0);
    assert_int_equal(m.save(m.m, file, bytes, m.stream), bytes);
    spill(in_base("back.safetensors"), file, bytes);
    free(file);
    unload(&m);
    program back = make(k, "cuda");
    if (tn_load(back.s, in_base("back.safetensors"))) fail_msg("%s", tn_error_text(back.s));
    for (int i = 0; i < AFTER; i++) {
        draw_batch(&stays);
        memcpy(back.image, stays.image, sizeof back.image);
        memcpy(back.first, stays.first, sizeof back.first);
        memcpy(back.second, stays.second, sizeof back.second);
        const double own = step(&stays), its = step(&back);
        if (!(fabs(own - its) < 1e-5)) fail_msg("step %d: the loss is %g, of who stayed %g", i, its, own);
    }
    assert_int_equal(tn_rng_draw(back.s), tn_rng_draw(stays.s));
    assert_int_equal(tn_close(stays.s), 0);
    assert_int_equal(tn_close(back.s), 0);
}

TEST(what_a_file_has_learned_comes_back_into_a_session)
{
    comes_back(MIXED);
    comes_back(GPT);
}

/* ---- forward passes ---- */

static void infers_alike(kind k)
{
    enum { LOGITS = WINDOWS * CONTEXT * TOKENS };
    program p = make(k, "cuda");
    float own[LOGITS], its[LOGITS];
    tn_train(p.s, false);
    draw_batch(&p);
    assert_int_equal(tn_export_begin(p.s, in_base("model.cu")), 0);
    tn_step_begin(p.s);
    tn_tensor *y = forward(&p), *kept = tn_keep(y);
    const size_t n = (size_t)tn_numel(y) * sizeof(float);
    tn_export_output(y, "logits");
    tn_step_end(p.s);
    if (tn_export_end(p.s)) fail_msg("%s", tn_error_text(p.s));
    assert_int_equal(tn_read(kept, TN_F32, own, n), 0);
    model m = build("model");
    size_t bytes;
    const void *from = input(&p, &bytes);
    void *a = on_gpu(from, bytes), *out = on_gpu(NULL, n);
    for (int twice = 0; twice < 2; twice++) {
        memset(its, 0xff, sizeof its);
        assert_int_equal(m.forward(m.m, a, out, m.stream), 0);
        assert_int_equal(m.wait(m.m, m.stream), 0);
        gpu.copy(its, out, n, cudaMemcpyDeviceToHost);
        for (size_t i = 0; i < n / sizeof(float); i++) assert_true(fabsf(own[i] - its[i]) < 1e-5f);
    }
    gpu.free(a);
    gpu.free(out);
    unload(&m);
    assert_int_equal(tn_close(p.s), 0);
}

TEST(forward_passes_are_the_sessions)
{
    infers_alike(CNN);
    infers_alike(GPT);
    infers_alike(MIXED);
}

/* ---- nvcc ---- */

/* The program's training step, or its forward pass, planned for a GPU that is not there, and compiled. */
static void compiles(kind k, const char *device, const char *arch, bool trains)
{
    char line[600];
    program p = make(k, device);
    if (!trains) tn_train(p.s, false);
    assert_int_equal(tn_export_begin(p.s, in_base("model.cu")), 0);
    tn_step_begin(p.s);
    tn_tensor *y = forward(&p);
    if (trains) {
        tn_tensor *label =
            tn_from(p.s, p.second, TN_I32, TN_SHAPE(p.kind == GPT ? p.windows * p.context : BATCH));
        tn_export_input(label, "second");
        y = tn_cross_entropy(y, label);
        tn_backward(y);
        tn_optim_step(p.optim);
    }
    tn_export_output(y, "y");
    tn_step_end(p.s);
    if (tn_export_end(p.s)) fail_msg("%s", tn_error_text(p.s));
    assert_int_equal(tn_close(p.s), 0);
    const nvrtc_said its = nvcc_says(arch);
    print_message("%s: %ld kernels, at most %ld registers (%s)\n", arch, its.kernels, its.registers,
                  its.most);
    assert_true(its.kernels > 3 && its.spilling == 0);
    snprintf(line, sizeof line,
             "cd '%s' && echo '#include \"model.h\"' >h.c && cc -Wall -Wextra -Werror -I $(dirname "
             "$(dirname $(readlink -f $(command -v nvcc))))/include -c h.c -o h.o",
             base);
    assert_int_equal(system(line), 0);
}

TEST(nvcc_takes_them_without_a_warning)
{
    if (!has_nvcc()) skip();
    compiles(CNN, "cuda:h100", "sm_90a", true);
    compiles(GPT, "cuda:a100", "sm_80", true);
    compiles(CNN, "cuda:a100", "sm_80", false);
    compiles(GPT, "cuda:h100", "sm_90a", false);
    compiles(MIXED, "cuda:h100", "sm_90a", true);
    compiles(LONG, "cuda:h100", "sm_90a", true);
}

/* ---- errors ---- */

static void refused(program *p, const char *words)
{
    if (!strstr(tn_error_text(p->s), words)) fail_msg("'%s' is not in '%s'", words, tn_error_text(p->s));
    tn_clear_error(p->s);
}

TEST(what_cannot_be_exported_is_an_error_that_says_why)
{
    program p = make(MIXED, "cpu");
    assert_int_equal(tn_export_begin(p.s, in_base("model.cu")), TN_E_STATE);
    refused(&p, "model.cu' is for a GPU, and the session on 'cpu'");
    assert_int_equal(tn_export_begin(p.s, in_base("model.cuh")), TN_E_ARG);
    refused(&p, "NAME.c or NAME.cu");
    assert_int_equal(tn_export_input(NULL, "x"), TN_E_NULL);
    assert_int_equal(tn_export_output(NULL, "x"), TN_E_NULL);
    assert_int_equal(tn_close(p.s), 0);

    p = make(MIXED, "cuda:h100");
    assert_int_equal(tn_export_begin(p.s, in_base("model.cu"), .weights = TN_EXPORT_INT8), 0);
    tn_train(p.s, false);
    tn_step_begin(p.s);
    tn_export_output(forward(&p), "y");
    tn_step_end(p.s);
    assert_int_equal(tn_export_end(p.s), TN_E_UNSUPPORTED);
    refused(&p, "weights in int8 are of a NAME.c");

    /* what a GPU that is not there would have computed */
    tn_tensor *unknown = tn_keep(tn_exp(tn_ones(p.s, TN_F32, TN_SHAPE(10))));
    assert_int_equal(tn_export_begin(p.s, in_base("model.cu")), 0);
    tn_step_begin(p.s);
    tn_export_output(tn_add(forward(&p), unknown), "y");
    tn_step_end(p.s);
    assert_int_equal(tn_export_end(p.s), TN_E_UNSUPPORTED);
    refused(&p, "were computed by a GPU that is not there");
    tn_free(unknown);

    static const char *const own[] = {"m", "stream", "no name"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tn_export_begin(p.s, in_base("model.cu")), 0);
        tn_step_begin(p.s);
        assert_int_equal(tn_export_output(forward(&p), own[i]), TN_E_ARG);
        tn_step_end(p.s);
        assert_int_equal(tn_export_end(p.s), TN_E_ARG);
        refused(&p, own[i]);
    }
    assert_int_equal(tn_close(p.s), 0);
}

TEST(a_network_trains_on_without_tensor_cores)
{
    sim.set("capability", 70); /* whose convolutions are products of windows */
    trains_alike(CNN, 24);
    sim.set("capability", 90);
}

RUN_TESTS(open_all, drop_base)
