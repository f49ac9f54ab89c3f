/* attention_cuda.c - which tiles the attention kernels for tensor cores get, and what they should reach.
 *
 * What a warp keeps in registers decides: the accumulators of its outputs (16 * M_TILES rows of HEAD) and the
 * scores of one tile (16 * M_TILES rows of COLS). The table holds for each kind, head and pass the largest
 * tile that the real compiler fits into 255 registers without a spill, whatever the mask adds; draws_fit says
 * where dropout does not fit as well, one_tile_fits where less does not (tests/test_cuda_attention.c asks the
 * compiler). Where shared memory is short, or there are fewer blocks than processors, tiles get smaller. Two
 * blocks should fit on a processor: while one waits or takes exponentials the other's products run.
 *
 * Where a GPU has products of warpgroups, 16-bit types with heads of 64 and 128 have a tile for them too,
 * forward and backward: a block of two warpgroups, and of one that copies for them, has a processor for
 * itself. Of the two the one that should be faster is taken. Backward by warpgroups is the pass of dk and dv, which gives dq as well.
 *
 * Read first: fu_flash_tile.
 */
#include "attention_cuda.h"

#include <math.h>
#include <stdio.h>

#include "../../src/device/embed.h"

enum { WARPS = 4, KINDS = 3, HEADS = 4, PASSES = 3 };
/* Of shared memory, that a kernel whose blocks share their rows takes besides: a word that says which of them
 * was the last, behind which the rest begins at a multiple of 1024. */
enum {
    LAST_BYTES = 1024,
    BLOCK_BYTES = 512, /* of attention_wgmma_backward.cu, */
    RINGS_BYTES = 256, /* of attention_wgmma.cu; */
    COPYING = 128      /* threads of both that copy for the others */
};

typedef struct shape {
    uint8_t m_tiles, columns, kept;
} shape;

/* [16 bits, f32 as three products, f32 as one][head 32, 64, 96, 128][forward, dk and dv, dq] */
static const shape table[KINDS][HEADS][PASSES] = {
    {{{2, 64, 1}, {2, 32, 0}, {2, 32, 0}},
     {{2, 64, 0}, {1, 64, 0}, {2, 32, 0}},
     {{2, 32, 0}, {1, 32, 0}, {2, 32, 0}},
     {{1, 32, 1}, {1, 32, 0}, {1, 32, 0}}},
    {{{2, 32, 0}, {2, 32, 0}, {2, 16, 0}},
     {{2, 32, 0}, {1, 32, 0}, {1, 32, 0}},
     {{2, 32, 0}, {1, 32, 0}, {1, 32, 0}},
     {{1, 32, 0}, {1, 16, 0}, {1, 32, 0}}},
    {{{2, 32, 0}, {2, 32, 0}, {2, 32, 0}},
     {{2, 32, 0}, {1, 32, 0}, {1, 32, 0}},
     {{2, 32, 0}, {1, 32, 0}, {1, 32, 0}},
     {{2, 32, 0}, {1, 32, 0}, {1, 32, 0}}},
};

static int element_bytes(tn_dtype d) { return d == TN_F32 ? 4 : 2; }

static int products(const fu_flash_desc *d) { return d->dtype == TN_F32 && !d->tf32 ? 3 : 1; }

static const shape *shape_of(const fu_flash_desc *d)
{
    const int kind = d->dtype != TN_F32 ? 0 : d->tf32 ? 2 : 1;
    const int pass = d->pass == FU_FLASH_FORWARD ? 0 : d->pass == FU_FLASH_DKV ? 1 : 2;
    return &table[kind][d->head / 32 - 1][pass];
}

/* Returns true where drawing dropout's bits finds room in registers beside two tiles of rows. */
static bool draws_fit(const fu_flash_desc *d) { return d->dtype != TN_F32 && d->head <= 64; }

/* Returns true where one tile of rows is a good choice if there are few blocks. In one case (an added
 * mask, forward, three products, head 96) the compiler takes more registers for it than for two tiles, and
 * spills. */
static bool one_tile_fits(const fu_flash_desc *d)
{
    return d->pass != FU_FLASH_FORWARD || d->mask != FU_FLASH_ADDED_MASK || products(d) == 1 || d->head != 96;
}

/* As attention.cu lays them out: the block's own rows of one or two matrices, then the stages. */
static int64_t shared_of(const fu_flash_desc *d, const struct fu_flash_tile *t)
{
    const int64_t row = (d->head + 16 / element_bytes(d->dtype)) * element_bytes(d->dtype);
    const int64_t own = t->rows * (d->pass == FU_FLASH_FORWARD ? 1 : 2);
    const int64_t numbers = d->pass == FU_FLASH_DKV ? 2 * t->columns * (int64_t)sizeof(float) : 0;
    if (t->wgmma) {
        const int64_t rest =
            d->pass == FU_FLASH_DKV
                ? 2 * t->rows * t->columns * 2 + t->columns * d->head * (int64_t)sizeof(float) + BLOCK_BYTES
                : RINGS_BYTES;
        return (own + 2 * t->stages * t->columns) * d->head * 2 + t->stages * numbers + rest;
    }
    return own * row + t->stages * (2 * t->columns * row + numbers);
}

static int64_t blocks_of(const fu_flash_desc *d, int rows)
{
    const int64_t side = d->pass == FU_FLASH_DKV ? d->tk : d->tq;
    return d->batch * d->heads * ((side + rows - 1) / rows);
}

static void set_rows(const fu_flash_desc *d, struct fu_flash_tile *t)
{
    t->rows = 16 * t->m_tiles * t->warps;
    t->threads = 32 * t->warps + (t->wgmma ? COPYING : 0);
    t->blocks = blocks_of(d, t->rows);
    t->shared = shared_of(d, t);
}

/* ---- cost ---- */

/* Cycles of a quarter of a multiprocessor for a warp's instruction: a product of 16 x 8 x 32 bytes by
 * mma.sync, and the same as a part of a warpgroup's; and 2^x. Bytes a cycle for all four quarters, from
 * shared memory and from L2. */
enum {
    MMA_CYCLES = 8,
    WGMMA_CYCLES = 4,
    EXP_CYCLES = 8,
    SHARED_CYCLE = 128,
    L2_CYCLE = 40,
    LDMATRIX_BYTES = 512
};

/* The part of the key-query pairs that are seen, and of those in tiles that are visited. */
static void pairs_of(const fu_flash_desc *d, const struct fu_flash_tile *t, double *seen, double *visited)
{
    const double all = (double)d->tq * (double)d->tk;
    const double q = (double)d->tq, k = (double)d->tk;
    *seen = *visited = all;
    if (!d->causal) {
        const double r = t->rows, c = t->columns, s = d->pass == FU_FLASH_DKV ? k : q;
        const double o = d->pass == FU_FLASH_DKV ? q : k;
        *visited = ceil(s / r) * r * ceil(o / c) * c;
        return;
    }
    *seen = q <= k ? q * (q + 1) / 2 : k * (k + 1) / 2 + (q - k) * k;
    int common = t->rows, rest = t->columns % t->rows; /* their largest divisor */
    while (rest) {
        const int next = common % rest;
        common = rest;
        rest = next;
    }
    *visited = fmin(all, *seen + fmin(q, k) * (t->rows + t->columns - common) / 2);
}

/* Products of a pass: those of scores, and those that add to an output. */
static int score_products(fu_flash_pass p) { return p == FU_FLASH_FORWARD ? 1 : 2; }

static int output_products(fu_flash_pass p, const struct fu_flash_tile *t)
{
    return p == FU_FLASH_DKV ? 2 + t->wgmma : 1;
}

/* What takes time, in cycles of a quarter. */
typedef struct parts {
    double tensor, exponents, issue, shared, far;
} parts;

/* The longest, and a quarter of the rest, which does not hide. */
static double share_of_parts(const parts *p, struct fu_flash_tile *t)
{
    const struct {
        double cycles;
        const char *name;
    } each[] = {{p->tensor, "tensor"},
                {p->exponents, "exponents"},
                {p->issue, "issue"},
                {p->shared, "shared"},
                {p->far, "L2"}};
    double longest = 0, all = 0;
    for (int i = 0; i < (int)(sizeof each / sizeof *each); i++) {
        if (each[i].cycles > longest) longest = each[i].cycles, t->bound = each[i].name;
        all += each[i].cycles;
    }
    return p->tensor / (longest + (all - longest) * .25);
}

/* As share_of_tile, for a warp's 16 rows of a warpgroup's 64. What products read of shared memory is a part
 * of them: 64 and N rows of 32 bytes for 64 x N x 16, or N alone where the left ones are registers, at no
 * more than the rate at which shared memory gives. Instructions are counted in the assembler's text: for 128
 * x 128 keys and columns 700, backward for 64 queries of 128 columns 830. Backward what a tile adds to dq is
 * read and written. */
static double share_of_wgmma(const fu_flash_desc *d, struct fu_flash_tile *t, double *read)
{
    enum { LOOP = 150, BACK = 500, COPY = 5, SCORE = 6, MASKED = 12, DRAWN = 60, STEP = 32 };
    const bool back = d->pass == FU_FLASH_DKV;
    const double scores = t->columns / 2.0, steps = d->head / 16.0, parts_of = t->columns / 16.0;
    const double copies = 2.0 * t->columns * d->head / 8 / t->threads, all = back ? 5 : 2;
    *read = (steps * (64 + t->columns) + parts_of * d->head) * STEP / 4 * (back ? 2 : 1) +
            (back ? t->rows / 16.0 * (64 + 64) * STEP / 4 : 0);
    const double tensor = all * steps * t->columns / 8 * WGMMA_CYCLES, fetched = *read / SHARED_CYCLE * 4;
    const parts p = {.tensor = fmax(tensor, fetched),
                     .exponents = scores * EXP_CYCLES,
                     .issue = scores * (SCORE + (d->mask ? MASKED : 0) + (d->dropout ? DRAWN : 0)) +
                              d->head / 2.0 + COPY * copies + steps + parts_of + (back ? BACK : LOOP),
                     .far = (back ? 12.0 : 4.0) * t->columns * d->head / L2_CYCLE * 4 / t->warps};
    return share_of_parts(&p, t) * tensor / p.tensor;
}

/* The share of the time in which tensor cores are busy, for a warp's tile of 16 * m_tiles by `columns`: the
 * longest of what its quarter and the two memories take, and a quarter of the rest. *read: bytes that it
 * reads from shared memory. Instructions are counted as the assembler's text has them; each word of an f32
 * operand is rounded or split (ptx.cuh). */
static double share_of_tile(const fu_flash_desc *d, struct fu_flash_tile *t, double *read)
{
    enum { LOOP = 30, COPY = 15, SCORE = 8, MASKED = 6, DRAWN = 30, ROUND = 2, SPLIT = 5 };
    const bool wide = d->dtype == TN_F32;
    const double size = element_bytes(d->dtype), depth = 32 / size, m = t->m_tiles, n = t->columns / 8.0;
    const double a = score_products(d->pass), b = output_products(d->pass, t);
    const double mma = (a + b) * m * n * (d->head / depth); /* of each product of the precision */
    const double score_loads = a * (d->head / depth) * (n / 2 + (t->kept ? 0 : m));
    const double output_loads = b * (t->columns / depth) * (d->head / 16.0);
    const double scores = m * n * 4; /* of a lane */
    const double split = !wide ? 0 : products(d) == 3 ? SPLIT : ROUND;
    const double words = 4 * (score_loads + output_loads) + b * scores;
    const double fit = d->pass == FU_FLASH_FORWARD ? m * d->head / 2 : 0; /* sums to a larger score */
    const double copies = 2 * t->columns * d->head * size / 16 / t->threads;
    const double tensor = mma * products(d) * MMA_CYCLES, exponent = scores * EXP_CYCLES;
    const double issue = mma * products(d) + score_loads + output_loads * (wide ? 4 : 1) + split * words +
                         scores * (SCORE + a + (d->mask ? MASKED : 0) + (d->dropout ? DRAWN : 0)) + fit +
                         COPY * copies + LOOP;
    *read = (score_loads + output_loads) * LDMATRIX_BYTES;
    const parts p = {tensor, exponent, issue, *read / SHARED_CYCLE * 4 /* the quarters take turns */,
                     2 * t->columns * d->head * size / L2_CYCLE * 4 / t->warps};
    return share_of_parts(&p, t);
}

/* Rounds of blocks that are not full; two blocks share a processor, but those of warpgroups. */
static double share_of_rounds(const struct fu_flash_tile *t, int processors)
{
    const double at_once = (t->wgmma ? 1.0 : 2.0) * (processors > 0 ? processors : 1),
                 rounds = (double)t->blocks / at_once;
    return rounds / ceil(rounds);
}

static void predict(const fu_flash_desc *d, const tn_target *target, struct fu_flash_tile *t)
{
    const double pairs = (double)d->batch * (double)d->heads, rows = pairs * (double)d->tq;
    const double size = element_bytes(d->dtype), width = d->head * size;
    double seen, visited;
    if (d->pass == FU_FLASH_DELTA) {
        t->flops = 2 * rows * d->head;
        t->bytes = rows * (2 * width + 8);
        t->bound = "DRAM";
        return;
    }
    pairs_of(d, t, &seen, &visited);
    t->flops = 2 * pairs * seen * d->head * (score_products(d->pass) + output_products(d->pass, t));
    const double own = d->pass == FU_FLASH_FORWARD ? 2
                       : d->pass == FU_FLASH_DKV   ? 4
                                                   : 3; /* matrices of its rows */
    const double side = d->pass == FU_FLASH_DKV ? (double)d->tk : (double)d->tq;
    t->bytes = pairs * (own * side * width + 2 * width * visited / t->rows + 8 * side);
    if (d->pass == FU_FLASH_DKV && t->wgmma)
        t->bytes += pairs * ((double)d->tq * width + 8.0 * d->head * (visited / t->rows - (double)d->tq));
    if (d->mask) t->bytes += pairs * seen * (d->mask == FU_FLASH_BOOL_MASK ? 1 : size);
    double read;
    t->share = (t->wgmma ? share_of_wgmma : share_of_tile)(d, t, &read) *
               share_of_rounds(t, target->processors) * seen / visited;
    t->shared_read = read * pairs * visited / (16.0 * t->m_tiles * t->columns);
}

/* ---- the choice ---- */

/* Where there are fewer blocks than processors, several blocks share the rows of one, and each takes a
 * part of the keys. A part has PART_TILES tiles at least, so that filling the pipeline for it, and
 * combining the results of all parts in the last block, cost less than what is saved; two blocks find room
 * on a processor. */
static void split_keys(const fu_flash_desc *d, const tn_target *target, struct fu_flash_tile *t)
{
    enum { PART_TILES = 4 };
    const int64_t tiles = ((d->causal && d->tq < d->tk ? d->tq : d->tk) + t->columns - 1) / t->columns;
    const int64_t room = 2 * (int64_t)target->processors / t->blocks, most = tiles / PART_TILES;
    const int64_t splits = room < most ? room : most;
    if (t->blocks >= target->processors || t->blocks > TN_KERNEL_TICKETS || splits < 2) return;
    t->splits = (int)splits;
    t->blocks *= splits;
    t->parts = t->blocks * (d->tq < t->rows ? d->tq : t->rows) * (d->head + 2);
}

/* The largest tile of rows and columns whose shared memory is `most` bytes at most, one block for its rows.
 */
static bool fit(const fu_flash_desc *d, const tn_target *target, int64_t most, struct fu_flash_tile *t)
{
    const shape *s = shape_of(d);
    *t = (struct fu_flash_tile){.warps = WARPS,
                                .m_tiles = s->m_tiles,
                                .columns = s->columns,
                                .stages = 2,
                                .kept = s->kept,
                                .splits = 1};
    set_rows(d, t);
    const bool few = t->blocks < target->processors && one_tile_fits(d);
    if (t->m_tiles > 1 && (few || (d->dropout && !draws_fit(d)))) {
        t->m_tiles = 1;
        set_rows(d, t);
    }
    while (t->shared > most && (t->columns > 16 || t->warps > 1)) {
        if (t->columns > 16)
            t->columns /= 2;
        else
            t->warps /= 2;
        set_rows(d, t);
    }
    if (t->shared > most) return false;
    t->stages = 3; /* where two blocks fit beside each other even so; each costs 1 KiB more */
    if (shared_of(d, t) > (target->shared_most - 1024) / 2) t->stages = 2;
    t->shared = shared_of(d, t);
    return true;
}

/* What dropout draws leaves room for 64 columns of scores. Backward two warpgroups have two parts of 64 x 64 of a
 * tile's dq, and no register for a mask or for dropout. */
bool fu_flash_warpgroups(const fu_flash_desc *d, const tn_target *target, struct fu_flash_tile *t)
{
    const bool back = d->pass == FU_FLASH_DKV;
    if (!target->wgmma || (d->pass != FU_FLASH_FORWARD && !(back && d->whole)) || d->dtype == TN_F32)
        return false;
    if (back && (d->mask || d->dropout)) return false;
    if (d->head != 64 && d->head != 128) return false;
    *t = (struct fu_flash_tile){.warps = 8,
                                .m_tiles = 1,
                                .columns = back         ? 64 * 128 / d->head
                                           : d->dropout ? 64
                                                        : 128,
                                .stages = d->head == 64 && !back ? 4 : 3,
                                .wgmma = true,
                                .splits = 1};
    set_rows(d, t);
    if (t->shared > target->shared_most) {
        t->stages = 2;
        set_rows(d, t);
    }
    if (back) {
        const int64_t tiles = d->batch * d->heads * ((d->tq + t->columns - 1) / t->columns);
        t->counts = (2 * tiles + 31) / 32 * 32; /* of two warpgroups; what follows is aligned */
        t->parts = t->counts + (d->tk > t->rows ? tiles * t->columns * d->head : 0);
    }
    predict(d, target, t);
    if (t->blocks > INT32_MAX) return false;
    /* a block goes on with the rows of others; not where these are of different lengths, which a GPU shares out
     * better */
    if (!back && !d->causal && !d->mask && !d->dropout && target->processors > 0 &&
        t->blocks > target->processors)
        t->blocks = target->processors;
    return t->shared <= target->shared_most;
}

bool fu_flash_tile(const fu_flash_desc *d, const tn_target *target, struct fu_flash_tile *out)
{
    struct fu_flash_tile t = {.warps = WARPS, .m_tiles = 1, .columns = 16, .stages = 2, .splits = 1};
    if (target->dialect != TN_DIALECT_CUDA || target->capability < 80) return false;
    if (d->dtype != TN_F32 && d->dtype != TN_F16 && d->dtype != TN_BF16) return false;
    if (d->head < 32 || d->head > 128 || d->head % 32) return false;
    if (d->batch < 1 || d->heads < 1 || d->tq < 1 || d->tk < 1) return false;
    if (d->tq > INT32_MAX / 2 || d->tk > INT32_MAX / 2) return false;
    if (d->pass == FU_FLASH_DELTA) {
        const int chunks = d->head * element_bytes(d->dtype) / 16, team = chunks % 8 ? 4 : 8;
        t.threads = 32 * t.warps;
        t.rows = t.threads / team;
        t.blocks = (d->batch * d->heads * d->tq + t.rows - 1) / t.rows;
    } else {
        if (!fit(d, target, target->shared_most, &t)) return false;
        if (d->pass == FU_FLASH_FORWARD) split_keys(d, target, &t);
        if (t.splits > 1 && t.shared + LAST_BYTES > target->shared_most) {
            if (!fit(d, target, target->shared_most - LAST_BYTES, &t)) return false;
            split_keys(d, target, &t);
        }
    }
    if (t.blocks > INT32_MAX) return false;
    predict(d, target, &t);
    *out = t;
    const bool enough =
        d->tq >= 64 &&
        (d->pass == FU_FLASH_FORWARD ||
         d->tk >= 64); /* rows for a warpgroup; what is read for fewer is all that takes time */
    if (enough && fu_flash_warpgroups(d, target, &t) && t.share / WGMMA_CYCLES > out->share / MMA_CYCLES)
        *out = t;
    return true;
}

const char *fu_flash_text(fu_flash_pass pass, const struct fu_flash_tile *tile)
{
    if (pass == FU_FLASH_FORWARD)
        return tn_embed_text(tile->wgmma ? TN_EMBED_ATTENTION_WGMMA_CU : TN_EMBED_ATTENTION_CU);
    return tn_embed_text(tile->wgmma ? TN_EMBED_ATTENTION_WGMMA_BACKWARD_CU : TN_EMBED_ATTENTION_BACKWARD_CU);
}

int fu_flash_defines(const fu_flash_desc *d, const struct fu_flash_tile *t, char *out, size_t room)
{
    const int code = d->dtype == TN_F32 ? 0 : d->dtype == TN_F16 ? 2 : 3;
    return snprintf(
        out, room,
        "#define PASS %d\n#define DTYPE %d\n#define PRODUCTS %d\n#define HEAD %d\n#define CAUSAL %d\n"
        "#define STRICT %d\n#define MASK %d\n#define DROPOUT %d\n#define WARPS %d\n#define M_TILES %d\n"
        "#define COLS %d\n#define STAGES %d\n#define A_REGS %d\n#define SPLIT %d\n#define WGMMA %d\n"
        "#define BLOCK %d\n",
        (int)d->pass, code, products(d), d->head, d->causal, d->strict, (int)d->mask, d->dropout, t->warps,
        t->m_tiles, t->columns, t->stages, t->kept, t->splits > 1, t->wgmma, t->threads);
}
