/* wgmma.cuh - products of a warpgroup, four warps, out of shared memory (sm_90a): all inline PTX of them.
 *
 * Comes after ptx.cuh, once or more often. Each function has a twin for machines without a GPU under
 * TN_CUSIM. Warp w (0 .. 3) of a warpgroup, lane 4 g + t, has of a product D [64 x N], beside the rows 16 w
 * of it,
 *
 *   d[n][0] row g, column 8 n + 2 t    d[n][1] column 8 n + 2 t + 1    d[n][2], d[n][3] the same of row g + 8
 *
 * which is what a warp has of mma.sync's, and A from registers likewise. Other operands lie in shared memory
 * as panels, 64 elements of 16 bits wide:
 *
 *   panel      rows of 128 bytes one after the other, from a multiple of 1024 bytes on; 16-byte chunk c of
 * row r lies in the place of chunk c ^ r % 8, so that eight rows' chunks meet no bank twice. tn_panel_place.
 *
 * A row of a panel is a row of A, or a column of B; with `turned` it is a step of the sum's index.
 *
 * A product is asked for and computed later, in the order in which they were asked for. Until it is waited
 * for nobody touches its accumulators, its registers of A, and what it reads of shared memory:
 *
 *   tn_wgmma_open     registers are as they should be: behind their last change, before the first product
 *   tn_wgmma_close    what was asked for since the last one is one group
 *   tn_wgmma_wait<N>  all but the newest N groups are done; then tn_wgmma_hold on their accumulators
 *
 * What threads have written or copied into shared memory products see behind tn_wgmma_show, before the
 * barrier or after. Where the target is another than sm_90a a product traps: the host chooses such a kernel
 * for that alone.
 *
 * Read first: tn_panel, then tn_wgmma.
 */
#ifndef TN_PTX_WGMMA_CUH
#define TN_PTX_WGMMA_CUH

#if defined(TN_PTX_TWIN)
#define TN_PTX_WGMMA_TWIN 1
#elif !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TN_PTX_WGMMA_NONE 1
#if defined(__CUDA_ARCH__) && !defined(__CUDACC_RTC__)
#error "this is to be compiled for sm_90a"
#endif
#endif

enum { TN_PANEL = 64, TN_PANEL_GROUP = 1024 }; /* elements of a row; bytes of eight rows */

/* Where element (row, column) of a matrix of `rows` rows lies, in elements: its panels follow one another. */
TN_FN int tn_panel_place(int rows, int row, int column)
{
    const int chunk = column % TN_PANEL / 8 ^ row % 8;
    return column / TN_PANEL * rows * TN_PANEL + row * TN_PANEL + chunk * 8 + column % 8;
}

/* What a product is told of a matrix: where it begins, bytes from part to part (PTX's leading and stride
 * offsets), how chunks are exchanged. */
TN_FN uint64_t tn_matrix(const void *at, int leading, int stride, int exchange)
{
#if defined(TN_PTX_WGMMA_TWIN)
    const uint64_t address = (uint64_t)((const char *)at - tn_dynamic_shared());
#elif defined(TN_PTX_WGMMA_NONE)
    const uint64_t address = 0;
#else
    const uint64_t address = tn_shared_address(at);
#endif
    return (address & 0x3ffff) >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)exchange << 62;
}

/* Names a part of panels to a product, from `at` on: any row - chunks are exchanged by their address - and a multiple
 * of 16 columns. `next`: bytes from one panel to the next, for a turned operand of more than one. */
TN_FN uint64_t tn_panel(const void *at, int next)
{
    return tn_matrix(at, next, TN_PANEL_GROUP, 1); /* 128-byte swizzle */
}

/* The same, `elements` further. */
TN_FN uint64_t tn_panel_at(uint64_t panel, int elements)
{
    return (panel & 0xffffffff00000000ull) | (uint32_t)((uint32_t)panel + (uint32_t)(elements >> 3));
}

/* x, of which the compiler knows nothing more: what is computed from it is computed here, and does not wait in
 * registers since before a loop. */
TN_FN int tn_fresh(int x)
{
#if !defined(TN_PTX_WGMMA_TWIN)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

TN_FN uint64_t tn_panel_fresh(uint64_t panel)
{
    return (panel & 0xffffffff00000000u) | (uint32_t)tn_fresh((int)(uint32_t)panel);
}

/* ---- d = a b, or d += a b ---- */

#define TN_PTX_W_D4(n)  "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TN_PTX_W_D16(n) TN_PTX_W_D4(n), TN_PTX_W_D4(n + 1), TN_PTX_W_D4(n + 2), TN_PTX_W_D4(n + 3)
#define TN_PTX_W_OUT32  TN_PTX_W_D16(0), TN_PTX_W_D16(4)
#define TN_PTX_W_OUT64  TN_PTX_W_OUT32, TN_PTX_W_D16(8), TN_PTX_W_D16(12)
#define TN_PTX_W_OUT128 TN_PTX_W_OUT64, TN_PTX_W_D16(16), TN_PTX_W_D16(20), TN_PTX_W_D16(24), TN_PTX_W_D16(28)
#define TN_PTX_W_NAMES32                                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TN_PTX_W_NAMES64                                                                                     \
    TN_PTX_W_NAMES32                                                                                         \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TN_PTX_W_NAMES128 \
    TN_PTX_W_NAMES64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TN_PTX_W_DO(shape, type, names, a, b, add, turned)                                                   \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned." shape ".f32." type         \
    "." type " " names "}, " a ", " b ", p, 1, 1, " turned ";\n}\n"

/* A [64 x 16] from registers or, as the 64 rows at a panel's `a`, from shared memory; B [16 x N]. !ADD: what
 * was in d is not looked at. */
#if defined(TN_PTX_WGMMA_TWIN)
#define TN_WGMMA(N, REGS, name, type, twin)                                                                  \
    template <bool ADD, bool TURNED_A, bool TURNED>                                                          \
    TN_FN void name(float(&d)[N / 8][4], uint64_t a, uint64_t b)                                             \
    {                                                                                                        \
        twin(&d[0][0], nullptr, a, b, N, ADD, TURNED + 2 * TURNED_A);                                        \
    }                                                                                                        \
    template <bool ADD, bool TURNED> TN_FN void name(float(&d)[N / 8][4], const uint32_t(&a)[4], uint64_t b) \
    {                                                                                                        \
        twin(&d[0][0], a, 0, b, N, ADD, TURNED);                                                             \
    }
#elif defined(TN_PTX_WGMMA_NONE)
#define TN_WGMMA(N, REGS, name, type, twin)                                                                  \
    template <bool ADD, bool TURNED_A, bool TURNED> TN_FN void name(float(&)[N / 8][4], uint64_t, uint64_t)  \
    {                                                                                                        \
        asm volatile("trap;");                                                                               \
    }                                                                                                        \
    template <bool ADD, bool TURNED> TN_FN void name(float(&)[N / 8][4], const uint32_t(&)[4], uint64_t)     \
    {                                                                                                        \
        asm volatile("trap;");                                                                               \
    }
#else
/* The operands behind so many of d. */
#define TN_PTX_W_AT32  "%32", "%33", "%34", "%35", "%36", "%37", "%38"
#define TN_PTX_W_AT64  "%64", "%65", "%66", "%67", "%68", "%69", "%70"
#define TN_PTX_W_AT128 "%128", "%129", "%130", "%131", "%132", "%133", "%134"
#define TN_PTX_W_SHARED(...) TN_PTX_W_SHARED_(__VA_ARGS__)
#define TN_PTX_W_SHARED_(shape, type, names, a, b, add, turned_a, turned, ...)                               \
    TN_PTX_W_DO(shape, type, names, a, b, add, turned_a ", " turned)
#define TN_PTX_W_REGISTERS(...) TN_PTX_W_REGISTERS_(__VA_ARGS__)
#define TN_PTX_W_REGISTERS_(shape, type, names, a0, a1, a2, a3, b, add, turned)                              \
    TN_PTX_W_DO(shape, type, names, "{" a0 ", " a1 ", " a2 ", " a3 "}", b, add, turned)
#define TN_WGMMA(N, REGS, name, type, twin)                                                                  \
    template <bool ADD, bool TURNED_A, bool TURNED>                                                          \
    TN_FN void name(float(&d)[N / 8][4], uint64_t a, uint64_t b)                                             \
    {                                                                                                        \
        asm volatile(TN_PTX_W_SHARED("m64n" #N "k16", type, TN_PTX_W_NAMES##REGS, TN_PTX_W_AT##REGS)         \
                     : TN_PTX_W_OUT##REGS                                                                    \
                     : "l"(a), "l"(b), "n"((int)ADD), "n"((int)TURNED_A), "n"((int)TURNED));                 \
    }                                                                                                        \
    template <bool ADD, bool TURNED> TN_FN void name(float(&d)[N / 8][4], const uint32_t(&a)[4], uint64_t b) \
    {                                                                                                        \
        asm volatile(TN_PTX_W_REGISTERS("m64n" #N "k16", type, TN_PTX_W_NAMES##REGS, TN_PTX_W_AT##REGS)      \
                     : TN_PTX_W_OUT##REGS                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADD), "n"((int)TURNED)); \
    }
#endif
TN_WGMMA(64, 32, tn_wgmma_f16, "f16", cusim_wgmma_f16)
TN_WGMMA(128, 64, tn_wgmma_f16, "f16", cusim_wgmma_f16)
TN_WGMMA(256, 128, tn_wgmma_f16, "f16", cusim_wgmma_f16)
TN_WGMMA(64, 32, tn_wgmma_bf16, "bf16", cusim_wgmma_bf16)
TN_WGMMA(128, 64, tn_wgmma_bf16, "bf16", cusim_wgmma_bf16)
TN_WGMMA(256, 128, tn_wgmma_bf16, "bf16", cusim_wgmma_bf16)

/* ---- order ---- */

#if defined(TN_PTX_WGMMA_TWIN)
#define TN_WGMMA_ORDER(name, twin, instruction) TN_FN void name() { twin(); }
#elif defined(TN_PTX_WGMMA_NONE)
#define TN_WGMMA_ORDER(name, twin, instruction) TN_FN void name() {}
#else
#define TN_WGMMA_ORDER(name, twin, instruction) TN_FN void name() { asm volatile(instruction ::: "memory"); }
#endif
TN_WGMMA_ORDER(tn_wgmma_open, cusim_wgmma_open, "wgmma.fence.sync.aligned;")
TN_WGMMA_ORDER(tn_wgmma_close, cusim_wgmma_close, "wgmma.commit_group.sync.aligned;")
TN_WGMMA_ORDER(tn_wgmma_show, cusim_wgmma_show, "fence.proxy.async.shared::cta;")

template <int N> TN_FN void tn_wgmma_wait()
{
#if defined(TN_PTX_WGMMA_TWIN)
    cusim_wgmma_wait(N);
#elif !defined(TN_PTX_WGMMA_NONE)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

/* The compiler, which knows nothing of the wait, uses the accumulators behind this and not before; in front
 * of tn_wgmma_open it keeps what is done to operands from going behind that. */
template <int N> TN_FN void tn_wgmma_hold(float (&d)[N][4])
{
#if !defined(TN_PTX_WGMMA_TWIN)
    TN_UNROLL(int n = 0; n < N; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
#endif
}

template <int N> TN_FN void tn_wgmma_hold(uint32_t (&a)[N][4])
{
#if !defined(TN_PTX_WGMMA_TWIN)
    TN_UNROLL(int n = 0; n < N; n++)
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
#endif
}

#undef TN_WGMMA
#undef TN_WGMMA_ORDER
#endif
