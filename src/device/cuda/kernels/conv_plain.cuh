/* conv_plain.cuh - the functions of a convolution that nothing is fused with, for when it is timed or looked at
 * alone: the results are stored in the dtype, rows of dim[31] in buf[2]; mean and variance of each column in buf[4]
 * and buf[5]. A prologue, where there is to be one, is a batch norm with the numbers of each channel in buf[6] .. [9],
 * and relu.
 */

TN_FN void tn_epilogue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[EPI_VEC])
{
#if DTYPE == 0
    tn_store((float *)a.buf[2] + row * a.dim[31] + column, v);
#else
#if DTYPE == 2
    tn_half x[EPI_VEC];
    TN_UNROLL(int i = 0; i < EPI_VEC; i++) x[i] = tn_f32_to_half(v[i]);
    tn_half *const out = (tn_half *)a.buf[2];
#else
    tn_bfloat16 x[EPI_VEC];
    TN_UNROLL(int i = 0; i < EPI_VEC; i++) x[i] = tn_f32_to_bfloat16(v[i]);
    tn_bfloat16 *const out = (tn_bfloat16 *)a.buf[2];
#endif
    tn_store(out + row * a.dim[31] + column, x);
#endif
}

TN_FN void tn_statistics(const tn_cuda_args &a, int32_t column, float mean, float m2, int64_t count)
{
    ((float *)a.buf[4])[column] = mean;
    ((float *)a.buf[5])[column] = m2 / (float)count;
}

#if defined(PROLOGUE)
template <int V> TN_FN void tn_prologue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[V])
{
    float mean[V], scale[V], weight[V], bias[V];
    tn_load(mean, (const float *)a.buf[6] + column);
    tn_load(scale, (const float *)a.buf[7] + column);
    tn_load(weight, (const float *)a.buf[8] + column);
    tn_load(bias, (const float *)a.buf[9] + column);
    TN_UNROLL(int i = 0; i < V; i++) {
        const float x = (v[i] - mean[i]) * scale[i] * weight[i] + bias[i];
        v[i] = x < 0 ? 0 : x;
    }
}
#endif
