/* dnnl.h - what the rest of the library knows of oneDNN: primitives for whole slices of work, run one thread
 * each. No type of oneDNN appears here; dnnl.c is the only file that includes it, dnnl_slices.c cuts requests
 * into slices. Without oneDNN tn_dnnl_open returns NULL and nothing else is called.
 */
#ifndef TN_DNNL_H
#define TN_DNNL_H

#include "cpu_lib.h"

tn_dnnl *tn_dnnl_open(bool *no_memory); /* NULL: *no_memory says whether that is why */
void tn_dnnl_close(tn_dnnl *d);

/* Returns true where a primitive has been left out because there was no memory to make it. */
bool tn_dnnl_lacked(const tn_dnnl *d);

/* A compiled primitive. Looked up by everything that went into making it; made when it is new, which takes
 * 0.1 to 10 ms. Both functions return NULL where oneDNN has nothing good for the request, and are called from
 * one thread. A primitive lives until enough others were asked for since. */
typedef struct tn_dnnl_prim tn_dnnl_prim;

/* For products of `rows` rows, otherwise as g says, per[d] of them along batch dimension d. The epilogue's
 * relu is not in it, the bias is. */
const tn_dnnl_prim *tn_dnnl_matmul(tn_dnnl *d, const tn_gemm *g, int64_t rows, const int64_t *per);

/* For groups of `images` images; a weight gradient's last group may have `rest` images instead. relu is not
 * in it. */
const tn_dnnl_prim *tn_dnnl_conv(tn_dnnl *d, const tn_conv2d_desc *c, int64_t images, int64_t rest);

bool tn_dnnl_reorders(const tn_dnnl_prim *p);        /* weights are wanted in another layout than OHWI */
int64_t tn_dnnl_weight_bytes(const tn_dnnl_prim *p); /* in that layout; a multiple of 64 */

/* Makes room for `threads` threads to run either primitive (q may be NULL). false: no memory. */
bool tn_dnnl_ready(tn_dnnl *d, int threads, const tn_dnnl_prim *p, const tn_dnnl_prim *q);

/* Run a primitive in the calling thread; TN_OK, TN_E_NOMEM or TN_E_DEVICE. Operands of a convolution as in
 * tn_conv2d_desc, weights in the wanted layout; `last`: the shorter group. bias may be NULL if it was when
 * the primitive was made. */
int tn_dnnl_run_matmul(tn_dnnl *d, const tn_dnnl_prim *p, const void *a, const void *b, const void *bias,
                       void *c);
int tn_dnnl_run_conv(tn_dnnl *d, const tn_dnnl_prim *p, tn_conv_pass pass, bool last, const void *in0,
                     const void *in1, const void *bias, void *out);
int tn_dnnl_run_reorder(tn_dnnl *d, const tn_dnnl_prim *p, const void *from, void *to);

#endif
