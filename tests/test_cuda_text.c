/* test_cuda_text.c - every CUDA kernel that the fuser writes is taken by NVRTC, for two generations of GPUs,
 * and spills no register.
 *
 * No GPU is needed: a session whose device runs nothing is told that it is one. Programs are recorded as
 * ever; what would be compiled is collected and handed to NVRTC, many kernels at a time. The programs are the
 * fusions of the design at the sizes that matter, and every operator of op_cases.h with its gradient, dense
 * and strided, in each floating dtype. A program must become as many kernels as it does on the CPU, but for
 * what record_all names.
 *
 * Batches are compiled for one GPU and the other in turn. `test_cuda_text softmax` compiles the programs
 * whose name contains "softmax", --all (make test-long) each operator in every dtype and layout, eager too,
 * and for both GPUs, where otherwise they take turns. Where NVRTC is not installed the tests are skipped.
 * CUDA_TEXT=DIR writes what was collected there.
 *
 * Read first: record_all, then compile_batch. */
#include "cuda_text.h"

#include "fusion_cases.h"
#include "op_rows.h"

/* ---- tests ---- */

static const char *Filter;
static bool All;

/* How many the program needs, and how many nodes it was recorded as. */
static uint64_t kernels_of(tn_session *s, program *p, uint64_t *nodes)
{
    tn_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    uint64_t recorded = s->graph.total_nodes;
    tn_get_stats(s, &before);
    result r = run_program(s, record, p, NULL);
    tn_get_stats(s, &after);
    if (r.status) fail_msg("%s: %s", p->name, r.text);
    result_free(&r);
    *nodes = s->graph.total_nodes - recorded;
    return after.kernels + after.library_calls - before.kernels - before.library_calls;
}

static void record_all(program *p, bool eager)
{
    if (Filter && !strstr(p->name, Filter)) return;
    uint64_t nodes[3], c = kernels_of(Cpu, p, &nodes[0]), cuda = kernels_of(Ahead.s[0], p, &nodes[1]);
    /* attention that only the CPU has a kernel for is recorded as other nodes on a GPU */
    bool attention = strstr(p->name, "attention") && nodes[0] != nodes[1];
    uint64_t most = c + (strstr(p->name, "attention") ? 2 : 0); /* its backward: one, on a GPU three */
    /* A product that is a library's there takes nothing along; on a CPU it is our own, and four of bf16 take
     * a conversion. */
    if (strstr(p->name, "affine")) most += strstr(p->name, "bf16") ? 4 : 1;
    if (strstr(p->name, "norm"))
        most++; /* its parameters' sums and the loss's: a CPU finishes both at once */
    if (cuda > most && !attention) fail_msg("%s: %d kernels, but %d on the CPU", p->name, (int)cuda, (int)c);
    if (eager) kernels_of(Ahead.s[1], p, &nodes[2]);
}

TEST(fusions)
{
    if (!nvrtc_open(&Nvrtc)) skip();
    for (int i = 0; i < N_fusions; i++) record_all(&Fusions[i], true);
    check();
}

static void case_in(const op_case *c, tn_dtype d, bool strided, bool eager)
{
    program p = {.c = c, .dtype = d, .strided = strided};
    snprintf(p.name, sizeof p.name, "%s %s%s", c->name, tn_dtype_name(d), strided ? " strided" : "");
    record_all(&p, eager);
}

static bool has_reals(const op_case *c)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (c->in[i].kind == REAL || c->in[i].kind == DISTINCT || c->in[i].kind == FIXED) return true;
    return false;
}

TEST(operators)
{
    if (!nvrtc_open(&Nvrtc)) skip();
    for (int i = 0; i < n_cases; i++) {
        const op_case *c = &cases[i];
        /* NVRTC takes a second for a convolution: test_cuda_kernels and test_cuda_conv have more of them */
        const bool slow = !All && !strncmp(c->name, "conv2d", 6);
        case_in(c, TN_F32, false, All || (!slow && i % 3 == 0));
        if (!has_reals(c) || slow) continue;
        if (All || i % 4 == 1) case_in(c, TN_F16, false, All);
        if (All || i % 4 == 3) case_in(c, TN_BF16, false, All);
        if (!(c->flags & NO_STRIDES) && (All || i % 2 == 0)) case_in(c, TN_F32, true, All);
    }
    check();
}

static const struct {
    const char *name;
    case_fn *f;
} Rows[] = {
#define GRADIENT(first)   strcmp(first, "NOGRAD")
#define TN_ROW(name, ...) {#name, row_##name},
#include "src/core/ops.def"
};

TEST(rows)
{
    if (!nvrtc_open(&Nvrtc)) skip();
    const tn_dtype dtype[] = {TN_F32, TN_F16, TN_BF16, TN_F64};
    for (size_t i = 0; i < sizeof Rows / sizeof *Rows; i++) {
        op_case c = {.name = Rows[i].name, .f = Rows[i].f};
        bool gradient = false;
        for (int op = 0; op < TN_OP_COUNT; op++) {
            const tn_op_info *o = tn_op_get((tn_op)op);
            if (o->kind != TN_KIND_ELTWISE || strcmp(o->name, c.name)) continue;
            for (int k = 0; k < o->arity; k++) {
                c.in[k] = (operand){REAL, o->low, o->high, DIMS(8, 36)};
                if (o->arity == 3 && k == 0) c.in[k] = (operand){TRUTH, 0, 1, DIMS(8, 36)};
                if (!strcmp(o->back[k], "NOGRAD") && c.in[k].kind == REAL) c.in[k].kind = FIXED;
                gradient = gradient || strcmp(o->back[k], "NOGRAD");
            }
        }
        if (!gradient) c.flags = NO_GRADIENT;
        for (int d = 0; d < 4; d++)
            if (All || d == 0 || d == 1 + (int)(i % 3)) case_in(&c, dtype[d], false, All);
        if (All) case_in(&c, TN_F32, true, All);
    }
    check();
}

int main(int argc, char **argv)
{
    Both = All = argc > 1 && !strcmp(argv[1], "--all");
    Filter = argc > 1 && !All ? argv[1] : NULL;
    return run_all_tests(open_sessions, close_sessions);
}
