/* cuda.h - what generated CUDA kernels share. Comes after abi.h, math.h, philox.h and half.h. */
#ifndef TN_PRELUDE_CUDA_H
#define TN_PRELUDE_CUDA_H

#endif
