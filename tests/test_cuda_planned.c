/* test_cuda_planned.c - a GPU that is not there (TENSOR_DEVICE=cuda:h100): steps are planned for it,
 * explained, predicted and dumped, and nothing is run; which names and files there are; registers and spills
 * of kernels, where NVRTC is installed, as its own log tells them. */
#include <tensor_nn.h>

#include "src/runtime/session.h"
#include "tests/cuda_source.h"

#include "tests/folder.h"
#include "tests/said.h"

static tn_session *open_as(const char *device)
{
    setenv("TENSOR_DEVICE", device, 1);
    tn_session *s = tn_open(.seed = 1, .log = hear);
    unsetenv("TENSOR_DEVICE");
    return s;
}

/* Two training steps of a small network; the text of its plan. */
static void train(tn_session *s, char *text, size_t size)
{
    static const float image[4 * 8 * 8 * 3];
    const int32_t label[4] = {0, 1, 2, 3};
    tn_conv *c = tn_conv2d_new(s, "c", 3, 16, 3, .pad = 1);
    tn_norm *n = tn_batch_norm_new(s, "n", 16);
    tn_linear *l = tn_linear_new(s, "l", 16 * 64, 4);
    tn_optim *o = tn_adamw(s, tn_all_params(s));
    for (int i = 0; i < 3; i++) {
        tn_step_begin(s);
        tn_tensor *x = tn_from(s, image, TN_F32, TN_SHAPE(4, 8, 8, 3));
        tn_tensor *h = tn_relu(tn_norm_forward(n, tn_conv2d_forward(c, x)));
        h = tn_linear_forward(l, tn_flatten(tn_dropout(h, 0.5), 1));
        tn_backward(tn_cross_entropy(h, tn_from(s, label, TN_I32, TN_SHAPE(4))));
        tn_optim_step(o);
        tn_step_end(s);
    }
    snprintf(text, size, "%s", tn_plan_text(s));
}

static void train_again(tn_session *s)
{
    tn_step_begin(s);
    tn_backward(tn_sum(tn_exp(tn_param_at(s, 0)), TN_ALL, false));
    tn_step_end(s);
}

/* The sentence that reports have for an attention of 2,048 rows. */
static bool told_of_attention(const char *device, const char *words)
{
    tn_session *s = open_as(device);
    tn_tensor *q = tn_ones(s, TN_BF16, TN_SHAPE(8, 16, 2048, 128));
    assert_int_equal(tn_flush(s), 0);
    tn_step_begin(s);
    tn_tensor *o = tn_keep(tn_scaled_dot_product_attention(q, q, q, .causal = true));
    tn_step_end(s);
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
    PRINTED(told, f) tn_explain(s, f);
    if (!strstr(told, "q k^T, scale, causal mask, softmax, v in one kernel")) fail_msg("%s", told);
    const bool found = strstr(told, words) != NULL;
    free(told);
    tn_free(o);
    tn_free(q);
    assert_int_equal(tn_close(s), 0);
    return found;
}

TEST(attention_is_by_warpgroups_where_a_gpu_has_them)
{
    assert_true(told_of_attention("cuda:h100", " by wgmma: "));
    assert_false(told_of_attention("cuda:a100", "wgmma"));
    assert_false(told_of_attention("cuda:rtx4090", "wgmma"));
}

TEST(steps_are_planned_for_it_and_run_nothing)
{
    char text[4000], line[300];
    setenv("TENSOR_DUMP", base, 1);
    setenv("TENSOR_DEBUG", "4", 1);
    tn_session *s = open_as("cuda:h100");
    unsetenv("TENSOR_DUMP");
    unsetenv("TENSOR_DEBUG");
    if (!s) fail_msg("%s", said);
    assert_string_equal(tn_device_name(s), "cuda:h100");
    train(s, text, sizeof text);
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
    assert_non_null(strstr(text, "conv2d"));
    assert_non_null(strstr(text, "adamw"));
    snprintf(line, sizeof line, "grep -q __global__ '%s'/*", base);
    assert_int_equal(system(line), 0);
    tn_profile(s, true); /* of what does not run there is no time */
    train_again(s);
    PRINTED(told, f) tn_explain(s, f);
    assert_non_null(strstr(told, "predicted ms\n"));
    assert_null(strstr(told, "GB/s"));
    free(told);

    /* a value is none */
    tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(2));
    assert_true(isnan(tn_item(tn_sum(x, TN_ALL, false))));
    assert_non_null(strstr(tn_error_text(s), "cuda:h100 is planned for and not there"));
    tn_free(x);
    tn_clear_error(s);
    assert_int_equal(tn_close(s), 0);
}

TEST(names_and_files_tell_which)
{
    static const char numbers[] = "# a GPU\ncapability 86\nprocessors 82\nmax_threads 1536\nl1_bytes 102400\n"
                                  "l2_bytes 6291456\nshared_bytes 49152\nshared_most 101376\n";
    static const char *const names[] = {"cuda:a100", "cuda:h200", "CUDA:rtx4090"};
    char text[4000], path[200];
    for (int i = 0; i < 3; i++) {
        tn_session *s = open_as(names[i]);
        if (!s) fail_msg("%s", said);
        train(s, text, sizeof text);
        if (tn_error(s)) fail_msg("%s: %s", names[i], tn_error_text(s));
        assert_int_equal(tn_close(s), 0);
    }
    for (int k = 0; k < 4;
         k++) { /* whole; without its last line; a number out of range; a line that is none */
        FILE *f = fopen(in_base("gpu"), "w");
        fprintf(f, "%.*s%s", (int)strlen(numbers) - (k == 1 ? 19 : 0), numbers,
                k == 2   ? "processors 0\n"
                : k == 3 ? "warps 4\n"
                         : "");
        fclose(f);
        snprintf(path, sizeof path, "cuda:%s", in_base("gpu"));
        forget();
        tn_session *s = open_as(path);
        assert_true((s != NULL) == (k == 0));
        if (s) train(s, text, sizeof text);
        if (s) assert_int_equal(tn_close(s), 0);
        const char *words = k == 1 ? "no line 'shared_most ..'" : k ? "line 9 is no number of a GPU" : "";
        if (!strstr(said, words)) fail_msg("%s", said);
    }
    forget();
    assert_null(open_as("cuda:x"));
    assert_non_null(strstr(said, "'cuda:x' is no GPU"));
    assert_null(open_as("cuda:MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"));
    assert_non_null(strstr(said, "a MIG slice's name: CUDA_VISIBLE_DEVICES takes it"));
    assert_null(open_as("cuda:/no/such/file"));
    assert_non_null(strstr(said, "/no/such/file"));
}

/* ---- what NVRTC makes of kernels ---- */

/* One that spills: more values live at once than there are registers, and one with shared memory. */
static const char spilling[] =
    "extern \"C\" __global__ void __launch_bounds__(1024) spilling(const tn_cuda_args a)\n{\n"
    "    const float *in = (const float *)a.buf[0];\n    float *out = (float *)a.buf[1], v[96];\n"
    "    for (int i = 0; i < 96; i++) v[i] = in[i * 1024 + threadIdx.x];\n"
    "    for (int k = 0; k < 96; k++)\n        for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i + k) % 96];\n"
    "    for (int i = 0; i < 96; i++) out[i * 1024 + threadIdx.x] = v[i];\n}\n";
static const char sharing[] =
    "extern \"C\" __global__ void __launch_bounds__(64) sharing(const tn_cuda_args a)\n{\n"
    "    __shared__ float room[64];\n    room[threadIdx.x] = ((const float *)a.buf[0])[threadIdx.x];\n"
    "    __syncthreads();\n    ((float *)a.buf[1])[threadIdx.x] = room[63 - threadIdx.x];\n}\n";

static void as_nvrtc_says(const nvrtc *n, const char *device, const char *arch)
{
    const char *entry[] = {"spilling", "sharing"}, *text[] = {spilling, sharing};
    tn_session *s = open_as(device);
    if (!s) fail_msg("%s", said);
    for (int again = 0; again < 2; again++) { /* from NVRTC, then from the cache */
        for (int i = 0; i < 2; i++) {
            tn_errbuf err = {""};
            tn_kernel *k = NULL;
            tn_kernel_info info;
            char *log, *whole = cuda_source(text[i], false);
            if (s->device->compile(s->device, &(tn_source){entry[i], text[i]}, 1, &k, &err))
                fail_msg("%s", err.text);
            assert_true(s->device->kernel_info(s->device, k, &info));
            assert_int_equal(nvrtc_compile(n, whole, arch, &log), 0);
            const nvrtc_said its = nvrtc_read(log);
            assert_int_equal(info.registers, its.registers);
            assert_int_equal(info.local_bytes, its.stack_bytes);
            assert_int_equal(info.shared_bytes, i ? 256 : 0);
            assert_int_equal(info.max_threads, i ? 64 : 1024);
            assert_true((its.spilling > 0) == (i == 0) && (info.local_bytes > 0) == (i == 0));
            free(log);
            free(whole);
        }
        const tn_device_stats *t = &s->device->stats;
        assert_true(again ? t->compiled == 0 && t->cache_hits == 2 : t->compiled + t->cache_hits == 2);
        tn_close(s);
        if (!again) s = open_as(device);
    }
}

TEST(registers_and_spills_are_those_that_nvrtc_tells)
{
    nvrtc n;
    if (!nvrtc_open(&n)) skip();
    as_nvrtc_says(&n, "cuda:h100", "sm_90a");
    as_nvrtc_says(&n, "cuda:a100", "sm_80");
}

TEST(what_does_not_compile_is_an_error_there_too)
{
    nvrtc n;
    tn_errbuf err = {""};
    tn_kernel *k = NULL;
    if (!nvrtc_open(&n)) skip();
    tn_session *s = open_as("cuda:h100");
    const tn_source wrong = {"wrong",
                             "extern \"C\" __global__ void wrong(const tn_cuda_args a) { none(a); }\n"};
    assert_int_equal(s->device->compile(s->device, &wrong, 1, &k, &err), TN_E_COMPILE);
    assert_non_null(strstr(err.text, "\"none\" is undefined"));
    assert_int_equal(tn_close(s), 0);
}

TEST(explain_tells_of_them)
{
    nvrtc n;
    char text[4000];
    if (!nvrtc_open(&n)) skip();
    tn_session *s = open_as("cuda:h100");
    train(s, text, sizeof text);
    PRINTED(told, f) tn_explain(s, f);
    if (!strstr(told, " registers, ") || !strstr(told, " 0 bytes spilled")) fail_msg("%s", told);
    free(told);
    assert_int_equal(tn_close(s), 0);

    /* without NVRTC all else is as ever */
    setenv("TENSOR_CUDA_NVRTC", "/no/such/library", 1);
    forget();
    s = open_as("cuda:h100");
    unsetenv("TENSOR_CUDA_NVRTC");
    if (!s || !strstr(said, "kernels are written and not compiled")) fail_msg("%s", said);
    train(s, text, sizeof text);
    PRINTED(untold, g) tn_explain(s, g);
    if (strstr(untold, " registers, ")) fail_msg("%s", untold);
    free(untold);
    assert_int_equal(tn_close(s), 0);
}

RUN_TESTS(make_base, drop_base)
