/* product.h - products and convolutions of f32 as plain loops of C99, for a file that is to be compiled alone
 * (src/export). No text of the library is built of it.
 *
 * All are one register tile: ROWS rows of the left operand against COLUMNS columns of the right one, which
 * have been packed side by side; the left operand of a convolution is gathered, patch by patch, as it is
 * needed. DEPTH is how many terms of the sums are taken at once; what comes after is added.
 *
 * As in portable.h each definition is named by the line it begins with. Read first: tile.
 */

enum { ROWS = 8, COLUMNS = 16, DEPTH = 256 };

/* c[i][j] (+)= sum over p < depth of a[i * a_row + p * a_col] * b[p * COLUMNS + j] for i < rows, j < columns.
 * The sums of each row stand in an array of their own, which compilers keep in registers. */
static void tile(int64_t rows, int64_t columns, int64_t depth, const float *restrict a, int64_t a_row,
                 int64_t a_col, const float *restrict b, float *restrict c, int64_t c_row, bool add)
{
    float sum[ROWS * COLUMNS];
    if (rows == ROWS) {
        float s0[COLUMNS] = {0}, s1[COLUMNS] = {0}, s2[COLUMNS] = {0}, s3[COLUMNS] = {0}, s4[COLUMNS] = {0},
              s5[COLUMNS] = {0}, s6[COLUMNS] = {0}, s7[COLUMNS] = {0};
        for (int64_t p = 0; p < depth; p++) {
            const float v0 = a[0 * a_row + p * a_col];
            const float v1 = a[1 * a_row + p * a_col];
            const float v2 = a[2 * a_row + p * a_col];
            const float v3 = a[3 * a_row + p * a_col];
            const float v4 = a[4 * a_row + p * a_col];
            const float v5 = a[5 * a_row + p * a_col];
            const float v6 = a[6 * a_row + p * a_col];
            const float v7 = a[7 * a_row + p * a_col];
            for (int j = 0; j < COLUMNS; j++) {
                const float v = b[p * COLUMNS + j];
                s0[j] = tn_fma_f32(v0, v, s0[j]);
                s1[j] = tn_fma_f32(v1, v, s1[j]);
                s2[j] = tn_fma_f32(v2, v, s2[j]);
                s3[j] = tn_fma_f32(v3, v, s3[j]);
                s4[j] = tn_fma_f32(v4, v, s4[j]);
                s5[j] = tn_fma_f32(v5, v, s5[j]);
                s6[j] = tn_fma_f32(v6, v, s6[j]);
                s7[j] = tn_fma_f32(v7, v, s7[j]);
            }
        }
        for (int j = 0; j < COLUMNS; j++) {
            sum[0 * COLUMNS + j] = s0[j];
            sum[1 * COLUMNS + j] = s1[j];
            sum[2 * COLUMNS + j] = s2[j];
            sum[3 * COLUMNS + j] = s3[j];
            sum[4 * COLUMNS + j] = s4[j];
            sum[5 * COLUMNS + j] = s5[j];
            sum[6 * COLUMNS + j] = s6[j];
            sum[7 * COLUMNS + j] = s7[j];
        }
    } else
        for (int64_t i = 0; i < rows; i++) {
            float s[COLUMNS] = {0};
            for (int64_t p = 0; p < depth; p++)
                for (int j = 0; j < COLUMNS; j++)
                    s[j] = tn_fma_f32(a[i * a_row + p * a_col], b[p * COLUMNS + j], s[j]);
            for (int j = 0; j < COLUMNS; j++) sum[i * COLUMNS + j] = s[j];
        }
    for (int64_t i = 0; i < rows && columns == COLUMNS; i++) /* a fixed trip count: vectors, and no memcpy */
        for (int64_t j = 0; j < COLUMNS; j++)
            c[i * c_row + j] = add ? c[i * c_row + j] + sum[i * COLUMNS + j] : sum[i * COLUMNS + j];
    for (int64_t i = 0; i < rows && columns < COLUMNS; i++)
        for (int64_t j = 0; j < columns; j++)
            c[i * c_row + j] = add ? c[i * c_row + j] + sum[i * COLUMNS + j] : sum[i * COLUMNS + j];
}

/* The tile's share of c = relu(c * scale + bias); scale or bias NULL: none. */
static void finish(int64_t rows, int64_t columns, const float *scale, const float *bias, bool relu, float *c,
                   int64_t c_row)
{
    for (int64_t i = 0; i < rows && (scale || bias || relu); i++)
        for (int64_t j = 0; j < columns; j++) {
            float v = scale ? c[i * c_row + j] * scale[j] : c[i * c_row + j];
            v = bias ? v + bias[j] : v;
            c[i * c_row + j] = relu && v < 0 ? 0 : v;
        }
}

/* Packs a block of the right operand: its element (q, l) is number at + q * row + l * column of `from`;
 * columns that are missing are 0. */
typedef void packing(const void *from, int64_t at, int64_t row, int64_t column, int64_t depth,
                     int64_t columns, float *restrict out);

static void pack_f32(const void *from, int64_t at, int64_t row, int64_t column, int64_t depth,
                     int64_t columns, float *restrict out)
{
    const float *b = (const float *)from + at;
    for (int64_t q = 0; q < depth; q++)
        for (int64_t l = 0; l < COLUMNS; l++)
            out[q * COLUMNS + l] = l < columns ? b[q * row + l * column] : 0;
}

static void pack_f16(const void *from, int64_t at, int64_t row, int64_t column, int64_t depth,
                     int64_t columns, float *restrict out)
{
    const uint16_t *b = (const uint16_t *)from + at;
    for (int64_t q = 0; q < depth; q++)
        for (int64_t l = 0; l < COLUMNS; l++) {
            const tn_half h = {l < columns ? b[q * row + l * column] : (uint16_t)0};
            out[q * COLUMNS + l] = tn_half_to_f32(h);
        }
}

static void pack_bf16(const void *from, int64_t at, int64_t row, int64_t column, int64_t depth,
                      int64_t columns, float *restrict out)
{
    const uint16_t *b = (const uint16_t *)from + at;
    for (int64_t q = 0; q < depth; q++)
        for (int64_t l = 0; l < COLUMNS; l++)
            out[q * COLUMNS + l] =
                l < columns ? tn_from_bits_f32((uint32_t)b[q * row + l * column] << 16) : 0;
}

static void pack_int8(const void *from, int64_t at, int64_t row, int64_t column, int64_t depth,
                      int64_t columns, float *restrict out)
{
    const int8_t *b = (const int8_t *)from + at;
    for (int64_t q = 0; q < depth; q++)
        for (int64_t l = 0; l < COLUMNS; l++)
            out[q * COLUMNS + l] = l < columns ? (float)b[q * row + l * column] : 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* c[m, n] = act(a[m, k] b[k, n] scale[n] + bias[n]). */
static void matmul(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                   packing *pack, const void *b, int64_t b_row, int64_t b_col, const float *scale,
                   const float *bias, bool relu, float *c, int64_t c_row)
{
    float packed[DEPTH * COLUMNS];
    for (int64_t j = 0; j < n; j += COLUMNS) {
        const int64_t columns = least(n - j, COLUMNS);
        for (int64_t p = 0; p < k || p == 0; p += DEPTH) {
            const int64_t depth = least(k - p, DEPTH);
            pack(b, p * b_row + j * b_col, b_row, b_col, depth, columns, packed);
            for (int64_t i = 0; i < m; i += ROWS)
                tile(least(m - i, ROWS), columns, depth, a + i * a_row + p * a_col, a_row, a_col, packed,
                     c + i * c_row + j, c_row, p > 0);
        }
        for (int64_t i = 0; i < m; i += ROWS)
            finish(least(m - i, ROWS), columns, scale ? scale + j : scale, bias ? bias + j : bias, relu,
                   c + i * c_row + j, c_row);
    }
}

/* x [n, h, w, c], weight [oc, kh, kw, c / groups], y [n, oh, ow, oc]; pad: above and to the left. */
typedef struct convolution {
    int64_t n, h, w, c, oc, kh, kw, oh, ow, groups, stride[2], pad[2], dilation[2];
} convolution;

/* The element of x that lies under place (ky, kx) of the window of an image's pixel (oy, ox) in channel 0;
 * NULL: beside the image. */
static const float *under(const convolution *d, const float *x, int64_t image, int64_t oy, int64_t ox,
                          int64_t ky, int64_t kx)
{
    const int64_t y = oy * d->stride[0] + ky * d->dilation[0] - d->pad[0];
    const int64_t at = ox * d->stride[1] + kx * d->dilation[1] - d->pad[1];
    return y < 0 || y >= d->h || at < 0 || at >= d->w ? NULL : x + ((image * d->h + y) * d->w + at) * d->c;
}

/* The element of gy in channel 0 whose window has pixel (row, at) of the image at its place (ky, kx); NULL:
 * none. */
static const float *over(const convolution *d, const float *gy, int64_t image, int64_t row, int64_t at,
                         int64_t ky, int64_t kx)
{
    const int64_t below = row + d->pad[0] - ky * d->dilation[0], right = at + d->pad[1] - kx * d->dilation[1];
    const int64_t y = d->stride[0] == 1 ? below : below / d->stride[0],
                  x = d->stride[1] == 1 ? right : right / d->stride[1];
    if (below < 0 || right < 0 || y >= d->oh || x >= d->ow) return NULL;
    if (y * d->stride[0] != below || x * d->stride[1] != right) return NULL;
    return gy + ((image * d->oh + y) * d->ow + x) * d->oc;
}

/* out[p] = the terms first + p of a patch, in the order of places and `channels` channels from `channel` on.
 */
static void gather(const convolution *d, const float *x, bool back, int64_t pixel, int64_t channel,
                   int64_t channels, int64_t first, int64_t count, float *restrict out)
{
    const int64_t width = back ? d->w : d->ow, height = back ? d->h : d->oh;
    const int64_t px = pixel % width, py = pixel / width % height, image = pixel / width / height;
    int64_t ch = first % channels, ky = first / channels / d->kw, kx = first / channels % d->kw;
    while (count > 0) {
        const int64_t run = least(channels - ch, count);
        const float *from = back ? over(d, x, image, py, px, ky, kx) : under(d, x, image, py, px, ky, kx);
        if (from)
            for (int64_t i = 0; i < run; i++) out[i] = from[channel + ch + i];
        else
            for (int64_t i = 0; i < run; i++) out[i] = 0;
        out += run;
        count -= run;
        ch = 0;
        kx = kx + 1 < d->kw ? kx + 1 : 0;
        ky += kx == 0;
    }
}

/* y = act(x * weight scale + bias). */
static void conv2d(const convolution *d, const float *x, packing *pack, const void *weight,
                   const float *scale, const float *bias, bool relu, float *y)
{
    float packed[DEPTH * COLUMNS], patch[ROWS * DEPTH];
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, k = d->kh * d->kw * cg,
                  m = d->n * d->oh * d->ow;
    for (int64_t g = 0; g < d->groups; g++)
        for (int64_t j = 0; j < og; j += COLUMNS) {
            const int64_t columns = least(og - j, COLUMNS), o = g * og + j;
            for (int64_t p = 0; p < k; p += DEPTH) {
                const int64_t depth = least(k - p, DEPTH);
                pack(weight, o * k + p, 1, k, depth, columns, packed);
                for (int64_t i = 0; i < m; i += ROWS) {
                    const int64_t rows = least(m - i, ROWS);
                    for (int64_t r = 0; r < rows; r++)
                        gather(d, x, 0, i + r, g * cg, cg, p, depth, patch + r * DEPTH);
                    tile(rows, columns, depth, patch, DEPTH, 1, packed, y + i * d->oc + o, d->oc, p > 0);
                    if (p + depth == k)
                        finish(rows, columns, scale ? scale + o : scale, bias ? bias + o : bias, relu,
                               y + i * d->oc + o, d->oc);
                }
            }
        }
}

/* gx, from gy and weight. */
static void conv2d_data_grad(const convolution *d, const float *gy, const float *weight, float *gx)
{
    float packed[DEPTH * COLUMNS], patch[ROWS * DEPTH];
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, k = d->kh * d->kw * og,
                  m = d->n * d->h * d->w;
    for (int64_t g = 0; g < d->groups; g++)
        for (int64_t j = 0; j < cg; j += COLUMNS) {
            const int64_t columns = least(cg - j, COLUMNS), to = g * cg + j;
            for (int64_t p = 0; p < k; p += DEPTH) {
                const int64_t depth = least(k - p, DEPTH);
                for (int64_t q = 0; q < depth; q++) {
                    const int64_t place = (p + q) / og, o = g * og + (p + q) % og;
                    const float *from = weight + (o * d->kh * d->kw + place) * cg + j;
                    for (int64_t l = 0; l < COLUMNS; l++) packed[q * COLUMNS + l] = l < columns ? from[l] : 0;
                }
                for (int64_t i = 0; i < m; i += ROWS) {
                    const int64_t rows = least(m - i, ROWS);
                    for (int64_t r = 0; r < rows; r++)
                        gather(d, gy, 1, i + r, g * og, og, p, depth, patch + r * DEPTH);
                    tile(rows, columns, depth, patch, DEPTH, 1, packed, gx + i * d->c + to, d->c, p > 0);
                }
            }
        }
}

/* gweight, from x and gy. */
static void conv2d_weight_grad(const convolution *d, const float *x, const float *gy, float *gweight)
{
    float packed[DEPTH * COLUMNS];
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, k = d->kh * d->kw * cg,
                  m = d->n * d->oh * d->ow;
    for (int64_t g = 0; g < d->groups; g++)
        for (int64_t p = 0; p < m; p += DEPTH) { /* outside, so that gy and x are read once */
            const int64_t depth = least(m - p, DEPTH);
            for (int64_t j = 0; j < k; j += COLUMNS) {
                const int64_t columns = least(k - j, COLUMNS);
                for (int64_t q = 0; q < depth; q++) {
                    gather(d, x, 0, p + q, g * cg, cg, j, columns, packed + q * COLUMNS);
                    for (int64_t l = columns; l < COLUMNS; l++) packed[q * COLUMNS + l] = 0;
                }
                for (int64_t i = 0; i < og; i += ROWS)
                    tile(least(og - i, ROWS), columns, depth, gy + p * d->oc + g * og + i, 1, d->oc, packed,
                         gweight + (g * og + i) * k + j, k, p > 0);
            }
        }
}
