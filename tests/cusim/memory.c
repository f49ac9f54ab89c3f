/* memory.c - device memory: addresses that only simulated work can touch.
 *
 * Each allocation lies in pages of its own with an untouchable page behind it, and is shifted so that it ends
 * where its pages end: what runs past it crashes even in a kernel that is compiled without checks. Between
 * launches and copies the pages of all device memory are closed (PROT_NONE), so that a program which
 * dereferences a device pointer crashes; where there is much memory, not at once. Freed addresses are closed
 * for good and never given out again.
 *
 * A virtual range is reserved as it is; the memory mapped into it is a file in memory, as with the real calls
 * its content outlives the mapping. New memory, or the first of it, is filled with ones, which are NaN in
 * every float type.
 *
 *   sim.region        what is mapped or was freed, sorted by address
 *   sim.reservations  ranges of cuMemAddressReserve
 *   sim.physicals     memory of cuMemCreate
 *
 * Read first: sim_find, then sim_memory_open. */
#include "race.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, ALIGN = 256, FILL_AT_MOST = 1 << 20, CLOSE_AT_MOST = 8 << 20, CLOSE_EVERY = 32 };

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* ---- the table of regions ---- */

sim_region *sim_find_near(uint64_t at)
{
    size_t low = 0, high = sim.n_regions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sim.region[middle]->base <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? sim.region[low - 1] : NULL;
}

sim_region *sim_find(uint64_t at, uint64_t bytes)
{
    sim_region *r = sim_find_near(at);
    return r && r->kind != SIM_FREED && at - r->base <= r->bytes && bytes <= r->bytes - (at - r->base) ? r
                                                                                                       : NULL;
}

sim_region *sim_find_pinned(const void *at, size_t bytes)
{
    sim_region *r = sim_find((uint64_t)(uintptr_t)at, bytes);
    return r && r->kind == SIM_PINNED ? r : NULL;
}

/* Neighbouring mappings of one range may be used as one. */
bool sim_memory_holds(uint64_t at, uint64_t bytes)
{
    while (bytes) {
        sim_region *r = sim_find(at, 1);
        if (!r || !r->access) return false;
        uint64_t here = r->bytes - (at - r->base);
        if (here >= bytes) return true;
        at += here;
        bytes -= here;
    }
    return true;
}

void sim_describe(uint64_t at, char *text, size_t bytes)
{
    const sim_region *r = sim_find_near(at);
    size_t i = 0;
    while (i < sim.n_regions && sim.region[i]->base <= at) i++;
    const sim_region *after = i < sim.n_regions ? sim.region[i] : NULL;
    if (r && at < r->base + r->bytes && r->kind == SIM_FREED)
        snprintf(text, bytes, "%llu bytes into memory of %llu bytes that was freed",
                 (unsigned long long)(at - r->base), (unsigned long long)r->bytes);
    else if (r && at < r->base + r->bytes)
        snprintf(text, bytes, "%llu bytes into an allocation of %llu bytes",
                 (unsigned long long)(at - r->base), (unsigned long long)r->bytes);
    else if (r && at - r->base - r->bytes < 1 << 20 && (!after || at - r->base - r->bytes < after->base - at))
        snprintf(text, bytes, "%llu bytes past the end of an allocation of %llu bytes",
                 (unsigned long long)(at - r->base - r->bytes), (unsigned long long)r->bytes);
    else if (after && after->base - at < 1 << 20)
        snprintf(text, bytes, "%llu bytes before an allocation of %llu bytes",
                 (unsigned long long)(after->base - at), (unsigned long long)after->bytes);
    else
        snprintf(text, bytes, "in no allocation");
}

static bool insert(sim_region *r)
{
    if (sim.n_regions == sim.regions_room) {
        size_t room = sim.regions_room ? 2 * sim.regions_room : 64;
        sim_region **grown = realloc(sim.region, room * sizeof *grown);
        if (!grown) return false;
        sim.region = grown;
        sim.regions_room = room;
    }
    sim_check_forget();
    size_t i = sim.n_regions++;
    for (; i && sim.region[i - 1]->base > r->base; i--) sim.region[i] = sim.region[i - 1];
    sim.region[i] = r;
    return true;
}

static void forget_cells(sim_region *r)
{
    sim_check_forget();
    if (r->cells) munmap(r->cells, (r->bytes + 3) / 4 * sizeof *r->cells);
    r->cells = NULL;
}

static void take_out(sim_region *r)
{
    size_t i = 0;
    while (sim.region[i] != r) i++;
    memmove(sim.region + i, sim.region + i + 1, (--sim.n_regions - i) * sizeof *sim.region);
    forget_cells(r);
    free(r);
}

/* ---- opening and closing ---- */

static bool guarded(const sim_region *r)
{
    return (r->kind == SIM_DEVICE || r->kind == SIM_MAPPED) && r->access;
}

static void protect(const sim_region *r, int how) { mprotect(sim_pointer(r->map), r->map_bytes, how); }

static void protect_all(int how)
{
    for (size_t i = 0; i < sim.n_regions; i++)
        if (guarded(sim.region[i])) protect(sim.region[i], how);
}

void sim_memory_open(void)
{
    if (sim.memory_open++ || sim.left_open) return;
    protect_all(PROT_READ | PROT_WRITE);
}

/* Closing and opening takes time for each page: where there is much memory it is done now and then only. */
void sim_memory_close(void)
{
    if (--sim.memory_open) return;
    sim.left_open = sim.count.bytes_now > CLOSE_AT_MOST && ++sim.closings % CLOSE_EVERY;
    if (!sim.left_open) protect_all(PROT_NONE);
}

static bool is_open(void) { return sim.memory_open || sim.left_open; }

static void fill_new(const sim_region *r)
{
    protect(r, PROT_READ | PROT_WRITE);
    memset(sim_pointer(r->base), 0xff, r->bytes < FILL_AT_MOST ? r->bytes : FILL_AT_MOST);
    if (!is_open()) protect(r, PROT_NONE);
}

static void account(uint64_t bytes)
{
    sim.count.allocations++;
    sim.count.bytes_now += bytes;
    if (sim.count.bytes_now > sim.count.bytes_peak) sim.count.bytes_peak = sim.count.bytes_now;
}

/* ---- allocations ---- */

static sim_region *new_region(sim_region_kind kind, uint64_t bytes, int how)
{
    sim_region *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->kind = kind;
    r->bytes = bytes;
    r->map_bytes = round_up(bytes, PAGE);
    r->access = true;
    void *at = mmap(NULL, r->map_bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        free(r);
        return NULL;
    }
    r->map = (uint64_t)(uintptr_t)at;
    r->base = r->map + r->map_bytes - round_up(bytes, ALIGN);
    mprotect(at, r->map_bytes, how);
    if (!insert(r)) {
        munmap(at, r->map_bytes + PAGE);
        free(r);
        return NULL;
    }
    return r;
}

tn_cu_result cuMemAlloc_v2(tn_cu_ptr *at, size_t bytes)
{
    SIM_ENTER();
    SIM_PASS(sim_unsafe_call());
    if (!bytes) return sim_leave(TN_CU_INVALID_VALUE);
    if (bytes > (uint64_t)sim.set.memory || sim.count.bytes_now + bytes > (uint64_t)sim.set.memory)
        return sim_leave(TN_CU_OUT_OF_MEMORY);
    sim_region *r = new_region(SIM_DEVICE, bytes, PROT_NONE);
    if (!r) return sim_leave(TN_CU_OUT_OF_MEMORY);
    fill_new(r);
    account(bytes);
    *at = r->base;
    return sim_leave(SIM_OK);
}

/* Waits for everything, as the real one does. */
tn_cu_result cuMemFree_v2(tn_cu_ptr at)
{
    SIM_ENTER();
    SIM_PASS(sim_unsafe_call());
    if (!at) return sim_leave(SIM_OK);
    sim_region *r = sim_find(at, 1);
    if (!r || r->kind != SIM_DEVICE || r->base != at) return sim_leave(TN_CU_INVALID_VALUE);
    tn_cu_result status = sim_run_all();
    madvise(sim_pointer(r->map), r->map_bytes, MADV_DONTNEED);
    protect(r, PROT_NONE);
    forget_cells(r);
    r->kind = SIM_FREED;
    sim.count.frees++;
    sim.count.bytes_now -= r->bytes;
    return sim_leave(status);
}

tn_cu_result cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    SIM_ENTER();
    *total = (size_t)sim.set.memory;
    *unused = sim.count.bytes_now < *total ? *total - sim.count.bytes_now : 0;
    return sim_leave(SIM_OK);
}

tn_cu_result cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    SIM_ENTER();
    (void)flags;
    SIM_PASS(sim_unsafe_call());
    if (!bytes) return sim_leave(TN_CU_INVALID_VALUE);
    if (sim.host_bytes + bytes > (uint64_t)sim.set.host_memory) return sim_leave(TN_CU_OUT_OF_MEMORY);
    sim_region *r = new_region(SIM_PINNED, bytes, PROT_READ | PROT_WRITE);
    if (!r) return sim_leave(TN_CU_OUT_OF_MEMORY);
    memset(sim_pointer(r->base), 0xff, bytes < FILL_AT_MOST ? bytes : FILL_AT_MOST);
    sim.host_bytes += bytes;
    sim.count.host_allocations++;
    *at = sim_pointer(r->base);
    return sim_leave(SIM_OK);
}

tn_cu_result cuMemFreeHost(void *at)
{
    SIM_ENTER();
    SIM_PASS(sim_unsafe_call());
    if (!at) return sim_leave(SIM_OK);
    sim_region *r = sim_find_pinned(at, 1);
    if (!r || r->base != (uint64_t)(uintptr_t)at) return sim_leave(TN_CU_INVALID_VALUE);
    tn_cu_result status = sim_run_all();
    sim.host_bytes -= r->bytes;
    munmap(sim_pointer(r->map), r->map_bytes + PAGE);
    take_out(r);
    return sim_leave(status);
}

/* ---- virtual memory ---- */

tn_cu_result cuMemGetAllocationGranularity(size_t *bytes, const tn_cu_mem_prop *prop,
                                           tn_cu_granularity option)
{
    SIM_ENTER();
    if (sim.set.no_virtual) return sim_leave(TN_CU_NOT_SUPPORTED);
    if (option > 1 || prop->type != TN_CU_MEM_PINNED || prop->location.type != TN_CU_MEM_ON_DEVICE)
        return sim_leave(TN_CU_INVALID_VALUE);
    *bytes = SIM_GRANULARITY;
    return sim_leave(SIM_OK);
}

tn_cu_result cuMemAddressReserve(tn_cu_ptr *at, size_t bytes, size_t alignment, tn_cu_ptr wish,
                                 unsigned long long flags)
{
    SIM_ENTER();
    (void)wish;
    if (sim.set.no_virtual) return sim_leave(TN_CU_NOT_SUPPORTED);
    if (!bytes || bytes % SIM_GRANULARITY || flags || (alignment & (alignment - 1)))
        return sim_leave(TN_CU_INVALID_VALUE);
    if (alignment < SIM_GRANULARITY) alignment = SIM_GRANULARITY;
    sim_reservation *r = calloc(1, sizeof *r);
    if (!r) return sim_leave(TN_CU_OUT_OF_MEMORY);
    void *map = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        free(r);
        return sim_leave(TN_CU_OUT_OF_MEMORY);
    }
    uint64_t begin = (uint64_t)(uintptr_t)map, base = round_up(begin, alignment);
    if (base > begin) munmap(map, base - begin);
    if (base + bytes < begin + bytes + alignment) munmap(sim_pointer(base + bytes), begin + alignment - base);
    *r = (sim_reservation){base, bytes, sim.reservations};
    sim.reservations = r;
    *at = base;
    return sim_leave(SIM_OK);
}

static bool any_mapped(uint64_t at, uint64_t bytes)
{
    for (size_t i = 0; i < sim.n_regions; i++)
        if (sim.region[i]->base < at + bytes && at < sim.region[i]->base + sim.region[i]->bytes) return true;
    return false;
}

tn_cu_result cuMemAddressFree(tn_cu_ptr at, size_t bytes)
{
    SIM_ENTER();
    sim_reservation **link = &sim.reservations, *r;
    while ((r = *link) && r->base != at) link = &r->next;
    if (!r || r->bytes != bytes || any_mapped(at, bytes)) return sim_leave(TN_CU_INVALID_VALUE);
    *link = r->next;
    munmap(sim_pointer(r->base), r->bytes);
    free(r);
    return sim_leave(SIM_OK);
}

static void drop_physical(sim_physical *p)
{
    if (--p->references) return;
    sim_physical **link = &sim.physicals;
    while (*link != p) link = &(*link)->next;
    *link = p->next;
    close(p->file);
    sim.count.frees++;
    sim.count.bytes_now -= p->bytes;
    free(p);
}

static sim_physical *physical_of(tn_cu_memory handle)
{
    for (sim_physical *p = sim.physicals; p; p = p->next)
        if ((tn_cu_memory)(uintptr_t)p == handle) return p;
    return NULL;
}

tn_cu_result cuMemCreate(tn_cu_memory *memory, size_t bytes, const tn_cu_mem_prop *prop,
                         unsigned long long flags)
{
    SIM_ENTER();
    SIM_PASS(sim_unsafe_call());
    if (sim.set.no_virtual) return sim_leave(TN_CU_NOT_SUPPORTED);
    if (!bytes || bytes % SIM_GRANULARITY || flags || prop->type != TN_CU_MEM_PINNED ||
        prop->location.type != TN_CU_MEM_ON_DEVICE || prop->location.id != sim_device())
        return sim_leave(TN_CU_INVALID_VALUE);
    if (bytes > (uint64_t)sim.set.memory || sim.count.bytes_now + bytes > (uint64_t)sim.set.memory)
        return sim_leave(TN_CU_OUT_OF_MEMORY);
    sim_physical *p = calloc(1, sizeof *p);
    int file = memfd_create("cusim", MFD_CLOEXEC);
    if (!p || file < 0 || ftruncate(file, (off_t)bytes)) {
        free(p);
        if (file >= 0) close(file);
        return sim_leave(TN_CU_OUT_OF_MEMORY);
    }
    *p = (sim_physical){file, bytes, 1, sim.physicals};
    sim.physicals = p;
    account(bytes);
    size_t filled = bytes < FILL_AT_MOST ? bytes : FILL_AT_MOST;
    void *at = mmap(NULL, filled, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) {
        memset(at, 0xff, filled);
        munmap(at, filled);
    }
    *memory = (tn_cu_memory)(uintptr_t)p;
    return sim_leave(SIM_OK);
}

tn_cu_result cuMemRelease(tn_cu_memory memory)
{
    SIM_ENTER();
    sim_physical *p = physical_of(memory);
    if (!p) return sim_leave(TN_CU_INVALID_VALUE);
    drop_physical(p);
    return sim_leave(SIM_OK);
}

tn_cu_result cuMemMap(tn_cu_ptr at, size_t bytes, size_t offset, tn_cu_memory memory,
                      unsigned long long flags)
{
    SIM_ENTER();
    sim_physical *p = physical_of(memory);
    const sim_reservation *r = sim.reservations;
    while (r && (at < r->base || at - r->base > r->bytes || bytes > r->bytes - (at - r->base))) r = r->next;
    if (!p || !r || !bytes || offset || flags || bytes != p->bytes || (at - r->base) % SIM_GRANULARITY ||
        any_mapped(at, bytes))
        return sim_leave(TN_CU_INVALID_VALUE);
    sim_region *region = calloc(1, sizeof *region);
    if (!region) return sim_leave(TN_CU_OUT_OF_MEMORY);
    *region = (sim_region){.base = at, .bytes = bytes, .map = at, .map_bytes = bytes, .kind = SIM_MAPPED};
    if (mmap(sim_pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->file, 0) == MAP_FAILED ||
        !insert(region)) {
        free(region);
        return sim_leave(TN_CU_OUT_OF_MEMORY);
    }
    region->physical = p;
    p->references++;
    return sim_leave(SIM_OK);
}

static void unmap(sim_region *r)
{
    mmap(sim_pointer(r->map), r->map_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop_physical(r->physical);
    take_out(r);
}

/* The range must be made of whole mappings. */
static bool whole_mappings(uint64_t at, uint64_t bytes)
{
    while (bytes) {
        const sim_region *r = sim_find(at, 1);
        if (!r || r->kind != SIM_MAPPED || r->base != at || r->bytes > bytes) return false;
        at += r->bytes;
        bytes -= r->bytes;
    }
    return true;
}

tn_cu_result cuMemUnmap(tn_cu_ptr at, size_t bytes)
{
    SIM_ENTER();
    SIM_PASS(sim_run_all());
    if (!bytes || !whole_mappings(at, bytes)) return sim_leave(TN_CU_INVALID_VALUE);
    for (uint64_t done = 0; done < bytes;) {
        sim_region *r = sim_find(at + done, 1);
        done += r->bytes;
        unmap(r);
    }
    return sim_leave(SIM_OK);
}

tn_cu_result cuMemSetAccess(tn_cu_ptr at, size_t bytes, const tn_cu_mem_access *access, size_t count)
{
    SIM_ENTER();
    if (!bytes || count != 1 || access->location.type != TN_CU_MEM_ON_DEVICE ||
        access->location.id != sim_device() ||
        (access->flags != TN_CU_MEM_READ_WRITE && access->flags != 0) || !whole_mappings(at, bytes))
        return sim_leave(TN_CU_INVALID_VALUE);
    for (uint64_t done = 0; done < bytes;) {
        sim_region *r = sim_find(at + done, 1);
        r->access = access->flags != 0;
        sim_check_forget();
        protect(r, is_open() && r->access ? PROT_READ | PROT_WRITE : PROT_NONE);
        done += r->bytes;
    }
    return sim_leave(SIM_OK);
}

/* ---- the end ---- */

uint64_t sim_memory_live(void)
{
    uint64_t n = 0;
    for (size_t i = 0; i < sim.n_regions; i++) n += sim.region[i]->kind != SIM_FREED;
    for (const sim_reservation *r = sim.reservations; r; r = r->next) n++;
    for (const sim_physical *p = sim.physicals; p; p = p->next) n++;
    return n;
}

void sim_memory_forget(void)
{
    while (sim.n_regions) {
        sim_region *r = sim.region[sim.n_regions - 1];
        if (r->kind == SIM_MAPPED) {
            unmap(r);
            continue;
        }
        if (r->kind == SIM_DEVICE) {
            sim.count.frees++;
            sim.count.bytes_now -= r->bytes;
        }
        munmap(sim_pointer(r->map), r->map_bytes + PAGE);
        take_out(r);
    }
    while (sim.physicals) {
        sim.physicals->references = 1;
        drop_physical(sim.physicals);
    }
    while (sim.reservations) {
        sim_reservation *r = sim.reservations;
        sim.reservations = r->next;
        munmap(sim_pointer(r->base), r->bytes);
        free(r);
    }
    sim.host_bytes = 0;
}
