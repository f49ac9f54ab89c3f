/* test_cuda_attention.c - the attention kernels for tensor cores (kernels/attention*.cu) on the simulated
 * GPU, forward and backward, against f64 with a bound of the error for each element (cuda_attention.h).
 *
 * Read first: right, then attentions.
 */
#include "tests/cuda_attention_cases.h"

#include "src/core/sanitized.h"

static bool full; /* the first argument is `full`: many more; the next, or the first, filters tests */

static tn_kernel *compile(tn_device *dev, const config *c, const problem *p, fu_flash_pass pass,
                          const edit *planted, struct fu_flash_tile *tile)
{
    tn_errbuf err = {""};
    tn_kernel *k = NULL;
    char name[64], *text = text_of(c, p, pass, &dev->target, planted, tile, name);
    if (dev->compile(dev, &(tn_source){name, text}, 1, &k, &err)) fail_msg("%s", err.text);
    free(text);
    return k;
}

static void upload(tn_device *dev, operand *o)
{
    const size_t bytes = (size_t)o->n * tn_dtype_size(o->dtype);
    o->device = dev->alloc(dev, bytes);
    assert_non_null(o->device);
    assert_int_equal(dev->upload(dev, o->device, o->host, bytes), 0);
}

static char *view(const operand *o)
{
    return (char *)o->device + o->offset * (int64_t)tn_dtype_size(o->dtype);
}

/* What one run of all passes, or the first `passes` of them, leaves in the operands and in lse. 0, or the
 * status of what failed. */
static int launch_all(tn_device *dev, const config *c, problem *p, tn_kernel *k[FU_FLASH_PASSES],
                      const struct fu_flash_tile tile[FU_FLASH_PASSES], int passes, float *lse)
{
    const size_t rows = (size_t)c->batch * (size_t)c->heads * (size_t)c->tq * sizeof(float);
    operand *all[] = {&p->q, &p->k, &p->v, &p->mask, &p->o, &p->go, &p->dq, &p->dk, &p->dv};
    enum { ALL = sizeof all / sizeof *all };
    for (int i = 0; i < ALL; i++)
        if (all[i]->host) upload(dev, all[i]);
    void *stats = dev->alloc(dev, rows), *delta = dev->alloc(dev, rows);
    void *parts = dev->alloc(dev, (size_t)tile[FU_FLASH_FORWARD].parts * sizeof(float) + 1);
    const bool whole = passes > 1 && tile[FU_FLASH_DKV].wgmma; /* it gives dq too */
    const int64_t counts = whole ? tile[FU_FLASH_DKV].counts : 0;
    void *sums = dev->alloc(dev, (size_t)(whole ? tile[FU_FLASH_DKV].parts : 0) * sizeof(float) + 1);
    assert_true(parts && sums);
    assert_non_null(stats);
    assert_non_null(delta);
    assert_int_equal(dev->upload(dev, stats, lse, rows), 0);
    void *buf[12];
    int n = 0;
    buf[n++] = view(&p->q), buf[n++] = view(&p->k), buf[n++] = view(&p->v);
    if (c->mask) buf[n++] = view(&p->mask);
    buf[n++] = view(&p->o), buf[n++] = stats;
    const int forward = n;
    buf[n++] = view(&p->go), buf[n++] = delta;
    buf[n++] = view(&p->dq), buf[n++] = view(&p->dk), buf[n++] = view(&p->dv);
    int64_t dim[33] = {c->batch, c->heads, c->tq, c->tk};
    const operand *strided[] = {&p->q, &p->k, &p->v, &p->mask, &p->o, &p->go, &p->dq, &p->dk, &p->dv};
    static const int first[] = {4, 7, 10, 13, 17, 20, 23, 26, 29};
    for (int i = 0; i < ALL; i++)
        for (int a = 0; a < (strided[i] == &p->mask ? 4 : 3); a++) dim[first[i] + a] = strided[i]->stride[a];
    tn_word *scalar = dev->alloc(dev, 2 * sizeof *scalar), words[2] = {{.u = p->seed}, {.u = p->draw}};
    assert_int_equal(dev->upload(dev, scalar, words, sizeof words), 0);
    tn_fault fault = {0};
    int status = 0;
    for (int pass = 0; pass < passes - whole && !status; pass++) {
        tn_errbuf err = {""};
        const bool split = tile[pass].splits > 1;
        void *own[12];
        memcpy(own, buf, sizeof own);
        if (split) own[forward] = parts;
        if (whole && pass) own[pass == FU_FLASH_DELTA ? forward + 2 : n] = sums;
        dim[32] = pass ? counts : tile[pass].splits;
        const tn_args a = {.buf = own,
                           .dim = dim,
                           .scalar = scalar,
                           .fault = &fault,
                           .n_buf = pass ? n + whole : forward + split,
                           .n_dim = pass || split ? 33 : 20};
        const tn_grid g = {
            .n = tile[pass].blocks, .chunk = 1, .threads = tile[pass].threads, .shared = tile[pass].shared};
        status = dev->launch(dev, k[pass], &a, &g, &err);
    }
    if (!status) status = dev->sync(dev);
    for (int i = 0; i < ALL && !status; i++)
        if (all[i]->host)
            status = dev->download(dev, all[i]->host, all[i]->device,
                                   (size_t)all[i]->n * tn_dtype_size(all[i]->dtype));
    if (!status) status = dev->download(dev, lse, stats, rows);
    for (int i = 0; i < ALL; i++)
        if (all[i]->host) dev->free(dev, all[i]->device);
    dev->free(dev, stats);
    dev->free(dev, delta);
    dev->free(dev, parts);
    dev->free(dev, sums);
    dev->free(dev, scalar);
    return status;
}

/* Runs a problem and compares all that comes of it; false: `complaint` says what is wrong. */
static bool right(tn_device *dev, const config *c, const edit *planted, fu_flash_pass where)
{
    problem p;
    oracle r;
    struct fu_flash_tile tile[FU_FLASH_PASSES];
    tn_kernel *k[FU_FLASH_PASSES];
    problem_open(c, &p);
    for (int pass = 0; pass < FU_FLASH_PASSES; pass++)
        k[pass] = compile(dev, c, &p, (fu_flash_pass)pass, pass == (int)where ? planted : NULL, &tile[pass]);
    float *lse = calloc((size_t)c->batch * (size_t)c->heads * (size_t)c->tq, sizeof *lse);
    assert_non_null(lse);
    bool ok = !launch_all(dev, c, &p, k, tile, FU_FLASH_PASSES, lse);
    if (!ok) snprintf(complaint, sizeof complaint, "%s", sim.report());
    if (ok) {
        oracle_open(c, &p, lse, &r);
        ok = compare(c, "o", &r.o, &p.o, NULL) && compare(c, "lse", &r.lse, NULL, lse) &&
             compare(c, "dq", &r.dq, &p.dq, NULL) && compare(c, "dk", &r.dk, &p.dk, NULL) &&
             compare(c, "dv", &r.dv, &p.dv, NULL);
        oracle_close(&r);
    }
    problem_close(&p);
    free(lse);
    return ok;
}

static bool is_parted(const tn_device *dev, const config *c)
{
    const fu_flash_desc d = desc_of(c, FU_FLASH_FORWARD);
    struct fu_flash_tile t;
    return fu_flash_tile(&d, &dev->target, &t) && t.splits > 1;
}

static void run_config(tn_device *dev, const config *c)
{
    if (!right(dev, c, NULL, FU_FLASH_PASSES)) fail_msg("%s", complaint);
}

/* ---- tests ---- */

static int setup(void **state)
{
    rig_open(state);
    *state = device_open();
    return 0;
}

/* With the shared memory of a GPU that has warpgroups' products. */
static int setup_largest(void **state)
{
    rig_open(state);
    sim.set("shared-most", 227 << 10);
    *state = device_open();
    return 0;
}

static int teardown(void **state)
{
    device_close(*state);
    return 0;
}

/* All texts are compiled first, many to a program. */
static void compile_all(tn_device *dev, const config *c, int n)
{
    const int most = n * FU_FLASH_PASSES;
    tn_source *src = calloc((size_t)most, sizeof *src);
    tn_kernel **k = calloc((size_t)most, sizeof *k);
    char(*name)[64] = calloc((size_t)most, sizeof *name);
    tn_errbuf err = {""};
    assert_true(src && k && name);
    for (int i = 0; i < most; i++) {
        struct fu_flash_tile tile;
        const config *one = &c[i / FU_FLASH_PASSES];
        problem p = {.scale = one->scale != 0 ? one->scale : 1 / sqrt(one->head), .drop = DROP_P};
        src[i].entry = name[i];
        src[i].text =
            text_of(one, &p, (fu_flash_pass)(i % FU_FLASH_PASSES), &dev->target, NULL, &tile, name[i]);
    }
    if (dev->compile(dev, src, most, k, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < most; i++) free((char *)(uintptr_t)src[i].text);
    free(src);
    free(k);
    free(name);
}

TEST_IN(test_attentions, setup, teardown)
{
    tn_device *dev = *state;
    config attentions[80];
    int n = problems(attentions, 80);
    assert_true(n >= 73);
#if defined(TN_ASAN) /* sanitizes what surrounds the kernels, and that is the same for all */
    n = 16;
#endif
    compile_all(dev, attentions, n);
    int parted = 0;
    for (int i = 0; i < n; i++) {
        run_config(dev, &attentions[i]);
        parted += is_parted(dev, &attentions[i]);
    }
    assert_in_range(parted, 2, n / 2);
    print_message(
        "%d problems, %d with their keys in parts, %d programs; the largest error is %.2f of its bound\n", n,
        parted, (int)counters().compiler_runs, worst_share);
}

/* All that have a forward by warpgroups, the faster or not; and longer ones, whose ring of tiles comes round,
 * of which the last tile of keys, or of queries, is one short, whole, one long. */
TEST_IN(test_warpgroups, setup_largest, teardown)
{
    tn_device *dev = *state;
    static const config longer[] = {
        {H, X, 64, X, NONE, X, 1, 1, 192, 640, .layout = HEADS},
        {B, X, 64, CAUSAL, NONE, X, 1, 1, 385, 385, .layout = PACKED},
        {H, X, 64, CAUSAL, NONE, X, 1, 1, 191, 700, .layout = ODD, .scale = -.2},
        {B, X, 128, X, NONE, X, 1, 1, 129, 511, .layout = HEADS},
        {H, X, 128, CAUSAL, NONE, X, 1, 1, 513, 513, .layout = PACKED},
        {B, X, 128, CAUSAL, NONE, DROP, 1, 1, 130, 260, .layout = HEADS},
        {H, X, 64, X, ADDED, DROP, 1, 1, 193, 257, .layout = HEADS, .extent = KEYS, .pattern = LATE},
        {B, X, 128, CAUSAL, ADDED, X, 1, 1, 257, 257, .layout = HEADS, .pattern = SOME},
        {H, X, 128, X, BOOL, X, 1, 1, 65, 385, .layout = HEADS, .pattern = BLIND},
    };
    enum { LONGER = sizeof longer / sizeof *longer, ROOM = 80 + LONGER };
    config all[ROOM];
    int n = problems(all, 80), kept = 0;
    memcpy(all + n, longer, sizeof longer);
    n += LONGER;
    warpgroups = true;
    for (int i = 0; i < n; i++) {
        const fu_flash_desc d = desc_of(&all[i], FU_FLASH_FORWARD);
        struct fu_flash_tile tile;
        if (fu_flash_warpgroups(&d, &dev->target, &tile)) all[kept++] = all[i];
    }
    assert_in_range(kept, 35, n);
#if defined(TN_ASAN)
    kept = 8;
#endif
    compile_all(dev, all, kept);
    for (int i = 0; i < kept; i++) run_config(dev, &all[i]);
    warpgroups = false;
    print_message("%d problems; the largest error is %.2f of its bound\n", kept, worst_share);
}

/* `full`: the product of dtypes, heads and flags, and shapes from a generator. */
static void test_full(void **state)
{
    tn_device *dev = *state;
    static const struct {
        tn_dtype dtype;
        bool tf32;
    } kind[] = {{H, X}, {B, X}, {F, X}, {T}};
    int problems = 0;
    worst_share = 0;
    for (int k = 0; k < 4; k++)
        for (int head = 32; head <= 128; head += 32)
            for (int flags = 0; flags < 12; flags++) {
                config c[3];
                for (int i = 0; i < 3; i++) {
                    dice.state = (uint64_t)(((k * 128 + head) * 12 + flags) * 3 + i);
                    c[i] = (config){kind[k].dtype,
                                    kind[k].tf32,
                                    head,
                                    flags & 1,
                                    (fu_flash_mask)(flags / 4),
                                    flags & 2,
                                    2,
                                    2,
                                    .scale = i == 2 ? -.1 : 0};
                    c[i].tq = 1 + (int)(uniform() * 160);
                    c[i].tk = i == 0 ? c[i].tq : 1 + (int)(uniform() * 160);
                    c[i].layout = i == 0 ? PACKED : i == 1 ? HEADS : ODD;
                    c[i].extent = (extent)(uniform() * 4);
                    c[i].pattern = uniform() < .5 || c[i].dropout || c[i].extent == COLUMN ? SOME : LATE;
                }
                compile_all(dev, c, 3);
                for (int i = 0; i < 3; i++, problems++) run_config(dev, &c[i]);
            }
    print_message("%d problems; the largest error is %.2f of its bound\n", problems, worst_share);
}

/* What the simulator, or the comparison, must find. */
#define WAIT "tn_copy_wait<STAGES - 2>();\n        "
#define BARRIER                                                                                              \
    "__syncthreads(); /* the tile has come for all, and all are done with the one before */\n        "
#define FILL                                                                                                 \
    "const int next = t + STAGES - 1, place = slot == 0 ? STAGES - 1 : slot - 1;\n"                          \
    "        if (next < tiles) copy_stage"

#define OPEN "tn_wgmma_open();\n        "
#define COME "    tn_mbarrier_wait(&r.full[at.slot], at.parity);\n"
#define PUT  "put(slopes + half * ROWS * COLS, ds);\n"

CUDA_TEST(test_planted)
{
    static const struct {
        fu_flash_pass pass;
        edit edit;
        const char *report; /* what it says; NULL: the numbers are wrong */
        int of;             /* 1: few queries and many keys, 2: by warpgroups, 3: and backward */
    } planted[] = {
        {FU_FLASH_FORWARD, {"tn_copy_wait<STAGES - 2>();", ""}, "no wait for it", X},
        {FU_FLASH_DKV, {WAIT BARRIER FILL, BARRIER FILL}, "no wait for it", X},
        {FU_FLASH_FORWARD, {BARRIER, ""}, "race", X},
        {FU_FLASH_DQ, {WAIT BARRIER FILL, WAIT FILL}, "race", X},
        {FU_FLASH_FORWARD, {"fmaf(sum[m][r], fit[m][r], all)", "sum[m][r] + all"}, NULL, X},
        {FU_FLASH_FORWARD, {"least(h.tk, i + 1)", "least(h.tk, i + 2)"}, NULL, X},
        {FU_FLASH_DKV, {"p * (dp - delta)", "p * dp"}, NULL, X},
        {FU_FLASH_DQ,
         {"TURNED ? tq : CAUSAL ? least(tk, row + ROWS)", "TURNED ? tq : CAUSAL ? least(tk, row)"},
         NULL,
         X},
        {FU_FLASH_FORWARD, {"part[HEAD + 1] * fit", "part[HEAD + 1]"}, NULL, 1},
        {FU_FLASH_FORWARD, {"begin = split * each * COLS", "begin = split * (each - 1) * COLS"}, NULL, 1},
        {FU_FLASH_FORWARD, {"s < splits; s++) {", "s + 1 < splits; s++) {"}, NULL, 1},
        {FU_FLASH_FORWARD, {"8 ^ row % 8", "8 ^ row % 4"}, NULL, 2},
        {FU_FLASH_FORWARD, {COME "    tn_wgmma_show();", "    tn_wgmma_show();"}, "no wait for it", 2},
        {FU_FLASH_FORWARD, {COME "    tn_wgmma_show();", COME}, "no fence.proxy.async", 2},
        {FU_FLASH_FORWARD,
         {"    tn_mbarrier_wait(&r.empty[at.slot], at.parity ^ 1);\n", ""},
         "cp.async is to fill",
         2},
        {FU_FLASH_FORWARD,
         {"        release(rings[0], k);\n        weights", "        weights"},
         "forever",
         2},
        {FU_FLASH_FORWARD,
         {"if (t + 1 < b.tiles || other) tn_barrier_arrive", "if (0) tn_barrier_arrive"},
         "forever",
         2},
        {FU_FLASH_FORWARD,
         {OPEN "ask_scores(r.s[0], own, tn_panel_at", "ask_scores(r.s[0], own, tn_panel_at"},
         "without a wgmma.fence",
         2},
        {FU_FLASH_FORWARD, {"tn_wgmma_wait<1>();", ""}, "race", 2},
        {FU_FLASH_FORWARD, {"tn_wgmma_wait<1>();", "tn_wgmma_wait<2>();"}, "race", 2},
        {FU_FLASH_FORWARD, {"        refit(r.acc, r.fit);\n", ""}, NULL, 2},
        {FU_FLASH_FORWARD, {"b.begin + t * COLS, r.top", "b.begin + (t + 1) * COLS, r.top"}, NULL, 2},
        {FU_FLASH_FORWARD, {"least(h.tk, i + 1)", "least(h.tk, i + 2)"}, NULL, 2},
        {FU_FLASH_FORWARD, {"tn_panel(values, NEXT)", "tn_panel(values, NEXT / 2)"}, NULL, 2},
        {FU_FLASH_DKV, {"tn_mbarrier_wait(&b.put[half], t / 2 % 2);", ""}, "race", 3},
        {FU_FLASH_DKV, {PUT "        tn_wgmma_show();\n", PUT}, "no fence.proxy.async", 3},
        {FU_FLASH_DKV, {"tn_mbarrier_wait(&b.given[group], t % 2);", ""}, "forever", 3},
        {FU_FLASH_DKV, {"tn_mbarrier_wait(&b.taken[group], t % 2 ^ 1);", ""}, "race", 3},
        {FU_FLASH_DKV, {"arrive(&b.taken[group]);", ""}, "forever", 3},
        {FU_FLASH_DKV, {"tn_bulk_show();\n            if", "if"}, "no fence.proxy.async", 3},
        {FU_FLASH_DKV, {"tn_bulk_show();\n            tn_count", "tn_count"}, "no fence.proxy.async", 3},
        {FU_FLASH_DKV, {"            tn_bulk_wait();\n", ""}, NULL, 3},
        {FU_FLASH_DKV, {"if (b.index && first) tn_await_count", "if (0) tn_await_count"}, "race", 3},
        {FU_FLASH_DKV, {"(tile * COLS + COLS - 1) / ROWS", "(tile * COLS + COLS - 1) / ROWS + 1"}, NULL, 3},
        {FU_FLASH_DKV, {"j - column - column_of", "j + 1 - column - column_of"}, NULL, 3},
        {FU_FLASH_DKV, {"        tn_wgmma_wait<0>();\n        tn_wgmma_hold(g);", ""}, NULL, 3},
    };
    static const config c[] = {{F, X, 32, CAUSAL, NONE, X, 1, 2, 100, 100, .layout = HEADS},
                               {F, X, 32, X, NONE, X, 1, 1, 3, 300, .layout = HEADS},
                               {H, X, 128, CAUSAL, NONE, X, 1, 1, 600, 600, .layout = HEADS},
                               {H, X, 128, CAUSAL, NONE, X, 1, 1, 300, 300, .layout = HEADS}};
    for (int i = 0; i < (int)(sizeof planted / sizeof *planted); i++) {
        if (planted[i].of == 3) sim.set("shared-most", 227 << 10);
        tn_device *dev = device_open();
        warpgroups = planted[i].of >= 2;
        if (right(dev, &c[planted[i].of], &planted[i].edit, planted[i].pass))
            fail_msg("fault %d was not found", i);
        if (!strstr(complaint, planted[i].report ? planted[i].report : "wanted"))
            fail_msg("fault %d: %s", i, complaint);
        dev->close(dev);
        sim.reset();
        sim.set("quiet", 1);
    }
    warpgroups = false;
}

/* The same bits in each run, whatever the order of blocks and threads. */
TEST_IN(test_same_bits, setup_largest, teardown)
{
    tn_device *dev = *state;
    static const config c[] = {{H, X, 64, CAUSAL, NONE, X, 2, 2, 150, 150, .layout = PACKED},
                               {F, X, 64, X, ADDED, DROP, 2, 2, 37, 61, HEADS, PLAIN, LATE, 0, 0, false},
                               {F, X, 32, X, NONE, X, 2, 1, 3, 500, .layout = HEADS},
                               {H, X, 64, CAUSAL, NONE, X, 1, 2, 300, 300, .layout = PACKED},
                               {B, X, 128, X, NONE, X, 1, 1, 150, 390, .layout = HEADS}};
    for (int i = 0; i < (int)(sizeof c / sizeof *c); i++) {
        problem p, first;
        struct fu_flash_tile tile[FU_FLASH_PASSES];
        tn_kernel *k[FU_FLASH_PASSES];
        const size_t rows = (size_t)(c[i].batch * c[i].heads * c[i].tq);
        float *lse = calloc(rows, sizeof *lse), *first_lse = calloc(rows, sizeof *lse);
        assert_true(lse && first_lse);
        warpgroups = i > 2;
        problem_open(&c[i], &first);
        for (int pass = 0; pass < FU_FLASH_PASSES; pass++)
            k[pass] = compile(dev, &c[i], &first, (fu_flash_pass)pass, NULL, &tile[pass]);
        assert_int_equal(launch_all(dev, &c[i], &first, k, tile, FU_FLASH_PASSES, first_lse), 0);
        for (int seed = 2; seed < 4; seed++) {
            sim.set("seed", seed);
            problem_open(&c[i], &p);
            assert_int_equal(launch_all(dev, &c[i], &p, k, tile, FU_FLASH_PASSES, lse), 0);
            const operand *a[] = {&first.o, &first.dq, &first.dk, &first.dv},
                          *b[] = {&p.o, &p.dq, &p.dk, &p.dv};
            for (int o = 0; o < 4; o++)
                assert_memory_equal(a[o]->host, b[o]->host, (size_t)a[o]->n * tn_dtype_size(a[o]->dtype));
            assert_memory_equal(lse, first_lse, rows * sizeof *lse);
            problem_close(&p);
        }
        problem_close(&first);
        free(lse);
        free(first_lse);
    }
    warpgroups = false;
}

/* A result that is not wanted is not written, and the others are what they were. */
TEST_IN(test_wanted, setup, teardown)
{
    tn_device *dev = *state;
    static const struct {
        fu_flash_pass pass;
        edit edit;
        int absent; /* 0 lse, 1 dk, 2 dv */
    } part[] = {{FU_FLASH_FORWARD, {"#if !defined(LSE)", "#define LSE 0\n#if !defined(LSE)"}, 0},
                {FU_FLASH_DKV, {"#if !defined(LSE)", "#define DK 0\n#if !defined(LSE)"}, 1},
                {FU_FLASH_DKV, {"#if !defined(LSE)", "#define DV 0\n#if !defined(LSE)"}, 2}};
    const config c = {H, X, 32, CAUSAL, NONE, X, 1, 2, 70, 70, .layout = HEADS};
    problem p, whole;
    struct fu_flash_tile tile[FU_FLASH_PASSES];
    tn_kernel *k[FU_FLASH_PASSES];
    float lse[2 * 70] = {7}, whole_lse[2 * 70] = {0};
    problem_open(&c, &whole);
    for (int pass = 0; pass < FU_FLASH_PASSES; pass++)
        k[pass] = compile(dev, &c, &whole, (fu_flash_pass)pass, NULL, &tile[pass]);
    assert_int_equal(launch_all(dev, &c, &whole, k, tile, FU_FLASH_PASSES, whole_lse), 0);
    for (int i = 0; i < (int)(sizeof part / sizeof *part); i++) {
        problem_open(&c, &p);
        tn_kernel *before = k[part[i].pass];
        k[part[i].pass] = compile(dev, &c, &p, part[i].pass, &part[i].edit, &tile[part[i].pass]);
        const bool forward = part[i].pass == FU_FLASH_FORWARD;
        assert_int_equal(launch_all(dev, &c, &p, k, tile, forward ? 1 : FU_FLASH_PASSES, lse), 0);
        k[part[i].pass] = before;
        const operand *a[] = {&whole.o, &whole.dk, &whole.dv}, *b[] = {&p.o, &p.dk, &p.dv};
        for (int o = 0; o < (forward ? 1 : 3); o++) {
            const size_t bytes = (size_t)a[o]->n * tn_dtype_size(a[o]->dtype);
            if (part[i].absent != o || forward) assert_memory_equal(a[o]->host, b[o]->host, bytes);
            if (part[i].absent == o && !forward)
                for (int64_t x = 0; x < b[o]->n; x++) assert_int_equal(((uint16_t *)b[o]->host)[x], 0);
        }
        if (forward) assert_true(lse[0] == 7);
        problem_close(&p);
    }
    problem_close(&whole);
}

int main(int argc, char **argv)
{
    full = argc > 1 && !strcmp(argv[1], "full");
    if (argc > 1 + full) cmocka_set_test_filter(argv[1 + full]);
    if (full) {
        N_tests = 0;
        add_test("test_full", test_full, setup, teardown);
    }
    return run_all_tests(NULL, NULL);
}
