/* ptx.cuh - all inline PTX of the project: matrix instructions of a warp, asynchronous copies, conversions.
 *
 * Comes after the prelude, once or more often, and includes nothing. Each function has a twin for machines
 * without a GPU under TN_CUSIM. Lane 4 g + t (g 0 .. 7, t 0 .. 3) of a warp has
 *
 *   A [16 x 8 words]   a[0] row g, word t    a[1] row g + 8    a[2] row g, word t + 4    a[3] row g + 8
 *   B [8 words x 8]    b[0] word t, column g         b[1] word t + 4
 *   D [16 x 8]         d[0] row g, column 2 t    d[1] column 2 t + 1    d[2], d[3] the same of row g + 8
 *
 * where a word is one TF32 value or two f16 or bf16 that follow each other along k, the lower first. ldmatrix
 * brings 16-byte rows of shared memory into this order: of A the four 8 x 4-word parts in the order of a[].
 *
 * Where an instruction is newer than the GPU, its function traps: a kernel that uses it is chosen by the host
 * for 8.0 and later alone.
 *
 * Read first: tn_mma_tf32, then tn_copy_async.
 */
#ifndef TN_PTX_CUH
#define TN_PTX_CUH

#if defined(TN_CUSIM)
#define TN_PTX_TWIN 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define TN_PTX_NONE 1
#endif

/* The dynamic shared memory of the block, a multiple of 128 bytes from where any array may begin. */
#if defined(TN_PTX_TWIN)
TN_FN char *tn_dynamic_shared() { return cusim_dynamic_shared(); }
#else
extern __shared__ __align__(1024) char tn_dynamic_shared_bytes[];
TN_FN char *tn_dynamic_shared() { return tn_dynamic_shared_bytes; }

/* Returns the number by which instructions know an address in shared memory. */
TN_FN uint32_t tn_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

/* ---- d += a b ---- */

#if defined(TN_PTX_TWIN)
#define TN_MMA(name, twin, instruction)                                                                      \
    TN_FN void name(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])                           \
    {                                                                                                        \
        cusim_mma m;                                                                                         \
        for (int i = 0; i < 4; i++) m.d[i] = d[i], m.a[i] = a[i];                                            \
        m.b[0] = b[0], m.b[1] = b[1];                                                                        \
        twin(&m);                                                                                            \
        for (int i = 0; i < 4; i++) d[i] = m.d[i];                                                           \
    }
#elif defined(TN_PTX_NONE)
#define TN_MMA(name, twin, instruction)                                                                      \
    TN_FN void name(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { asm volatile("trap;"); }
#else
#define TN_MMA(name, twin, instruction)                                                                      \
    TN_FN void name(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])                           \
    {                                                                                                        \
        asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"         \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                    \
    }
#endif
TN_MMA(tn_mma_tf32, cusim_mma_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
TN_MMA(tn_mma_f16, cusim_mma_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
TN_MMA(tn_mma_bf16, cusim_mma_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
#undef TN_MMA

/* ---- shared memory to registers ----
 *
 * N (1, 2, 4) matrices of 8 rows of 16 bytes. Lane 8 i + r names row r of matrix i; with N < 4 what the other
 * lanes name is not looked at, but has to be an address. _trans: each matrix of 8 x 8 16-bit elements is
 * transposed. All lanes of the warp take part. */
#if defined(TN_PTX_TWIN)
#define TN_LDMATRIX(name, twin, transposed)                                                                  \
    template <int N> TN_FN void name(uint32_t (&d)[N], const void *row)                                      \
    {                                                                                                        \
        cusim_ldmatrix m;                                                                                    \
        m.row = row;                                                                                         \
        m.n = N;                                                                                             \
        twin(&m);                                                                                            \
        for (int i = 0; i < N; i++) d[i] = m.d[i];                                                           \
    }
#else
#define TN_LDMATRIX(name, twin, transposed)                                                                  \
    TN_FN void name(uint32_t (&d)[1], const void *row)                                                       \
    {                                                                                                        \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" transposed ".shared.b16 {%0}, [%1];"                    \
                     : "=r"(d[0])                                                                            \
                     : "r"(tn_shared_address(row))                                                           \
                     : "memory");                                                                            \
    }                                                                                                        \
    TN_FN void name(uint32_t (&d)[2], const void *row)                                                       \
    {                                                                                                        \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" transposed ".shared.b16 {%0, %1}, [%2];"                \
                     : "=r"(d[0]), "=r"(d[1])                                                                \
                     : "r"(tn_shared_address(row))                                                           \
                     : "memory");                                                                            \
    }                                                                                                        \
    TN_FN void name(uint32_t (&d)[4], const void *row)                                                       \
    {                                                                                                        \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed ".shared.b16 {%0, %1, %2, %3}, [%4];"        \
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                        \
                     : "r"(tn_shared_address(row))                                                           \
                     : "memory");                                                                            \
    }
#endif
TN_LDMATRIX(tn_ldmatrix, cusim_ldmatrix_plain, "")
TN_LDMATRIX(tn_ldmatrix_trans, cusim_ldmatrix_trans, ".trans")
#undef TN_LDMATRIX

/* ---- device memory to shared memory, while the thread goes on ----
 *
 * BYTES (4, 8, 16) from and to multiples of as many; where not `there`, zeros, and the source is not read but
 * has to be an address. What a thread asked for since its last tn_copy_commit is one group. After
 * tn_copy_wait<N> all but the newest N groups have arrived, for this thread: others see them behind a barrier. */
template <int BYTES> TN_FN void tn_copy_async(void *to, const void *from, bool there)
{
#if defined(TN_PTX_TWIN)
    cusim_copy_async(to, from, BYTES, there ? BYTES : 0);
#elif defined(TN_PTX_NONE)
    asm volatile("trap;");
#else
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tn_shared_address(to)), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(tn_shared_address(to)), "l"(from),
                     "n"(BYTES), "r"(there ? BYTES : 0)
                     : "memory");
#endif
}

TN_FN void tn_copy_commit()
{
#if defined(TN_PTX_TWIN)
    cusim_copy_commit();
#elif !defined(TN_PTX_NONE)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> TN_FN void tn_copy_wait()
{
#if defined(TN_PTX_TWIN)
    cusim_copy_wait(N);
#elif !defined(TN_PTX_NONE)
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* ---- blocks that wait for each other ---- */

/* One more: behind it others see what this thread wrote, and what threads wrote that a barrier came after. */
TN_FN void tn_count(uint32_t *count)
{
#if defined(TN_PTX_TWIN)
    __threadfence();
    atomicAdd(count, 1u);
#else
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count)) : "memory");
#endif
}

/* Comes back when the count is `want` or more. Only for what a block does that has begun. */
TN_FN void tn_await_count(uint32_t *count, uint32_t want)
{
#if defined(TN_PTX_TWIN)
    while (atomicAdd(count, 0u) < want) {}
#else
    uint32_t is;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is) : "l"(__cvta_generic_to_global(count)) : "memory");
    while (is < want);
#endif
}

/* ---- conversions and approximations ---- */

/* x rounded to the 11 digits of TF32, the nearest, ties away from zero; as the bits of an f32. */
TN_FN uint32_t tn_to_tf32(float x)
{
#if defined(TN_PTX_TWIN)
    const uint32_t u = __float_as_uint(x);
    return (u & 0x7f800000u) == 0x7f800000u ? u : (u + 0x1000u) & 0xffffe000u;
#elif defined(TN_PTX_NONE)
    return __float_as_uint(x);
#else
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
#endif
}

/* x = hi + lo, of which products see all but 2^-22 of x: hi is x rounded as above, lo the rest, exactly, and of
 * lo's 12 digits products look at 11. An infinity stands in hi alone; of a NaN one of the two is NaN. Five
 * instructions, where two of the conversions above, and a choice, are ten. */
TN_FN void tn_split_tf32(float x, uint32_t &hi, uint32_t &lo)
{
    hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    const float high = __uint_as_float(hi);
    lo = __float_as_uint(fabsf(high) != TN_INF ? x - high : 0.0f);
}

/* Two numbers rounded to nearest even in one word, the first in its lower half. */
#if defined(TN_PTX_TWIN) || defined(TN_PTX_NONE)
#define TN_PTX_PACK(name, twin, instruction)                                                                 \
    TN_FN uint32_t name(float lower, float upper) { return (uint32_t)twin(upper).bits << 16 | twin(lower).bits; }
#else
#define TN_PTX_PACK(name, twin, instruction)                                                                 \
    TN_FN uint32_t name(float lower, float upper)                                                            \
    {                                                                                                        \
        uint32_t y;                                                                                          \
        asm(instruction " %0, %1, %2;" : "=r"(y) : "f"(upper), "f"(lower));                                  \
        return y;                                                                                            \
    }
#endif
TN_PTX_PACK(tn_pack_f16, tn_f32_to_half, "cvt.rn.f16x2.f32")
TN_PTX_PACK(tn_pack_bf16, tn_f32_to_bfloat16, "cvt.rn.bf16x2.f32")

/* 2^x, and log2 x, within 2 ulp; results below the smallest normal number are 0. */
#if defined(TN_PTX_TWIN)
#define TN_PTX_FAST(name, twin, instruction) TN_FN float name(float x) { return twin(x); }
#else
#define TN_PTX_FAST(name, twin, instruction)                                                                 \
    TN_FN float name(float x)                                                                                \
    {                                                                                                        \
        float y;                                                                                             \
        asm(instruction " %0, %1;" : "=f"(y) : "f"(x));                                                      \
        return y;                                                                                            \
    }
#endif
TN_PTX_FAST(tn_exp2_fast, exp2f, "ex2.approx.ftz.f32")
TN_PTX_FAST(tn_log2_fast, log2f, "lg2.approx.ftz.f32")

#endif
