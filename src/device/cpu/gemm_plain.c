/* gemm_plain.c - our own matrix product: packing, tiling and the pool around the kernels of gemm_kernel.c.
 *
 * B is packed once into panels of nr columns that all tiles share (or read in place where that is cheaper);
 * C is cut into tiles of few rows and many columns, so that it is written in long runs and each block of A is
 * copied for all of them; a tile walks k in steps of kc and copies each block, mr rows high, into a buffer
 * that stays in the nearest cache, while the kernel asks for the lines that come next. Each element of C is
 * summed over k in one fixed order by one thread, whatever the cut.
 *
 * A product that is gone on with (tn_gemm.then) sums each tile on the stack and hands over mr rows of it at a
 * time; C is in no memory.
 *
 * A batch of small products is cut by entries instead: then one chunk packs and computes whole products.
 * Read first: tn_gemm_plain, then tile. */
#include "cpu_lib.h"
#include "gemm_kernel.h"
#include "kernels.h"
#include "pool.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    A_ROWS = 24,            /* of A packed at once where it is read along k; on the stack */
    TILE_COLS = 768,        /* nt at most */
    TILE_ROWS = 96,         /* of such a tile, at most */
    ASIDE_BYTES = 96 << 10, /* of a tile that is summed on the stack: C is 16 bits wide, or handed on */
    FEW_ROWS = 12,          /* A packed B would be read no more often than B is to be packed */
    PACK_LIMIT = 16 << 20,  /* bytes of packed B at a time */
    PACK_CHUNK = 1 << 14,   /* and what is worth a chunk of its own */
    FEW_CHUNK = 1 << 17,    /* of B, for few rows */
    IN_PLACE = 1 << 20,     /* elements of B that are not worth packing */
    IN_PLACE_ROWS = 512,    /* for which no B is worth it */
    IN_PLACE_APART = 96,    /* where rows of B lie pages apart */
    MOST_THREADS = 8,       /* that are foreseen one by one */
};
static const double TILE_FLOPS = 1e6, SMALL_FLOPS = 16e6;

typedef struct job {
    const tn_gemm *g;
    const tn_gemm_kernel *kern;
    tn_kernel_fn *then; /* is handed C, or NULL */
    tn_dtype compute;
    size_t es, cs;                        /* bytes of an element as stored and as computed */
    int64_t per, k;                       /* numbers of an element as packed, cs bytes; k of these */
    bool widens;                          /* elements as they are packed */
    bool in_place;                        /* whole panels of B are read where they stand */
    bool shared;                          /* one B for all entries */
    bool few;                             /* rows: no B is packed */
    int64_t first, entries;               /* batch entries under way */
    int64_t n0, n1;                       /* columns under way */
    int64_t nt, m_tiles, n_tiles, blocks; /* tiles of nearly as many blocks of mr rows */
    char *packed;                         /* per entry: panels of [k][nr] */
    int64_t panels, panel_bytes;
} job;

static int64_t batch_offset(const tn_gemm *g, const int64_t *stride, int64_t i)
{
    int64_t off = 0;
    for (int d = g->batch_ndim - 1; d > 0; d--) {
        off += i % g->batch[d] * stride[d];
        i /= g->batch[d];
    }
    return g->batch_ndim ? off + i * stride[0] : 0;
}

static const char *at(const void *p, int64_t elements, size_t es)
{
    return (const char *)p + elements * (int64_t)es;
}

/* n elements, widened where they are narrow: often too few for memcpy's call. */
static inline void copy_floats(const job *w, const char *s, char *d, int64_t n)
{
    enum { MANY = 256, VECTOR = 16, ELEMENT = 4 };
    if (w->widens) {
        tn_widen_floats(w->g->dtype, s, d, n);
        return;
    }
    int64_t bytes = n * (int64_t)w->es;
    if (bytes >= MANY) {
        memcpy(d, s, (size_t)bytes);
        return;
    }
    for (; bytes >= VECTOR; bytes -= VECTOR, d += VECTOR, s += VECTOR) memcpy(d, s, VECTOR);
    for (; bytes >= ELEMENT; bytes -= ELEMENT, d += ELEMENT, s += ELEMENT) memcpy(d, s, ELEMENT);
    if (bytes) memcpy(d, (uint16_t[2]){*(const uint16_t *)(const void *)s}, ELEMENT); /* half a pair */
}

/* Returns whether rows along k, ld apart, are rows of elements as they are packed, where they stand. */
static bool whole_elements(const job *w, const void *p, int64_t ld)
{
    return w->per == 1 || (ld % w->per == 0 && w->g->k % w->per == 0 && (uintptr_t)p % w->cs == 0);
}

/* dst[p * nr + j] = B[p, j0 + j] */
static void pack_panel(const job *w, const void *b, int64_t j0, int64_t cols, char *dst)
{
    const tn_gemm *g = w->g;
    int nr = w->kern->nr;
    if (g->b_col == 1) {
        const char *s = at(b, j0, w->es);
        if (w->per > 1) {
            tn_pack_pairs((const void *)s, g->b_row, cols, g->k, (void *)dst, nr);
            return;
        }
        for (int64_t p = 0; p < g->k; p++, s += g->b_row * (int64_t)w->es, dst += (size_t)nr * w->cs)
            copy_floats(w, s, dst, cols);
        return;
    }
    const char *s = at(b, j0 * g->b_col, w->es);
    if (!w->widens && whole_elements(w, s, g->b_col)) {
        tn_pack_transpose(w->compute, s, g->b_col / w->per, cols, w->k, dst, nr);
        return;
    }
    enum { STEP = 64 };
    float rows[TN_GEMM_MAX_NR * STEP];
    for (int64_t p = 0; p < w->k; p += STEP) {
        const int64_t k = tn_min64(STEP, w->k - p), n = tn_min64(k * w->per, g->k - p * w->per);
        for (int64_t j = 0; j < cols; j++)
            copy_floats(w, at(s, j * g->b_col + p * w->per, w->es), (char *)(rows + j * STEP), n);
        tn_pack_transpose(w->compute, rows, STEP, cols, k, dst + p * nr * (int64_t)w->cs, nr);
    }
}

/* `blocks` blocks side by side, of `bytes` of each row. */
static inline __attribute__((always_inline)) void
copy_blocks(int64_t bytes, int64_t blocks, const char *s, int64_t lds, char *d, int64_t block, int64_t rows)
{
    for (int64_t p = 0; p < rows; p++, s += lds, d += bytes)
        for (int64_t q = 0; q < blocks; q++) memcpy(d + q * block, s + q * bytes, (size_t)bytes);
}

/* Rows that lie whole pages apart drive each other out of the nearest caches. */
static bool pages_apart(const job *w, int64_t step)
{
    enum { PAGE = 4096 };
    return step * (int64_t)w->es % PAGE == 0;
}

/* Returns whether a tile of `cols` columns reads A where it stands: it comes by so few times that a copy does
 * not pay. */
static bool reads_a(const job *w, const void *a, int64_t cols)
{
    enum { PANELS = 16 };
    const tn_gemm *g = w->g;
    return !w->widens && cols <= PANELS * w->kern->nr &&
           (w->per == 1 || (g->a_col == 1 && whole_elements(w, a, g->a_row))) &&
           !pages_apart(w, g->a_col == 1 ? g->a_row : g->a_col);
}

/* One block of A, rows i0.., columns p0.., in the layout its strides make cheap. */
static void pack_a(const job *w, const void *a, int64_t i0, int64_t rows, int64_t p0, int64_t kc, char *d)
{
    const tn_gemm *g = w->g;
    const int64_t mr = w->kern->mr, ld = w->kern->a_ld * (int64_t)w->cs;
    const int64_t first = p0 * w->per, n_k = tn_min64(kc * w->per, g->k - first);
    if (g->a_col == 1) {
        for (int64_t i = 0; i < (rows + 3) / 4 * 4; i++, d += ld)
            if (i < rows)
                copy_floats(w, at(a, (i0 + i) * g->a_row + first, w->es), d, n_k);
            else
                memset(d, 0, (size_t)kc * w->cs);
        return;
    }
    /* Along k: several blocks at once, since one takes less of a row than the line that is fetched. */
    const char *s = at(a, first * g->a_col + i0, w->es);
    const int64_t lda = g->a_col * (int64_t)w->es, line = mr * (int64_t)w->cs;
    for (int64_t i = 0; w->per > 1 && i < rows; i += mr, d += line * kc)
        tn_pack_pairs((const void *)(s + i * (int64_t)w->es), g->a_col, tn_min64(mr, rows - i), n_k,
                      (void *)d, mr);
    if (w->per > 1) return;
    const int64_t whole = w->es == w->cs ? rows / mr : 0;
    switch (line) { /* as constants */
    case 16: copy_blocks(16, whole, s, lda, d, line * kc, kc); break;
    case 32: copy_blocks(32, whole, s, lda, d, line * kc, kc); break;
    case 48: copy_blocks(48, whole, s, lda, d, line * kc, kc); break;
    default: copy_blocks(line, whole, s, lda, d, line * kc, kc);
    }
    for (int64_t i = whole * mr; i < rows; i += mr) {
        const int64_t n = tn_min64(mr, rows - i), up = (n + 3) / 4 * 4;
        const char *from = s + i * (int64_t)w->es;
        char *to = d + i / mr * line * kc;
        for (int64_t p = 0; p < kc; p++, from += lda, to += line) {
            copy_floats(w, from, to, n);
            memset(to + n * (int64_t)w->cs, 0, (size_t)(up - n) * w->cs);
        }
    }
}

/* What is packed behind block i, p0 of the tile is asked for while that is computed: it mostly lies far off,
 * in short rows that no processor foresees. */
static void ask_ahead(const job *w, const void *a, int64_t i0, int64_t i1, int64_t i, int64_t p0,
                      int64_t blocks, tn_gemm_block *blk)
{
    const tn_gemm *g = w->g;
    const int64_t high = blocks * w->kern->mr, q = (i - i0) / w->kern->mr % blocks;
    int64_t ni = i - q * w->kern->mr + high, np = p0;
    if (ni >= i1) ni = i0, np += w->kern->kc;
    if (np >= w->k) return;
    const int64_t rows = tn_min64(high, i1 - ni), kc = w->per * tn_min64(w->kern->kc, w->k - np);
    const int64_t es = (int64_t)w->es;
    blk->next = at(a, ni * g->a_row + np * w->per * g->a_col, w->es);
    blk->next_rows = g->a_col == 1 ? rows : kc;
    blk->next_bytes = (g->a_col == 1 ? kc : rows) * es;
    blk->next_ld = (g->a_col == 1 ? g->a_row : g->a_col) * es;
    blk->next_tile = q * tn_ceil_div(w->nt, w->kern->nr);
}

/* Few rows: as sums along k, with B where it stands. */
static void few_rows(const job *w, const void *a, const char *b, int64_t i0, int64_t i1, int64_t j0,
                     int64_t j1, const void *bias, void *out, int64_t ldc)
{
    const tn_gemm *g = w->g;
    w->kern->dots(&(tn_gemm_dots){.rows = i1 - i0,
                                  .cols = j1 - j0,
                                  .k = g->k,
                                  .a = at(a, i0 * g->a_row, w->es),
                                  .b = at(b, j0 * g->b_col, w->es),
                                  .lda = g->a_row,
                                  .ldb = g->b_col,
                                  .c = out,
                                  .ldc = ldc,
                                  .bias = bias,
                                  .relu = g->epilogue == TN_EPI_RELU});
}

/* Rows i .. i + rows of entry e that were summed aside: narrowed to C, which is the entry's, or as they are
 * to what goes on with them. */
static void hand_over(const job *w, const tn_args *args, tn_tile *part, int64_t e, int64_t i, int64_t rows,
                      const char *sums, char *c)
{
    const tn_gemm *g = w->g;
    if (w->then) {
        part->at = sums;
        w->then(args, e * g->m + i, e * g->m + i + rows);
        return;
    }
    const int64_t wide = part->last - part->first, runs = part->ld == wide && g->c_row == wide ? 1 : rows;
    for (int64_t r = 0; r < runs; r++)
        tn_narrow_floats(g->dtype, sums + r * part->ld * (int64_t)w->cs,
                         c + ((i + r) * g->c_row + part->first) * (int64_t)w->es, rows / runs * wide);
}

/* C[i0 .. i1, j0 .. j1) of batch entry e. */
static void tile(const job *w, int64_t e, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    const tn_gemm *g = w->g;
    const tn_gemm_kernel *kn = w->kern;
    _Alignas(64) char a_blocks[A_ROWS / TN_GEMM_MAX_MR * TN_GEMM_A_BYTES];
    float wide_bias[TN_TILE_COLUMNS];
    _Alignas(64) char c_aside[ASIDE_BYTES];
    const void *a = at(g->a, batch_offset(g, g->a_batch, e), w->es);
    const char *b = at(g->b, batch_offset(g, g->b_batch, e), w->es);
    char *c = (char *)g->c + batch_offset(g, g->c_batch, e) * (int64_t)w->es;
    const bool a_in_place = reads_a(w, a, j1 - j0);
    const int64_t blocks = g->a_col != 1 && !a_in_place ? A_ROWS / kn->mr : 1;
    const char *packed = w->packed + (w->shared ? 0 : (e - w->first) * w->panels * w->panel_bytes);
    const bool narrow = w->es != w->cs, aside = narrow || w->then;
    char *out = aside ? c_aside : c + (i0 * g->c_row + j0) * (int64_t)w->es;
    int64_t ldc = aside ? w->nt : g->c_row;
    tn_tile part = {.ld = w->nt, .first = j0, .last = j1};
    tn_args args = w->then ? *g->args : (tn_args){.buf = NULL};
    args.tile = &part;
    const void *bias = g->bias ? at(g->bias, j0, w->es) : NULL;
    if (bias && narrow) {
        tn_widen_floats(g->dtype, bias, wide_bias, j1 - j0);
        bias = wide_bias;
    }
    /* Columns before `direct` are read in place, the others from packed panels, of which panel0 is the
     * first. */
    int64_t direct = w->in_place ? j0 + (j1 - j0) / kn->nr * kn->nr : j0;
    int64_t panel0 = w->in_place ? 0 : (j0 - w->n0) / kn->nr;
    if (w->few) {
        few_rows(w, a, b, i0, i1, j0, j1, bias, out, ldc);
        if (aside) hand_over(w, &args, &part, e, i0, i1 - i0, out, c);
        return;
    }
    for (int64_t p0 = 0; p0 < w->k; p0 += kn->kc) {
        int64_t kc = tn_min64(kn->kc, w->k - p0);
        bool last = p0 + kc == w->k;
        for (int64_t i = i0; i < i1; i += kn->mr) {
            int64_t q = (i - i0) / kn->mr % blocks;
            tn_gemm_block blk = {.rows = (int)tn_min64(kn->mr, i1 - i), .kc = kc};
            blk.a = a_blocks + q * kc * kn->mr * (int64_t)w->cs;
            blk.a_by_k = g->a_col != 1;
            if (a_in_place && blk.rows % 4 == 0) {
                blk.a = at(a, i * g->a_row + p0 * w->per * g->a_col, w->es);
                blk.a_step = (blk.a_by_k ? g->a_col : g->a_row) / w->per;
            } else if (q == 0) {
                pack_a(w, a, i, tn_min64(blocks * kn->mr, i1 - i), p0, kc, a_blocks);
            }
            ask_ahead(w, a, i0, i1, i, p0, blocks, &blk);
            blk.accumulate = p0 > 0;
            blk.relu = last && g->epilogue == TN_EPI_RELU;
            blk.ldc = ldc;
            char *row = out + (i - i0) * ldc * (int64_t)w->cs;
            if (direct > j0) {
                blk.cols = direct - j0;
                blk.b = at(b, p0 * g->b_row + j0, w->cs);
                blk.ldb = g->b_row;
                blk.b_step = kn->nr;
                blk.c = row;
                blk.bias = last ? bias : NULL;
                kn->block(&blk);
            }
            if (direct < j1) {
                blk.cols = j1 - direct;
                blk.b = packed + panel0 * w->panel_bytes + p0 * kn->nr * (int64_t)w->cs;
                blk.ldb = kn->nr;
                blk.b_step = w->k * kn->nr;
                blk.c = row + (direct - j0) * (int64_t)w->cs;
                blk.bias = last && bias ? at(bias, direct - j0, w->cs) : NULL;
                if (direct > j0) blk.next = NULL;
                kn->block(&blk);
            }
            if (last && aside) hand_over(w, &args, &part, e, i, blk.rows, row, c);
        }
    }
}

static void pack_entry_panel(const job *w, int64_t e, int64_t q)
{
    const tn_gemm *g = w->g;
    int64_t j0 = w->in_place ? g->n / w->kern->nr * w->kern->nr : w->n0 + q * w->kern->nr;
    char *dst = w->packed + ((e - w->first) * w->panels + q) * w->panel_bytes;
    int64_t cols = tn_min64(w->kern->nr, g->n - j0);
    if (cols < w->kern->nr) memset(dst, 0, (size_t)w->panel_bytes);
    pack_panel(w, at(g->b, batch_offset(g, g->b_batch, e), w->es), j0, cols, dst);
}

static void run_pack(void *arg, int64_t begin, int64_t end)
{
    const job *w = arg;
    for (int64_t i = begin; i < end; i++) pack_entry_panel(w, w->first + i / w->panels, i % w->panels);
}

static void run_tiles(void *arg, int64_t begin, int64_t end)
{
    const job *w = arg;
    for (int64_t i = begin; i < end; i++) {
        const int64_t mi = i % w->m_tiles, ni = i / w->m_tiles % w->n_tiles, mr = w->kern->mr;
        const int64_t i0 = mi * w->blocks / w->m_tiles * mr, i1 = (mi + 1) * w->blocks / w->m_tiles * mr;
        const int64_t j0 = w->n0 + ni * w->nt, e = i / w->m_tiles / w->n_tiles;
        tile(w, w->first + e, i0, tn_min64(i1, w->g->m), j0, tn_min64(j0 + w->nt, w->n1));
    }
}

static void run_entries(void *arg, int64_t begin, int64_t end)
{
    const job *w = arg;
    int64_t tiles = w->m_tiles * w->n_tiles;
    for (int64_t e = begin; e < end; e++) {
        for (int64_t q = 0; q < w->panels; q++) pack_entry_panel(w, w->first + e, q);
        run_tiles(arg, e * tiles, (e + 1) * tiles);
    }
}

/* ---- integers: exact, so any order will do ---- */

#define INT_ROW(T, U)                                                                                        \
    static void row_##T(const tn_gemm *g, const T *a, const T *b, T *c)                                      \
    {                                                                                                        \
        for (int64_t j = 0; j < g->n; j++) c[j] = 0;                                                         \
        for (int64_t p = 0; p < g->k; p++) {                                                                 \
            U x = (U)a[p * g->a_col];                                                                        \
            for (int64_t j = 0; j < g->n; j++) c[j] = (T)((U)c[j] + x * (U)b[p * g->b_row + j * g->b_col]);  \
        }                                                                                                    \
        for (int64_t j = 0; g->epilogue == TN_EPI_RELU && j < g->n; j++) c[j] = c[j] < 0 ? 0 : c[j];         \
    }
INT_ROW(int32_t, uint32_t)
INT_ROW(int64_t, uint64_t)
INT_ROW(uint8_t, uint32_t)

static void run_int(void *arg, int64_t begin, int64_t end)
{
    const job *w = arg;
    const tn_gemm *g = w->g;
    for (int64_t r = begin; r < end; r++) {
        int64_t e = r / g->m, i = r % g->m;
        const void *a = at(g->a, batch_offset(g, g->a_batch, e) + i * g->a_row, w->es);
        const void *b = at(g->b, batch_offset(g, g->b_batch, e), w->es);
        void *c = (char *)g->c + (batch_offset(g, g->c_batch, e) + i * g->c_row) * (int64_t)w->es;
        if (g->dtype == TN_I32)
            row_int32_t(g, a, b, c);
        else if (g->dtype == TN_I64)
            row_int64_t(g, a, b, c);
        else
            row_uint8_t(g, a, b, c);
    }
}

/* ---- the cut ---- */

/* Elements of C that the busiest thread computes where tiles are taken in their order by whoever is free. */
static double longest(const job *w, int64_t m, int64_t n, int64_t cols, int64_t wide, int64_t threads)
{
    double busy[MOST_THREADS] = {0}, most = 0;
    for (int64_t e = 0; e < w->entries; e++)
        for (int64_t ni = 0; ni < n; ni++)
            for (int64_t mi = 0; mi < m; mi++) {
                const int64_t mr = w->kern->mr, first = mi * w->blocks / m * mr;
                const int64_t rows = tn_min64((mi + 1) * w->blocks / m * mr, (w->g->m + 3) / 4 * 4) - first;
                int free = 0;
                for (int t = 1; t < threads; t++)
                    if (busy[t] < busy[free]) free = t;
                busy[free] += (double)(rows * tn_min64(wide, cols - ni * wide));
                if (busy[free] > most) most = busy[free];
            }
    return most;
}

/* C as m_tiles by n_tiles tiles: enough that all threads end together, and of those cuts the one that costs
 * least. A row of tiles reads B; a column of them reads A, and copies it. The sum of no element depends on
 * the cut, so the number of threads may. */
static void cut(job *w, int64_t cols, int64_t threads)
{
    /* tiles of each thread, one where all are done before anything could hold a thread up; multiply-adds that
       reading an element takes, from the second cache and from further away; bytes that are in that cache;
       tiles whose threads are told one by one, and cuts that are looked at for each number of columns */
    enum { SHARES = 3, SHORT = 20, READ_NEAR = 1, READ = 12, NEAR = 1 << 20, FEW_TILES = 64, TRIED = 4 };
    const tn_gemm *g = w->g;
    const bool aside = w->es != w->cs || w->then;
    const int64_t mr = w->kern->mr, nr = w->kern->nr, panels = tn_ceil_div(cols, nr);
    const double read_b = w->entries == 1 && cols * w->k * (int64_t)w->cs <= NEAR ? READ_NEAR : READ;
    int64_t widest = (aside ? TN_TILE_COLUMNS : TILE_COLS) / nr;
    if (w->few) widest = tn_max64(1, tn_min64(widest, FEW_CHUNK / w->panel_bytes));
    w->blocks = tn_ceil_div(g->m, mr);
    const double area = (double)g->m * (double)cols, all = area * (double)w->entries;
    const double parts = 2 * area * (double)g->k / TILE_FLOPS;
    const int shares = parts * (double)w->entries <= (double)(SHORT * threads) ? 1 : SHARES;
    int64_t tiles = tn_ceil_div(shares * threads, w->entries);
    if (parts < (double)tiles) tiles = parts < 1 ? 1 : (int64_t)parts;
    tiles = tn_min64(tiles, w->blocks * panels);
    double best = 0;
    w->n_tiles = 0;
    for (int64_t n = tn_ceil_div(panels, widest); n <= panels; n++) {
        const int64_t wide = tn_ceil_div(panels, n) * nr;
        const int64_t high = (aside ? ASIDE_BYTES / (int64_t)w->cs / wide : TILE_ROWS) / mr;
        const int64_t least = tn_max64(tn_ceil_div(w->blocks, high), tn_ceil_div(tiles, n));
        for (int64_t m = least; m <= w->blocks && m < least + TRIED; m++) {
            const int64_t count = m * n * w->entries, rounds = tn_ceil_div(count, threads);
            const double read = read_b * (double)m * (double)cols + 2 * READ * (double)n * (double)g->m;
            if (w->n_tiles && area + read >= best) break;
            const double idle = tiles < threads ? 1
                                : count <= FEW_TILES && threads <= MOST_THREADS
                                    ? longest(w, m, n, cols, wide, threads) * (double)threads / all
                                    : (double)(rounds * threads) / (double)count;
            if (w->n_tiles && idle * area + read >= best) continue;
            best = idle * area + read, w->n_tiles = n, w->m_tiles = m;
        }
        if (n >= tiles) break;
    }
    w->nt = tn_ceil_div(panels, w->n_tiles) * nr;
    w->n_tiles = tn_ceil_div(cols, w->nt);
}

static int floats(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *g, tn_errbuf *err)
{
    int64_t batches = 1;
    bool shared = true;
    for (int d = 0; d < g->batch_ndim; d++) {
        batches *= g->batch[d];
        if (g->batch[d] > 1 && g->b_batch[d]) shared = false;
    }
    if (batches == 1) shared = true;
    job w = {.g = g, .es = tn_dtype_size(g->dtype), .compute = tn_gemm_compute(g->dtype)};
    w.kern = g->dtype == TN_BF16 && lib->impl != TN_CPU_PLAIN ? tn_gemm_kernel_for(TN_BF16) : NULL;
    if (!w.kern) w.kern = tn_gemm_kernel_for(w.compute);
    w.then = g->then ? tn_kernel_entry(g->then) : NULL;
    w.cs = tn_dtype_size(w.compute);
    w.per = w.kern->per;
    w.k = tn_ceil_div(g->k, w.per);
    w.widens = w.es != w.cs && w.per == 1;
    int nr = w.kern->nr;
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    bool small = batches > 1 && flops <= SMALL_FLOPS;
    w.shared = shared && !small;
    w.in_place = g->b_col == 1 && w.es == w.cs && !g->share &&
                 (pages_apart(&w, g->b_row) ? g->m <= IN_PLACE_APART
                                            : g->m <= IN_PLACE_ROWS || g->n * g->k <= IN_PLACE);
    w.few = !w.widens && !g->share && g->m <= FEW_ROWS && g->a_col == 1 && g->b_row == 1;
    w.panel_bytes = w.k * nr * (int64_t)w.cs;

    int64_t limit = tn_max64(1, PACK_LIMIT / w.panel_bytes); /* panels at a time */
    int64_t block = w.in_place || w.few ? g->n : tn_min64(g->n, limit * nr);
    for (w.n0 = 0; w.n0 < g->n; w.n0 = w.n1) {
        w.n1 = tn_min64(w.n0 + block, g->n);
        w.panels = w.few ? 0 : w.in_place ? g->n % nr != 0 : tn_ceil_div(w.n1 - w.n0, nr);
        int64_t group = w.shared || !w.panels ? batches : tn_min64(batches, tn_max64(1, limit / w.panels));
        w.entries = group;
        cut(&w, w.n1 - w.n0, tn_pool_threads(pool));
        int64_t packs = (w.shared ? 1 : group) * w.panels;
        const bool share = g->share && w.shared && packs && block == g->n;
        const void **kept = share ? &lib->shared[g->share - 1] : NULL;
        w.packed = tn_cpu_scratch(lib, share ? TN_SCRATCH_SHARED + g->share - 1 : TN_SCRATCH_PACK,
                                  (size_t)(packs * w.panel_bytes));
        if (!w.packed) return tn_err(err, TN_E_NOMEM, "no memory for the packed operand of a product");
        for (w.first = 0; w.first < batches; w.first += group) {
            w.entries = tn_min64(group, batches - w.first);
            if (small) {
                tn_pool_run(pool, run_entries, &w, w.entries, tn_max64(1, (int64_t)(3 * TILE_FLOPS / flops)));
                continue;
            }
            packs = (w.shared ? 1 : w.entries) * w.panels;
            if (packs && !(kept && *kept == g->b))
                tn_pool_run(pool, run_pack, &w, packs, tn_max64(1, PACK_CHUNK / w.panel_bytes));
            if (kept && !tn_pool_rehearses(pool)) *kept = g->b;
            tn_pool_run(pool, run_tiles, &w, w.entries * w.m_tiles * w.n_tiles, 1);
        }
    }
    return TN_OK;
}

int tn_gemm_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *g, tn_errbuf *err)
{
    if (tn_dtype_is_float(g->dtype)) return floats(lib, pool, g, err);
    int64_t rows = g->m;
    for (int d = 0; d < g->batch_ndim; d++) rows *= g->batch[d];
    job w = {.g = g, .es = tn_dtype_size(g->dtype)};
    tn_pool_run(pool, run_int, &w, rows, tn_max64(1, (int64_t)TILE_FLOPS / (g->n * g->k)));
    return TN_OK;
}
