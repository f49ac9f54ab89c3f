/* tell.c - what a product or a convolution launches without a library: the device's own functions for them
 * run on a device that has nothing but somebody to tell (tn_cuda_start_own). Start with tn_cuda_tell.
 */
#include "internal.h"

int tn_cuda_tell(const tn_gemm *g, const tn_conv2d_desc *d, void *workspace, size_t *bytes,
                 tn_launch_told *told, void *user, tn_errbuf *err)
{
    tn_cuda c = {
        .told = told, .told_user = user, .workspace = workspace, .workspace_limit = TN_CUDA_WORKSPACE};
    const int status = g ? tn_cuda_gemm(&c, g, false, false, err) : tn_cuda_conv2d(&c, d, err);
    *bytes = c.told_bytes;
    return status;
}
