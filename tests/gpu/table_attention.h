/* table_attention.h - rows of the attention kernels: each pass, dtype and head, causal, without and with what
 * costs most registers, a mask that is added and dropout.
 *
 * The times are of a batch of 8 with 16 heads of 2048 queries and keys. Read first: attention_row.
 */
#ifndef TESTS_GPU_TABLE_ATTENTION_H
#define TESTS_GPU_TABLE_ATTENTION_H

#include "fuser/attention_cuda.h"
#include "tests/gpu/table.h"

static inline bool attention_row(int i, table_row *out)
{
    static const char *const pass[FU_FLASH_PASSES] = {"forward", "delta", "dk, dv", "dq"};
    enum { KINDS = TABLE_KINDS, HEADS = 4 };
    const int h = i % HEADS, k = i / HEADS % KINDS, p = i / HEADS / KINDS % FU_FLASH_PASSES,
              full = i / HEADS / KINDS / FU_FLASH_PASSES;
    if (full > 1) return false;
    const fu_flash_desc d = {.pass = (fu_flash_pass)p,
                             .dtype = table_kinds[k].dtype,
                             .tf32 = table_kinds[k].tf32,
                             .causal = true,
                             .dropout = full,
                             .mask = full ? FU_FLASH_ADDED_MASK : FU_FLASH_NO_MASK,
                             .head = 32 * (h + 1),
                             .batch = 8,
                             .heads = 16,
                             .tq = 2048,
                             .tk = 2048};
    const tn_target target = table_target();
    const char *ptx = tn_embed_text(TN_EMBED_PTX_CUH), *kernels = fu_flash_text((fu_flash_pass)p);
    struct fu_flash_tile t;
    char defines[1024];
    *out = (table_row){.text = NULL};
    if (full && p == FU_FLASH_DELTA) return true; /* knows nothing of masks: a row without a text */
    if (!fu_flash_tile(&d, &target, &t)) return true;
    fu_flash_defines(&d, &t, defines, sizeof defines);
    snprintf(out->kernel, sizeof out->kernel, "attention %s%s, head %d", pass[p],
             full ? ", mask, dropout" : "", d.head);
    snprintf(out->dtype, sizeof out->dtype, "%s", table_kinds[k].name);
    if (p == FU_FLASH_DELTA)
        snprintf(out->tile, sizeof out->tile, "%d rows", t.rows);
    else
        snprintf(out->tile, sizeof out->tile, "%d x %d, %d stages", t.rows, t.columns, t.stages);
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
    return true; /* tested by test_cuda_attention */
}

#endif
