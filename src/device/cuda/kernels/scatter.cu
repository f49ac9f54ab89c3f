/* scatter.cu - lines of a source are added to the lines of a target that an index names, in one order and
 * without atomics, however often the index names one line.
 *
 *   SORT   places of the index in the order of their lines, by 8 bits of the line a launch from the lowest on:
 *          each block counts the digits of its places, and its finish puts each where the counts say. Places of
 *          one line stay in their order. The first launch also zeroes the target.
 *   ADD    a thread goes through CHUNK sorted places and adds up PACK elements of each: lines that begin and
 *          end among them are written, what one shares with its neighbours is left beside; the finish adds that
 *          up, chunk by chunk.
 *
 * A sorted place is line << 32 | place. dim[0] is how many there are, dim[1] of SORT turns of a block, of ADD
 * CHUNK.
 *
 * The caller has defined ENTRY and ENTRY_FINISH, GUARD, SORT or ADD, OUTER, LINES and INNER of the target,
 * STORED (the type in memory), and
 *   SORT   FIRST (of the launches), SHIFT, INDEX (type), STRIDE and WHERE (the dim of the node) of the index
 *   ADD    PACK, SUM (the type of sums), LOAD(x), STORE(x)
 * Read first: ADD's ENTRY.
 */
#define LINE(sorted) ((int64_t)((uint64_t)(sorted) >> 32))
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(256, 1) name(const tn_cuda_args a)

#if defined(SORT)

#if FIRST
#define SORT_FROM const INDEX *const from = (const INDEX *)a.buf[0]
#define SORT_AT(j) ((int64_t)((uint64_t)(int64_t)from[(j)*STRIDE] < LINES ? from[(j)*STRIDE] : 0) << 32 | (j))
#else
#define SORT_FROM  const int64_t *const from = (const int64_t *)a.buf[0]
#define SORT_AT(j) from[j]
#endif
/* For each turn: which place, the digit, and how many lanes before this one, and in all, have it as well. */
#define SORT_EACH_TURN                                                                                       \
    for (int64_t turn = 0; turn < a.dim[1]; turn++) {                                                        \
        const int64_t j = ((blockIdx.x * 8 + warp) * a.dim[1] + turn) * 32 + threadIdx.x % 32;               \
        const bool there = j < a.dim[0];                                                                     \
        const int64_t sorted = there ? SORT_AT(j) : 0;                                                       \
        const int digit = (int)(LINE(sorted) >> SHIFT & 255);                                                \
        int all;                                                                                             \
        const int before = tn_place_of_digit(digit, there, &all);
/* Counts the digits of each of the block's warps. */
#define SORT_COUNT                                                                                           \
    __shared__ int32_t seen[8][256];                                                                         \
    const int warp = (int)threadIdx.x / 32;                                                                  \
    for (int w = 0; w < 8; w++) seen[w][threadIdx.x] = 0;                                                    \
    __syncthreads();                                                                                         \
    SORT_EACH_TURN                                                                                           \
        if (there && !before) seen[warp][digit] += all;                                                      \
        __syncwarp();                                                                                        \
    }                                                                                                        \
    __syncthreads();

KERNEL(ENTRY)
{
    SORT_FROM;
    int32_t *const counts = (int32_t *)a.buf[2];
    GUARD
#if FIRST
    STORED *const out = (STORED *)a.buf[3];
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < (int64_t)OUTER * LINES * INNER;
         i += (int64_t)gridDim.x * 256)
        out[i] = STORED{};
    if ((int64_t)blockIdx.x * 256 * a.dim[1] >= a.dim[0]) return;
#endif
    SORT_COUNT
#if FIRST
    for (int64_t j = (int64_t)blockIdx.x * 256 * a.dim[1] + threadIdx.x;
         j < a.dim[0] && j < (int64_t)(blockIdx.x + 1) * 256 * a.dim[1]; j += 256)
        if ((uint64_t)(int64_t)from[j * STRIDE] >= LINES) index_fault(a, a.dim[WHERE], (int64_t)from[j * STRIDE]);
#endif
    int32_t sum = 0;
    for (int w = 0; w < 8; w++) sum += seen[w][threadIdx.x];
    counts[(int64_t)blockIdx.x * 256 + threadIdx.x] = sum;
}

KERNEL(ENTRY_FINISH)
{
    SORT_FROM;
    int64_t *const to = (int64_t *)a.buf[1];
    const int32_t *const counts = (const int32_t *)a.buf[2];
    GUARD
    SORT_COUNT
    /* Of the thread's digit: in all blocks, and in those before this one. */
    int32_t total = 0, at = 0;
#pragma unroll 8
    for (int b = 0; b < (int)gridDim.x; b++) {
        const int32_t count = counts[(int64_t)b * 256 + threadIdx.x];
        total += count;
        at += b < (int)blockIdx.x ? count : 0;
    }
    __shared__ int32_t lower[256];
    lower[threadIdx.x] = total;
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        const int32_t more = (int)threadIdx.x >= d ? lower[threadIdx.x - d] : 0;
        __syncthreads();
        lower[threadIdx.x] += more;
        __syncthreads();
    }
    at += lower[threadIdx.x] - total;
    for (int w = 0; w < 8; w++) {
        const int32_t count = seen[w][threadIdx.x];
        seen[w][threadIdx.x] = at;
        at += count;
    }
    __syncthreads();
    SORT_EACH_TURN
        if (there) to[seen[warp][digit] + before] = sorted;
        __syncwarp();
        if (there && !before) seen[warp][digit] += all;
        __syncwarp();
    }
}

#else

#define ACROSS ((int64_t)OUTER * INNER / PACK) /* packs of a place */
#define AHEAD  8                               /* places that are read at once */

/* The sums of what a chunk shares with those before it, and of a line that begins in it and goes on. */
#define LEFT(chunk, which) (left + (((chunk)*2 + (which)) * ACROSS + across) * PACK)

KERNEL(ENTRY)
{
    const STORED *const src = (const STORED *)a.buf[0];
    const int64_t *const sorted = (const int64_t *)a.buf[1];
    SUM *const left = (SUM *)a.buf[2];
    STORED *const out = (STORED *)a.buf[3];
    GUARD
    const int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x, n = a.dim[0];
    if (item >= a.n) return;
    const int64_t across = item % ACROSS, chunk = item / ACROSS, first = chunk * a.dim[1];
    const int64_t end = first + a.dim[1] < n ? first + a.dim[1] : n;
    const int64_t outer = across / (INNER / PACK), inner = across % (INNER / PACK) * PACK;
    int64_t line = LINE(sorted[first]);
    bool shared = first > 0 && LINE(sorted[first - 1]) == line;
    SUM sum[PACK];
    STORED rounded[PACK];
    TN_UNROLL(int l = 0; l < PACK; l++) sum[l] = 0;
    for (int64_t e = first; e < end; e += AHEAD) {
        int64_t of[AHEAD];
        STORED x[AHEAD][PACK];
        TN_UNROLL(int k = 0; k < AHEAD; k++) of[k] = sorted[e + k < end ? e + k : end - 1];
        TN_UNROLL(int k = 0; k < AHEAD; k++) tn_load(x[k], src + (outer * n + (uint32_t)of[k]) * INNER + inner);
        TN_UNROLL(int k = 0; k < AHEAD; k++) {
            if (e + k >= end) break;
            if (LINE(of[k]) != line) {
                if (shared) {
                    tn_store(LEFT(chunk, 0), sum);
                } else {
                    TN_UNROLL(int l = 0; l < PACK; l++) rounded[l] = STORE(sum[l]);
                    tn_store(out + (outer * LINES + line) * INNER + inner, rounded);
                }
                line = LINE(of[k]);
                shared = false;
                TN_UNROLL(int l = 0; l < PACK; l++) sum[l] = 0;
            }
            TN_UNROLL(int l = 0; l < PACK; l++) sum[l] += LOAD(x[k][l]);
        }
    }
    if (shared) {
        tn_store(LEFT(chunk, 0), sum);
    } else if (end < n && LINE(sorted[end]) == line) {
        tn_store(LEFT(chunk, 1), sum);
    } else {
        TN_UNROLL(int l = 0; l < PACK; l++) rounded[l] = STORE(sum[l]);
        tn_store(out + (outer * LINES + line) * INNER + inner, rounded);
    }
}

/* A chunk in which a line begins that goes on writes that line. */
KERNEL(ENTRY_FINISH)
{
    const int64_t *const sorted = (const int64_t *)a.buf[1];
    const SUM *const left = (const SUM *)a.buf[2];
    STORED *const out = (STORED *)a.buf[3];
    GUARD
    const int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x, n = a.dim[0];
    if (item >= a.n) return;
    const int64_t across = item % ACROSS, chunk = item / ACROSS, first = chunk * a.dim[1];
    const int64_t end = first + a.dim[1];
    const int64_t outer = across / (INNER / PACK), inner = across % (INNER / PACK) * PACK;
    if (end >= n) return;
    const int64_t line = LINE(sorted[end]);
    if (LINE(sorted[end - 1]) != line || (first > 0 && LINE(sorted[first - 1]) == line)) return;
    SUM sum[PACK];
    tn_load(sum, LEFT(chunk, 1));
    for (int64_t c = chunk + 1, on = 1; on; c += AHEAD) {
        SUM x[AHEAD][PACK];
        bool same[AHEAD];
        TN_UNROLL(int k = 0; k < AHEAD; k++)
            same[k] = (c + k) * a.dim[1] < n && LINE(sorted[(c + k) * a.dim[1]]) == line;
        TN_UNROLL(int k = 0; k < AHEAD; k++)
            if (same[k]) tn_load(x[k], LEFT(c + k, 0));
        TN_UNROLL(int k = 0; k < AHEAD; k++) {
            on = same[k];
            if (!on) break;
            TN_UNROLL(int l = 0; l < PACK; l++) sum[l] += x[k][l];
        }
    }
    STORED rounded[PACK];
    TN_UNROLL(int l = 0; l < PACK; l++) rounded[l] = STORE(sum[l]);
    tn_store(out + (outer * LINES + line) * INNER + inner, rounded);
}

#endif
