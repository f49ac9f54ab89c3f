/* table_conv.h - rows of the convolution kernels: each pass, dtype and tile that the fuser may choose.
 *
 * The times are of a batch of 64 images, 56 x 56, 128 channels to 256, window 3 x 3, and of the tile that is
 * named, without what the fuser adds at the end: it stores, in the dtype. Read first: conv_row.
 */
#ifndef TESTS_GPU_TABLE_CONV_H
#define TESTS_GPU_TABLE_CONV_H

#include "fuser/conv_tile.h"
#include "src/device/embed.h"
#include "tests/gpu/table.h"

static inline void conv_fill(table_row *out, const char *kernel, const char *dtype,
                             const struct fu_conv_tile *o, bool prologue)
{
    *out = (table_row){.threads = o->grid.threads, .shared = o->grid.shared};
    snprintf(out->kernel, sizeof out->kernel, "%s", kernel);
    snprintf(out->dtype, sizeof out->dtype, "%s", dtype);
    const char *plain = tn_embed_text(TN_EMBED_CONV_PLAIN_CUH);
    size_t room = strlen(o->before) + strlen(o->text) + strlen(plain) + sizeof o->defines + 128;
    out->text = malloc(room);
    if (!out->text) abort();
    snprintf(out->text, room, "%s#define ENTRY kernel\n#define PARTIALS 3\n%s%s%s%s", o->defines,
             prologue ? "#define PROLOGUE\n" : "", o->before, plain, o->text);
}

static inline tn_conv2d_desc conv_desc(tn_dtype dtype, tn_conv_pass pass, int64_t c, int64_t groups)
{
    return (tn_conv2d_desc){.dtype = dtype,
                            .pass = pass,
                            .n = 64,
                            .h = 56,
                            .w = 56,
                            .c = c,
                            .oc = groups > 1 ? c : 256,
                            .kh = 3,
                            .kw = 3,
                            .oh = 56,
                            .ow = 56,
                            .groups = groups,
                            .stride = {1, 1},
                            .pad = {1, 1, 1, 1},
                            .dilation = {1, 1}};
}

static inline bool conv_row(int i, table_row *out)
{
    static const struct {
        int bm, bn, warps_m, warps_n, stages;
    } tile[] = {{128, 256, 2, 4, 4}, {128, 128, 2, 4, 4}, {128, 64, 2, 2, 4}, {64, 128, 2, 2, 4},
                {64, 64, 2, 2, 3},   {64, 32, 4, 1, 3},   {32, 32, 2, 2, 3}};
    static const struct {
        tn_conv_pass pass;
        bool stats, odd, prologue;
        int64_t splits;
        const char *name;
        int tested; /* up to this kind */
    } way[] = {{TN_CONV_FORWARD, false, false, false, 1, "conv forward", 3},
               {TN_CONV_FORWARD, true, false, false, 1, "conv forward, statistics", 1},
               {TN_CONV_FORWARD, false, true, false, 1, "conv forward, 3 channels", 1},
               {TN_CONV_FORWARD, true, false, true, 1, "conv forward, prologue", 1},
               {TN_CONV_DATA_GRAD, false, false, false, 1, "conv data gradient", 3},
               {TN_CONV_WEIGHT_GRAD, false, false, false, 16, "conv weight gradient", 3},
               {TN_CONV_WEIGHT_GRAD, false, false, true, 16, "conv weight gradient, prologue", 1}};
    enum { TILES = sizeof tile / sizeof *tile, KINDS = TABLE_KINDS, WAYS = sizeof way / sizeof *way };
    const int t = i % TILES, k = i / TILES % KINDS, w = i / TILES / KINDS;
    if (w >= WAYS) return false;
    tn_target target = table_target();
    target.tf32 = table_kinds[k].tf32;
    const tn_conv2d_desc d = conv_desc(table_kinds[k].dtype, way[w].pass, way[w].odd ? 3 : 128, 1);
    const int size = table_kinds[k].dtype == TN_F32 ? 4 : 2;
    struct fu_conv_tile o = {.bm = tile[t].bm,
                             .bn = tile[t].bn,
                             .bk = (way[w].odd ? 64 : 128) / size,
                             .stages = tile[t].stages,
                             .warps_m = tile[t].warps_m,
                             .warps_n = tile[t].warps_n,
                             .splits = way[w].splits};
    *out = (table_row){.text = NULL};
    if (!fu_conv_tile_as(&d, &target, way[w].stats, &o) ||
        (way[w].prologue && fu_conv_before(&d, &target, &o, 0, 0) < 0))
        return true; /* no such tile: a row without a text */
    conv_fill(out, way[w].name, table_kinds[k].name, &o, way[w].prologue);
    snprintf(out->tile, sizeof out->tile, "%d x %d x %d, %d stages", o.bm, o.bn, o.bk, o.stages);
    out->per_l2 = 2.0 * o.bm * o.bn / ((o.bm + o.bn) * size);
    out->per_shared = 2.0 * o.bm * o.bn / ((o.bm * o.warps_n + o.bn * o.warps_m) * size);
    out->share = o.share;
    out->tested = t == 2 && k < way[w].tested;
    return true;
}

/* Groups of few channels: no tensor cores. */
static inline bool direct_row(int i, table_row *out)
{
    static const char *const pass[] = {"forward", "data gradient", "weight gradient"};
    static const int of_group[] = {1, 2, 4, 8};
    const tn_target target = table_target();
    const int each = of_group[i / 6 % 4], half = i / 3 % 2;
    if (i >= 24) return false;
    const tn_conv2d_desc d = conv_desc(half ? TN_F16 : TN_F32, (tn_conv_pass)(i % 3), 128, 128 / each);
    struct fu_conv_tile o;
    char name[40];
    if (!fu_conv_tile(&d, &target, false, &o)) return false;
    if (each == 1)
        snprintf(name, sizeof name, "depthwise %s", pass[i % 3]);
    else
        snprintf(name, sizeof name, "groups of %d, %s", each, pass[i % 3]);
    conv_fill(out, name, half ? "f16" : "f32", &o, false);
    snprintf(out->tile, sizeof out->tile, "%d x %d", o.bm, o.bn);
    out->tested = !half && (each == 1 || each == 4);
    return true;
}

#endif
