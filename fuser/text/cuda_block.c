/* cuda_block.c - the pointwise nest where an operand's elements lie side by side along another atom than
 * the vector's (a transpose). Read element by element it would cost a line of memory for each; so a block of
 * threads first reads a tile of it along its own lines into shared memory.
 *
 * For y [n, 600] + the transpose of x [600, n]:
 *
 *     __shared__ float x_i_block[1056];
 *     for (int k = (int)threadIdx.x / 32; k < 32; k += 8) {
 *         const int64_t i0 = b0 + threadIdx.x % 32, i1 = t0 + k;
 *         if (i0 < n0 && i1 < 600) x_i_block[(i0 - b0) * 33 + i1 - t0] = x[i0 + i1 * 1000];
 *     }
 *     __syncthreads();
 *     for (int k = (int)threadIdx.x / 32; k < 32; k += 8) {
 *         const int64_t i0 = b0 + k, v0 = t0 + threadIdx.x % 32;
 *         if (i0 < n0 && v0 < 600) {...}
 *     }
 *
 * Start with fu_cuda_block.
 */
#include "cuda.h"

#include <stdio.h>

/* Coordinates of the tile: b0 along the block's atom, t0 along the vector's, and all others. */
static void tile_coordinates(fu_em *e)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    bool small = p->items < INT64_C(0x7fffffff);
    long long below = (p->extent[vec] + FU_BLOCK - 1) / FU_BLOCK;
    fu_line(&e->t, small ? "const uint32_t q = blockIdx.x;" : "const int64_t q = blockIdx.x;");
    fu_line(&e->t, "const int64_t t0 = (int64_t)(q %% %lld) * %d;", below, FU_BLOCK);
    for (int i = vec - 1; i >= 0; i--) {
        long long n = i == p->block ? (p->extent[i] + FU_BLOCK - 1) / FU_BLOCK : p->extent[i];
        char part[96];
        if (i) /* the outermost takes what is left: its extent is an argument */
            snprintf(part, sizeof part, "(int64_t)(q / %lld %% %lld)", below, n);
        else
            snprintf(part, sizeof part, "(int64_t)(q / %lld)", below);
        if (i == p->block)
            fu_line(&e->t, "const int64_t b0 = %s * %d;", part, FU_BLOCK);
        else
            fu_line(&e->t, "const int64_t i%d = %s;", i, part);
        below *= n > 0 ? n : 1;
    }
}

void fu_cuda_block(fu_em *e)
{
    fu_prog *p = e->p;
    int a = p->block, vec = fu_vec(p), lines = p->threads / FU_BLOCK;
    char high[32], width[32], at[256];
    fu_extent(p, a, high);
    fu_extent(p, vec, width);
    tile_coordinates(e);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->staged || !e->hot[i]) continue;
        fu_name(e, v);
        fu_line(&e->t, "__shared__ %s %s_block[%d];", e->lang->memory[v->dtype], v->name,
                FU_BLOCK * e->lang->block_pitch);
    }
    fu_scope_open(e, "for (int k = (int)threadIdx.x / %d; k < %d; k += %d) {", FU_BLOCK, FU_BLOCK, lines);
    fu_line(&e->t, "const int64_t i%d = b0 + threadIdx.x %% %d, i%d = t0 + k;", a, FU_BLOCK, vec);
    fu_scope_open(e, "if (i%d < %s && i%d < %s) {", a, high, vec, width);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->staged || !e->hot[i]) continue;
        fu_index(e, v->stride, ~0u, at, sizeof at);
        fu_line(&e->t, "%s_block[(i%d - b0) * %d + i%d - t0] = %s[%s];", v->name, a, e->lang->block_pitch,
                vec, e->pointer[v->buf], at);
    }
    fu_scope_close(e);
    fu_scope_close(e);
    fu_line(&e->t, "__syncthreads();");
    fu_scope_open(e, "for (int k = (int)threadIdx.x / %d; k < %d; k += %d) {", FU_BLOCK, FU_BLOCK, lines);
    fu_line(&e->t, "const int64_t i%d = b0 + k, v0 = t0 + threadIdx.x %% %d;", a, FU_BLOCK);
    fu_scope_open(e, "if (i%d < %s && v0 < %s) {", a, high, width);
    fu_hoist(e, 0, false);
    fu_scope_open(e, "{");
    fu_cuda_pack(e, &(fu_pack){.phase = 0, .n = 1, .lane = "v0 - t0"});
    fu_scope_close(e);
    e->phase = 1;
    fu_write_kept(e, "");
    e->phase = 0;
    fu_scope_close(e);
    fu_scope_close(e);
}
