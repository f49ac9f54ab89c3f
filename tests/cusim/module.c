/* module.c - modules, their kernels, and launches.
 *
 * A "cubin" of the simulator is a shared object (nvrtc.c) that holds the kernels as host code and a table of
 * them. Loading writes it to a file named by its content, so that equal images share one, and opens that.
 *
 * Read first: cuModuleLoadData. */
#include "sim.h"
#include "nvrtc.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- the image ---- */

/* The image comes without its size, as with the real call. A linker puts the table of sections last. */
static size_t image_bytes(const unsigned char *image)
{
    Elf64_Ehdr h;
    memcpy(&h, image, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_type != ET_DYN ||
        h.e_shentsize != sizeof(Elf64_Shdr))
        return 0;
    size_t bytes = h.e_shoff + (size_t)h.e_shnum * h.e_shentsize;
    return bytes > sizeof h && bytes < (size_t)1 << 30 ? bytes : 0;
}

static bool file_is(const char *path, const void *image, size_t bytes)
{
    size_t n = 0;
    char *text = sim_read_file(path, &n);
    bool same = text && n == bytes && memcmp(text, image, bytes) == 0;
    free(text);
    return same;
}

static void *open_image(const void *image, size_t bytes)
{
    char folder[PATH_MAX], path[PATH_MAX + 64], written[PATH_MAX + 96];
    if (!sim_cache_folder(folder)) return NULL;
    unsigned long long hash[2];
    sim_hash_begin(hash);
    sim_hash_add(hash, image, bytes);
    snprintf(path, sizeof path, "%s/image-%016llx%016llx.so", folder, hash[0], hash[1]);
    if (!file_is(path, image, bytes)) {
        snprintf(written, sizeof written, "%s.%d", path, (int)getpid());
        if (!sim_write_file(written, image, bytes) || rename(written, path)) return NULL;
    }
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

struct extent {
    const char *address, *begin, *end;
};

static int find_extent(struct dl_phdr_info *info, size_t bytes, void *user)
{
    (void)bytes;
    struct extent *e = user;
    const char *low = NULL, *high = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD) continue;
        const char *begin = (const char *)(info->dlpi_addr + p->p_vaddr), *end = begin + p->p_memsz;
        if (!low || begin < low) low = begin;
        if (!high || end > high) high = end;
    }
    if (e->address < low || e->address >= high) return 0;
    e->begin = low;
    e->end = high;
    return 1;
}

/* ---- modules ---- */

void sim_module_drop(sim_module *m)
{
    if (--m->references) return;
    dlclose(m->library);
    free(m->function);
    free(m);
}

static bool take_table(sim_module *m)
{
    const sim_kernel_info *kernel = dlsym(m->library, "cusim_kernels");
    const int *abi = dlsym(m->library, "cusim_abi"), *checked = dlsym(m->library, "cusim_checked");
    char *const *shared = dlsym(m->library, "cusim_shared");
    if (!kernel || !abi || *abi != SIM_SHIM_ABI || !checked || !shared) return false;
    while (kernel[m->n_functions].name) m->n_functions++;
    if (!(m->function = calloc((size_t)m->n_functions + 1, sizeof *m->function))) return false;
    for (int i = 0; i < m->n_functions; i++) {
        sim_function *f = &m->function[i];
        f->info = &kernel[i];
        f->module = m;
        while (kernel[i].parameter_bytes[f->n_parameters])
            f->parameters_bytes += kernel[i].parameter_bytes[f->n_parameters++];
    }
    m->checked = *checked;
    m->shared = shared[0];
    m->shared_end = shared[1];
    struct extent e = {.address = (const char *)kernel};
    if (!dl_iterate_phdr(find_extent, &e)) return false;
    m->image = (char *)(uintptr_t)e.begin;
    m->image_end = (char *)(uintptr_t)e.end;
    return true;
}

/* An image that was compiled without checks is refused while they are wanted: a cache that held it would
 * otherwise make a test check nothing. */
tn_cu_result cuModuleLoadData(tn_cu_module *module, const void *image)
{
    SIM_ENTER();
    SIM_PASS(sim_unsafe_call());
    size_t bytes = image ? image_bytes(image) : 0;
    if (!bytes) return sim_leave(TN_CU_INVALID_IMAGE);
    sim_module *m = calloc(1, sizeof *m);
    if (!m) return sim_leave(TN_CU_OUT_OF_MEMORY);
    m->references = 1;
    m->library = open_image(image, bytes);
    if (!m->library || !take_table(m) || (sim.set.check && !m->checked) ||
        m->shared_end - m->shared > SIM_SHARED_BYTES) {
        if (m->library)
            sim_module_drop(m);
        else
            free(m);
        return sim_leave(TN_CU_INVALID_IMAGE);
    }
    m->next = sim.modules;
    *module = sim.modules = m;
    sim.count.modules++;
    return sim_leave(SIM_OK);
}

static sim_module **link_of(tn_cu_module module)
{
    sim_module **link = &sim.modules;
    while (*link && *link != module) link = &(*link)->next;
    return *link ? link : NULL;
}

tn_cu_result cuModuleUnload(tn_cu_module module)
{
    SIM_ENTER();
    sim_module **link = link_of(module);
    if (!link) return sim_leave(TN_CU_INVALID_HANDLE);
    SIM_PASS(sim_unsafe_call());
    sim_module *m = *link;
    *link = m->next;
    sim_module_drop(m);
    return sim_leave(SIM_OK);
}

void sim_module_forget(void)
{
    while (sim.modules) {
        sim_module *m = sim.modules;
        sim.modules = m->next;
        sim_module_drop(m);
    }
}

tn_cu_result cuModuleGetFunction(tn_cu_function *function, tn_cu_module module, const char *name)
{
    SIM_ENTER();
    sim_module **link = link_of(module);
    if (!link) return sim_leave(TN_CU_INVALID_HANDLE);
    for (int i = 0; i < (*link)->n_functions; i++) {
        if (strcmp((*link)->function[i].info->name, name) != 0) continue;
        *function = &(*link)->function[i];
        return sim_leave(SIM_OK);
    }
    return sim_leave(TN_CU_NOT_FOUND);
}

static sim_function *function_of(tn_cu_function function)
{
    for (sim_module *m = sim.modules; m; m = m->next)
        if (function >= m->function && function < m->function + m->n_functions) return function;
    return NULL;
}

/* As the assembler counts it: up to where the dynamic array begins. */
static unsigned shared_of(const sim_function *f)
{
    const size_t bytes = (size_t)(f->module->shared_end - f->module->shared);
    return (unsigned)((bytes + SIM_SHARED_ALIGN - 1) / SIM_SHARED_ALIGN * SIM_SHARED_ALIGN);
}

/* Dynamic shared memory that a launch may ask for. */
static unsigned dynamic_room(const sim_function *f)
{
    return f->dynamic_most ? f->dynamic_most : SIM_SHARED_BYTES - shared_of(f);
}

tn_cu_result cuFuncSetAttribute(tn_cu_function function, tn_cu_function_attribute which, int value)
{
    SIM_ENTER();
    sim_function *f = function_of(function);
    if (!f) return sim_leave(TN_CU_INVALID_HANDLE);
    if (which != TN_CU_FUNC_DYNAMIC || value < 0 ||
        (unsigned)value + shared_of(f) > (unsigned)sim.set.shared_most)
        return sim_leave(TN_CU_INVALID_VALUE);
    f->dynamic_most = (unsigned)value;
    return sim_leave(SIM_OK);
}

/* Registers and spills are unknown here: the count is what the launch bound would allow, and nothing spills
 * unless a test says so. */
tn_cu_result cuFuncGetAttribute(int *value, tn_cu_function_attribute which, tn_cu_function function)
{
    SIM_ENTER();
    sim_function *f = function_of(function);
    if (!f) return sim_leave(TN_CU_INVALID_HANDLE);
    const int threads = f->info->max_threads ? (int)f->info->max_threads : SIM_MAX_THREADS;
    const struct {
        tn_cu_function_attribute which;
        int value;
    } attribute[] = {{TN_CU_FUNC_THREADS, threads},
                     {TN_CU_FUNC_SHARED, (int)shared_of(f)},
                     {TN_CU_FUNC_LOCAL, threads > 128 ? (int)sim.set.spill : 0},
                     {TN_CU_FUNC_REGISTERS, 65536 / threads < 255 ? 65536 / threads : 255},
                     {TN_CU_FUNC_DYNAMIC, (int)dynamic_room(f)}};
    for (size_t i = 0; i < sizeof attribute / sizeof *attribute; i++) {
        if (attribute[i].which != which) continue;
        *value = attribute[i].value;
        return sim_leave(SIM_OK);
    }
    return sim_leave(TN_CU_INVALID_VALUE);
}

/* ---- launches ---- */

/* One block of memory: the pointers, then the parameters they point to. */
static void **copy_parameters(const sim_function *f, void *const *from)
{
    size_t bytes = f->n_parameters * sizeof(void *) + 16;
    for (unsigned i = 0; i < f->n_parameters; i++) bytes += (f->info->parameter_bytes[i] + 15u) / 16 * 16;
    void **to = calloc(1, bytes);
    if (!to) return NULL;
    char *at = (char *)to + (f->n_parameters * sizeof(void *) + 15) / 16 * 16;
    for (unsigned i = 0; i < f->n_parameters; i++) {
        to[i] = at;
        memcpy(at, from[i], f->info->parameter_bytes[i]);
        at += (f->info->parameter_bytes[i] + 15u) / 16 * 16;
    }
    return to;
}

tn_cu_result cuLaunchKernel(tn_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            tn_cu_stream stream, void **parameters, void **extra)
{
    SIM_ENTER();
    sim_function *f = function_of(function);
    sim_stream *s = sim_stream_of(stream);
    if (!f || !s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (!grid_x || !grid_y || !grid_z || grid_x > INT_MAX || grid_y > 65535 || grid_z > 65535 || !block_x ||
        !block_y || !block_z || block_x > 1024 || block_y > 1024 || block_z > 64 ||
        (uint64_t)block_x * block_y * block_z > SIM_MAX_THREADS || extra ||
        (f->n_parameters && !parameters) || f->parameters_bytes > SIM_PARAMETER_BYTES ||
        shared_bytes > dynamic_room(f))
        return sim_leave(TN_CU_INVALID_VALUE);
    if (f->info->max_threads && block_x * block_y * block_z > f->info->max_threads)
        return sim_leave(TN_CU_OUT_OF_RESOURCES);
    sim_op *op = sim_op_new(SIM_LAUNCH);
    if (!op || !(op->launch.parameter = copy_parameters(f, parameters))) {
        sim_op_drop(op);
        return sim_leave(TN_CU_OUT_OF_MEMORY);
    }
    op->launch.function = f;
    op->launch.shared_bytes = shared_bytes;
    f->module->references++;
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    memcpy(op->launch.grid, grid, sizeof grid);
    memcpy(op->launch.block, block, sizeof block);
    return sim_leave(sim_submit(s, op));
}
