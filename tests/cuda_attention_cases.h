/* cuda_attention_cases.h - the problems for the attention kernels on tensor cores: a family for each kernel
 * that is tried, with the extents, layouts and masks it is tried on; and the text of a problem's kernels. Read
 * first: problems. */
#pragma once

#include "cuda_attention.h"

#include "src/device/embed.h"

#define H      TN_F16
#define B      TN_BF16
#define F      TN_F32
#define T      TN_F32, true /* one product of TF32 */
#define NONE   FU_FLASH_NO_MASK
#define BOOL   FU_FLASH_BOOL_MASK
#define ADDED  FU_FLASH_ADDED_MASK
#define X      false
#define CAUSAL true
#define DROP   true

/* Extents that divide tiles and that do not, one row, one key, more of the one or of the other. Four heads
 * and more have tiles of two times 16 rows a warp where the table says so. */
static const struct family {
    struct {
        tn_dtype dtype;
        bool tf32;
        int head;
        bool causal;
        fu_flash_mask mask;
        bool dropout;
    } of;
    struct {
        int batch, heads, tq, tk;
        layout layout;
        extent extent;
        pattern pattern;
        double scale, size;
    } at[9];
} families[] = {
    {{H, X, 64, CAUSAL, NONE, X},
     {{2, 2, 64, 64, .layout = PACKED},
      {2, 2, 150, 150, .layout = PACKED},
      {2, 2, 33, 33, .layout = ODD},
      {2, 3, 40, 130, .layout = HEADS},
      {4, 1, 130, 40, .layout = HEADS},
      {4, 1, 1, 70, .layout = HEADS},
      {4, 1, 70, 1, .layout = HEADS},
      {1, 1, 96, 96, .layout = HEADS}}},
    {{H, X, 64, X, NONE, X},
     {{2, 2, 64, 128, .layout = HEADS},
      {2, 2, 129, 65, .layout = PACKED},
      {2, 2, 1, 1, .layout = HEADS},
      {2, 2, 17, 200, .layout = ODD},
      {2, 2, 50, 90, .layout = HEADS, .scale = -.2},
      {1, 2, 1, 1500, .layout = HEADS}, /* a few queries, whose keys are parted from here on */
      {1, 1, 3, 700, .layout = ODD, .scale = -.2}}},
    {{B, X, 128, CAUSAL, BOOL, X},
     {{2, 2, 70, 70, .layout = PACKED},
      {2, 2, 70, 70, .layout = PACKED, .extent = PLAIN, .pattern = LATE},
      {2, 2, 60, 90, .layout = HEADS, .extent = KEYS},
      {2, 2, 40, 40, .layout = HEADS, .extent = COLUMN},
      {2, 2, 40, 40, .layout = HEADS, .pattern = BLIND}}},
    {{F, X, 64, CAUSAL, NONE, X},
     {{2, 2, 64, 64, .layout = PACKED},
      {2, 2, 100, 100, .layout = PACKED},
      {2, 2, 33, 70, .layout = ODD},
      {4, 1, 70, 33, .layout = HEADS},
      {4, 1, 1, 40, .layout = HEADS},
      {4, 1, 40, 1, .layout = HEADS}}},
    {{F, X, 32, X, BOOL, X},
     {{2, 2, 64, 64, .layout = HEADS},
      {2, 2, 40, 100, .layout = PACKED, .extent = PLAIN, .pattern = LATE},
      {2, 2, 50, 50, .layout = ODD, .extent = KEYS},
      {2, 2, 45, 33, .layout = HEADS, .pattern = BLIND},
      {2, 2, 129, 17, .layout = HEADS, .extent = COLUMN},
      {1, 2, 2, 400, .layout = HEADS, .extent = KEYS, .pattern = LATE},
      {1, 1, 9, 300, .layout = HEADS, .pattern = BLIND}}},
    {{F, X, 32, X, NONE, X},
     {{2, 2, 60, 60, .layout = HEADS, .size = 40}, {2, 2, 31, 97, .layout = ODD, .scale = -.5, .size = 1}}},
    {{H, X, 32, CAUSAL, NONE, X},
     {{2, 2, 60, 60, .layout = HEADS, .size = 40},
      {2, 2, 65, 129, .layout = PACKED},
      {2, 2, 256, 20, .layout = HEADS},
      {1, 1, 270, 270, .layout = HEADS}}},
    {{F, X, 64, X, ADDED, DROP},
     {{2, 2, 64, 64, .layout = HEADS},
      {2, 2, 37, 61, .layout = HEADS, .extent = PLAIN, .pattern = LATE},
      {2, 2, 20, 36, .layout = ODD, .extent = KEYS},
      {2, 2, 50, 2, .layout = HEADS},
      {1, 1, 5, 330, .layout = HEADS}}},
    {{F, X, 64, X, ADDED, X},
     {{2, 2, 40, 40, .layout = HEADS, .pattern = BLIND},
      {2, 2, 40, 80, .layout = PACKED, .extent = COLUMN, .scale = -.3}}},
    {{H, X, 96, X, ADDED, X},
     {{2, 2, 64, 96, .layout = HEADS},
      {2, 2, 41, 41, .layout = PACKED, .extent = KEYS, .pattern = LATE},
      {2, 2, 30, 70, .layout = ODD, .pattern = BLIND},
      {2, 2, 1, 50, .layout = HEADS, .extent = PLAIN}}},
    {{B, X, 64, CAUSAL, NONE, DROP},
     {{2, 2, 64, 64, .layout = PACKED},
      {2, 2, 50, 50, .layout = PACKED},
      {2, 2, 35, 135, .layout = HEADS},
      {2, 2, 135, 36, .layout = HEADS}}},
    {{T, 64, CAUSAL, NONE, X},
     {{2, 2, 64, 64, .layout = PACKED},
      {2, 2, 77, 50, .layout = HEADS},
      {2, 2, 50, 77, .layout = ODD},
      {2, 2, 100, 100, .layout = PACKED}}},
    {{F, X, 128, CAUSAL, NONE, X},
     {{2, 2, 64, 64, .layout = PACKED},
      {2, 2, 35, 50, .layout = HEADS},
      {2, 2, 50, 35, .layout = HEADS},
      {2, 2, 1, 1, .layout = ODD}}},
    {{F, X, 96, CAUSAL, BOOL, DROP},
     {{2, 2, 32, 32, .layout = PACKED},
      {2, 2, 33, 47, .layout = HEADS, .extent = KEYS},
      {2, 2, 60, 20, .layout = HEADS, .extent = PLAIN, .pattern = LATE}}},
    {{H, X, 128, X, NONE, X},
     {{2, 2, 64, 64, .layout = PACKED},
      {2, 2, 100, 30, .layout = HEADS},
      {2, 2, 30, 100, .layout = ODD},
      {2, 2, 65, 33, .layout = HEADS, .size = 30}}},
};

/* All families' problems; those in which a query sees nothing in both ways of taking that. */
static inline int problems(config *out, int room)
{
    int n = 0;
    for (int f = 0; f < (int)(sizeof families / sizeof *families); f++)
        for (int i = 0; families[f].at[i].batch; i++) {
            const struct family *of = &families[f];
            config c = {of->of.dtype,      of->of.tf32,     of->of.head,      of->of.causal,
                        of->of.mask,       of->of.dropout,  of->at[i].batch,  of->at[i].heads,
                        of->at[i].tq,      of->at[i].tk,    of->at[i].layout, of->at[i].extent,
                        of->at[i].pattern, of->at[i].scale, of->at[i].size,   false};
            for (int strict = 0; strict < 1 + (c.pattern == BLIND); strict++) {
                c.strict = strict;
                assert_true(n < room);
                out[n++] = c;
            }
        }
    return n;
}

/* ---- their kernels ---- */

static bool warpgroups; /* by them wherever it can be */

static fu_flash_desc desc_of(const config *c, fu_flash_pass pass)
{
    const bool all = pass != FU_FLASH_DELTA; /* which knows only where the mask stands among the buffers */
    return (fu_flash_desc){pass,
                           c->dtype,
                           c->tf32,
                           all && c->causal,
                           all && c->dropout,
                           all && c->strict,
                           c->mask,
                           c->head,
                           c->batch,
                           c->heads,
                           c->tq,
                           c->tk,
                           true};
}

/* A fault to be put into the kernels' text: `to` in place of `from`. */
typedef struct edit {
    const char *from, *to;
} edit;

/* The text of a pass, with the fault if there is one, and its name; freed by the caller. */
static char *text_of(const config *c, const problem *p, fu_flash_pass pass, const tn_target *target,
                     const edit *planted, struct fu_flash_tile *tile, char name[64])
{
    const char *kernels, *ptx = tn_embed_text(TN_EMBED_PTX_CUH);
    const fu_flash_desc d = desc_of(c, pass);
    char defines[1024];
    assert_true(fu_flash_tile(&d, target, tile));
    struct fu_flash_tile by_groups;
    if (warpgroups && fu_flash_warpgroups(&d, target, &by_groups)) *tile = by_groups;
    kernels = fu_flash_text(pass, tile);
    int n = fu_flash_defines(&d, tile, defines, sizeof defines);
    n += snprintf(defines + n, sizeof defines - (size_t)n, "#define SCALE %.17g\n#define DROP_P %.17g\n",
                  p->scale, p->drop);
    assert_in_range(n, 1, sizeof defines - 1);
    uint64_t hash = 0xcbf29ce484222325u; /* equal texts have equal names: they are compiled once */
    for (const char *x = defines; *x; x++) hash = (hash ^ (uint8_t)*x) * 0x100000001b3u;
    snprintf(name, 64, "attention_%016llx", (unsigned long long)hash);
    char *text = malloc(strlen(kernels) + strlen(ptx) + (size_t)n + 256);
    assert_non_null(text);
    n = sprintf(text, "%s\n#define ENTRY %s\n%s#line 1 \"attention.cu\"\n", ptx, name, defines);
    const char *at = planted ? strstr(kernels, planted->from) : NULL;
    if (at)
        sprintf(text + n, "%.*s%s%s", (int)(at - kernels), kernels, planted->to, at + strlen(planted->from));
    else
        strcpy(text + n, kernels);
    assert_true(!planted || at);
    return text;
}
