/* conv_end.cuh - the kernel itself, behind what conv_begin.cuh and the file between have put into SPACE; then the
 * names are free for the next one in the text. */

#define KERNEL extern "C" __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32, BLOCKS) ENTRY(const tn_cuda_args a)
KERNEL
{
    SPACE::run(a);
}

#undef KERNEL
#undef SPACE
#undef ENTRY
#undef PASS
#undef DTYPE
#undef PRODUCTS
#undef BM
#undef BN
#undef BK
#undef STAGES
#undef WARPS_M
#undef WARPS_N
#undef VEC_A
#undef VEC_B
#undef SPLIT
#undef STATS
#undef EPI_VEC
#undef PARTIALS
#undef tn_epilogue
#undef tn_statistics
#undef tn_prologue
#undef PROLOGUE
#undef IN_EACH
#undef OUT_EACH
#undef WGMMA
#undef HALO
#undef WHOLE
#undef BLOCKS
