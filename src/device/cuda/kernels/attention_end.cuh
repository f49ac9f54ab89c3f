/* attention_end.cuh - the kernel itself, behind what attention_begin.cuh and the file between have put into its
 * namespace; then the names are free for the next one in the text. */

} /* namespace */

/* With two blocks on a processor as the aim the compiler uses all 255 registers before it spills; two warpgroups have a
 * processor for themselves. */
#define KERNEL extern "C" __global__ void __launch_bounds__(32 * WARPS, WGMMA ? 1 : 2) ENTRY(const tn_cuda_args a)
KERNEL
{
    ATT::run(a);
}

/* Another such text may follow. */
#undef KERNEL
#undef ELEM
#undef tn_pack
#undef ATT
#undef ATT_JOIN
#undef ATT_JOIN2
#undef ATT_LOG2E
#undef ATT_LN2
#undef ENTRY
#undef PASS
#undef DTYPE
#undef PRODUCTS
#undef HEAD
#undef CAUSAL
#undef STRICT
#undef SPLIT
#undef MASK
#undef DROPOUT
#undef DROP_P
#undef SEED
#undef LSE
#undef DK
#undef DV
#undef DRAW
#undef SCALE
#undef DIVISOR
#undef WARPS
#undef M_TILES
#undef COLS
#undef STAGES
#undef A_REGS
#undef WGMMA
