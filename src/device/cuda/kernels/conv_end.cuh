/* conv_end.cuh - the kernel itself, behind what conv_begin.cuh and the file between have put into SPACE. */

#define KERNEL extern "C" __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32, BLOCKS) ENTRY(const tn_cuda_args a)
KERNEL
{
    SPACE::run(a);
}

#if PASS == 2 && (HALO || FEW)
extern "C" __global__ void __launch_bounds__(256) CONV2D_JOIN(ENTRY, _finish)(const tn_cuda_args a)
{
    SPACE::finish(a);
}
#endif
