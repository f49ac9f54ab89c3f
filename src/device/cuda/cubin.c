/* cubin.c - what NVRTC has made of kernels for a GPU that is not there: registers, shared memory and spills
 * of each, read from the object (ELF) that a GPU would load. It fills the part of a tn_cuda_api that loads
 * modules (module.c), so that texts are compiled, kept and refused as on the machine with that GPU, and that
 * machine finds them there.
 *
 * A module is a copy of the object, a function its section ".text.NAME". Attributes of the kernels stand in
 * the section
 * ".nv.info": a byte each for format and attribute, two for the bytes that follow, the kernel's symbol, a
 * number.
 *
 * Start with tn_cuda_fill_unloaded.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <elf.h>
#include <string.h>

enum { LONG_FORMAT = 4, FRAME_BYTES = 0x11, REGISTERS = 0x2f, MAX_THREADS = 0x05, MOST_BYTES = 1 << 30 };
#if !defined(EM_CUDA)
#define EM_CUDA 190
#endif
enum { RESERVED_BYTES = 1024 }; /* of a block's shared memory, by the system, from 9.0 on */

struct CUfunc_st {
    const struct CUmod_st *of;
    int section;
    struct CUfunc_st *next;
};
struct CUmod_st {
    unsigned char *image;
    size_t bytes;
    struct CUfunc_st *functions;
};

/* ---- the object ---- */

static Elf64_Ehdr header(const struct CUmod_st *m)
{
    Elf64_Ehdr h;
    memcpy(&h, m->image, sizeof h);
    return h;
}

static Elf64_Shdr section(const struct CUmod_st *m, int i)
{
    Elf64_Shdr s;
    memcpy(&s, m->image + header(m).e_shoff + (size_t)i * sizeof s, sizeof s);
    return s;
}

static const char *name_of(const struct CUmod_st *m, const Elf64_Shdr *s)
{
    const Elf64_Shdr names = section(m, header(m).e_shstrndx);
    return (const char *)m->image + names.sh_offset + s->sh_name;
}

/* The section `prefix``name`; -1: there is none. */
static int find(const struct CUmod_st *m, const char *prefix, const char *name)
{
    const size_t n = strlen(prefix);
    for (int i = 1; i < header(m).e_shnum; i++) {
        const Elf64_Shdr s = section(m, i);
        const char *is = name_of(m, &s);
        if (!strncmp(is, prefix, n) && !strcmp(is + n, name)) return i;
    }
    return -1;
}

/* The object comes without its size; its end is that of the last section or table. */
static size_t size_of(const unsigned char *image)
{
    struct CUmod_st m = {.image = (unsigned char *)(uintptr_t)image};
    const Elf64_Ehdr h = header(&m);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
        h.e_machine != EM_CUDA || h.e_shentsize != sizeof(Elf64_Shdr) || !h.e_shnum || h.e_shoff > MOST_BYTES)
        return 0;
    size_t end = h.e_shoff + (size_t)h.e_shnum * sizeof(Elf64_Shdr);
    if (h.e_phnum && h.e_phoff + (size_t)h.e_phnum * h.e_phentsize > end)
        end = h.e_phoff + (size_t)h.e_phnum * h.e_phentsize;
    for (int i = 0; i < h.e_shnum; i++) {
        const Elf64_Shdr s = section(&m, i);
        if (s.sh_type != SHT_NOBITS && s.sh_offset + s.sh_size > end) end = s.sh_offset + s.sh_size;
    }
    return end < MOST_BYTES ? end : 0;
}

/* ---- in the place of the driver ---- */

static tn_cu_result load(tn_cu_module *out, const void *image)
{
    const size_t bytes = size_of(image);
    struct CUmod_st *m = bytes ? tn_calloc(1, sizeof *m) : NULL;
    if (m) m->image = tn_malloc(bytes);
    if (!m || !m->image) {
        tn_free_mem(m);
        return bytes ? TN_CU_OUT_OF_MEMORY : TN_CU_INVALID_IMAGE;
    }
    memcpy(m->image, image, bytes);
    m->bytes = bytes;
    *out = m;
    return 0;
}

static tn_cu_result unload(tn_cu_module m)
{
    for (struct CUfunc_st *f; (f = m->functions);) {
        m->functions = f->next;
        tn_free_mem(f);
    }
    tn_free_mem(m->image);
    tn_free_mem(m);
    return 0;
}

static tn_cu_result get_function(tn_cu_function *out, tn_cu_module m, const char *name)
{
    const int i = find(m, ".text.", name);
    struct CUfunc_st *f = i < 0 ? NULL : tn_calloc(1, sizeof *f);
    if (!f) return i < 0 ? TN_CU_NOT_FOUND : TN_CU_OUT_OF_MEMORY;
    *f = (struct CUfunc_st){m, i, m->functions};
    *out = m->functions = f;
    return 0;
}

static uint32_t word(const unsigned char *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* The section that symbol `i` stands in. */
static int home_of(const struct CUmod_st *m, uint32_t i)
{
    const int table = find(m, ".symtab", "");
    Elf64_Sym symbol;
    if (table < 0) return -1;
    const Elf64_Shdr s = section(m, table);
    if ((i + (uint64_t)1) * sizeof symbol > s.sh_size) return -1;
    memcpy(&symbol, m->image + s.sh_offset + i * sizeof symbol, sizeof symbol);
    return symbol.st_shndx;
}

/* The number that attribute has for f; of all kernels in .nv.info, of one in .nv.info.NAME. */
static int attribute(const struct CUfunc_st *f, int info, int which, bool of_all)
{
    if (info < 0) return 0;
    const Elf64_Shdr s = section(f->of, info);
    const unsigned char *at = f->of->image + s.sh_offset, *end = at + s.sh_size;
    while (at + 4 <= end) {
        const int bytes = at[0] == LONG_FORMAT ? at[2] | at[3] << 8 : 0;
        if (at + 4 + bytes > end) break;
        const bool mine = bytes >= 8 && (!of_all || home_of(f->of, word(at + 4)) == f->section);
        if (at[0] == LONG_FORMAT && at[1] == which && mine) return (int)word(at + 4 + (of_all ? 4 : 0));
        at += 4 + bytes;
    }
    return 0;
}

static tn_cu_result get_attribute(int *value, tn_cu_function_attribute which, tn_cu_function f)
{
    const Elf64_Shdr text = section(f->of, f->section);
    const char *name = name_of(f->of, &text) + sizeof ".text." - 1;
    const int all = find(f->of, ".nv.info", ""), shared = find(f->of, ".nv.shared.", name);
    const int reserved = find(f->of, ".nv.shared.reserved.0", "") < 0 ? 0 : RESERVED_BYTES;
    if (which == TN_CU_FUNC_SHARED)
        *value = shared < 0 ? 0 : (int)section(f->of, shared).sh_size - reserved;
    else if (which == TN_CU_FUNC_THREADS)
        *value = attribute(f, find(f->of, ".nv.info.", name), MAX_THREADS, false);
    else
        *value = attribute(f, all, which == TN_CU_FUNC_REGISTERS ? REGISTERS : FRAME_BYTES, true);
    return 0;
}

static tn_cu_result no_text(tn_cu_result e, const char **text)
{
    (void)e, (void)text;
    return TN_CU_INVALID_VALUE;
}

void tn_cuda_fill_unloaded(tn_cuda_api *a)
{
    a->cuModuleLoadData = load;
    a->cuModuleUnload = unload;
    a->cuModuleGetFunction = get_function;
    a->cuFuncGetAttribute = get_attribute;
    a->cuGetErrorName = a->cuGetErrorString = no_text;
}
