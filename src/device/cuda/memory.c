/* memory.c - device memory: a cache of blocks, and ranges that grow without moving.
 *
 *   segment   one piece from the driver (cuMemAlloc), cut into blocks that touch
 *   block     in use, or free and then on one list; freed neighbours are joined again
 *   range     addresses reserved once (cuMemAddressReserve); commit maps physical pieces behind their first
 *             bytes, one after the other
 *
 * All work goes through one stream, so a block may be handed out again as soon as it is freed: who writes it
 * next comes after who read it last. Small requests share segments of SMALL_SEGMENT, others get what fits
 * best. When the driver has no more, wholly free segments go back to it and it is asked once again.
 *
 * Read first: tn_cuda_alloc, then tn_cuda_commit.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <string.h>

enum { GRAIN = 512, PAGE = 2 << 20, SMALL = 1 << 20, SMALL_SEGMENT = 4 << 20, SLOTS = 1 << 10 };

typedef struct block {
    tn_cu_ptr at;
    size_t bytes;
    bool used, small;           /* small: of a segment that small requests share */
    struct block *left, *right; /* neighbours in the segment; no left: the segment's first */
    struct block *prev, *next;  /* on the list of the free */
    struct block *chain;        /* in use: others of its slot */
} block;

typedef struct piece {
    tn_cu_memory memory;
    size_t offset, bytes;
    struct piece *next;
} piece;

typedef struct range {
    tn_cu_ptr at;
    size_t bytes, committed; /* committed: whole pages */
    size_t asked;            /* of it handed out */
    piece *piece;
    struct range *next;
} range;

struct tn_cuda_memory {
    block *free;
    block *used[SLOTS]; /* by address */
    range *ranges;
    size_t page;     /* of ranges */
    size_t reserved; /* from the driver, segments and ranges */
};

static void count(tn_cuda *c, size_t more, size_t less)
{
    tn_device_stats *s = &c->base.stats;
    s->bytes_now += more;
    s->bytes_now -= less;
    if (s->bytes_now > s->bytes_peak) s->bytes_peak = s->bytes_now;
}

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* ---- blocks ---- */

static block **slot_of(tn_cuda_memory *m, tn_cu_ptr at)
{
    return &m->used[(at / GRAIN * 0x9e3779b97f4a7c15u) >> 54];
}

static void list_free(tn_cuda_memory *m, block *b)
{
    b->used = false;
    b->prev = NULL;
    b->next = m->free;
    if (m->free) m->free->prev = b;
    m->free = b;
}

static void unlist(tn_cuda_memory *m, block *b)
{
    if (b->prev)
        b->prev->next = b->next;
    else
        m->free = b->next;
    if (b->next) b->next->prev = b->prev;
}

static bool is_small(size_t bytes) { return bytes <= SMALL; }

/* The smallest free block that serves, the lowest address of equals: a step that asks for the same gets the
 * same. */
static block *best_free(tn_cuda_memory *m, size_t bytes)
{
    block *best = NULL;
    for (block *b = m->free; b; b = b->next) {
        if (b->bytes < bytes ||
            (best && (b->bytes > best->bytes || (b->bytes == best->bytes && b->at > best->at))))
            continue;
        if (is_small(bytes) != b->small) continue;
        best = b;
    }
    return best;
}

/* Gives what nobody uses back to the driver. */
static void trim(tn_cuda *c)
{
    tn_cuda_memory *m = c->memory;
    bool waited = false;
    for (block *b = m->free, *next; b; b = next) {
        next = b->next;
        if (b->left || b->right) continue;
        if (!waited) c->api->cuStreamSynchronize(c->stream); /* its last user may still run */
        waited = true;
        unlist(m, b);
        m->reserved -= b->bytes;
        c->api->cuMemFree_v2(b->at);
        tn_free_mem(b);
    }
}

static block *new_segment(tn_cuda *c, size_t bytes)
{
    tn_cuda_memory *m = c->memory;
    block *b = tn_calloc(1, sizeof *b);
    if (!b) return NULL;
    b->small = is_small(bytes);
    b->bytes = b->small ? SMALL_SEGMENT : round_up(bytes, PAGE);
    tn_cu_result e = c->api->cuMemAlloc_v2(&b->at, b->bytes);
    if (e == TN_CU_OUT_OF_MEMORY) {
        trim(c);
        e = c->api->cuMemAlloc_v2(&b->at, b->bytes);
    }
    if (tn_cuda_check(c, e, &c->base.failure, "cuMemAlloc")) {
        if (e == TN_CU_OUT_OF_MEMORY) {
            size_t left = 0, total = 0;
            c->api->cuMemGetInfo_v2(&left, &total);
            tn_err(&c->base.failure, TN_E_NOMEM,
                   "%zu bytes wanted; this session holds %zu, %zu of the GPU's %zu are free", bytes,
                   m->reserved, left, total);
        }
        tn_free_mem(b);
        return NULL;
    }
    m->reserved += b->bytes;
    list_free(m, b);
    return b;
}

/* Cuts b to `bytes` where what is left is of use. */
static void cut(tn_cuda_memory *m, block *b, size_t bytes)
{
    size_t least = is_small(bytes) ? GRAIN : SMALL;
    if (b->bytes - bytes < least) return;
    block *rest = tn_calloc(1, sizeof *rest);
    if (!rest) return; /* the whole block serves too */
    rest->at = b->at + bytes;
    rest->bytes = b->bytes - bytes;
    rest->small = b->small;
    rest->left = b;
    rest->right = b->right;
    if (b->right) b->right->left = rest;
    b->right = rest;
    b->bytes = bytes;
    list_free(m, rest);
}

void *tn_cuda_alloc(tn_cuda *c, size_t bytes, tn_errbuf *err)
{
    tn_cuda_memory *m = c->memory;
    size_t want = round_up(bytes ? bytes : 1, is_small(bytes) ? GRAIN : (size_t)64 << 10);
    block *b = want < bytes ? NULL : best_free(m, want);
    if (!b && c->recording) {
        tn_err(err, TN_E_STATE, "memory was asked for while launches were recorded");
        return NULL;
    }
    if (!b && want >= bytes) b = new_segment(c, want);
    if (!b) {
        if (err != &c->base.failure) *err = c->base.failure;
        return NULL;
    }
    unlist(m, b);
    cut(m, b, want);
    b->used = true;
    block **slot = slot_of(m, b->at);
    b->chain = *slot;
    *slot = b;
    count(c, b->bytes, 0);
    return (void *)(uintptr_t)b->at;
}

static block *join(tn_cuda_memory *m, block *left, block *right)
{
    if (!left || !right || left->used || right->used) return right;
    unlist(m, left);
    unlist(m, right);
    left->bytes += right->bytes;
    left->right = right->right;
    if (right->right) right->right->left = left;
    tn_free_mem(right);
    list_free(m, left);
    return left;
}

void tn_cuda_free(tn_cuda *c, void *p)
{
    tn_cuda_memory *m = c->memory;
    tn_cu_ptr at = tn_cuda_ptr(p);
    if (!at) return;
    for (block **link = slot_of(m, at); *link; link = &(*link)->chain) {
        block *b = *link;
        if (b->at != at) continue;
        *link = b->chain;
        count(c, 0, b->bytes);
        list_free(m, b);
        b = join(m, b->left, b);
        join(m, b, b->right);
        return;
    }
}

/* ---- ranges ---- */

static tn_cu_mem_prop page_properties(const tn_cuda *c)
{
    return (tn_cu_mem_prop){.type = TN_CU_MEM_PINNED, .location = {TN_CU_MEM_ON_DEVICE, c->device}};
}

void *tn_cuda_reserve(tn_cuda *c, size_t bytes, tn_errbuf *err)
{
    range *r = tn_calloc(1, sizeof *r);
    if (!r) {
        tn_err(err, TN_E_NOMEM, "out of host memory");
        return NULL;
    }
    r->bytes = round_up(bytes, c->memory->page);
    tn_cu_result e = c->api->cuMemAddressReserve(&r->at, r->bytes, 0, 0, 0);
    if (tn_cuda_check(c, e, err, "cuMemAddressReserve")) {
        tn_free_mem(r);
        return NULL;
    }
    r->next = c->memory->ranges;
    c->memory->ranges = r;
    return (void *)(uintptr_t)r->at;
}

static range **find_range(tn_cuda *c, const void *base)
{
    range **link = &c->memory->ranges;
    while (*link && (*link)->at != tn_cuda_ptr(base)) link = &(*link)->next;
    return link;
}

/* Puts `bytes` of physical memory behind what is committed so far. */
static int map_piece(tn_cuda *c, range *r, size_t bytes, tn_errbuf *err)
{
    const tn_cuda_api *a = c->api;
    tn_cu_mem_prop prop = page_properties(c);
    tn_cu_mem_access access = {prop.location, TN_CU_MEM_READ_WRITE};
    tn_cu_ptr at = r->at + r->committed;
    piece *p = tn_calloc(1, sizeof *p);
    if (!p) return tn_err(err, TN_E_NOMEM, "out of host memory");
    *p = (piece){.offset = r->committed, .bytes = bytes, .next = r->piece};
    tn_cu_result e = a->cuMemCreate(&p->memory, bytes, &prop, 0);
    if (e == TN_CU_OUT_OF_MEMORY) {
        trim(c);
        e = a->cuMemCreate(&p->memory, bytes, &prop, 0);
    }
    const char *what = "cuMemCreate";
    if (!e) {
        what = "cuMemMap";
        e = a->cuMemMap(at, bytes, 0, p->memory, 0);
        if (!e) {
            what = "cuMemSetAccess";
            e = a->cuMemSetAccess(at, bytes, &access, 1);
            if (!e) {
                what = "cuMemsetD8Async";
                e = a->cuMemsetD8Async(at, 0, bytes, c->stream);
            }
            if (e) a->cuMemUnmap(at, bytes);
        }
        if (e) a->cuMemRelease(p->memory);
    }
    if (e) {
        tn_free_mem(p);
        return tn_cuda_check(c, e, err, what);
    }
    r->piece = p;
    r->committed += bytes;
    c->memory->reserved += bytes;
    return TN_OK;
}

int tn_cuda_commit(tn_cuda *c, void *base, size_t bytes, tn_errbuf *err)
{
    range *r = *find_range(c, base);
    if (!r || bytes > r->bytes) return tn_err(err, TN_E_ARG, "%zu bytes of no such range", bytes);
    size_t want = round_up(bytes, c->memory->page);
    if (want > r->committed) {
        if (c->recording) return tn_err(err, TN_E_STATE, "memory was asked for while launches were recorded");
        int status = map_piece(c, r, want - r->committed, err);
        if (status) return status;
    }
    if (bytes > r->asked) {
        count(c, bytes - r->asked, 0);
        r->asked = bytes;
    }
    return TN_OK;
}

void tn_cuda_release(tn_cuda *c, void *base)
{
    range **link = find_range(c, base), *r = *link;
    if (!r) return;
    if (r->piece) c->api->cuStreamSynchronize(c->stream);
    for (piece *p; (p = r->piece);) {
        r->piece = p->next;
        c->api->cuMemUnmap(r->at + p->offset, p->bytes);
        c->api->cuMemRelease(p->memory);
        tn_free_mem(p);
    }
    c->api->cuMemAddressFree(r->at, r->bytes);
    count(c, 0, r->asked);
    c->memory->reserved -= r->committed;
    *link = r->next;
    tn_free_mem(r);
}

/* ---- opening and closing ---- */

int tn_cuda_memory_open(tn_cuda *c, tn_errbuf *err)
{
    int can = 0;
    if (c->api->cuDeviceGetAttribute(&can, TN_CU_VIRTUAL_MEMORY, c->device) || !can)
        return tn_err(err, TN_E_UNSUPPORTED,
                      "%s cannot map memory into reserved addresses; a GPU and a driver that can are needed",
                      c->name);
    c->memory = tn_calloc(1, sizeof *c->memory);
    if (!c->memory) return tn_err(err, TN_E_NOMEM, "out of host memory");
    tn_cu_mem_prop prop = page_properties(c);
    return TN_CUDA_DO(c, err, cuMemGetAllocationGranularity, &c->memory->page, &prop,
                      TN_CU_GRANULARITY_MINIMUM);
}

void tn_cuda_memory_close(tn_cuda *c)
{
    tn_cuda_memory *m = c->memory;
    if (!m) return;
    while (m->ranges) tn_cuda_release(c, (void *)(uintptr_t)m->ranges->at);
    for (int i = 0; i < SLOTS; i++) /* what nobody gave back: all becomes free and joins */
        while (m->used[i]) tn_cuda_free(c, (void *)(uintptr_t)m->used[i]->at);
    for (block *b; (b = m->free);) {
        c->api->cuMemFree_v2(b->at);
        unlist(m, b);
        tn_free_mem(b);
    }
    tn_free_mem(m);
    c->memory = NULL;
}
