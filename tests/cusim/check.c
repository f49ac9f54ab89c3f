/* check.c - every access of a kernel that was compiled with checks comes by here.
 *
 * Kernels are compiled with -fsanitize=thread, bounds and alignment, whose callbacks are defined here instead
 * of in a sanitizer's library. An access must lie in a live allocation, in the shared memory of the module,
 * in the stack of its own thread, or in the module's constants; what lies in the first two goes on to race.c.
 *
 * Read first: check. */
#include "race.h"

#define CALLBACK SIM_API

/* ---- places ---- */

/* Pages that were found lately: kernels go through few allocations, many times. */
enum { LATELY = 64, PAGE_BITS = 12 };
static sim_region *lately[LATELY];
static sim_cell shared_cells[SIM_SHARED_BYTES / 4], dynamic_cells[SIM_SHARED_MOST / 4];

void sim_check_forget(void) { memset(lately, 0, sizeof lately); }

static sim_region *region_of(uint64_t at, unsigned bytes)
{
    sim_region **slot = &lately[at >> PAGE_BITS & (LATELY - 1)], *r = *slot;
    if (r && at - r->base < r->bytes && bytes <= r->bytes - (at - r->base)) return r;
    r = sim_find(at, bytes);
    if (!r || !r->access || !sim_race_cells(r)) return NULL;
    return *slot = r;
}

static const char *verb(sim_access_kind kind)
{
    static const char *const text[] = {"read", "write", "atomic"};
    return text[kind];
}

static void outside(uint64_t at, unsigned bytes, sim_access_kind kind) __attribute__((noreturn));
static void outside(uint64_t at, unsigned bytes, sim_access_kind kind)
{
    const char *p = (const char *)(uintptr_t)at;
    char place[160];
    const bool shares = block.module->shared_end > block.module->shared;
    if (shares && p >= block.module->shared_end && p < block.module->shared_end + 4096)
        snprintf(place, sizeof place, "%zu bytes past the end of the block's %zu bytes of shared memory",
                 (size_t)(p - block.module->shared_end),
                 (size_t)(block.module->shared_end - block.module->shared));
    else if (p >= block.dynamic + block.op->launch.shared_bytes && p < block.dynamic + SIM_SHARED_MOST + 4096)
        snprintf(place, sizeof place,
                 "%zu bytes past the end of the block's %u bytes of dynamic shared memory",
                 (size_t)(p - block.dynamic) - block.op->launch.shared_bytes, block.op->launch.shared_bytes);
    else if (shares && p < block.module->image_end && p >= block.module->image)
        snprintf(place, sizeof place, "before the block's shared memory");
    else
        sim_describe(at, place, sizeof place);
    sim_kernel_fault(SIM_ILLEGAL_ADDRESS, "%s of %u bytes at %p, %s", verb(kind), bytes, (const void *)p,
                     place);
}

bool sim_check_shared(uint64_t at, unsigned bytes)
{
    const char *p = (const char *)(uintptr_t)at;
    return (p >= block.module->shared && p + bytes <= block.module->shared_end) ||
           (p >= block.dynamic && p + bytes <= block.dynamic + block.op->launch.shared_bytes);
}

static void check(uint64_t at, unsigned bytes, sim_access_kind kind, bool relaxed)
{
    if (!block.checked || !block.now) return;
    const char *p = (const char *)(uintptr_t)at;
    if (p >= block.stack && p < block.stack_end) return;
    sim_region *r = region_of(at, bytes);
    if (r) {
        sim_race_access(r->cells, block.launch, r->base, at, bytes, kind, relaxed);
        return;
    }
    const sim_module *m = block.module;
    if (sim_check_shared(at, bytes)) {
        const bool own = p >= m->shared && p < m->shared_end;
        if (sim_async_pending(at, bytes))
            sim_kernel_fault(
                TN_CU_LAUNCH_FAILED,
                "%s of %u bytes of shared memory that a cp.async is to fill: no wait for it lies between",
                verb(kind), bytes);
        sim_race_access(own ? shared_cells : dynamic_cells, block.serial,
                        (uint64_t)(uintptr_t)(own ? m->shared : block.dynamic), at, bytes, kind, relaxed);
        return;
    }
    const char *builtins = (const char *)&cusim_builtins;
    if (kind == SIM_READ && p >= m->image && p < m->shared) return;
    if (kind == SIM_READ && p >= builtins && p < builtins + sizeof cusim_builtins) return;
    outside(at, bytes, kind);
}

bool sim_check_shown(uint64_t at, unsigned bytes)
{
    const sim_thread *me = block.now;
    if (!block.checked || !me) return true;
    const char *p = (const char *)(uintptr_t)at;
    const bool own = p >= block.module->shared && p < block.module->shared_end;
    const sim_cell *c =
        own ? &shared_cells[(p - block.module->shared) / 4] : &dynamic_cells[(p - block.dynamic) / 4];
    for (const sim_cell *last = c + (bytes - 1) / 4; c <= last; c++) {
        const sim_access *w = &c->write;
        if (w->launch != block.serial) continue; /* nobody wrote */
        if (me->show_block_time > w->time + 1 || sim_order_shown(w->thread, w->time)) continue;
        if (sim_order_used() || block.thread[w->thread].show_time <= w->time) return false;
    }
    return true;
}

static void check_range(uint64_t at, uint64_t bytes, sim_access_kind kind)
{
    for (uint64_t done = 0; done < bytes; done += 16)
        check(at + done, bytes - done < 16 ? (unsigned)(bytes - done) : 16, kind, false);
}

void sim_check_access(uint64_t at, unsigned bytes, bool write)
{
    check(at, bytes, write ? SIM_WRITE : SIM_READ, false);
}

/* ---- the callbacks of -fsanitize=thread ---- */

#define ACCESS(name, bytes, kind, relaxed)                                                                   \
    CALLBACK void name(const void *at);                                                                      \
    void name(const void *at) { check((uint64_t)(uintptr_t)at, bytes, kind, relaxed); }
#define ACCESSES(bytes)                                                                                      \
    ACCESS(__tsan_read##bytes, bytes, SIM_READ, false)                                                       \
    ACCESS(__tsan_write##bytes, bytes, SIM_WRITE, false)                                                     \
    ACCESS(__tsan_volatile_read##bytes, bytes, SIM_READ, true)                                               \
    ACCESS(__tsan_volatile_write##bytes, bytes, SIM_WRITE, true)                                             \
    ACCESS(__tsan_read_write##bytes, bytes, SIM_WRITE, false)
#define UNALIGNED(bytes)                                                                                     \
    ACCESS(__tsan_unaligned_read##bytes, bytes, SIM_READ, false)                                             \
    ACCESS(__tsan_unaligned_write##bytes, bytes, SIM_WRITE, false)                                           \
    ACCESS(__tsan_unaligned_volatile_read##bytes, bytes, SIM_READ, true)                                     \
    ACCESS(__tsan_unaligned_volatile_write##bytes, bytes, SIM_WRITE, true)                                   \
    ACCESS(__tsan_unaligned_read_write##bytes, bytes, SIM_WRITE, false)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)

CALLBACK void __tsan_init(void);
CALLBACK void __tsan_func_entry(void *caller);
CALLBACK void __tsan_func_exit(void);
CALLBACK void __tsan_vptr_update(void **at, void *value);
CALLBACK void __tsan_vptr_read(void **at);
CALLBACK void __tsan_read_range(const void *at, uint64_t bytes);
CALLBACK void __tsan_write_range(const void *at, uint64_t bytes);
CALLBACK void *__tsan_memcpy(void *to, const void *from, uint64_t bytes);
CALLBACK void *__tsan_memmove(void *to, const void *from, uint64_t bytes);
CALLBACK void *__tsan_memset(void *to, int value, uint64_t bytes);

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **at, void *value) { (void)at, (void)value; }
void __tsan_vptr_read(void **at) { (void)at; }
void __tsan_read_range(const void *at, uint64_t bytes)
{
    check_range((uint64_t)(uintptr_t)at, bytes, SIM_READ);
}
void __tsan_write_range(const void *at, uint64_t bytes)
{
    check_range((uint64_t)(uintptr_t)at, bytes, SIM_WRITE);
}
void *__tsan_memcpy(void *to, const void *from, uint64_t bytes)
{
    __tsan_read_range(from, bytes);
    __tsan_write_range(to, bytes);
    return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, uint64_t bytes)
{
    __tsan_read_range(from, bytes);
    __tsan_write_range(to, bytes);
    return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, uint64_t bytes)
{
    __tsan_write_range(to, bytes);
    return memset(to, value, bytes);
}

/* ---- the callbacks of -fsanitize=bounds,alignment, under names that a sanitized program does not have:
 * shim.h hands them on ---- */

typedef struct place {
    const char *file;
    uint32_t line, column;
} place;
typedef struct type {
    uint16_t kind, info;
    char name[1];
} type;
typedef struct out_of_bounds {
    place where;
    const type *array, *index;
} out_of_bounds;
typedef struct mismatch {
    place where;
    const type *what;
    unsigned char log_alignment, access;
} mismatch;

CALLBACK void cusim_out_of_bounds(const out_of_bounds *o, uint64_t index);
CALLBACK void cusim_type_mismatch(const mismatch *m, uint64_t at);

void cusim_out_of_bounds(const out_of_bounds *o, uint64_t index)
{
    if (block.now)
        sim_kernel_fault(SIM_ILLEGAL_ADDRESS, "index %lld out of bounds of an array of type %s in line %u",
                         (long long)index, o->array->name, o->where.line);
}

void cusim_type_mismatch(const mismatch *m, uint64_t at)
{
    if (block.now)
        sim_kernel_fault(SIM_MISALIGNED, "misaligned address %p: %s wants a multiple of %u, in line %u",
                         (void *)(uintptr_t)at, m->what->name, 1u << m->log_alignment, m->where.line);
}

/* ---- atomics and fences ---- */

CALLBACK unsigned cusim_atomic_add(unsigned *at, unsigned value);
CALLBACK unsigned cusim_atomic_cas(unsigned *at, unsigned expected, unsigned value);
CALLBACK void cusim_fence(void);
CALLBACK void cusim_wgmma_show(void);

static void update(const unsigned *at)
{
    if ((uintptr_t)at % 4)
        sim_kernel_fault(SIM_MISALIGNED, "misaligned address %p of an atomic", (const void *)at);
    check((uint64_t)(uintptr_t)at, 4, SIM_UPDATE, false);
    if (block.now->wrote_in_bulk)
        sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                         "an atomic behind a bulk copy: no fence.proxy.async lies between");
    block.now->acquired = true;
    if (block.checked) sim_race_atomic((uint64_t)(uintptr_t)at);
}

unsigned cusim_atomic_add(unsigned *at, unsigned value)
{
    update(at);
    unsigned old = *at;
    *at = old + value;
    return old;
}

unsigned cusim_atomic_cas(unsigned *at, unsigned expected, unsigned value)
{
    update(at);
    unsigned old = *at;
    if (old == expected) *at = value;
    return old;
}

void cusim_fence(void)
{
    block.now->fence_time = block.now->time + 1;
    block.now->fence_warp_time = block.now->warp_time + 1;
    block.now->fence_block_time = block.now->block_time + 1;
}

void cusim_wgmma_show(void)
{
    sim_thread *me = block.now;
    sim_order_show();
    me->show_time = me->time + 1;
    me->show_block_time = me->block_time + 1;
    me->time = ++block.clock; /* what it writes from here on is not shown */
}
