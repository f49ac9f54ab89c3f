/* pipe.cuh - what warps with work of their own tell each other (sm_90a): all inline PTX of that.
 *
 * Comes after ptx.cuh and wgmma.cuh. Each function has a twin for machines without a GPU under TN_CUSIM.
 *
 *   mbarrier   a word of shared memory that counts arrivals and turns over when all it was made for have come:
 *              phase 0 ends, then phase 1, ... A wait names the parity of a phase and comes back when that has
 *              ended; of one that never began, the one before phase 0 (parity 1), it comes back at once.
 *   barrier    1 .. 15, for some of the block's warps: those that arrive go on, those that sync wait until the
 *              threads that were named have come, one way or the other. 0 is __syncthreads.
 *   bulk       what a thread asks to be brought from shared memory to memory, by the asynchronous proxy: it has
 *              to be shown what threads wrote (tn_wgmma_show).
 *
 * Read first: tn_mbarrier_wait.
 */
#ifndef TN_PTX_PIPE_CUH
#define TN_PTX_PIPE_CUH

typedef uint64_t tn_mbarrier;

#if defined(TN_PTX_WGMMA_TWIN)
#define TN_PIPE(twin, ...) twin
#elif defined(TN_PTX_WGMMA_NONE)
#define TN_PIPE(twin, ...)
#else
#define TN_PIPE(twin, ...) asm volatile(__VA_ARGS__)
#endif

/* By one thread, in front of a barrier of all. */
TN_FN void tn_mbarrier_open(tn_mbarrier *b, int arrivals)
{
    TN_PIPE(cusim_mbarrier_open(b, arrivals), "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tn_shared_address(b)),
            "r"(arrivals)
            : "memory");
}

/* What the thread did before is done for those who wait. */
TN_FN void tn_mbarrier_arrive(tn_mbarrier *b)
{
    TN_PIPE(cusim_mbarrier_arrive(b), "{\n.reg .b64 s;\nmbarrier.arrive.shared::cta.b64 s, [%0];\n}\n" ::"r"(tn_shared_address(b))
            : "memory");
}

/* Arrives when all that the thread asked tn_copy_async for has. */
TN_FN void tn_mbarrier_arrive_copies(tn_mbarrier *b)
{
    TN_PIPE(cusim_mbarrier_arrive_copies(b),
            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(tn_shared_address(b))
            : "memory");
}

TN_FN void tn_mbarrier_wait(tn_mbarrier *b, int parity)
{
    TN_PIPE(cusim_mbarrier_wait(b, parity, __LINE__),
            "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\n"
            "done:\n}\n" ::"r"(tn_shared_address(b)),
            "r"(parity)
            : "memory");
}

/* threads: a multiple of 32, of all that arrive or sync. */
TN_FN void tn_barrier_sync(int number, int threads)
{
    TN_PIPE(cusim_barrier_sync(number, threads, __LINE__), "bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* The same, when x >= 0 has been computed: what x comes of is computed in front of this and of what waits behind, where
 * the assembler would else take the waits first. */
TN_FN void tn_barrier_sync_behind(float x, int number, int threads)
{
    TN_PIPE(cusim_barrier_sync(number, threads, __LINE__),
            "{\n.reg .pred p;\n.reg .u32 r;\nsetp.lt.f32 p, %0, 0f00000000;\nselp.u32 r, 15, %1, p;\nbar.sync r, %2;\n}\n" ::"f"(x),
            "r"(number), "r"(threads)
            : "memory");
}

TN_FN void tn_barrier_arrive(int number, int threads)
{
    TN_PIPE(cusim_barrier_arrive(number, threads, __LINE__), "bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* A warpgroup's threads have so many registers from here on, 24 to 240, a multiple of 8: fewer, or more, when others
 * have given them away. */
template <int N> TN_FN void tn_registers_fewer()
{
    TN_PIPE((void)0, "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> TN_FN void tn_registers_more()
{
    TN_PIPE((void)0, "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* f32 numbers, a multiple of 16 bytes: stored, or added to what is there. */
TN_FN void tn_bulk_store(float *to, const float *from, int bytes)
{
    TN_PIPE(cusim_bulk(to, from, bytes, 0),
            "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
            "r"(tn_shared_address(from)), "r"(bytes)
            : "memory");
}
TN_FN void tn_bulk_add(float *to, const float *from, int bytes)
{
    TN_PIPE(cusim_bulk(to, from, bytes, 1),
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                __cvta_generic_to_global(to)),
            "r"(tn_shared_address(from)), "r"(bytes)
            : "memory");
}

/* All that the thread asked for has been done: memory has it, and shared memory is free. */
TN_FN void tn_bulk_wait()
{
    TN_PIPE(cusim_bulk_wait(), "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

/* Orders what bulk operations did in device memory and what threads do. */
TN_FN void tn_bulk_show()
{
    TN_PIPE(cusim_bulk_show(), "fence.proxy.async.global;" ::: "memory");
}

#undef TN_PIPE
#endif
