/* memory.c - size classes for small blocks, whole mappings for large ones.
 *
 * Every block has a record outside the memory it describes (a record inside would put all tensors at the same
 * odd offset of their pages). Records of blocks handed out stand in a hash table by address; records of
 * blocks kept stand in one list per small class, or in one list of large ones.
 *
 *  small  under LARGE: the size is rounded up to one of 8 steps per power of two, so at most 12.5 % is waste.
 *  large  LARGE and up: a mapping of its own, aligned to a huge page and marked for huge pages. A request
 *         takes the smallest kept one that fits, if that is at most a quarter longer.
 *
 * Under AddressSanitizer kept blocks are poisoned, and so are REDZONE bytes behind each block handed out and
 * what rounding added. Read first: tn_memory_alloc. */
#include "memory.h"

#include "../../core/alloc.h"
#include "../../core/sanitized.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(TN_ASAN)
enum { REDZONE = 64 };
#else
enum { REDZONE = 0 };
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE     HUGE_PAGE
enum { STEPS = 8, CLASSES = 64 * STEPS, FIRST_SLOTS = 64 };

typedef struct block {
    struct block *next; /* in a list of kept ones */
    char *data;
    size_t capacity; /* bytes at data */
    size_t bytes;    /* asked for; handed out */
    bool range;      /* reserved: capacity bytes of addresses, `bytes` committed, */
    struct part {    /* which are these, in order, none beside another */
        size_t low, high;
    } * part;
    int n_part, cap_part;
} block;

struct tn_memory {
    block **slot; /* open addressing on the address; live blocks and ranges */
    size_t slots, used;
    block *kept[CLASSES];
    block *kept_large;
    size_t now, peak, kept_bytes, page;
};

/* ---- the table of live blocks ---------------------------------------------------------------------- */

static size_t home(const tn_memory *m, const void *p)
{
    return (size_t)(((uint64_t)(uintptr_t)p >> 6) * 0x9e3779b97f4a7c15u >> 20) & (m->slots - 1);
}

static void put(tn_memory *m, block *b)
{
    size_t i = home(m, b->data);
    while (m->slot[i]) i = (i + 1) & (m->slots - 1);
    m->slot[i] = b;
}

static int make_room(tn_memory *m)
{
    if (m->used * 2 < m->slots) return 0;
    block **old = m->slot;
    size_t n = m->slots;
    block **slot = tn_calloc(n ? 2 * n : FIRST_SLOTS, sizeof *slot);
    if (!slot) return TN_E_NOMEM;
    m->slot = slot;
    m->slots = n ? 2 * n : FIRST_SLOTS;
    for (size_t i = 0; i < n; i++)
        if (old[i]) put(m, old[i]);
    tn_free_mem(old);
    return 0;
}

static block *find(const tn_memory *m, const void *p, bool range)
{
    if (!p || !m->slots) return NULL;
    for (size_t i = home(m, p); m->slot[i]; i = (i + 1) & (m->slots - 1))
        if (m->slot[i]->data == p) return m->slot[i]->range == range ? m->slot[i] : NULL;
    return NULL;
}

static void take_out(tn_memory *m, const block *b)
{
    size_t i = home(m, b->data), mask = m->slots - 1;
    while (m->slot[i] != b) i = (i + 1) & mask;
    m->slot[i] = NULL;
    m->used--;
    for (size_t j = (i + 1) & mask; m->slot[j];
         j = (j + 1) & mask) { /* close the gap the probe would stop at */
        block *moved = m->slot[j];
        m->slot[j] = NULL;
        put(m, moved);
    }
}

static void count(tn_memory *m, size_t bytes)
{
    m->now += bytes;
    if (m->now > m->peak) m->peak = m->now;
}

/* ---- from and to the system ------------------------------------------------------------------------ */

/* Addresses aligned to a huge page. NULL when there are none. */
static void *map(size_t bytes, int protection, int flags)
{
    if (bytes > SIZE_MAX - HUGE_PAGE) return NULL;
    char *p = mmap(NULL, bytes + HUGE_PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1));
    if (before) munmap(p, before);
    munmap(p + before + bytes, HUGE_PAGE - before);
    return p + before;
}

static block *from_system(size_t capacity)
{
    block *b = tn_calloc(1, sizeof *b);
    if (!b) return NULL;
    if (capacity >= LARGE) {
        b->data = map(capacity, PROT_READ | PROT_WRITE, 0);
        if (b->data) madvise(b->data, capacity, MADV_HUGEPAGE); /* where refused: small pages */
    } else {
        b->data = tn_aligned_alloc(TN_MEMORY_ALIGN, capacity);
    }
    if (!b->data) {
        tn_free_mem(b);
        return NULL;
    }
    b->capacity = capacity;
    return b;
}

static void to_system(block *b)
{
    if (!b->range)
        TN_UNPOISON(b->data, b->capacity); /* a range is never poisoned, and its shadow would be gigabytes */
    if (b->range || b->capacity >= LARGE)
        munmap(b->data, b->capacity);
    else
        tn_free_mem(b->data);
    tn_free_mem(b->part);
    tn_free_mem(b);
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* Rounds up to a multiple of an eighth of the power of two below, and numbers the result. */
static size_t round_up(size_t bytes, int *class)
{
    int log = 63 - __builtin_clzll(bytes | TN_MEMORY_ALIGN * STEPS);
    int shift = log - 3;
    size_t steps = (bytes + ((size_t)1 << shift) - 1) >> shift;
    *class = shift * STEPS + (int)steps - STEPS;
    return steps << shift;
}

static block *best_fit(tn_memory *m, size_t bytes)
{
    block **best = NULL;
    for (block **b = &m->kept_large; *b; b = &(*b)->next)
        if ((*b)->capacity >= bytes && (*b)->capacity - bytes <= bytes / 4 &&
            (!best || (*b)->capacity < (*best)->capacity))
            best = b;
    if (!best) return NULL;
    block *b = *best;
    *best = b->next;
    return b;
}

void *tn_memory_alloc(tn_memory *m, size_t bytes)
{
    if (!bytes) bytes = 1;
    if (bytes > SIZE_MAX / 4 || make_room(m)) return NULL;
    int class = 0;
    size_t capacity = round_up(bytes + REDZONE, &class);
    if (capacity >= LARGE) capacity = (capacity + m->page - 1) & ~(m->page - 1);

    block *b = NULL;
    if (capacity >= LARGE)
        b = best_fit(m, bytes + REDZONE);
    else if ((b = m->kept[class]))
        m->kept[class] = b->next;

    if (b) {
        m->kept_bytes -= b->capacity;
    } else if (!(b = from_system(capacity))) {
        tn_memory_trim(m);
        if (!(b = from_system(capacity))) return NULL;
    }
    b->bytes = bytes;
    TN_UNPOISON(b->data, b->capacity);
    TN_POISON(b->data + bytes, b->capacity - bytes);
    put(m, b);
    m->used++;
    count(m, bytes);
    return b->data;
}

void tn_memory_free(tn_memory *m, void *p)
{
    block *b = find(m, p, false);
    if (!b) return;
    take_out(m, b);
    m->now -= b->bytes;
    m->kept_bytes += b->capacity;
    TN_UNPOISON(b->data, b->capacity);
    TN_POISON(b->data, b->capacity);
    block **list = &m->kept_large;
    if (b->capacity < LARGE) {
        int class;
        round_up(b->capacity, &class);
        list = &m->kept[class];
    }
    b->next = *list;
    *list = b;
}

static void drop_list(tn_memory *m, block **list)
{
    while (*list) {
        block *b = *list;
        *list = b->next;
        m->kept_bytes -= b->capacity;
        to_system(b);
    }
}

void tn_memory_trim(tn_memory *m)
{
    for (int i = 0; i < CLASSES; i++) drop_list(m, &m->kept[i]);
    drop_list(m, &m->kept_large);
}

/* ---- ranges ---------------------------------------------------------------------------------------- */

/* Returns true where the process may have only so many addresses (RLIMIT_AS), and this range would take more
 * than a small share of them. */
static bool is_greedy(size_t bytes)
{
    enum { FEW = 16 << 20, SHARE = 8 };
    struct rlimit most;
    return bytes > FEW && !getrlimit(RLIMIT_AS, &most) && most.rlim_cur != RLIM_INFINITY &&
           bytes > most.rlim_cur / SHARE;
}

void *tn_memory_reserve(tn_memory *m, size_t bytes)
{
    if (!bytes || bytes > SIZE_MAX / 4 || is_greedy(bytes) || make_room(m)) return NULL;
    block *b = tn_calloc(1, sizeof *b);
    if (!b) return NULL;
    b->range = true;
    b->capacity = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    b->data = map(b->capacity, PROT_NONE, MAP_NORESERVE);
    if (!b->data) {
        tn_free_mem(b);
        return NULL;
    }
    put(m, b);
    m->used++;
    return b->data;
}

int tn_memory_commit(tn_memory *m, void *base, size_t first, size_t bytes)
{
    block *b = find(m, base, true);
    if (!b || first > b->capacity || bytes > b->capacity - first) return TN_E_ARG;
    size_t low = first, high = first + bytes, had = 0;
    int at = 0, end;
    while (at < b->n_part && b->part[at].high < low) at++;
    for (end = at; end < b->n_part && b->part[end].low <= high; end++) {
        const struct part *p = &b->part[end];
        had += p->high - p->low;
        low = p->low < low ? p->low : low;
        high = p->high > high ? p->high : high;
    }
    const size_t more = high - low - had;
    if (!more) return 0;
    void *fuse = tn_malloc(1); /* lets tests make this fail as any other allocation */
    tn_free_mem(fuse);
    const size_t from = low & ~(m->page - 1), to = (high + m->page - 1) & ~(m->page - 1);
    if (!fuse || !tn_reserve(&b->part, &b->cap_part, b->n_part + 1, sizeof *b->part) ||
        mprotect(b->data + from, to - from, PROT_READ | PROT_WRITE))
        return TN_E_NOMEM;
    if (to - from >= HUGE_PAGE) madvise(b->data + from, to - from, MADV_HUGEPAGE);
    memmove(b->part + at + 1, b->part + end, (size_t)(b->n_part - end) * sizeof *b->part);
    b->n_part += 1 - (end - at);
    b->part[at] = (struct part){low, high};
    count(m, more);
    b->bytes += more;
    return 0;
}

void tn_memory_release(tn_memory *m, void *base)
{
    block *b = find(m, base, true);
    if (!b) return;
    take_out(m, b);
    m->now -= b->bytes;
    to_system(b);
}

/* ---- the whole ------------------------------------------------------------------------------------- */

int tn_memory_open(tn_memory **out)
{
    *out = tn_calloc(1, sizeof **out);
    if (!*out) return TN_E_NOMEM;
    (*out)->page = (size_t)sysconf(_SC_PAGESIZE);
    return 0;
}

void tn_memory_close(tn_memory *m)
{
    if (!m) return;
    tn_memory_trim(m);
    for (size_t i = 0; i < m->slots; i++)
        if (m->slot[i]) to_system(m->slot[i]);
    tn_free_mem(m->slot);
    tn_free_mem(m);
}

size_t tn_memory_now(const tn_memory *m) { return m->now; }
size_t tn_memory_peak(const tn_memory *m) { return m->peak; }
size_t tn_memory_kept(const tn_memory *m) { return m->kept_bytes; }
