/* table_attention.h - rows of the attention kernels: each pass, dtype and head, in the ways of table_uses,
 * among them what costs most registers, a mask that is added and dropout. That no combination of flags spills
 * is what `test_cuda_attention_tiles full` asks.
 *
 * The times are of a batch of 8 with 16 heads of 2048 queries and keys, or of a single sequence. Read first:
 * attention_row.
 */
#pragma once

#include "fuser/text/attention_cuda.h"
#include "tests/gpu/table.h"

/* What is compiled into a kernel besides its pass, dtype and head. */
static const struct table_use {
    const char *name;
    bool causal, dropout, strict;
    fu_flash_mask mask;
    int64_t batch, heads, tq;
    bool forward; /* alone, or with `older` as well as dk and dv: the other passes are the same as without */
    bool older;   /* by mma.sync, as a GPU without products of warpgroups */
} table_uses[] = {
    {"", true, false, false, FU_FLASH_NO_MASK, 8, 16, 2048, false, false},
    {", mma.sync", true, false, false, FU_FLASH_NO_MASK, 8, 16, 2048, true, true},
    {", all keys", false, false, false, FU_FLASH_NO_MASK, 8, 16, 2048, false, false},
    {", bool mask, strict", false, false, true, FU_FLASH_BOOL_MASK, 8, 16, 2048, false, false},
    {", mask, dropout", true, true, false, FU_FLASH_ADDED_MASK, 8, 16, 2048, false, false},
    {", mask, dropout, strict, few blocks", true, true, true, FU_FLASH_ADDED_MASK, 1, 4, 512, false, false},
    {", one query", false, false, false, FU_FLASH_NO_MASK, 1, 16, 1, true, false},
    {", mask, dropout, one query", false, true, false, FU_FLASH_ADDED_MASK, 1, 16, 1, true, false},
};
enum { TABLE_USES = sizeof table_uses / sizeof *table_uses };

static inline bool attention_row(int i, table_row *out)
{
    static const char *const pass[FU_FLASH_PASSES] = {"forward", "delta", "dk, dv", "dq"};
    enum { KINDS = TABLE_KINDS, HEADS = 4 };
    const int h = i % HEADS, k = i / HEADS % KINDS, p = i / HEADS / KINDS % FU_FLASH_PASSES,
              u = i / HEADS / KINDS / FU_FLASH_PASSES;
    if (u >= TABLE_USES) return false;
    const struct table_use *use = &table_uses[u];
    const fu_flash_desc d = {.pass = (fu_flash_pass)p,
                             .dtype = table_kinds[k].dtype,
                             .tf32 = table_kinds[k].tf32,
                             .causal = use->causal,
                             .dropout = use->dropout,
                             .strict = use->strict,
                             .mask = use->mask,
                             .head = 32 * (h + 1),
                             .batch = use->batch,
                             .heads = use->heads,
                             .tq = use->tq,
                             .tk = 2048,
                             .whole = true};
    tn_target target = gpu_target(90);
    const char *ptx = tn_embed_text(TN_EMBED_PTX_CUH), *kernels;
    struct fu_flash_tile t;
    char defines[1024];
    *out = (table_row){.text = NULL};
    /* delta knows nothing of masks, and most have mma.sync anyway: rows without a text */
    if ((u && p == FU_FLASH_DELTA) ||
        (use->forward && p != FU_FLASH_FORWARD && !(use->older && p == FU_FLASH_DKV)))
        return true;
    if (use->older && !(fu_flash_tile(&d, &target, &t) && t.wgmma)) return true;
    target.wgmma &= !use->older;
    if (!fu_flash_tile(&d, &target, &t)) return true;
    kernels = fu_flash_text((fu_flash_pass)p, &t);
    fu_flash_defines(&d, &t, defines, sizeof defines);
    snprintf(out->kernel, sizeof out->kernel, "attention %s%s, head %d", pass[p], use->name, d.head);
    snprintf(out->dtype, sizeof out->dtype, "%s", table_kinds[k].name);
    if (p == FU_FLASH_DELTA)
        snprintf(out->tile, sizeof out->tile, "%d rows", t.rows);
    else
        snprintf(out->tile, sizeof out->tile, "%d x %d, %d stages%s", t.rows, t.columns, t.stages,
                 t.wgmma ? ", wgmma" : "");
    size_t room = strlen(ptx) + strlen(kernels) + sizeof defines + 128;
    out->text = malloc(room);
    if (!out->text) abort();
    snprintf(out->text, room, "%s\n#define ENTRY kernel\n#define SCALE .125\n#define DROP_P .1\n%s%s", ptx,
             defines, kernels);
    out->threads = t.threads;
    out->shared = t.shared;
    out->per_l2 = t.flops / t.bytes;
    out->per_shared = t.shared_read > 0 ? t.flops / t.shared_read : 0;
    out->share = t.share;
    out->wgmma = t.wgmma;
    out->bound = t.bound;
    return true; /* tested by test_cuda_attention_tiles */
}
