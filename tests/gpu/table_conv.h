/* table_conv.h - rows of the convolution kernels: each pass, dtype and size of tile that the fuser may
 * choose, and what is compiled into them besides. Products that are one kernel with what follows are among
 * them: they are convolutions of 1 x 1. Strides, padding, dilation and windows are arguments, and make no
 * kernels of their own.
 *
 * The times are of a batch of 64 images, 56 x 56, 128 channels to 256, window 3 x 3, and of the tile that is
 * named, without what the fuser adds at the end: it stores, in the dtype. Read first: conv_row.
 */
#pragma once

#include "fuser/loops/conv_tile.h"
#include "src/device/embed.h"
#include "tests/conv_desc.h"
#include "tests/gpu/table.h"

static inline void conv_fill(table_row *out, const char *kernel, const char *dtype,
                             const struct fu_conv_tile *o, bool prologue)
{
    *out = (table_row){.threads = o->grid.threads, .shared = o->grid.shared, .bound = o->bound};
    snprintf(out->kernel, sizeof out->kernel, "%s", kernel);
    snprintf(out->dtype, sizeof out->dtype, "%s", dtype);
    const char *plain = tn_embed_text(TN_EMBED_CONV_PLAIN_CUH);
    size_t room = strlen(o->before) + strlen(o->text) + strlen(plain) + sizeof o->defines + 128;
    out->text = malloc(room);
    if (!out->text) abort();
    snprintf(out->text, room, "%s#define ENTRY kernel\n#define PARTIALS 3\n%s%s%s%s", o->defines,
             prologue ? "#define PROLOGUE\n" : "", o->before, plain, o->text);
}

static inline tn_conv2d_desc table_conv(tn_dtype dtype, tn_conv_pass pass, int64_t c, int64_t groups)
{
    tn_conv2d_desc d = conv_desc(dtype, pass, 64, 56, c, groups > 1 ? c : 256, 3);
    d.groups = groups;
    return d;
}

/* What is compiled into a kernel besides its dtype and size. */
struct table_way {
    const char *name;
    tn_conv_pass pass;
    int with; /* STATS, PROLOGUE; ODD: channels that are loaded one by one; BRIEF: buffers half as long, one
                 fewer */
    int64_t splits; /* blocks that share a tile */
    int tested;     /* up to this kind */
};
enum { STATS = 1, PROLOGUE = 2, ODD = 4, BRIEF = 8 };
static const struct table_way table_ways[] = {
    {"conv forward", TN_CONV_FORWARD, 0, 1, 3},
    {"conv forward, short buffers", TN_CONV_FORWARD, BRIEF, 1, 0},
    {"conv forward, K in parts", TN_CONV_FORWARD, 0, 4, 0},
    {"conv forward, statistics", TN_CONV_FORWARD, STATS, 1, 1},
    {"conv forward, 3 channels", TN_CONV_FORWARD, ODD, 1, 1},
    {"conv forward, prologue", TN_CONV_FORWARD, STATS | PROLOGUE, 1, 1},
    {"conv forward, prologue, 3 channels", TN_CONV_FORWARD, PROLOGUE | ODD, 1, 0},
    {"conv data gradient", TN_CONV_DATA_GRAD, 0, 1, 3},
    {"conv data gradient, K in parts", TN_CONV_DATA_GRAD, 0, 4, 0},
    {"conv data gradient, 3 channels", TN_CONV_DATA_GRAD, ODD, 1, 0},
    {"conv weight gradient", TN_CONV_WEIGHT_GRAD, 0, 16, 3},
    {"conv weight gradient, 3 channels", TN_CONV_WEIGHT_GRAD, ODD, 16, 0},
    {"conv weight gradient, prologue", TN_CONV_WEIGHT_GRAD, PROLOGUE, 16, 1},
    {"conv weight gradient, prologue, 3 channels", TN_CONV_WEIGHT_GRAD, PROLOGUE | ODD, 16, 0},
};
enum { TABLE_WAYS = sizeof table_ways / sizeof *table_ways };

static inline bool conv_row(int i, table_row *out)
{
    struct fu_conv_tile o = {.n_dim = 0};
    int sizes = 0;
    while (fu_conv_size(sizes, &o)) sizes++;
    const int size = i % sizes, k = i / sizes % TABLE_KINDS, w = i / sizes / TABLE_KINDS;
    if (w >= TABLE_WAYS) return false;
    const struct table_way *way = &table_ways[w];
    const int bytes = table_kinds[k].dtype == TN_F32 ? 4 : 2;
    tn_target target = gpu_target(90);
    target.tf32 = table_kinds[k].tf32;
    const tn_conv2d_desc d = table_conv(table_kinds[k].dtype, way->pass, (way->with & ODD) ? 3 : 128, 1);
    const bool small = (way->with & ODD) || (way->with & BRIEF);
    o = (struct fu_conv_tile){.bk = (small ? 64 : 128) / bytes, .splits = way->splits};
    fu_conv_size(size, &o);
    o.stages = (way->with & BRIEF) || o.bm * o.bn <= 64 * 64 ? 3 : 4;
    *out = (table_row){.text = NULL};
    if (!fu_conv_tile_as(&d, &target, (way->with & STATS), &o) ||
        ((way->with & PROLOGUE) && !fu_conv_can_load(&d, &o)))
        return true; /* no such tile: a row without a text */
    conv_fill(out, way->name, table_kinds[k].name, &o, (way->with & PROLOGUE));
    out->wgmma = o.wgmma;
    snprintf(out->tile, sizeof out->tile, "%d x %d x %d, %d stages%s", o.bm, o.bn, o.bk, o.stages,
             o.halo    ? ", halo"
             : o.wgmma ? ", wgmma"
                       : "");
    out->per_l2 = 2.0 * o.bm * o.bn / ((o.bm + o.bn) * bytes);
    out->per_shared = 2.0 * o.bm * o.bn / ((o.bm * o.warps_n + o.bn * o.warps_m) * bytes);
    if (o.wgmma)
        out->per_shared =
            2.0 / ((1 / 128. + 1 / 64.) * bytes); /* rows for 128 columns, columns for 64 rows */
    out->share = o.share;
    out->tested =
        o.halo ? k == 3 && way->tested == 3 : o.bm == 128 && o.bn == (o.wgmma ? 256 : 64) && k < way->tested;
    return true;
}

/* Groups of few channels, and channels alone: no tensor cores. */
static inline bool direct_row(int i, table_row *out)
{
    static const char *const pass[] = {"forward", "data gradient", "weight gradient"};
    static const struct {
        tn_dtype dtype;
        const char *name;
    } kind[] = {{TN_F32, "f32"}, {TN_F16, "f16"}, {TN_BF16, "bf16"}};
    static const struct {
        int in, out; /* channels of a group */
        bool stats;
    } group[] = {{1, 1, false}, {1, 1, true},  {1, 2, false}, {2, 2, false}, {3, 5, false},
                 {4, 4, false}, {7, 7, false}, {8, 8, false}, {8, 8, true},  {8, 1, false}};
    enum { KINDS = sizeof kind / sizeof *kind, GROUPS = sizeof group / sizeof *group };
    const int p = i % 3, k = i / 3 % KINDS, g = i / 3 / KINDS, each = 128 / 8;
    if (g >= GROUPS) return false;
    const tn_target target = gpu_target(90);
    tn_conv2d_desc d =
        table_conv(kind[k].dtype, (tn_conv_pass)p, (int64_t)group[g].in * 8 * each, (int64_t)8 * each);
    struct fu_conv_tile o;
    char name[48];
    d.oc = d.groups * group[g].out;
    *out = (table_row){.text = NULL};
    if (group[g].stats && p != TN_CONV_FORWARD) return true; /* has none: a row without a text */
    if (!fu_conv_tile(&d, &target, group[g].stats, &o)) return true;
    if (group[g].in == 1)
        snprintf(name, sizeof name, "depthwise%s, %s%s", group[g].out > 1 ? " to 2" : "", pass[p],
                 group[g].stats ? ", statistics" : "");
    else
        snprintf(name, sizeof name, "groups of %d to %d, %s%s", group[g].in, group[g].out, pass[p],
                 group[g].stats ? ", statistics" : "");
    conv_fill(out, name, kind[k].name, &o, false);
    snprintf(out->tile, sizeof out->tile, "%d x %d", o.bm, o.bn);
    out->tested =
        k == 0 && !group[g].stats && group[g].in == group[g].out && (group[g].in == 1 || group[g].in == 4);
    return true;
}

/* Of few channels: of 224 x 224 pixels and windows of 7 x 7, stride 2; of 3 x 3, where windows begin at odd places, too;
 * of one channel. */
static inline bool few_row(int i, table_row *out)
{
    static const struct {
        int64_t size, c, oc, window, stride, pad;
        const char *name;
    } of[] = {{224, 3, 64, 7, 2, 3, "7 x 7 of 3"},
              {32, 3, 128, 3, 1, 1, "3 x 3 of 3"},
              {28, 1, 32, 5, 1, 2, "5 x 5 of 1"}};
    enum { OF = sizeof of / sizeof *of, WAYS = 3 }; /* forward, with statistics, weights */
    const int way = i % WAYS, f16 = i / WAYS % 2, k = i / WAYS / 2;
    if (k >= OF) return false;
    const tn_target target = gpu_target(90);
    tn_conv2d_desc d = conv_desc(f16 ? TN_F16 : TN_BF16, way == 2 ? TN_CONV_WEIGHT_GRAD : TN_CONV_FORWARD, 64,
                                 of[k].size, of[k].c, of[k].oc, of[k].window);
    d.stride[0] = d.stride[1] = of[k].stride;
    for (int p = 0; p < 4; p++) d.pad[p] = of[k].pad;
    d.oh = d.ow = (d.h + 2 * of[k].pad - d.kh) / of[k].stride + 1;
    struct fu_conv_tile o;
    *out = (table_row){.text = NULL};
    if (!fu_conv_tile(&d, &target, way == 1, &o)) return true;
    char name[48];
    snprintf(name, sizeof name, "conv %s, %s", of[k].name,
             way == 2 ? "weight gradient"
             : way    ? "statistics"
                      : "forward");
    conv_fill(out, name, f16 ? "f16" : "bf16", &o, false);
    snprintf(out->tile, sizeof out->tile, "%d x %d, wgmma", o.bm, o.bn);
    out->wgmma = true;
    out->share = o.share;
    out->tested = !f16 && way != 1 && k < 2;
    return true;
}
