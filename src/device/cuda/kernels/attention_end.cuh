/* attention_end.cuh - the kernel itself, behind what attention_begin.cuh and the file between have put into its
 * namespace. */

} /* namespace */

/* With two blocks on a processor as the aim the compiler uses all 255 registers before it spills; warpgroups have a
 * processor for themselves. */
#define KERNEL extern "C" __global__ void __launch_bounds__(BLOCK, WGMMA ? 1 : 2) ENTRY(const tn_cuda_args a)
KERNEL
{
    ATT::run(a);
}
