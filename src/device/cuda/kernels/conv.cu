/* conv.cu - what turns a convolution into a product: the windows of an image as rows (im2col), and its
 * transpose, which adds up what the windows say of each element (col2im), as a gather without atomics.
 *
 * One text, of which the host asks for one kernel at a time: it puts #define OWN_IM2COL or OWN_COL2IM,
 * VARIANT and ENTRY (the kernel's name) in front. dim, in units of what VARIANT says:
 *
 *   0 h  1 w  2 c  3 oh  4 ow  5 kh  6 kw  7, 8 stride  9, 10 padding at top and left  11, 12 dilation
 *   13 groups  14 c / groups
 *
 * Rows are [image, oh, ow][group][kh, kw, c / groups]. Fewer than 2^31 units are involved, so all arithmetic
 * is of 32 bits.
 */

#define KERNEL extern "C" __global__ void __launch_bounds__(256) ENTRY(const tn_cuda_args a)

#if defined(OWN_IM2COL)

#if VARIANT == 4 /* log2 of the bytes that are moved at once */
#define unit_t tn_move16
#elif VARIANT == 3
#define unit_t uint64_t
#elif VARIANT == 2
#define unit_t uint32_t
#else
#define unit_t uint16_t
#endif

/* buf: image, rows. An item is a unit of the rows. */
KERNEL
{
    const uint32_t h = (uint32_t)a.dim[0], w = (uint32_t)a.dim[1], c = (uint32_t)a.dim[2];
    const uint32_t oh = (uint32_t)a.dim[3], ow = (uint32_t)a.dim[4], kh = (uint32_t)a.dim[5],
                   kw = (uint32_t)a.dim[6];
    const uint32_t groups = (uint32_t)a.dim[13], width = (uint32_t)a.dim[14];
    const unit_t *image = (const unit_t *)a.buf[0];
    unit_t *rows = (unit_t *)a.buf[1];
    int64_t begin = (int64_t)blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : a.n;
    for (int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
        uint32_t t = (uint32_t)e;
        const uint32_t channel = t % width;
        t /= width;
        const uint32_t j = t % kw;
        t /= kw;
        const uint32_t i = t % kh;
        t /= kh;
        const uint32_t group = t % groups;
        t /= groups;
        const uint32_t x = t % ow;
        t /= ow;
        const uint32_t y = t % oh, n = t / oh;
        const int32_t row = (int32_t)(y * (uint32_t)a.dim[7] + i * (uint32_t)a.dim[11]) - (int32_t)a.dim[9];
        const int32_t column = (int32_t)(x * (uint32_t)a.dim[8] + j * (uint32_t)a.dim[12]) - (int32_t)a.dim[10];
        unit_t v = {0};
        if (row >= 0 && row < (int32_t)h && column >= 0 && column < (int32_t)w)
            v = image[((n * h + (uint32_t)row) * w + (uint32_t)column) * c + group * width + channel];
        rows[e] = v;
    }
}

#else

#if VARIANT == 0 /* dtype of the image; rows of f16 and bf16 are f32 */
#define own_t float
#define own_acc float
#define OWN_PUT(x) (x)
#elif VARIANT == 1
#define own_t double
#define own_acc double
#define OWN_PUT(x) (x)
#elif VARIANT == 2
#define own_t tn_half
#define own_acc float
#define OWN_PUT(x) tn_f32_to_half(x)
#else
#define own_t tn_bfloat16
#define own_acc float
#define OWN_PUT(x) tn_f32_to_bfloat16(x)
#endif

/* buf: rows, image. An item is an element of the image: the sum over the windows it is in, in their order. */
KERNEL
{
    const int32_t h = (int32_t)a.dim[0], w = (int32_t)a.dim[1], c = (int32_t)a.dim[2];
    const int32_t oh = (int32_t)a.dim[3], ow = (int32_t)a.dim[4], kh = (int32_t)a.dim[5], kw = (int32_t)a.dim[6];
    const int32_t groups = (int32_t)a.dim[13], width = (int32_t)a.dim[14];
    const own_acc *rows = (const own_acc *)a.buf[0];
    own_t *image = (own_t *)a.buf[1];
    int64_t begin = (int64_t)blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : a.n;
    for (int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
        int32_t t = (int32_t)e;
        const int32_t channel = t % c, group = channel / width;
        t /= c;
        const int32_t x = t % w;
        t /= w;
        const int32_t y = t % h, n = t / h;
        own_acc sum = 0;
        for (int32_t i = 0; i < kh; i++) {
            const int32_t down = y + (int32_t)a.dim[9] - i * (int32_t)a.dim[11], oy = down / (int32_t)a.dim[7];
            if (down < 0 || down % (int32_t)a.dim[7] || oy >= oh) continue;
            for (int32_t j = 0; j < kw; j++) {
                const int32_t right = x + (int32_t)a.dim[10] - j * (int32_t)a.dim[12],
                              ox = right / (int32_t)a.dim[8];
                if (right < 0 || right % (int32_t)a.dim[8] || ox >= ow) continue;
                const int32_t row = ((n * oh + oy) * ow + ox) * groups + group;
                sum += rows[((row * kh + i) * kw + j) * width + channel % width];
            }
        }
        image[e] = OWN_PUT(sum);
    }
}

#endif
