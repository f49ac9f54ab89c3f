/* race.c - finds accesses of a kernel that nothing orders.
 *
 * Blocks run one after the other, so that the order in which two accesses happened says little; whether
 * something made that order is what is looked for (race.h has the rules). A block that does an atomic behind
 * a fence releases what it did before, into the list of that word; a block that does an atomic on the word
 * later acquires the releases in it.
 *
 * Read first: ordered, then check_word.
 */
#include "race.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { MAX_WORDS = 512 }; /* words with atomics in one launch; of more, the order is not known */

/* What one block made visible to those that see its atomic. */
typedef struct release {
    uint32_t thread, warp_time, block_time;                 /* of the atomic */
    uint32_t fence_time, fence_warp_time, fence_block_time; /* of its thread's last fence, plus 1 */
    uint32_t *fences; /* per thread of the block: time of the last fence, plus 1 */
} release;

typedef struct word {
    uint64_t at;
    release **of_block; /* the last release of each block */
    uint64_t n;         /* blocks that released */
    bool used;          /* by the block that runs, which acquired at: */
    uint32_t thread, time, block_time;
} word;

static word words[MAX_WORDS];
static int n_words;
static bool words_overflow;

void sim_race_begin_launch(void)
{
    n_words = 0;
    words_overflow = false;
}

void sim_race_end_launch(void)
{
    for (int i = 0; i < n_words; i++) {
        for (uint64_t b = 0; b < block.n_blocks; b++)
            if (words[i].of_block[b]) {
                free(words[i].of_block[b]->fences);
                free(words[i].of_block[b]);
            }
        free(words[i].of_block);
    }
    n_words = 0;
}

void sim_race_begin_block(void)
{
    for (int i = 0; i < n_words; i++) words[i].used = false;
}

static word *word_at(uint64_t at)
{
    for (int i = 0; i < n_words; i++)
        if (words[i].at == at) return &words[i];
    if (n_words == MAX_WORDS) {
        words_overflow = true;
        return NULL;
    }
    word *w = &words[n_words];
    *w = (word){.at = at, .of_block = calloc(block.n_blocks, sizeof *w->of_block)};
    if (!w->of_block) {
        words_overflow = true;
        return NULL;
    }
    n_words++;
    return w;
}

void sim_race_atomic(uint64_t at)
{
    const sim_thread *me = block.now;
    word *w = word_at(at);
    if (!w) return;
    if (!w->used) {
        w->used = true;
        w->thread = me->index;
        w->time = me->time;
        w->block_time = me->block_time;
    }
    release *r = w->of_block[block.index];
    if (!r) {
        if (!(r = calloc(1, sizeof *r)) || !(r->fences = calloc(block.n_threads, sizeof *r->fences))) {
            free(r);
            words_overflow = true;
            return;
        }
        w->of_block[block.index] = r;
        w->n++;
    }
    r->thread = me->index;
    r->warp_time = me->warp_time;
    r->block_time = me->block_time;
    r->fence_time = me->fence_time;
    r->fence_warp_time = me->fence_warp_time;
    r->fence_block_time = me->fence_block_time;
    for (unsigned i = 0; i < block.n_threads; i++) r->fences[i] = block.thread[i].fence_time;
}

/* ---- what orders two accesses ---- */

static bool same_warp(uint32_t a, uint32_t b) { return a / 32 == b / 32; }

/* Whether something done by `thread` of this block at `time` is over for the thread that runs. */
static bool seen(uint32_t thread, uint32_t time)
{
    const sim_thread *me = block.now;
    return thread == me->index || time < me->block_time ||
           (same_warp(thread, me->index) && time < me->warp_time) || sim_order_over(thread, time);
}

/* Whether the release covers what the thread did at that time. */
static bool released(const release *r, const sim_access *a)
{
    if (r->fence_time) {
        uint32_t fenced = r->fence_time - 1;
        if (a->thread == r->thread && a->time <= fenced) return true;
        if (a->time < r->fence_block_time - 1) return true;
        if (same_warp(a->thread, r->thread) && a->time < r->fence_warp_time - 1) return true;
    }
    uint32_t own = r->fences[a->thread]; /* the thread's own fence, and a barrier before the atomic */
    return own && a->time <= own - 1 &&
           (own - 1 < r->block_time || (same_warp(a->thread, r->thread) && own - 1 < r->warp_time));
}

static bool acquired(const sim_access *a)
{
    if (words_overflow) return true;
    for (int i = 0; i < n_words; i++) {
        const word *w = &words[i];
        if (!w->used || !seen(w->thread, w->time)) continue;
        if (w->of_block[a->block] && released(w->of_block[a->block], a)) return true;
    }
    return false;
}

/* The block has seen the releases of all others: it is the last. */
static bool acquired_all(void)
{
    if (words_overflow) return true;
    for (int i = 0; i < n_words; i++)
        if (words[i].used && words[i].n == block.n_blocks && seen(words[i].thread, words[i].time))
            return true;
    return false;
}

static bool ordered(const sim_access *a)
{
    if (a->block != (uint32_t)block.index) return acquired(a);
    return seen(a->thread, a->time);
}

static bool read_ordered(const sim_access *a)
{
    if (a->flags & SIM_GRID_READS && !acquired_all()) return false;
    if (a->block != (uint32_t)block.index) return acquired(a) || (a->flags & SIM_GRID_READS);
    if (a->flags & SIM_BLOCK_READS) return a->time < block.now->block_time;
    if (a->flags & SIM_WARP_READS)
        return a->time < block.now->block_time ||
               (same_warp(a->thread, block.now->index) && a->time < block.now->warp_time);
    return seen(a->thread, a->time);
}

/* An atomic that another block did on this word comes before what follows an atomic of ours on it. */
static bool behind_atomic(const sim_access *a, uint64_t at)
{
    if (!(a->flags & SIM_ATOMIC)) return false;
    for (int i = 0; i < n_words; i++)
        if (words[i].at == at && words[i].used && seen(words[i].thread, words[i].time)) return true;
    return false;
}

/* ---- cells ---- */

static void report(const sim_access *a, const char *was, sim_access_kind kind, uint64_t base, uint64_t at)
{
    static const char *const doing[] = {"reads", "writes", "updates"};
    char place[128];
    const char *hint = "no barrier lies between";
    if (a->block != (uint32_t)block.index) {
        hint = "nothing orders the two blocks";
        for (int i = 0; i < n_words; i++)
            if (words[i].used && words[i].of_block[a->block])
                hint =
                    "its block did an atomic afterwards, but no __threadfence() before it covers this access";
    }
    if (base == (uint64_t)(uintptr_t)block.module->shared || base == (uint64_t)(uintptr_t)block.dynamic)
        snprintf(place, sizeof place, "%llu bytes into %sshared memory", (unsigned long long)(at - base),
                 base == (uint64_t)(uintptr_t)block.dynamic ? "dynamic " : "");
    else
        sim_describe(at, place, sizeof place);
    sim_kernel_fault(TN_CU_LAUNCH_FAILED, "race: this thread %s what block %u thread %u %s (%p, %s%s): %s",
                     doing[kind], (unsigned)a->block, (unsigned)a->thread, was, (void *)(uintptr_t)at, place,
                     a->flags & (SIM_WARP_READS | SIM_BLOCK_READS | SIM_GRID_READS) ? "; others as well" : "",
                     hint);
}

/* written: the word, in this launch. What a block read that was behind an earlier block's read is behind
 * that. */
static void note_read(sim_access *r, const sim_access *me, bool written)
{
    if (r->launch != me->launch ||
        !(r->bytes & me->bytes)) { /* of other bytes of the four: the newest is kept */
        *r = *me;
        return;
    }
    uint8_t flags = (uint8_t)(r->flags & SIM_GRID_READS), bytes = (uint8_t)(r->bytes | me->bytes);
    if (r->block != me->block)
        flags |= written && acquired(r) ? 0 : SIM_GRID_READS;
    else if (r->flags & SIM_BLOCK_READS)
        flags |= r->time < block.now->block_time ? 0 : SIM_BLOCK_READS;
    else if (r->time < block.now->block_time)
        flags |= 0;
    else if (!same_warp(r->thread, me->thread))
        flags |= SIM_BLOCK_READS;
    else if (r->time < block.now->warp_time)
        flags |= 0;
    else if (r->thread != me->thread || r->flags & SIM_WARP_READS)
        flags |= SIM_WARP_READS;
    uint8_t atomic = r->flags & me->flags & SIM_ATOMIC;
    *r = *me;
    r->flags = flags | atomic;
    if (flags) r->bytes = bytes;
}

/* ---- shared memory where warps have barriers of their own: the last read of each ---- */

enum { WARPS = SIM_MAX_THREADS / 32, SEVERAL = 32 };

typedef struct warp_reads { /* of four bytes of dynamic shared memory */
    uint32_t serial, warps; /* of the block; a bit for each warp that read since the last write */
    uint32_t time[WARPS];
    uint8_t lane[WARPS], bytes[WARPS]; /* lane: or SEVERAL */
} warp_reads;

static warp_reads dynamic_reads[SIM_SHARED_MOST / 4];

static void note_warp_read(warp_reads *r, const sim_access *me)
{
    const unsigned w = me->thread / 32, lane = me->thread % 32;
    if (r->serial != block.serial) r->serial = block.serial, r->warps = 0;
    const bool other = r->warps >> w & 1 && r->lane[w] != lane && r->time[w] >= block.now->warp_time;
    r->bytes[w] = (uint8_t)(r->warps >> w & 1 ? r->bytes[w] | me->bytes : me->bytes);
    r->warps |= 1u << w;
    r->lane[w] = (uint8_t)(other ? SEVERAL : lane);
    r->time[w] = other && r->time[w] > me->time ? r->time[w] : me->time;
}

/* A thread of a warp whose read the writer is not behind; -1: there is none. */
static int unordered_reader(warp_reads *r, const sim_access *me)
{
    if (r->serial != block.serial) return -1;
    for (unsigned w = 0; w < WARPS; w++) {
        if (!(r->warps >> w & 1) || !(r->bytes[w] & me->bytes) || r->time[w] < block.now->block_time)
            continue;
        for (unsigned l = 0; l < 32; l++)
            if ((r->lane[w] == SEVERAL || r->lane[w] == l) && w * 32 + l < block.n_threads &&
                !seen(w * 32 + l, r->time[w]))
                return (int)(w * 32 + l);
    }
    r->warps = 0;
    return -1;
}

static inline void check_word(sim_cell *c, const sim_access *me, sim_access_kind kind, uint64_t base,
                              uint64_t at)
{
    const bool atomic = me->flags & SIM_ATOMIC;
    const sim_access *w = &c->write, *r = &c->read;
    if (w->launch == me->launch && w->bytes & me->bytes && !(atomic && w->flags & SIM_ATOMIC) &&
        !ordered(w) && !behind_atomic(w, at))
        report(w, "wrote", kind, base, at);
    if (sim_order_used() && base == (uint64_t)(uintptr_t)block.dynamic) {
        warp_reads *reads = &dynamic_reads[(at - base) / 4];
        if (kind == SIM_READ) {
            note_warp_read(reads, me);
            return;
        }
        const int reader = unordered_reader(reads, me);
        if (reader >= 0) {
            const sim_access by = {.block = me->block, .thread = (uint16_t)reader};
            report(&by, "read", kind, base, at);
        }
        c->write = *me;
        return;
    }
    if (kind == SIM_READ) {
        note_read(&c->read, me, w->launch == me->launch);
        return;
    }
    if (r->launch == me->launch && r->bytes & me->bytes && !(atomic && r->flags & SIM_ATOMIC) &&
        !read_ordered(r))
        report(r, "read", kind, base, at);
    c->write = *me;
}

void sim_race_access(sim_cell *cells, uint32_t launch, uint64_t base, uint64_t at, unsigned bytes,
                     sim_access_kind kind, bool relaxed)
{
    const sim_thread *t = block.now;
    sim_access me = {.launch = launch,
                     .block = (uint32_t)block.index,
                     .time = t->time,
                     .thread = (uint16_t)t->index,
                     .flags = kind == SIM_UPDATE || relaxed ? SIM_ATOMIC : 0};
    while (bytes) {
        unsigned offset = (unsigned)(at - base) % 4, here = 4 - offset < bytes ? 4 - offset : bytes;
        me.bytes = (uint8_t)(((1u << here) - 1) << offset);
        check_word(&cells[(at - base) / 4], &me, kind, base, at - offset);
        at += here;
        bytes -= here;
    }
}

sim_cell *sim_race_cells(sim_region *r)
{
    if (r->cells) return r->cells;
    size_t bytes = (r->bytes + 3) / 4 * sizeof *r->cells;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return r->cells = at == MAP_FAILED ? NULL : at;
}
