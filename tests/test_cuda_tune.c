/* test_cuda_tune.c - TENSOR_TUNE=1 on the simulated GPU, whose events show a clock that is the same in each
 * run: the tile that is fastest by it is taken, the next session takes it without timing anything, a file
 * that is not as it was written is not there, and without the variable nothing of this happens.
 *
 * What the model takes for the fastest is made slow (cusim.h: slow), so that something else has to win. Read
 * first: struct outcome, then faster_tile_of.
 */
#include "cuda_rig.h"

#include <dirent.h>
#include <glob.h>
#include <math.h>

#include <tensor_nn.h>

#include "fuser/loops/conv_tile.h"
#include "src/core/hash.h"
#include "src/runtime/tune.h"
#include "tests/conv_desc.h"

enum { N = 2, SIDE = 9, IN = 8, OUT = 24, ROWS = N * SIDE * SIDE, Y = ROWS * OUT };

/* What is tuned: a convolution; a linear layer that is one kernel with the gelu behind it. */
typedef enum subject { CONVOLUTION, LINEAR } subject;

/* What a session made of it. */
typedef struct outcome {
    float y[Y];
    int measured;
    bool known; /* a tile that was timed */
    fu_conv_way way;
    char profile[64];
} outcome;

static tn_conv2d_desc desc_of(subject what)
{
    tn_conv2d_desc d = conv_desc(TN_F32, TN_CONV_FORWARD, N, SIDE, IN, OUT, 3);
    if (what == LINEAR) { /* its rows are the pixels of a line */
        d = conv_desc(TN_F32, TN_CONV_FORWARD, 1, 1, IN, OUT, 1);
        d.w = d.ow = ROWS;
    }
    return d;
}

static tn_tensor *filled(tn_session *s, int ndim, const int64_t *shape, int step)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * step + 11) % 101) / 101 - 0.5f;
    tn_tensor *x = tn_from(s, v, TN_F32, ndim, shape);
    free(v);
    return x;
}

static outcome session_on(tn_device_kind device, subject what)
{
    outcome o = {.measured = 0};
    tn_session *s = tn_open(.device = device, .threads = 1, .log = log_keep);
    if (!s) fail_msg("%s", logged);
    tn_step_begin(s);
    tn_tensor *y = what == LINEAR
                       ? tn_gelu(tn_affine(filled(s, TN_SHAPE(ROWS, IN), 37),
                                           filled(s, TN_SHAPE(OUT, IN), 43), filled(s, TN_SHAPE(OUT), 29)))
                       : tn_relu(tn_conv2d(filled(s, TN_SHAPE(N, SIDE, SIDE, IN), 37),
                                           filled(s, TN_SHAPE(OUT, 3, 3, IN), 43), NULL, .pad = 1));
    if (tn_read(y, TN_F32, o.y, sizeof o.y)) fail_msg("%s; %s", tn_error_text(s), sim.report());
    tn_step_end(s);
    const tn_conv2d_desc d = desc_of(what);
    const fu_conv_way *w = fu_conv_known(s->target.tuned, &d, false);
    if ((o.known = w != NULL)) o.way = *w;
    o.measured = tn_tune_measured(s);
    snprintf(o.profile, sizeof o.profile, "%s", tn_profile_name(s));
    assert_int_equal(tn_close(s), 0);
    return o;
}

/* What the model takes for the fastest, on the simulated GPU. */
static struct fu_conv_tile first_choice(subject what, int *most_shared)
{
    struct fu_conv_tile tile[6];
    const tn_conv2d_desc d = desc_of(what);
    tn_device *v = device_open();
    int n = fu_conv_tiles(&d, &v->target, false, 6, tile), less = 0;
    device_close(v);
    assert_true(n > 1);
    for (int i = 1; i < n; i++) {
        assert_true(tile[i].cycles >= tile[i - 1].cycles);
        less += tile[i].grid.shared < tile[0].grid.shared;
        for (int k = 0; k < i; k++)
            assert_false(tile[i].bm == tile[k].bm && tile[i].bn == tile[k].bn && tile[i].bk == tile[k].bk &&
                         tile[i].stages == tile[k].stages && tile[i].splits == tile[k].splits &&
                         tile[i].halo == tile[k].halo);
    }
    assert_true(less > 0); /* else there is nothing to win by */
    *most_shared = (int)tile[0].grid.shared;
    return tile[0];
}

static bool is_tile(const outcome *o, const struct fu_conv_tile *t)
{
    return o->way.bm == t->bm && o->way.bn == t->bn && o->way.bk == t->bk && o->way.stages == t->stages &&
           o->way.splits == t->splits;
}

static bool same_way(const fu_conv_way *a, const fu_conv_way *b)
{
    return a->bm == b->bm && a->bn == b->bn && a->bk == b->bk && a->stages == b->stages &&
           a->warps_m == b->warps_m && a->warps_n == b->warps_n && a->splits == b->splits &&
           a->halo == b->halo;
}

/* A cache folder of its own, and the paths of the choices in it. */
static char folder[64];

static int open_folder(void **state)
{
    rig_open(state);
    char compiled[512]; /* what the simulator has compiled is shared by all tests */
    if (!getenv("TENSOR_CUSIM_CACHE")) {
        snprintf(compiled, sizeof compiled, "%s/cusim", getenv("TENSOR_CACHE"));
        setenv("TENSOR_CUSIM_CACHE", compiled, 1);
    }
    strcpy(folder, "/tmp/tn-cuda-tune-XXXXXX");
    assert_non_null(mkdtemp(folder));
    setenv("TENSOR_CACHE", folder, 1);
    setenv("TENSOR_TUNE", "1", 1);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unsetenv("TENSOR_TUNE");
    char path[512];
    glob_t all;
    snprintf(path, sizeof path, "%s/*", folder);
    if (!glob(path, 0, NULL, &all)) {
        for (size_t i = 0; i < all.gl_pathc; i++) unlink(all.gl_pathv[i]);
        globfree(&all);
    }
    rmdir(folder); /* stays where the simulator keeps its own folder in it */
    return 0;
}

static int choices(char *first, size_t n)
{
    char pattern[128];
    glob_t all;
    snprintf(pattern, sizeof pattern, "%s/tile-*.txt", folder);
    if (glob(pattern, 0, NULL, &all)) return 0;
    int count = (int)all.gl_pathc;
    if (first) snprintf(first, n, "%s", all.gl_pathv[0]);
    globfree(&all);
    return count;
}

static void check_values(const outcome *o, subject what)
{
    static outcome of[2];
    static bool there[2];
    const outcome *cpu = &of[what];
    if (!there[what]) of[what] = session_on(TN_CPU, what);
    there[what] = true;
    assert_false(cpu->known);
    for (int i = 0; i < Y; i++)
        if (!(fabsf(o->y[i] - cpu->y[i]) < 1e-4f))
            fail_msg("%d: %g, on the CPU %g", i, (double)o->y[i], (double)cpu->y[i]);
}

static void faster_tile_of(subject what)
{
    int shared;
    const struct fu_conv_tile model = first_choice(what, &shared);
    sim.set("slow", shared);
    outcome a = session_on(TN_CUDA, what);
    assert_int_equal(a.measured, 1);
    assert_true(a.known);
    assert_false(is_tile(&a, &model));
    struct fu_conv_tile taken = {.bm = a.way.bm,
                                 .bn = a.way.bn,
                                 .bk = a.way.bk,
                                 .stages = a.way.stages,
                                 .warps_m = a.way.warps_m,
                                 .warps_n = a.way.warps_n,
                                 .splits = a.way.splits};
    tn_device *v = device_open();
    assert_true(fu_conv_tile_as(&a.way.d, &v->target, false, &taken));
    device_close(v);
    assert_true(taken.grid.shared < shared);
    check_values(&a, what);
    if (!strstr(a.profile, ", tuned ")) fail_msg("%s", a.profile);
    assert_int_equal(choices(NULL, 0), 1);

    /* Now another one would be the fastest; but nothing is timed any more. */
    sim.set("slow", 0);
    uint64_t launches = counters().launches;
    outcome b = session_on(TN_CUDA, what);
    assert_int_equal(b.measured, 0);
    assert_int_equal(counters().launches - launches, 1);
    assert_true(b.known && same_way(&a.way, &b.way));
    assert_memory_equal(a.y, b.y, sizeof a.y);
    assert_string_equal(a.profile, b.profile);

    /* Without the variable the model decides, whatever is there. */
    unsetenv("TENSOR_TUNE");
    launches = counters().launches;
    outcome off = session_on(TN_CUDA, what);
    assert_int_equal(counters().launches - launches, 1);
    assert_true(!off.known && !off.measured && !strstr(off.profile, "tuned"));
    check_values(&off, what);
}

TEST_IN(the_faster_tile_is_taken, open_folder, remove_folder) { faster_tile_of(CONVOLUTION); }

TEST_IN(the_faster_tile_of_a_product_is_taken, open_folder, remove_folder) { faster_tile_of(LINEAR); }

TEST_IN(off_unless_asked_for, open_folder, remove_folder)
{
    static const char *const value[] = {NULL, "0", "off"};
    for (int i = 0; i < 3; i++) {
        if (value[i])
            setenv("TENSOR_TUNE", value[i], 1);
        else
            unsetenv("TENSOR_TUNE");
        uint64_t launches = counters().launches;
        outcome o = session_on(TN_CUDA, CONVOLUTION);
        assert_true(!o.known && !o.measured);
        assert_int_equal(counters().launches - launches, 1);
        assert_int_equal(choices(NULL, 0), 0);
    }
    setenv("TENSOR_TUNE", "1", 1);
    outcome cpu = session_on(TN_CPU, CONVOLUTION); /* has nothing to choose */
    assert_true(!cpu.known && !cpu.measured);
}

static size_t read_all(const char *path, char *text, size_t room)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, room - 1, f);
    fclose(f);
    text[n] = 0;
    return n;
}

static void write_all(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

/* With its first line of numbers, and a right checksum of all. */
static size_t forged(const char *text, const char *numbers, char *out)
{
    const char *at = strstr(text, "\ntile ");
    int n = sprintf(out, "%.*s\ntile %s\n", (int)(at - text), text, numbers);
    return (size_t)(n +
                    sprintf(out + n, "check %016llx\n", (unsigned long long)tn_hash_bytes(out, (size_t)n)));
}

TEST_IN(a_broken_file_is_not_there, open_folder, remove_folder)
{
    char path[256], good[1024], bad[1200], again[1024];
    int shared;
    first_choice(CONVOLUTION, &shared);
    sim.set("slow", shared);
    outcome first = session_on(TN_CUDA, CONVOLUTION);
    assert_int_equal(choices(path, sizeof path), 1);
    const size_t n = read_all(path, good, sizeof good);
    for (int way = 0; way < 6; way++) {
        size_t m = n;
        memcpy(bad, good, n + 1);
        if (way == 0) m = 0;
        if (way == 1) m = n / 2;
        if (way == 2) strstr(bad, "\ntile ")[6] ^= 1; /* another number */
        if (way == 3) bad[20] ^= 1;                   /* of another machine */
        if (way == 4) bad[n - 2] = bad[n - 2] == '0' ? '1' : '0';
        if (way == 5) bad[m++] = '\n';
        write_all(path, bad, m);
        outcome o = session_on(TN_CUDA, CONVOLUTION);
        if (o.measured != 1) fail_msg("way %d: %d measured", way, o.measured);
        assert_true(same_way(&o.way, &first.way));
        assert_memory_equal(o.y, first.y, sizeof o.y);
        assert_int_equal(read_all(path, again, sizeof again), n); /* made anew */
        assert_memory_equal(again, good, n);
    }
    /* Whole, but a tile that there cannot be: the model's serves. */
    write_all(path, bad, forged(good, "17 3 0 -1 5 0 halo 0 splits 9", bad));
    outcome o = session_on(TN_CUDA, CONVOLUTION);
    assert_int_equal(o.measured, 0);
    check_values(&o, CONVOLUTION);
}

TEST_IN(there_is_a_time_to_be_told, open_folder, remove_folder)
{
    tn_errbuf err = {""};
    tn_device *v = device_open();
    tn_recording *none = NULL;
    double seconds = 0;
    const tn_args args = {.n_buf = 0};
    const tn_grid grid = {.n = 1, .chunk = 1, .threads = 32};
    assert_int_not_equal(v->time(v, NULL, &args, &grid, &seconds, &err), 0);
    assert_int_equal(v->record_begin(v, &err), 0);
    assert_int_equal(v->time(v, NULL, &args, &grid, &seconds, &err), TN_E_STATE);
    assert_int_equal(v->record_end(v, &none, &err), 0);
    v->forget(v, none);
    device_close(v);
}

RUN_TESTS(NULL, NULL)
