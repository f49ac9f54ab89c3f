/* wgmma.c - products of a warpgroup that are computed when they are waited for: wgmma.mma_async and what
 * orders it.
 *
 * A warp computes its own 16 of the 64 rows, and nothing of one warp waits for another. Hardware may compute
 * at any time up to the wait. Here it is always the wait: accumulators are NaN from the instruction on, and
 * shared memory is read, as a thread of the warp, both when the product is asked for and when it is computed,
 * so that whoever writes there in between is found. What threads wrote must have been shown to the
 * asynchronous proxy. The four warps have to ask for the same.
 *
 *   product    one instruction of a warp; its operands in registers, by value
 *   matrix_of  where an element lies, of a descriptor: the canonical layouts of the ISA
 *
 * Read first: sim_warp_wgmma. */
#include "exec.h"

#include <stdlib.h>

/* As shim.h declares it. */
typedef struct asked {
    float *d;
    const uint32_t *a; /* NULL: a_at */
    uint64_t a_at, b_at;
    int n;
    unsigned add, turned, groups;
} asked;

enum { LANES = 32, DEPTH = 16, MOST_N = 256, GROUPS = SIM_MAX_THREADS / 128 };

typedef struct product {
    sim_collective kind;
    asked of; /* of the first lane */
    float *d[LANES];
    uint32_t a[LANES][4];
    float *
        before; /* [LANES][n / 2], what it is added to; NULL: nothing, or what the product before it leaves */
    unsigned group;
} product;

typedef struct warp {
    product *product;
    unsigned n, room, groups; /* committed so far */
    bool open;                /* since the last wait */
    unsigned asked;           /* products ever */
} warp;

static warp warps[SIM_MAX_THREADS / LANES];
static struct {
    uint64_t *is; /* what the first warp to come asked for */
    unsigned n, room;
} sequence[GROUPS];
static bool used;

void sim_wgmma_begin_block(void)
{
    if (!used) return;
    for (int w = 0; w < SIM_MAX_THREADS / LANES; w++) {
        for (unsigned i = 0; i < warps[w].n; i++) free(warps[w].product[i].before);
        warps[w].n = warps[w].groups = warps[w].asked = 0;
        warps[w].open = false;
    }
    for (int g = 0; g < GROUPS; g++) sequence[g].n = 0;
    used = false;
}

void sim_wgmma_lane_ended(const sim_thread *t)
{
    const warp *own = &warps[t->index / LANES];
    if (!used) return;
    if (own->n)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "this thread left the kernel before its wgmma were waited for");
    for (unsigned i = t->index / 128 * 128; i < t->index / 128 * 128 + 128 && i < block.n_threads; i += LANES)
        if (block.thread[i].state == SIM_ENDED && warps[i / LANES].asked != own->asked)
            sim_kernel_fault(TN_CU_LAUNCH_FAILED, "the warps of a warpgroup asked for %u and %u wgmma",
                             own->asked, warps[i / LANES].asked);
}

/* ---- shared memory ---- */

typedef struct layout {
    uint64_t start, leading, stride; /* bytes */
    unsigned wide;                   /* 16-byte chunks of a line: 8, 4, 2; 1: no swizzle */
} layout;

static layout layout_of(uint64_t d)
{
    static const uint8_t wide[] = {1, 8, 4, 2};
    if (d >> 49 & 7) sim_kernel_fault(TN_CU_LAUNCH_FAILED, "a wgmma descriptor with a base offset");
    return (layout){(d & 0x3fff) << 4, (d >> 16 & 0x3fff) << 4, (d >> 32 & 0x3fff) << 4, wide[d >> 62]};
}

/* Byte address, from the beginning of shared memory, of an element of 16 bits: mn of a row of A or a column
 * of B, k of the sum's index. */
static uint64_t place(const layout *l, bool turned, unsigned mn, unsigned k)
{
    const unsigned line = l->wide * 16;
    uint64_t at = l->start;
    if (l->wide == 1)
        at += turned ? mn % 8 * 2 + mn / 8 * l->stride + k % 8 * 16 + k / 8 * l->leading
                     : mn % 8 * 16 + mn / 8 * l->stride + k % 8 * 2 + k / 8 * l->leading;
    else if (turned)
        at += mn % (8 * l->wide) * 2 + mn / (8 * l->wide) * l->leading + k % 8 * line + k / 8 * l->stride;
    else
        at += mn % 8 * line + mn / 8 * l->stride + k * 2;
    return at ^ ((at >> 7 & (l->wide - 1)) << 4);
}

/* `count` rows of A or columns of B from `first` on; not looked at with to NULL, but for whether one may. */
static void read_matrix(sim_collective kind, uint64_t descriptor, bool turned, unsigned first, unsigned count,
                        double (*to)[DEPTH])
{
    const layout l = layout_of(descriptor);
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < DEPTH; k++) {
            const uint64_t offset = place(&l, turned, first + i, k);
            const char *p = block.dynamic + offset;
            if (turned ? i % 8 == 0 : k % 8 == 0) {
                const uint64_t at = (uint64_t)(uintptr_t)p;
                if (!sim_check_shared(at, 16))
                    sim_kernel_fault(SIM_ILLEGAL_ADDRESS,
                                     "a wgmma reads %llu bytes into shared memory, where none is",
                                     (unsigned long long)offset);
                sim_check_access(at, 16, false);
                if (!sim_check_shown(at, 16))
                    sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                                     "a wgmma reads %llu bytes into shared memory, where a thread wrote: no "
                                     "fence.proxy.async lies between",
                                     (unsigned long long)offset);
            }
            if (!to) continue;
            uint16_t bits;
            memcpy(&bits, p, sizeof bits);
            to[i][k] =
                (double)(kind == SIM_WGMMA_F16 ? sim_from_half(bits) : sim_float((uint32_t)bits << 16));
        }
}

static void look(const product *p, unsigned row, double (*a)[DEPTH], double (*b)[DEPTH])
{
    if (!p->of.a) read_matrix(p->kind, p->of.a_at, p->of.turned >> 1, row, 16, a);
    read_matrix(p->kind, p->of.b_at, p->of.turned & 1, 0, (unsigned)p->of.n, b);
}

/* ---- products ---- */

static void hide(const product *p)
{
    for (int lane = 0; lane < LANES; lane++) memset(p->d[lane], 0xff, (size_t)p->of.n / 2 * sizeof(float));
}

/* What stands in the accumulators is what p is added to, and nobody's until then. */
static void take(product *p)
{
    const size_t each = (size_t)p->of.n / 2;
    if (p->of.add) {
        p->before = malloc(LANES * each * sizeof(float));
        if (!p->before) sim_kernel_fault(TN_CU_OUT_OF_MEMORY, "no memory for a wgmma");
        for (int lane = 0; lane < LANES; lane++)
            memcpy(p->before + (size_t)lane * each, p->d[lane], each * sizeof(float));
    }
    hide(p);
}

static void compute(product *p, unsigned row)
{
    static double a[16][DEPTH], b[MOST_N][DEPTH];
    const size_t each = (size_t)p->of.n / 2;
    if (p->of.a)
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0; i < 8; i++) {
                const uint32_t word = p->a[lane][i / 2];
                const uint16_t bits = (uint16_t)(i % 2 ? word >> 16 : word);
                a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
                    (double)(p->kind == SIM_WGMMA_F16 ? sim_from_half(bits)
                                                      : sim_float((uint32_t)bits << 16));
            }
    look(p, row, a, b);
    for (int lane = 0; lane < LANES; lane++) {
        if (p->before) memcpy(p->d[lane], p->before + (size_t)lane * each, each * sizeof(float));
        for (size_t i = 0; i < each; i++) {
            const size_t r = (size_t)lane / 4 + i / 2 % 2 * 8,
                         column = i / 4 * 8 + (size_t)lane % 4 * 2 + i % 2;
            double sum = p->of.add ? (double)p->d[lane][i] : 0;
            for (int k = 0; k < DEPTH; k++) sum += a[r][k] * b[column][k];
            p->d[lane][i] = sim_toward_zero(sum);
        }
    }
    free(p->before);
    p->before = NULL;
}

static void compare(const asked *of, const warp *w, unsigned group)
{
    const uint64_t is = of->b_at * 31 + of->a_at * 17 + (uint64_t)of->n * 8 + of->add * 4 + of->turned;
    if (group * 128 + 128 > block.n_threads)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "a wgmma of fewer than four warps");
    if (sequence[group].n == w->asked) {
        if (sequence[group].n == sequence[group].room) {
            const unsigned room = sequence[group].room ? 2 * sequence[group].room : 64;
            uint64_t *more = realloc(sequence[group].is, room * sizeof *more);
            if (!more) sim_kernel_fault(TN_CU_OUT_OF_MEMORY, "no memory for a wgmma");
            sequence[group].is = more;
            sequence[group].room = room;
        }
        sequence[group].is[sequence[group].n++] = is;
    } else if (sequence[group].is[w->asked] != is) {
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "the warps of a warpgroup ask for different wgmma");
    }
}

static void ask(sim_collective kind, const sim_thread *first, warp *w)
{
    product p = {.kind = kind, .of = *(const asked *)(uintptr_t)first->value, .group = w->groups};
    used = true;
    if (p.of.n < 8 || p.of.n > MOST_N || p.of.n % 8)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "a wgmma of %d columns", p.of.n);
    if (!w->open)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                         "a wgmma without a wgmma.fence since the kernel began or products were waited for");
    compare(&p.of, w, first->index / 128);
    bool chained = false;
    for (int lane = 0; lane < LANES; lane++) {
        const asked *of = (const asked *)(uintptr_t)first[lane].value;
        if (of->b_at != p.of.b_at || of->a_at != p.of.a_at)
            sim_kernel_fault(TN_CU_LAUNCH_FAILED, "the lanes of a warp name different matrices to a wgmma");
        p.d[lane] = of->d;
        if (of->a) memcpy(p.a[lane], of->a, sizeof p.a[lane]);
    }
    look(&p, first->index / LANES % 4 * 16, NULL, NULL);
    for (unsigned i = 0; i < w->n; i++) chained |= w->product[i].d[0] == p.d[0];
    if (w->n == w->room) {
        const unsigned room = w->room ? 2 * w->room : 32;
        product *more = realloc(w->product, room * sizeof *more);
        if (!more) sim_kernel_fault(TN_CU_OUT_OF_MEMORY, "no memory for a wgmma");
        w->product = more;
        w->room = room;
    }
    if (!chained) take(&p);
    w->product[w->n++] = p;
    w->asked++;
}

/* All but the last `groups` that were committed are computed. */
static void wait(unsigned groups, const sim_thread *first, warp *w)
{
    unsigned done = 0;
    for (; done < w->n && w->product[done].group + groups < w->groups; done++)
        compute(&w->product[done], first->index / LANES % 4 * 16);
    w->n -= done;
    if (w->n && done) memmove(w->product, w->product + done, w->n * sizeof *w->product);
    for (unsigned i = 0; i < w->n && done; i++) { /* that go on with what was computed */
        product *p = &w->product[i];
        bool earlier = p->before != NULL;
        for (unsigned j = 0; j < i; j++) earlier |= w->product[j].d[0] == p->d[0];
        if (!earlier) take(p);
    }
    w->open &= !done;
}

void sim_warp_wgmma(sim_collective kind, const sim_thread *first)
{
    warp *w = &warps[first->index / LANES];
    block.now = &block.thread[first->index];
    if (kind == SIM_WGMMA_OPEN)
        w->open = true;
    else if (kind == SIM_WGMMA_NONE)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "a wgmma in a kernel that was not compiled for sm_90a");
    else if (kind == SIM_WGMMA_CLOSE)
        w->groups++;
    else if (kind == SIM_WGMMA_WAIT)
        wait(((const asked *)(uintptr_t)first->value)->groups, first, w);
    else
        ask(kind, first, w);
}
