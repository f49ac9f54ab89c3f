/* matrix.c - what a warp's matrix instructions do: mma.sync and ldmatrix, with PTX's places of the operands.
 *
 * Lane 4 g + t has of an 8 x 8 matrix of 32-bit words row g, word t. Tensor cores keep more digits than f32
 * while they add up one instruction's products and drop what is too much for the sum, and they look at the
 * upper 19 bits of a TF32 operand alone; both are done here, so that results are not better than hardware's.
 *
 * Read first: sim_warp_matrix. */
#include "exec.h"

/* As shim.h declares them. */
typedef struct mma {
    float d[4];
    uint32_t a[4], b[2];
} mma;
typedef struct ldmatrix {
    uint32_t d[4];
    const void *row;
    uint32_t n;
} ldmatrix;

static void *of_lane(const sim_thread *first, int lane) { return (void *)(uintptr_t)first[lane].value; }

static float element(sim_collective kind, uint32_t word, int upper)
{
    if (kind == SIM_MMA_TF32) return sim_float(word & 0xffffe000u);
    uint16_t h = (uint16_t)(upper ? word >> 16 : word);
    return kind == SIM_MMA_F16 ? sim_from_half(h) : sim_float((uint32_t)h << 16);
}

float sim_toward_zero(double x)
{
    float y = (float)x;
    if (y - y != 0 || y == 0) return y; /* infinite, NaN; of the smallest numbers nothing is left */
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    return (y < 0 ? -(double)y > -x : (double)y > x) ? sim_float(bits - 1) : y;
}

/* d[16][8] += a[16][k] b[k][8]: k 8 of 32 bits, or 16 of 16. */
static void multiply(sim_collective kind, const sim_thread *first)
{
    const int per = kind == SIM_MMA_TF32 ? 1 : 2, depth = 8 * per;
    double a[16][16], b[16][8], sum[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const mma *m = of_lane(first, lane);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < per; i++) {
            for (int r = 0; r < 4; r++)
                a[g + r % 2 * 8][(t + r / 2 * 4) * per + i] = (double)element(kind, m->a[r], i);
            for (int r = 0; r < 2; r++) b[(t + r * 4) * per + i][g] = (double)element(kind, m->b[r], i);
        }
        for (int r = 0; r < 4; r++) sum[g + r / 2 * 8][t * 2 + r % 2] = (double)m->d[r];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < depth; k++)
            for (int column = 0; column < 8; column++) sum[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++) {
        mma *m = of_lane(first, lane);
        for (int r = 0; r < 4; r++)
            m->d[r] = sim_toward_zero(sum[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2]);
    }
}

/* Lanes 8 i .. 8 i + 7 name the rows of matrix i. */
static void load(sim_collective kind, const sim_thread *first)
{
    const unsigned n = ((const ldmatrix *)of_lane(first, 0))->n;
    for (unsigned i = 0; i < n; i++) {
        uint16_t matrix[8][8];
        for (unsigned row = 0; row < 8; row++) {
            const sim_thread *lane = &first[8 * i + row];
            const ldmatrix *m = of_lane(lane, 0);
            const uint64_t at = (uint64_t)(uintptr_t)m->row;
            block.now = &block.thread[lane->index];
            if (at % 16) sim_kernel_fault(SIM_MISALIGNED, "misaligned address %p of an ldmatrix", m->row);
            if (!sim_check_shared(at, 16))
                sim_kernel_fault(SIM_ILLEGAL_ADDRESS, "an ldmatrix from %p, which is not in shared memory",
                                 m->row);
            sim_check_access(at, 16, false);
            memcpy(matrix[row], m->row, 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4 * 2;
            ldmatrix *m = of_lane(first, lane);
            m->d[i] = kind == SIM_LDMATRIX ? matrix[g][t] | (uint32_t)matrix[g][t + 1] << 16
                                           : matrix[t][g] | (uint32_t)matrix[t + 1][g] << 16;
        }
    }
}

void sim_warp_matrix(sim_collective kind, const sim_thread *first)
{
    sim_thread *before = block.now;
    if (kind >= SIM_WGMMA_F16)
        sim_warp_wgmma(kind, first);
    else if (kind == SIM_LDMATRIX || kind == SIM_LDMATRIX_TRANS)
        load(kind, first);
    else
        multiply(kind, first);
    block.now = before;
}
