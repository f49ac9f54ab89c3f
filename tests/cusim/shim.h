/* shim.h - makes CUDA C++ text compile as C++17 on this machine.
 *
 * The simulator's NVRTC puts this text in front of each program (nvrtc.c) and a table of the program's
 * kernels behind it (scan.c). Like NVRTC it includes nothing. What needs other threads (barriers, warp
 * intrinsics) or is ordered between blocks (atomics, fences) is a call into the simulator.
 *
 * __shared__ variables are static ones without a value; a module has no other writable data, so that its .bss
 * is the shared memory of a block. Built-in indices never change under a thread, hence const.
 *
 * Read first: CUSIM_KERNEL, at the end. */
#define TN_CUSIM             1
#define __CUDACC__           1
#define __CUDACC_RTC__       1
#define __CUDACC_VER_MAJOR__ 13
#define __NVCC__             1

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__    static const
#define __shared__      static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

typedef unsigned long size_t;
typedef long ptrdiff_t;

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern "C" {
extern const struct cusim_builtins {
    uint3 thread, block;
    dim3 threads, blocks;
} cusim_builtins;
void cusim_barrier(int line);
unsigned long cusim_collective(int kind, int line, unsigned lanes, unsigned long value, int lane, int width);
void cusim_fence(void);
char *cusim_dynamic_shared(void);
void cusim_copy_async(void *to, const void *from, unsigned bytes, unsigned given);
void cusim_copy_commit(void);
void cusim_copy_wait(unsigned groups);
void cusim_wgmma_show(void);
void cusim_mbarrier_open(void *at, int arrivals);
void cusim_mbarrier_arrive(void *at);
void cusim_mbarrier_arrive_copies(void *at);
void cusim_mbarrier_wait(void *at, int parity, int line);
void cusim_barrier_sync(int number, int threads, int line);
void cusim_barrier_arrive(int number, int threads, int line);
void cusim_bulk(float *to, const float *from, int bytes, int add);
void cusim_bulk_wait(void);
void cusim_bulk_show(void);
unsigned cusim_atomic_add(unsigned *at, unsigned value);
unsigned cusim_atomic_cas(unsigned *at, unsigned expected, unsigned value);
int cusim_next(void);
}

#define threadIdx (cusim_builtins.thread)
#define blockIdx  (cusim_builtins.block)
#define blockDim  (cusim_builtins.threads)
#define gridDim   (cusim_builtins.blocks)
#define warpSize  32

/* ---- threads together; the numbers of the kinds are exec.h's ---- */

#define __syncthreads()         cusim_barrier(__LINE__)
#define __syncwarp(...)         cusim_sync_warp(__LINE__, ##__VA_ARGS__)
#define __ballot_sync(lanes, p) ((unsigned)cusim_collective(1, __LINE__, lanes, (p) != 0, 0, 32))
#define __any_sync(lanes, p)    ((int)cusim_collective(2, __LINE__, lanes, (p) != 0, 0, 32))
#define __all_sync(lanes, p)    ((int)cusim_collective(3, __LINE__, lanes, (p) != 0, 0, 32))
#define __shfl_sync(...)        cusim_shuffle<4>(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...)     cusim_shuffle<5>(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...)   cusim_shuffle<6>(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...)    cusim_shuffle<7>(__LINE__, __VA_ARGS__)

static inline __attribute__((always_inline)) void cusim_sync_warp(int line, unsigned lanes = 0xffffffffu)
{
    cusim_collective(0, line, lanes, 0, 0, 32);
}

/* What the matrix instructions of a warp do; the numbers are exec.h's, the operands' places in the lanes
 * PTX's. For twins of inline PTX. */
struct cusim_mma {
    float d[4];
    unsigned a[4], b[2];
};
struct cusim_ldmatrix {
    unsigned d[4];
    const void *row; /* 16 bytes of shared memory */
    unsigned n;      /* 1, 2, 4 matrices */
};
#define cusim_mma_tf32(m)       cusim_matrix(8, __LINE__, m)
#define cusim_mma_f16(m)        cusim_matrix(9, __LINE__, m)
#define cusim_mma_bf16(m)       cusim_matrix(10, __LINE__, m)
#define cusim_ldmatrix_plain(m) cusim_matrix(11, __LINE__, m)
#define cusim_ldmatrix_trans(m) cusim_matrix(12, __LINE__, m)
static inline __attribute__((always_inline)) void cusim_matrix(int kind, int line, void *lane)
{
    cusim_collective(kind, line, 0xffffffffu, (unsigned long)lane, 0, 32);
    __asm__ volatile("" ::: "memory");
}

/* A warp's part of a warpgroup's product, or of what orders them (wgmma.c). */
struct cusim_wgmma {
    float *d;                 /* n / 2 */
    const unsigned *a;        /* 4 words, or none */
    unsigned long a_at, b_at; /* descriptors; addresses count from the beginning of dynamic shared memory */
    int n;
    unsigned add, turned, groups;
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define cusim_wgmma_f16(...)  cusim_wgmma_do(13, __LINE__, {__VA_ARGS__})
#define cusim_wgmma_bf16(...) cusim_wgmma_do(14, __LINE__, {__VA_ARGS__})
#else
#define cusim_wgmma_f16(...) cusim_wgmma_do(18, __LINE__, {__VA_ARGS__})
#define cusim_wgmma_bf16     cusim_wgmma_f16
#endif
#define cusim_wgmma_open()     cusim_wgmma_do(15, __LINE__, {})
#define cusim_wgmma_close()    cusim_wgmma_do(16, __LINE__, {})
#define cusim_wgmma_wait(left) cusim_wgmma_do(17, __LINE__, {0, 0, 0, 0, 0, 0, 0, left})
static inline __attribute__((always_inline)) void cusim_wgmma_do(int kind, int line, cusim_wgmma lane)
{
    cusim_matrix(kind, line, &lane);
}

template <int BYTES> struct cusim_word;
template <> struct cusim_word<4> {
    typedef unsigned type;
};
template <> struct cusim_word<8> {
    typedef unsigned long type;
};

/* The types that the real ones take: arithmetic, of four or eight bytes. */
template <int KIND, class T>
static inline __attribute__((always_inline)) T cusim_shuffle(int line, unsigned lanes, T value, int lane,
                                                             int width = 32)
{
    typedef typename cusim_word<(int)sizeof(T)>::type word;
    (void)(value + value);
    word bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits = (word)cusim_collective(KIND, line, lanes, bits, lane, width);
    __builtin_memcpy(&value, &bits, sizeof bits);
    return value;
}

#define __threadfence() cusim_fence()
static inline unsigned atomicAdd(unsigned *at, unsigned value) { return cusim_atomic_add(at, value); }
static inline int atomicAdd(int *at, int value)
{
    return (int)cusim_atomic_add((unsigned *)at, (unsigned)value);
}
static inline unsigned atomicCAS(unsigned *at, unsigned expected, unsigned value)
{
    return cusim_atomic_cas(at, expected, value);
}
static inline int atomicCAS(int *at, int expected, int value)
{
    return (int)cusim_atomic_cas((unsigned *)at, (unsigned)expected, (unsigned)value);
}

/* ---- one thread alone ---- */

template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline void __stcs(T *at, T value) { *at = value; }

#define CUSIM_BITS(name, to, from)                                                                           \
    static inline to name(from x)                                                                            \
    {                                                                                                        \
        to y;                                                                                                \
        __builtin_memcpy(&y, &x, sizeof y);                                                                  \
        return y;                                                                                            \
    }
CUSIM_BITS(__float_as_int, int, float)
CUSIM_BITS(__float_as_uint, unsigned, float)
CUSIM_BITS(__int_as_float, float, int)
CUSIM_BITS(__uint_as_float, float, unsigned)
CUSIM_BITS(__double_as_longlong, long long, double)
CUSIM_BITS(__longlong_as_double, double, long long)

#define CUSIM_MATH1(name)                                                                                    \
    extern "C" double name(double) noexcept;                                                                 \
    extern "C" float name##f(float) noexcept;                                                                \
    static inline float name(float x) { return name##f(x); }
#define CUSIM_MATH2(name)                                                                                    \
    extern "C" double name(double, double) noexcept;                                                         \
    extern "C" float name##f(float, float) noexcept;                                                         \
    static inline float name(float x, float y) { return name##f(x, y); }
CUSIM_MATH1(sqrt)
CUSIM_MATH1(fabs)
CUSIM_MATH1(floor)
CUSIM_MATH1(ceil)
CUSIM_MATH1(rint)
CUSIM_MATH1(trunc)
CUSIM_MATH1(round)
CUSIM_MATH1(exp)
CUSIM_MATH1(exp2)
CUSIM_MATH1(expm1)
CUSIM_MATH1(log)
CUSIM_MATH1(log2)
CUSIM_MATH1(log1p)
CUSIM_MATH1(sin)
CUSIM_MATH1(cos)
CUSIM_MATH1(tan)
CUSIM_MATH1(atan)
CUSIM_MATH1(tanh)
CUSIM_MATH1(erf)
CUSIM_MATH1(erfc)
CUSIM_MATH2(pow)
CUSIM_MATH2(fmod)
CUSIM_MATH2(fmax)
CUSIM_MATH2(fmin)
CUSIM_MATH2(copysign)
CUSIM_MATH2(atan2)
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;

static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#define CUSIM_ORDER(type)                                                                                    \
    static inline type min(type a, type b) { return b < a ? b : a; }                                         \
    static inline type max(type a, type b) { return a < b ? b : a; }
CUSIM_ORDER(int)
CUSIM_ORDER(unsigned)
CUSIM_ORDER(long)
CUSIM_ORDER(unsigned long)
CUSIM_ORDER(long long)
CUSIM_ORDER(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
extern "C" int abs(int) noexcept;
#define CUSIM_KIND(name)                                                                                     \
    static inline bool name(float x) { return __builtin_##name(x); }                                         \
    static inline bool name(double x) { return __builtin_##name(x); }
CUSIM_KIND(isnan)
CUSIM_KIND(isinf)
CUSIM_KIND(isfinite)
CUSIM_KIND(signbit)
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long)x * y >> 32); }

/* ---- what the compiler calls where an index or an address is wrong: not that of a sanitized program ---- */

#if CUSIM_CHECKED
#define CUSIM_CALLBACK extern "C" __attribute__((visibility("hidden"), used))
extern "C" void cusim_out_of_bounds(void *where, void *index);
extern "C" void cusim_type_mismatch(void *where, void *at);
CUSIM_CALLBACK void __ubsan_handle_out_of_bounds(void *where, void *index)
{
    cusim_out_of_bounds(where, index);
}
CUSIM_CALLBACK void __ubsan_handle_type_mismatch_v1(void *where, void *at) { cusim_type_mismatch(where, at); }
#endif

/* ---- the module's table ---- */

extern "C" struct cusim_kernel_info {
    const char *name;
    void (*run)(void **parameters);
    const unsigned *parameter_bytes;
    unsigned max_threads;
    const void *address;
};

template <int... I> struct cusim_list {
};
template <int N, int... I> struct cusim_count : cusim_count<N - 1, N - 1, I...> {
};
template <int... I> struct cusim_count<0, I...> {
    typedef cusim_list<I...> list;
};

/* How a kernel of these parameters is called: by a loop that asks for the next thread until there is none. */
template <class... P> struct cusim_caller {
    static constexpr unsigned bytes[sizeof...(P) + 1] = {(unsigned)sizeof(P)..., 0};
    template <int... I>
    static __attribute__((always_inline)) void call(void (*f)(P...), void **parameters, cusim_list<I...>)
    {
        f(*(P *)parameters[I]...);
    }
    static __attribute__((always_inline)) void run(void (*f)(P...), void **parameters)
    {
        while (cusim_next()) call(f, parameters, typename cusim_count<sizeof...(P)>::list());
    }
};
template <class... P> static constexpr cusim_caller<P...> cusim_caller_of(void (*)(P...)) { return {}; }
template <class... P> static constexpr const unsigned *cusim_bytes_of(void (*)(P...))
{
    return cusim_caller<P...>::bytes;
}
template <class F, F *f> struct cusim_entry;
template <class... P, void (*f)(P...)> struct cusim_entry<void(P...), f> {
#if defined(__clang__)
    __attribute__((no_sanitize("thread", "alignment", "bounds")))
#else
    __attribute__((no_sanitize("thread"), no_sanitize("alignment"), no_sanitize("bounds")))
#endif
    static void
    run(void **parameters)
    {
        cusim_caller<P...>::run(f, parameters);
    }
};

extern "C" char __bss_start[] __attribute__((visibility("hidden"))),
    _end[] __attribute__((visibility("hidden")));
#define CUSIM_EXPORT extern "C" __attribute__((visibility("default"), used))
#define CUSIM_KERNEL(name, bound)                                                                            \
    {#name, cusim_entry<decltype(name), name>::run, cusim_bytes_of(name), bound, (const void *)name},
#define CUSIM_TABLE_BEGIN                                                                                    \
    CUSIM_EXPORT const int cusim_abi = 2, cusim_checked = CUSIM_CHECKED;                                     \
    CUSIM_EXPORT char *const cusim_shared[2] = {__bss_start, _end};                                          \
    CUSIM_EXPORT const cusim_kernel_info cusim_kernels[] = {
#define CUSIM_TABLE_END                                                                                      \
    {                                                                                                        \
        0, 0, 0, 0, 0                                                                                        \
    }                                                                                                        \
    }                                                                                                        \
    ;
