/* test_export_threads.c - exported files beside their second file, which has threads: the bits of a few steps
 * by any number of them, and without that file; several models at once; what ThreadSanitizer says of it;
 * threads that cannot be had. */
#include <tensor_nn.h>

#include "examples/gpt_model.h"
#include "examples/mnist_net.h"
#include "tests/export_rig.h"

enum { SIDE = 28, BATCH = 8, WINDOWS = 4, CONTEXT = 32, TOKENS = 24 };

/* Prints a digest of all that a model has come to, and its losses: of every one of its models, which threads
 * of the program have trained at once. */
static const char main_text[] =
    "#include \"model.h\"\n"
    "#include <errno.h>\n"
    "#include <pthread.h>\n"
    "#include <stdio.h>\n"
    "#include <stdlib.h>\n"
    "typedef struct run_of { model *m; int threads, steps; float loss; uint64_t digest; } run_of;\n"
    "static INPUT x[COUNT];\n"
    "static int32_t y[LABELS];\n"
    "static void *train(void *arg)\n"
    "{\n"
    "    run_of *r = arg;\n"
    "    model_init(r->m);\n"
    "#ifndef ALONE\n"
    "    if (model_threads(r->m, r->threads)) exit(2);\n"
    "#endif\n"
    "    for (int i = 0; i < r->steps; i++) r->loss = model_step(r->m, x, y);\n"
    "#ifndef ALONE\n"
    "    if (model_threads(r->m, 1)) exit(3);\n"
    "#endif\n"
    "    const size_t bytes = model_save(r->m, NULL, 0);\n"
    "    unsigned char *all = malloc(bytes);\n"
    "    model_save(r->m, all, bytes);\n"
    "    for (size_t i = 0; i < bytes; i++) r->digest = (r->digest ^ all[i]) * 1099511628211u;\n"
    "    free(all);\n"
    "    return NULL;\n"
    "}\n"
    "int main(int argc, char **argv)\n"
    "{\n"
    "    uint32_t random = 7;\n"
    "    const int models = atoi(argv[1]), threads = atoi(argv[2]), steps = atoi(argv[3]);\n"
    "    run_of r[4];\n"
    "    pthread_t t[4];\n"
    "    for (int i = 0; i < COUNT; i++) {\n"
    "        random = random * 1664525u + 1013904223u;\n"
    "        x[i] = (INPUT)((double)(random >> 8) * 0x1p-24 * LIMIT);\n"
    "    }\n"
    "    for (int i = 0; i < LABELS; i++) y[i] = (int32_t)((random = random * 1664525u + 1013904223u) >> 16) "
    "% "
    "10;\n"
    "    for (int i = 0; i < models; i++) {\n"
    "        r[i] = (run_of){malloc(model_bytes()), threads + i, steps, 0, 0};\n"
    "        if (pthread_create(&t[i], NULL, train, &r[i])) return 1;\n"
    "    }\n"
    "    for (int i = 0; i < models; i++) {\n"
    "        pthread_join(t[i], NULL);\n"
    "        printf(\"%.9g %llx\\n\", (double)r[i].loss, (unsigned long long)r[i].digest);\n"
    "        free(r[i].m);\n"
    "    }\n"
    "    (void)argc;\n"
    "    return 0;\n"
    "}\n";

/* Threads cannot be had from the second on; nor are there fewer than one. */
static const char refused_text[] =
    "#include \"model.h\"\n"
    "#include <errno.h>\n"
    "#include <pthread.h>\n"
    "#include <stdio.h>\n"
    "#include <stdlib.h>\n"
    "#undef pthread_create\n"
    "static INPUT x[COUNT];\n"
    "static int32_t y[LABELS];\n"
    "static int left;\n"
    "int few(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);\n"
    "int few(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)\n"
    "{\n"
    "    return left-- > 0 ? pthread_create(t, a, f, arg) : EAGAIN;\n"
    "}\n"
    "int main(void)\n"
    "{\n"
    "    model *m = malloc(model_bytes());\n"
    "    model_init(m);\n"
    "    const float first = model_step(m, x, y);\n"
    "    for (int k = 0; k < 3; k++) {\n"
    "        model_init(m);\n"
    "        left = k;\n"
    "        if (model_threads(m, 4) != EAGAIN) return 1;\n"
    "        const float again = model_step(m, x, y);\n"
    "        if (!(again == first)) return 2;\n"
    "        left = 3;\n"
    "        if (model_threads(m, 4)) return 3;\n"
    "        left = 0;\n"
    "        if (model_threads(m, 3) != EAGAIN) return 4;\n"
    "        left = 2;\n"
    "        if (model_threads(m, 3) || model_threads(m, 0) != EINVAL || model_threads(m, 1025) != EINVAL) "
    "return "
    "5;\n"
    "        y[1] = 1000;\n"
    "        const float none = model_step(m, x, y);\n"
    "        y[1] = 0;\n"
    "        if (none == none) return 6;\n"
    "        if (model_threads(m, 1)) return 7;\n"
    "    }\n"
    "    free(m);\n"
    "    return model_threads(NULL, 2) != EINVAL;\n"
    "}\n";

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_base(name), "w");
    assert_true(f && fputs(text, f) >= 0 && !fclose(f));
}

/* The second step of a network, in model.c. */
static const char *export_cnn(bool threads)
{
    static float image[BATCH * SIDE * SIDE];
    int32_t label[BATCH] = {0};
    tn_session *s = tn_open(.device = TN_CPU, .seed = 7, .threads = 1, .log = quiet);
    struct net net;
    make_net(s, &net, SIDE, 16);
    tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 1e-3);
    for (int i = 0; i < 2; i++) {
        if (i) tn_export_begin(s, in_base("model.c"), .threads = threads);
        tn_step_begin(s);
        tn_tensor *x = tn_from(s, image, TN_F32, TN_SHAPE(BATCH, SIDE, SIDE, 1));
        tn_tensor *y = tn_from(s, label, TN_I32, TN_SHAPE(BATCH));
        tn_export_input(x, "image");
        tn_export_input(y, "label");
        learn(tn_cross_entropy(net_forward(&net, x), y), o);
    }
    if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
    tn_close(s);
    return " -DINPUT=float -DCOUNT=6272 -DLABELS=8 -DLIMIT=1 ";
}

static const char *export_gpt(bool threads)
{
    int32_t token[WINDOWS * CONTEXT] = {0};
    tn_session *s = tn_open(.device = TN_CPU, .seed = 3, .threads = 1, .log = quiet);
    struct gpt g;
    make_gpt(s, &g, &(struct gpt_shape){.layers = 1, .heads = 2, .dim = 64, .ctx = CONTEXT}, TOKENS);
    tn_optim *o = gpt_optimizer(s, 1e-3);
    for (int i = 0; i < 2; i++) {
        if (i) tn_export_begin(s, in_base("model.c"), .threads = threads);
        tn_step_begin(s);
        tn_tensor *x = tn_from(s, token, TN_I32, TN_SHAPE(WINDOWS, CONTEXT));
        tn_tensor *y = tn_from(s, token, TN_I32, TN_SHAPE(WINDOWS * CONTEXT));
        tn_export_input(x, "token");
        tn_export_input(y, "next");
        learn(tn_cross_entropy(tn_reshape(gpt_forward(&g, x), TN_SHAPE(WINDOWS * CONTEXT, TOKENS)), y), o);
    }
    if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
    tn_close(s);
    return " -DINPUT=int32_t -DCOUNT=128 -DLABELS=128 -DLIMIT=24 ";
}

static void any_number_of_threads(const char *sizes)
{
    char line[900];
    write_text("main.c", main_text);
    snprintf(line, sizeof line,
             "cc -std=gnu11 -O1 -DALONE %s model.c main.c -o alone -pthread && ./alone 1 1 3 >one && "
             "cc -std=c99 -O1 -c model.c && "
             "cc -std=c99 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -c model_threads.c && "
             "cc -std=gnu11 -O1 %s model.o model_threads.o main.c -o prog -pthread",
             sizes, sizes);
    assert_int_equal(run(line), 0);
    for (int threads = 1; threads <= 7; threads += 1 + threads / 2) {
        snprintf(line, sizeof line, "./prog 1 %d 3 >more && cmp one more", threads);
        assert_int_equal(run(line), 0);
    }
    assert_int_equal(run("./prog 3 1 3 >more && cat one one one | cmp - more"), 0);
    assert_int_equal(run("grep -q 'run(m, &matmul' model.c && grep -q '_PART, &(const struct' model.c"), 0);
}

TEST(a_convolutional_network_has_the_same_bits_by_any_number_of_threads)
{
    const char *sizes = export_cnn(true);
    any_number_of_threads(sizes);
    assert_int_equal(run("grep -q 'run(m, &conv2d_3x3_weight_grad, &call, room, [1-9]' model.c"), 0);
    needs_nothing();
    if (there_is("clang"))
        assert_int_equal(run("clang -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -c "
                             "model_threads.c"),
                         0);
    assert_int_equal(run("mv model_threads.c other.c"), 0);
    export_gpt(true);
    assert_int_equal(run("! cc -c other.c -o other.o 2>said && grep 'of another export' said"), 0);
}

TEST(a_gpt_has_the_same_bits_by_any_number_of_threads) { any_number_of_threads(export_gpt(true)); }

TEST(without_the_option_there_is_no_second_file_nor_beside_cuda)
{
    assert_int_equal(run("rm -f model_threads.c"), 0);
    export_gpt(false);
    assert_int_equal(run("[ ! -e model_threads.c ] && ! grep -q threads model.h"), 0);
    tn_session *s = tn_open(.device = TN_CPU, .log = quiet);
    assert_int_equal(tn_export_begin(s, in_base("model.cu"), .threads = true), TN_E_ARG);
    tn_close(s);
}

TEST(threads_that_cannot_be_had_are_an_error_and_one_goes_on)
{
    char line[600];
    const char *sizes = export_gpt(true);
    write_text("main.c", refused_text);
    const bool checked = run("echo 'int main(void) { return 0; }' >none.c && cc -fsanitize=address,undefined "
                             "none.c -o none && ./none") == 0;
    snprintf(
        line, sizeof line,
        "cc -std=gnu11 -O1 %s %s -Dpthread_create=few model.c model_threads.c main.c -o prog -pthread && "
        "./prog",
        checked ? "-fsanitize=address,undefined -fno-sanitize-recover" : "", sizes);
    assert_int_equal(run(line), 0);
}

/* As under musl, threads have 128 KiB of stack unless one asks for more; rows that lie there take twice that. */
static const char small_text[] =
    "#define _GNU_SOURCE\n"
    "#include \"model.h\"\n"
    "#include <pthread.h>\n"
    "#include <stdlib.h>\n"
    "int main(void)\n"
    "{\n"
    "    static float x[64 * 16384], y[64];\n"
    "    for (int i = 0; i < 64 * 16384; i++) x[i] = (float)(i % 7) / 7;\n"
    "    pthread_attr_t small;\n"
    "    pthread_attr_init(&small);\n"
    "    if (pthread_attr_setstacksize(&small, 128 << 10) || pthread_setattr_default_np(&small)) return 2;\n"
    "    model *m = malloc(model_bytes());\n"
    "    model_init(m);\n"
    "    if (model_threads(m, 4) || model_forward(m, x, y)) return 3;\n"
    "    for (int i = 0; i < 64; i++)\n"
    "        if (!(y[i] > 0.9f && y[i] < 1.1f)) return 4;\n"
    "    return model_threads(m, 1);\n"
    "}\n";

TEST(threads_have_the_stack_that_kernels_take)
{
    static float v[64 * 16384];
    tn_session *s = tn_open(.device = TN_CPU, .threads = 1, .log = quiet);
    tn_export_begin(s, in_base("model.c"), .threads = true);
    tn_step_begin(s);
    tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(64, 16384)), *sum = x;
    tn_export_input(x, "x");
    for (int i = 0; i < 4; i++) { /* rows that are gone over again */
        tn_tensor *e = i % 2 ? tn_exp(x) : tn_exp(tn_sin(x));
        tn_tensor *part = tn_div(e, tn_sum(tn_mul(sum, e), TN_AXES(1), true));
        sum = i ? tn_mul(sum, part) : part;
    }
    tn_export_output(tn_sum(tn_div(sum, tn_sum(sum, TN_AXES(1), true)), TN_AXES(1), false), "y");
    tn_step_end(s);
    if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
    tn_close(s);
    write_text("main.c", small_text);
    assert_int_equal(run("awk '$2 == \"stack\" { exit $4 < 131072 }' model.c"), 0);
    assert_int_equal(run("cc -std=gnu11 -O1 model.c model_threads.c main.c -o prog -pthread && ./prog"), 0);
    if (there_is("musl-gcc"))
        assert_int_equal(
            run("sed 's/pthread_setattr_default_np(.small)/0/' main.c >bare.c && musl-gcc -std=gnu11 "
                "-O1 model.c model_threads.c bare.c -o prog -static -pthread && ./prog"),
            0);
}

/* Work too small to be shared: nothing is written that is not called. */
TEST(a_small_network_compiles_without_a_warning)
{
    static float v[6];
    tn_session *s = tn_open(.device = TN_CPU, .threads = 1, .log = quiet);
    tn_export_begin(s, in_base("model.c"), .threads = true);
    tn_step_begin(s);
    tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(2, 3));
    tn_export_input(x, "x");
    tn_export_output(tn_sum(tn_exp(x), TN_AXES(1), false), "y");
    tn_step_end(s);
    if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
    tn_close(s);
    assert_int_equal(run("! grep 'run(m, ' model.c && cc -std=c99 -O1 -Wall -Wextra -Wpedantic -Werror -c "
                         "model.c && cc -std=c99 -O1 -Wall -Wextra -Werror -c model_threads.c"),
                     0);
}

TEST(threads_race_for_nothing)
{
    char line[600];
    if (run("echo 'int main(void) { return 0; }' >none.c && cc -fsanitize=thread none.c -o none && ./none"))
        skip();
    for (int k = 0; k < 2; k++) {
        const char *sizes = k ? export_gpt(true) : export_cnn(true);
        write_text("main.c", main_text);
        snprintf(line, sizeof line,
                 "cc -std=gnu11 -O1 -fsanitize=thread %s model.c model_threads.c main.c -o prog -pthread && "
                 "./prog 2 2 2",
                 sizes);
        assert_int_equal(run(line), 0);
    }
}

RUN_TESTS(make_base, drop_base)
