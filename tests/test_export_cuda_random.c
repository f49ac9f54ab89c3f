/* test_export_cuda_random.c - random programs, operators of all kinds and their gradients, as files of CUDA
 * C++ beside the sessions that wrote them, on the simulated GPU. Their kernels are the same but for numbers
 * of the program, which a session's plan may fold and a file's does not.
 *
 *     test_export_cuda_random [--programs N] [--seed S] [--nvcc N]
 *
 * The first N, two unless said, are compiled by nvcc, too, where it is installed.
 *
 * Read first: is_the_same. */
#include <tensor_export.h>
#include <tensor_nn.h>

#include "tests/export_cuda_rig.h"
#include "tests/random_graphs.h"

#if defined(TN_ASAN)
static int n_programs = 2;
#else
static int n_programs = 6;
#endif
static uint64_t first_seed = 1;
static int n_nvcc = 2;

/* The session's next step beside the file's first, whose random numbers are the same. */
static void is_the_same(const program *p)
{
    setenv("TENSOR_DEVICE", "cuda", 1);
    tn_session *s = tn_open(.seed = 1, .log = log_keep);
    unsetenv("TENSOR_DEVICE");
    tn_tensor *kept[MOST_RESULTS];
    if (!s) fail_msg("%s", logged);
    sim.set("unsupported", 1); /* cuBLASLt does nothing: the session's products are our kernel's, too */
    assert_int_equal(tn_export_begin(s, in_base("model.cu")), 0);
    exported_step(p, s, true, kept);
    if (tn_export_end(s)) fail_msg("seed %llu: %s", (unsigned long long)p->seed, tn_error_text(s));
    const int n = exported_step(p, s, false, kept);
    model m = build("model");
    void *to[MOST_RESULTS + 1] = {NULL};
    for (int i = 0; i < n; i++) to[i] = on_gpu(NULL, (size_t)tn_numel(kept[i]) * sizeof(double) + 16);
    to[n] = m.stream; /* behind the outputs; what follows is not looked at */
    typedef cudaError_t call(void *, ...);
    assert_int_equal(((call *)(void (*)(void))m.forward)(m.m, to[0], to[1], to[2], to[3], to[4], to[5], to[6],
                                                         to[7], to[8], to[9]),
                     0);
    assert_int_equal(m.wait(m.m, m.stream), 0);
    for (int i = 0; i < n; i++) {
        const int64_t count = tn_numel(kept[i]);
        const bool wide = tn_dtype_of(kept[i]) == TN_F64;
        double *its = calloc((size_t)count + 1, sizeof *its);
        if (count) gpu.copy(its, to[i], (size_t)count * (wide ? 8 : 4), cudaMemcpyDeviceToHost);
        compare_exported(p, i, kept[i], its, 1e-5, 1);
        free(its);
        gpu.free(to[i]);
    }
    unload(&m);
    assert_int_equal(tn_close(s), 0);
}

TEST(random_programs_are_the_same_in_their_files)
{
    program p;
    for (int i = 0; i < n_programs; i++) {
        draw_program(&p, first_seed + (uint64_t)i);
        is_the_same(&p);
        if (i < n_nvcc && has_nvcc()) nvcc_says(i % 2 ? "sm_80" : "sm_90a");
    }
}

int main(int argc, char **argv)
{
    OPTION(n_programs, "programs");
    OPTION(first_seed, "seed");
    OPTION(n_nvcc, "nvcc");
    return run_all_tests(open_all, drop_base);
}
