/* test_cuda_conv.c - our own convolution kernels: all passes and dtypes, also computing what they are of as
 * they load it, the tile that is chosen for them, and that what is planted in them is found (cuda_conv.h runs
 * a case). The prologue does not make 0 of 0, so that a border it is applied to is a wrong number.
 *
 * Cases come from a seeded list and from corners chosen by hand; `full` as the first argument runs many more.
 *
 * Read first: draw_cases.
 */
#include "cuda_conv.h"
#include "gpu_target.h"

static bool full;

static void draw_cases(bool with_prologue)
{
    tn_device *d = device_open();
    cases l = {.n = 0};
    const int each = with_prologue ? (full ? 30 : 5) : (full ? 40 : 6);
    int padded = 0;
    seed = with_prologue ? 777 : 20240;
    for (int pass = 0; pass < 3; pass += 1 + with_prologue)
        for (int kind = 0; kind < 4; kind++)
            for (int set = 0; set < 4; set++) {
                if (!full && (with_prologue ? set > 1 && kind % 2 : set == 3 && kind)) continue;
                for (int i = 0; i < each;) {
                    test_case c = draw((tn_conv_pass)pass, kind, set);
                    const bool alone = c.d.groups > 1 && c.d.groups == c.d.c;
                    if (with_prologue && (small_groups(&c.d) || alone)) continue; /* have none */
                    c.prologue = with_prologue;
                    c.tiling = full ? (int)below(4) : 0;
                    c.stats = pass == 0 && set == 1 && i % 3 == 1;
                    c.splits = set == 1 && i % 3 == 2 ? 2 + below(3) : 1;
                    padded += c.d.pad[0] || c.d.pad[1] || c.d.pad[2] || c.d.pad[3];
                    i += add(&l, &d->target, c);
                }
            }
    assert_true(with_prologue ? padded > l.n / 2 : l.n >= 200);
    run_cases(d, &l);
    device_close(d);
}

CUDA_TEST(drawn) { draw_cases(false); }

CUDA_TEST(drawn_with_prologue) { draw_cases(true); }

/* By the products of warpgroups: what tiles are that large for is not, so that most of a tile is border; some
 * images have several. */
CUDA_TEST(warpgroups)
{
    sim.set("shared-most", 227 << 10);
    tn_device *d = device_open();
    cases l = {.n = 0};
    enum { SIZES = HALOS - WARPGROUPS };
    int of[SIZES] = {0}, prologues = 0, stats = 0, splits = 0;
    seed = 61;
    for (int pass = 0; pass < 3; pass++)
        for (int kind = 0; kind < 4; kind++)
            for (int i = 0, tries = 0; i < (full ? 30 : 6) && tries < 1000; tries++) {
                test_case c = draw((tn_conv_pass)pass, kind, (int)below(4));
                if (c.d.dtype == TN_F32) break;
                if (below(2)) c.d.n = 2, c.d.h = 8 + below(8), c.d.w = 9 + below(8);
                if (below(2))
                    c.d.c = c.d.groups * (32 + 8 * below(8)), c.d.oc = c.d.groups * (64 + 8 * below(12));
                c.prologue = pass != 1 && below(3) == 0;
                c.stats = pass == 0 && below(3) == 0;
                c.splits = below(3) ? 1 : 2 + below(3);
                const int size = (int)below(SIZES);
                c.tiling = WARPGROUPS + size;
                if (small_groups(&c.d) || (c.d.groups > 1 && c.d.groups == c.d.c)) continue;
                if (c.prologue && pass == 0 && c.splits > 1) continue; /* have no room for one */
                if (!add(&l, &d->target, c)) continue;
                assert_true(l.c[l.n - 1].tile.wgmma);
                i++, of[size]++;
                prologues += c.prologue, stats += c.stats, splits += l.c[l.n - 1].tile.splits > 1;
            }
    for (int i = 0; i < SIZES; i++) assert_true(of[i] > 0);
    assert_true(l.n >= 36 && prologues > 2 && stats > 2 && splits > 2);
    run_cases(d, &l);
    device_close(d);
}

/* By those that keep a part of the image: all passes, of windows of each kind, images smaller
 * than a tile and larger, channels that are kept once and several times. */
CUDA_TEST(halos)
{
    sim.set("shared-most", 227 << 10);
    tn_device *d = device_open();
    cases l = {.n = 0};
    int of[3][TILINGS] = {{0}}, splits = 0, several = 0, stats = 0, groups = 0, wide = 0, far = 0;
    seed = 71;
    for (int pass = 0; pass < 3; pass++)
        for (int size = pass == 2 ? TURNED : HALOS; size < (pass == 2 ? TILINGS : TURNED); size++)
            for (int i = 0, tries = 0; i < (full ? 24 : 6) && tries < 1000; tries++) {
                test_case c = {.tiling = size, .splits = pass == 2 ? 1 + below(4) : 1, .whole = below(4) > 0};
                c.d = conv_desc(below(2) ? TN_F16 : TN_BF16, (tn_conv_pass)pass, 1 + below(4), 1 + below(12),
                                64, 64, 3);
                c.d.w = below(8) ? 1 + below(14) : 30 + below(50);
                c.d.groups = below(4) ? 1 : 2;
                c.d.kh = 1 + below(4), c.d.kw = 1 + below(4);
                if (pass == 2) c.d.kh = c.d.kw = 3;
                *(pass == 1 ? &c.d.oc : &c.d.c) = c.d.groups * 64 * (1 + below(3));
                *(pass == 1 ? &c.d.c : &c.d.oc) = c.d.groups * 8 * (1 + below(20));
                for (int k = 0; k < 4; k++) c.d.pad[k] = below(4);
                for (int k = 0; k < 2; k++) c.d.dilation[k] = 1 + (below(4) == 0);
                c.stats = pass == 0 && below(3) == 0;
                if (!add(&l, &d->target, c)) continue;
                const test_case *a = &l.c[l.n - 1];
                assert_true(a->tile.halo && a->tile.wgmma);
                i++, of[pass][size]++, splits += a->tile.splits > 1, stats += c.stats,
                    groups += c.d.groups > 1, wide += c.d.w > 29;
                several += a->tile.dim[18] > 1;
                far += c.d.pad[2] >= c.d.kw * c.d.dilation[1];
            }
    for (int i = HALOS; i < TILINGS; i++)
        assert_true(i < TURNED ? of[0][i] > 5 && of[1][i] > 5 : of[2][i] > 5);
    assert_true(splits > 5 && several > 5 && stats > 2 && groups > 3 && wide > 2 && far > 0);
    run_cases(d, &l);
    device_close(d);
}

/* Of few channels: windows that begin at odd and at even places, or at both; tiles of several images. */
CUDA_TEST(few_channels)
{
    sim.set("shared-most", 227 << 10);
    tn_device *d = device_open();
    cases l = {.n = 0};
    int of[2] = {0}, odd = 0, shifted = 0, several = 0, stats = 0, far = 0, alone = 0, many = 0;
    seed = 811;
    for (int pass = 0; pass < 3; pass += 2)
        for (int i = 0, tries = 0; i < (full ? 60 : 14) && tries < 1000; tries++) {
            test_case c = {.tiling = CHOSEN, .whole = below(4) > 0};
            c.d = conv_desc(below(2) ? TN_F16 : TN_BF16, (tn_conv_pass)pass, 1 + below(3), 1 + below(14),
                            1 + below(4), 8 * (1 + below(18)), 3);
            if (pass == 0 && below(3) == 0) c.d.oc = 1 + below(70);
            c.d.w = below(4) ? 1 + below(14) : 60 + below(60);
            c.d.kh = 1 + below(5), c.d.kw = 1 + below(7);
            if (i == 0) c.d.h = c.d.w = 21, c.d.c = 3, c.d.oc = 64, c.d.kh = c.d.kw = 7;
            for (int k = 0; k < 4; k++) c.d.pad[k] = i ? below(4) : 3;
            for (int k = 0; k < 2; k++) c.d.stride[k] = i ? 1 + below(3) : 2;
            if (i) c.d.dilation[0] = 1 + (below(4) == 0);
            c.stats = pass == 0 && below(3) == 0;
            tn_target t = d->target;
            if (below(2)) t.processors = 1; /* blocks have several tiles, if there are as many */
            if (!add(&l, &t, c)) continue;
            const test_case *a = &l.c[l.n - 1];
            many += a->d.n * a->d.oh * a->d.ow > a->tile.grid.n * 128;
            if (!a->tile.few) fail_msg("%s: no tile of few channels", a->name);
            i++, of[pass / 2]++, stats += c.stats, alone += a->tile.align[0] == 2;
            odd += (int)(a->d.c * a->d.stride[1] % 2),
                shifted += a->d.c * a->d.stride[1] % 2 == 0 && a->d.c * a->d.pad[2] % 2;
            several += a->d.n > 1 && a->d.oh * a->d.ow < 100, far += a->d.pad[2] >= a->d.kw;
        }
    assert_true(of[0] >= 14 && of[1] >= 14 && odd > 5 && shifted > 1 && several > 3 && stats > 2 && far > 0 &&
                alone > 0 && many > 2);
    run_cases(d, &l);
    device_close(d);
}

/* Each channel alone, pixels that follow each other in a row summed by one thread. */
CUDA_TEST(channels_alone)
{
    tn_device *d = device_open();
    cases l = {.n = 0};
    int of[3] = {0}, stats = 0, far = 0, high = 0;
    seed = 91;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0, tries = 0; i < (full ? 60 : 14) && tries < 1000; tries++) {
            test_case c = {.tiling = CHOSEN, .whole = below(4) > 0};
            static const tn_dtype dtype[] = {TN_F32, TN_F16, TN_BF16};
            c.d = conv_desc(dtype[below(3)], (tn_conv_pass)pass, 1 + below(4), 1 + below(14), 8, 8, 3);
            c.d.groups = c.d.c = c.d.oc = 8 * (1 + below(12));
            c.d.w = 2 * (1 + below(20));
            if (pass != 2) c.d.kh = 1 + below(5), c.d.kw = 1 + below(7);
            for (int k = 0; k < 4; k++) c.d.pad[k] = below(4);
            c.d.stride[0] = 1 + (below(3) == 0), c.d.dilation[0] = 1 + (below(4) == 0);
            c.stats = pass == 0 && below(3) == 0;
            if (!add(&l, &d->target, c)) continue;
            const test_case *a = &l.c[l.n - 1];
            i++, of[pass] += a->tile.row > 0, stats += c.stats, far += c.d.pad[2] >= c.d.kw,
                high += c.d.stride[0] > 1;
        }
    assert_true(of[0] > 5 && of[1] > 5 && of[2] > 5 && stats > 1 && far > 1 && high > 3);
    run_cases(d, &l);
    device_close(d);
}

CUDA_TEST(by_hand) { run_corners(full, 99, false); }

CUDA_TEST(by_hand_with_prologue) { run_corners(full, 41, true); }

/* More tiles along M than one block combines, and a mean much larger than the deviation. */
CUDA_TEST(statistics_of_many_tiles)
{
    tn_device *d = device_open();
    cases l = {.n = 0};
    seed = 5;
    test_case c = {.splits = 1, .stats = true};
    c.d = conv_desc(TN_F32, TN_CONV_FORWARD, 2, 47, 8, 8, 1);
    assert_true(add(&l, &d->target, c));
    assert_true(l.c[0].tile.dim[18] > 2 * 64);
    run_cases(d, &l);
    device_close(d);
}

/* ---- the tile that is chosen ---- */

CUDA_TEST(choices)
{
    struct fu_conv_tile o;
    const tn_target h100 = gpu_target(90);
    tn_target t = h100;
    tn_conv2d_desc d = conv_desc(TN_F16, TN_CONV_FORWARD, 64, 56, 256, 256, 3);
    assert_true(fu_conv_tile(&d, &t, false, &o)); /* much to do: large tiles, no splits */
    assert_true(o.bm * o.bn >= 128 * 64 && o.splits == 1 && o.scratch == 0 && o.products == 1 && !o.product);
    assert_true(o.grid.chunk == 1 && o.grid.threads > 0 && o.grid.shared <= t.shared_most);
    assert_int_equal(o.columns, 256);
    assert_true(o.align[0] == 16 && o.align[1] == 16);
    assert_true(fu_conv_tile(&d, &t, true, &o) && o.scratch > 0);
    d = conv_desc(TN_F32, TN_CONV_WEIGHT_GRAD, 64, 56, 64, 64, 3); /* few results, many pixels */
    assert_true(fu_conv_tile(&d, &t, false, &o));
    assert_true(o.splits > 1 && o.scratch >= o.splits * 64 * 576 * 4 && o.products == 3);
    assert_int_equal(o.columns, 576);
    t.tf32 = true;
    assert_true(fu_conv_tile(&d, &t, false, &o) && o.products == 1);
    d = conv_desc(TN_F32, TN_CONV_FORWARD, 1, 7, 512, 512, 3); /* one small image */
    assert_true(fu_conv_tile(&d, &t, false, &o) && o.splits > 1);
    d = conv_desc(TN_BF16, TN_CONV_FORWARD, 8, 28, 3, 64, 3);
    assert_true(fu_conv_tile(&d, &t, false, &o) && o.few &&
                o.align[0] == 8); /* bytes that a row is a multiple of */
    d.groups = 1, d.w = 27, d.ow = 27;
    assert_true(fu_conv_tile(&d, &t, false, &o) && o.few && o.align[0] == 2);
    assert_true(fu_conv_tile_loading(&d, &t, false, &o) && !o.few && o.align[0] == 2);
    d = conv_desc(TN_F32, TN_CONV_DATA_GRAD, 8, 28, 64, 64, 1);
    assert_true(fu_conv_tile(&d, &t, false, &o) && o.product);
    assert_false(fu_conv_tile(&d, &t, true, &o));
    assert_false(fu_conv_can_load(&d, &o) || fu_conv_tile_loading(&d, &t, false, &o));
    d = conv_desc(TN_F32, TN_CONV_WEIGHT_GRAD, 64, 56, 512, 64,
                  3); /* the best tile has no room for a prologue */
    assert_true(fu_conv_tile(&d, &h100, false, &o) && !fu_conv_can_load(&d, &o));
    fu_conv_way way = {d, false, o.bm, o.bn, o.bk, o.stages, o.warps_m, o.warps_n, o.splits, o.halo};
    fu_tuned tuned = {1, 1, &way};
    t = h100;
    t.tuned = &tuned; /* were it found to be the fastest, too */
    assert_true(fu_conv_tile_tuned(&d, &t, false, &o) && o.tuned && !fu_conv_can_load(&d, &o));
    assert_true(fu_conv_tile_loading(&d, &t, false, &o) && !o.tuned && fu_conv_can_load(&d, &o));
    t.tf32 = true; /* operands in one part: it has */
    assert_true(fu_conv_tile_tuned(&d, &t, false, &o) && fu_conv_can_load(&d, &o));
    assert_true(fu_conv_tile_loading(&d, &t, false, &o) && o.tuned);
    t = h100;

    d = conv_desc(TN_F64, TN_CONV_FORWARD, 8, 28, 64, 64, 3);
    assert_false(fu_conv_tile(&d, &t, false, &o));
    d = conv_desc(TN_F32, TN_CONV_FORWARD, 70000, 28, 64, 64, 3); /* more than 2^31 elements */
    assert_false(fu_conv_tile(&d, &t, false, &o));
    d = conv_desc(TN_F32, TN_CONV_FORWARD, 0, 28, 64, 64, 3);
    assert_false(fu_conv_tile(&d, &t, false, &o));
    d.n = 8;
    assert_true(fu_conv_tile(&d, &t, false, &o));
    t.capability = 75;
    assert_false(fu_conv_tile(&d, &t, false, &o));
    t = h100;
    t.dialect = TN_DIALECT_C;
    assert_false(fu_conv_tile(&d, &t, false, &o));
}

/* As the fuser would have it, on the simulated GPU's own numbers. */
CUDA_TEST(chosen)
{
    tn_device *d = device_open();
    cases l = {.n = 0};
    seed = 3;
    for (int pass = 0; pass < 3; pass++) {
        test_case c = {.whole = true};
        c.d = conv_desc(TN_F32, (tn_conv_pass)pass, 2, 10, 24, 40, 3);
        assert_true(fu_conv_tile(&c.d, &d->target, pass == 0, &c.tile));
        c.stats = pass == 0;
        snprintf(c.name, sizeof c.name, "chosen_%d", pass);
        c.text = text_of(&c, c.name, c.tile.text);
        c.kernel = pass;
        l.c = realloc(l.c, (size_t)(pass + 1) * sizeof *l.c);
        l.source = realloc(l.source, (size_t)(pass + 1) * sizeof *l.source);
        assert_true(l.c && l.source);
        l.c[l.n++] = c;
        l.n_kernel++;
    }
    run_cases(d, &l);
    device_close(d);
}

/* ---- what is planted ---- */

#define WAIT    "        tn_copy_wait<AHEAD - 1>();\n"
#define APPLY   "        transform(a, p, s, shared + reading * STAGE, (begin + i) * BK);\n"
#define SHOW    "        show();\n"
#define BARRIER "        __syncthreads(); /* buffer i is there"
#define AWAITED "that a cp.async is to fill"

/* With `to` in the place of `from`: what the simulator reports, RIGHT numbers, or OTHERS. */
static const char RIGHT[] = "right", OTHERS[] = "others";
static const struct {
    const char *from, *to, *why;
    int of; /* 0 K in two parts, 1 a prologue, 2 by warpgroups */
} plants[] = {
    {"tn_copy_wait<AHEAD - 1>();", "", AWAITED, 0},
    {"tn_copy_wait<AHEAD - 1>();", "tn_copy_wait<AHEAD>();", AWAITED, 0},
    {"__syncthreads(); /* buffer i is there", "/* buffer i is there", "shared memory", 0},
    /* what tn_arrive_last does, but for the fence before the ticket */
    {"    if (!tn_arrive_last(&a.ticket[p.tile], splits)) return false;\n",
     "    __shared__ uint32_t last;\n"
     "    __syncthreads();\n"
     "    if (threadIdx.x == 0) {\n"
     "        last = atomicAdd(&a.ticket[p.tile], 1u) == (uint32_t)splits - 1;\n"
     "        if (last) a.ticket[p.tile] = 0;\n"
     "    }\n"
     "    __syncthreads();\n"
     "    if (!last) return false;\n"
     "    __threadfence();\n",
     "race", 0},
    {APPLY, APPLY, RIGHT, 1},
    {"(s.offset[at] + down * p.width + right) : -1;", "(s.offset[at] + down * p.width + right) : 0;", OTHERS,
     1}, /* a border that is put through */
    {WAIT "#if defined(PROLOGUE)\n" APPLY "#endif\n", "#if defined(PROLOGUE)\n" APPLY "#endif\n" WAIT,
     AWAITED, 1},
    {APPLY "#endif\n" SHOW BARRIER, "#endif\n" SHOW BARRIER " */\n" APPLY "/*", "shared memory",
     1}, /* others read it */
    {"        show();\n", "", "no fence.proxy.async", 2},
    {"tn_wgmma_wait<1>();", "", OTHERS, 2},
    {"tn_wgmma_wait<1>();", "tn_wgmma_wait<2>();", AWAITED, 2},
    {"    settle(sum);\n", "", "before its wgmma were waited for", 2},
    {"((chunk ^ row) & 7); /* panels", "((chunk + row) & 7); /* panels", OTHERS, 2},
    {"AHEAD = STAGES - 1 - WGMMA", "AHEAD = STAGES - 1", AWAITED, 2},
};

TEST(what_is_planted_is_found)
{
    enum { N = 8 * 8 * 8 };
    for (size_t k = 0; k < sizeof plants / sizeof *plants; k++) {
        rig_open(state);
        tn_device *d = device_open();
        cases l = {.n = 0};
        tn_errbuf err = {""};
        float out[N];
        double sum[N] = {0}, magnitude[N] = {0};
        test_case c = {.splits = plants[k].of ? 1 : 2, .prologue = plants[k].of == 1, .whole = true};
        seed = 9;
        const tn_dtype dtype = plants[k].of == 2 ? TN_F16 : TN_F32;
        if (plants[k].of == 2) c.tiling = WARPGROUPS;
        c.d = conv_desc(dtype, TN_CONV_FORWARD, 1, 8, plants[k].of == 2 ? 56 : 24, 8, 3);
        assert_true(add(&l, &d->target, c));
        c = l.c[0];
        char *changed = with_fault(c.tile.text, plants[k].from, plants[k].to);
        free(l.c[0].text);
        l.c[0].text = text_of(&c, c.name, changed);
        compile(d, &l);
        numbers a = make(d, dtype, elements(&c.d, 0), true), b = make(d, dtype, elements(&c.d, 1), true);
        before f = make_before(d, &c);
        put_before(&c, &f, &a);
        oracle(&c.d, a.value, b.value, sum, magnitude);
        const int status = launch(d, l.kernel[0], &c, a.device, b.device, &f, out, N, NULL, &err);
        bool right = true;
        for (int i = 0; i < N && !status; i++) right = right && (double)out[i] == sum[i];
        const char *is = status ? sim.report() : right ? RIGHT : OTHERS;
        if (!strstr(is, plants[k].why)) fail_msg("plant %d: %s", (int)k, is);
        free(changed);
        free(a.value);
        free(b.value);
        free(f.of_channel.value);
        free(f.more.value);
        drop_cases(&l);
        d->close(d);
    }
}

int main(int argc, char **argv)
{
    full = argc > 1 && !strcmp(argv[1], "full");
    if (argc > 1 && !full) cmocka_set_test_filter(argv[1]);
    return run_all_tests(NULL, NULL);
}
