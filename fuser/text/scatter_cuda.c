/* scatter_cuda.c - index_add on a GPU where the index is long: its places are sorted by the lines they name,
 * then each line's are added up by as many threads as they need (src/device/cuda/kernels/scatter.cu).
 *
 * A short index is looked through by the blocks that own lines (scatter.c): a line that is named often makes
 * a chain there, of one turn after the other that waits for memory. Sorting costs four launches or more.
 *
 * Start with fu_scatter_sorts.
 */
#include "../../src/device/embed.h"
#include "../../src/device/profile.h"
#include "../loops/tile.h"
#include "cuda.h"
#include "raw.h"

#include <math.h>
#include <stdio.h>

enum { FEWEST = 512, DIGIT = 8, BLOCK = 256, AHEAD = 8, ZEROES = 16 }; /* bits; threads; as scatter.cu */

/* Made of coordinates and numbers alone, as where resized images are read: each line is named a few times.
 * Looks at *budget nodes at most. */
static bool spreads(const tn_tensor *t, int *budget)
{
    const tn_kind kind = tn_kind_of(t);
    if (kind == TN_KIND_IOTA || kind == TN_KIND_NUMBER) return true;
    if (!t->n_in || --*budget < 0) return false;
    for (int i = 0; i < t->n_in; i++)
        if (!spreads(t->in[i], budget)) return false;
    return true;
}

bool fu_scatter_sorts(const fu_scatter *s)
{
    int budget = 64;
    return s->n >= FEWEST && s->n <= INT32_MAX && s->lines <= INT32_MAX && s->t->dtype != TN_BOOL &&
           !spreads(s->t->in[1], &budget);
}

double fu_wait_work(const tn_target *t, double turns)
{
    enum { WAIT_PS = 400000 }; /* what a turn waits for memory: some 700 cycles */
    return turns * WAIT_PS / tn_target_rates(t)->instruction_ps;
}

static tn_step *open_step(fu_ctx *c, const fu_scatter *s, tn_growing *t, bool fault, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%lld", what, (long long)s->inner);
    tn_step *st = fu_step_new(c, TN_STEP_KERNEL, name);
    fu_line(t, "#define ENTRY %s", name);
    fu_line(t, "#define ENTRY_FINISH %s" TN_FINISH, name);
    fu_line(t, "#define GUARD %s", fu_cuda_guard(c, 1, &s->node, fault));
    fu_line(t, "#define OUTER %lld\n#define LINES %lld\n#define INNER %lld", (long long)s->outer,
            (long long)s->lines, (long long)s->inner);
    fu_line(t, "#define STORED %s", fu_language(c->target)->memory[s->t->dtype]);
    return st;
}

static int operand(fu_ctx *c, tn_step *st, int slot, int64_t offset, double bytes, bool out)
{
    const int i = fu_step_buf(c, st, slot, offset);
    if (i < 0) return i;
    st->traffic[i].bytes = (int64_t)bytes;
    st->bytes += (int64_t)bytes;
    st->n_out += out;
    return 0;
}

/* One digit's launches, from the index or from `*sorted`; where the places are now goes there. */
static int emit_digit(fu_ctx *c, const fu_scatter *s, int shift, int *sorted)
{
    const double n = (double)s->n, wide = (double)tn_dtype_size(TN_I64);
    const int64_t turns = (int64_t)fmax(1, round(sqrt(n / (3 * AHEAD * BLOCK))));
    const int64_t blocks = (s->n + turns * BLOCK - 1) / (turns * BLOCK);
    const int64_t fill = shift ? 0 : ZEROES * (int64_t)c->target->processors;
    const int to = fu_scratch_slot(c, s->n, TN_I64), counts = fu_scratch_slot(c, blocks * BLOCK, TN_I32);
    tn_growing t = {0};
    if (to < 0 || counts < 0) return TN_E_NOMEM;
    tn_step *st = open_step(c, s, &t, !shift, shift ? "index_add_sort_on" : "index_add_sort");
    if (!st) return TN_E_NOMEM;
    int r = fu_step_dim(c, st, s->n), where = 0;
    if (r >= 0) r = fu_step_dim(c, st, turns);
    if (r >= 0 && !shift) r = where = fu_step_dim(c, st, s->node);
    fu_line(&t, "#define SORT\n#define FIRST %d\n#define SHIFT %d", !shift, shift);
    if (!shift)
        fu_line(&t, "#define INDEX %s\n#define STRIDE %lld\n#define WHERE %d",
                fu_language(c->target)->memory[s->index.t->dtype], (long long)s->index.t->stride[0], where);
    if (r >= 0)
        r = operand(c, st, shift ? *sorted : s->index.slot, shift ? 0 : s->index.offset,
                    n * (shift ? wide : (double)tn_dtype_size(s->index.t->dtype)), false);
    if (!r) r = operand(c, st, to, 0, n * wide, true);
    if (!r) r = operand(c, st, counts, 0, (double)blocks * BLOCK * sizeof(int32_t) * 2, true);
    if (!r && !shift) r = operand(c, st, s->node, 0, (double)fu_bytes(s->t), true);
    st->grid = (tn_grid){.n = blocks > fill ? blocks : fill,
                         .chunk = 1,
                         .threads = BLOCK,
                         .finish_n = blocks,
                         .finish_chunk = 1,
                         .finish_threads = BLOCK};
    st->work = fu_wait_work(c->target, 3.0 * (double)turns + (double)blocks / AHEAD + 2);
    tn_put(&t, "%s", tn_embed_text(TN_EMBED_SCATTER_CU));
    *sorted = to;
    return r < 0 ? (tn_growing_free(&t), r) : fu_finish_kernel(c, st, &t);
}

/* Chunks are the longer the more places there are, as a line that has them all is added up twice: within the
 * chunks, and then chunk by chunk. */
static int64_t chunk_of(int64_t n)
{
    int64_t chunk = 2 * AHEAD;
    while (4 * chunk * chunk < n / 4) chunk *= 2;
    return chunk;
}

static int emit_add(fu_ctx *c, const fu_scatter *s, int sorted, int src, int64_t offset)
{
    const fu_dialect *lang = fu_language(c->target);
    const tn_dtype d = s->t->dtype, sum = fu_compute_dtype(d);
    const int64_t chunk = chunk_of(s->n), chunks = (s->n + chunk - 1) / chunk;
    int pack = 4;
    while (s->inner % pack || fu_position(c, src, offset) % pack || fu_position(c, s->node, 0) % pack)
        pack /= 2;
    const int64_t across = s->outer * s->inner, items = chunks * across / pack;
    const int left = fu_scratch_slot(c, 2 * chunks * across, sum);
    char load[60], store[60];
    tn_growing t = {0};
    if (left < 0) return left;
    tn_step *st = open_step(c, s, &t, false, "index_add");
    if (!st) return TN_E_NOMEM;
    snprintf(load, sizeof load, lang->load[d], "x");
    snprintf(store, sizeof store, lang->store[d], "x");
    fu_line(&t, "#define ADD\n#define PACK %d\n#define SUM %s\n#define LOAD(x) (%s)\n#define STORE(x) (%s)",
            pack, lang->type[sum], load, store);
    int r = fu_step_dim(c, st, s->n);
    if (r >= 0) r = fu_step_dim(c, st, chunk);
    const double lines = (double)(s->n < s->lines ? s->n : s->lines), row = (double)across;
    if (r >= 0) r = operand(c, st, src, offset, (double)s->n * row * (double)tn_dtype_size(d), false);
    if (!r) r = operand(c, st, sorted, 0, (double)s->n * sizeof(int64_t), false);
    if (!r) r = operand(c, st, left, 0, (double)chunks * row * (double)tn_dtype_size(sum) * 2, true);
    if (!r) r = operand(c, st, s->node, 0, lines * row * (double)tn_dtype_size(d), true);
    st->grid = (tn_grid){.n = items,
                         .chunk = BLOCK,
                         .threads = BLOCK,
                         .finish_n = items,
                         .finish_chunk = BLOCK,
                         .finish_threads = BLOCK};
    const double at_once = (double)c->target->processors * c->target->max_threads / 2;
    st->work = fu_wait_work(c->target, 2.0 * (double)(chunk / AHEAD) * ceil((double)items / at_once) + 2);
    tn_put(&t, "%s", tn_embed_text(TN_EMBED_SCATTER_CU));
    return r < 0 ? (tn_growing_free(&t), r) : fu_finish_kernel(c, st, &t);
}

int fu_emit_scatter_sorted(fu_ctx *c, const fu_scatter *s)
{
    int src, sorted = -1, r = 0;
    int64_t offset;
    if ((r = fu_dense_operand(c, s->t->in[0], &src, &offset))) return r;
    for (int shift = 0; !r && (!shift || (s->lines - 1) >> shift); shift += DIGIT)
        r = emit_digit(c, s, shift, &sorted);
    return r ? r : emit_add(c, s, sorted, src, offset);
}
