/* product.h - products and convolutions of f32 as plain loops of C99, for a file that is to be compiled alone
 * (src/export). No text of the library is built of it.
 *
 * All are one register tile: ROWS rows of the left operand against COLUMNS columns of the right one, which
 * have been packed side by side, a panel. A convolution is a product of its patches, which are gathered a few
 * at a time, and its weights, all panels of which are packed first. `room` is memory to pack into, as much as
 * blocks.h says.
 *
 * As in portable.h each definition is named by the line it begins with. Read first: tile.
 */

/* c[i][j] (+)= sum over p < depth of a[i * a_row + p * a_col] * b[p * COLUMNS + j] for i < ROWS, j < COLUMNS.
 * The sums of each row stand in an array of their own, which compilers keep in registers. */
static void whole_tile(int64_t depth, const float *restrict a, int64_t a_row, int64_t a_col,
                       const float *restrict b, float *restrict c, int64_t c_row, bool add)
{
    float s0[COLUMNS], s1[COLUMNS], s2[COLUMNS], s3[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) {
        s0[j] = add ? c[0 * c_row + j] : 0;
        s1[j] = add ? c[1 * c_row + j] : 0;
        s2[j] = add ? c[2 * c_row + j] : 0;
        s3[j] = add ? c[3 * c_row + j] : 0;
    }
    for (int64_t p = 0; p < depth; p++, a += a_col, b += COLUMNS) {
        const float v0 = a[0 * a_row];
        const float v1 = a[1 * a_row];
        const float v2 = a[2 * a_row];
        const float v3 = a[3 * a_row];
        for (int j = 0; j < COLUMNS; j++) {
            const float v = b[j];
            s0[j] = tn_fma_f32(v0, v, s0[j]);
            s1[j] = tn_fma_f32(v1, v, s1[j]);
            s2[j] = tn_fma_f32(v2, v, s2[j]);
            s3[j] = tn_fma_f32(v3, v, s3[j]);
        }
    }
    for (int j = 0; j < COLUMNS; j++) {
        c[0 * c_row + j] = s0[j];
        c[1 * c_row + j] = s1[j];
        c[2 * c_row + j] = s2[j];
        c[3 * c_row + j] = s3[j];
    }
}

/* The same of a single row. */
static void row_tile(int64_t depth, const float *restrict a, int64_t a_col, const float *restrict b,
                     float *restrict c, bool add)
{
    float s[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) s[j] = add ? c[j] : 0;
    for (int64_t p = 0; p < depth; p++)
        for (int j = 0; j < COLUMNS; j++) s[j] = tn_fma_f32(a[p * a_col], b[p * COLUMNS + j], s[j]);
    for (int j = 0; j < COLUMNS; j++) c[j] = s[j];
}

/* A tile of which there may be fewer rows, and of the columns of c fewer. */
static void tile(int64_t rows, int64_t columns, int64_t depth, const float *restrict a, int64_t a_row,
                 int64_t a_col, const float *restrict b, float *restrict c, int64_t c_row, bool add)
{
    float edge[ROWS * COLUMNS];
    const bool narrow = columns < COLUMNS;
    float *to = narrow ? edge : c;
    const int64_t to_row = narrow ? COLUMNS : c_row;
    if (rows == ROWS)
        whole_tile(depth, a, a_row, a_col, b, to, to_row, add && !narrow);
    else
        for (int64_t i = 0; i < rows; i++)
            row_tile(depth, a + i * a_row, a_col, b, to + i * to_row, add && !narrow);
    for (int64_t i = 0; i < rows && narrow; i++)
        for (int64_t j = 0; j < columns; j++)
            c[i * c_row + j] = add ? c[i * c_row + j] + edge[i * COLUMNS + j] : edge[i * COLUMNS + j];
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

/* c[m, n] = act(a[m, k] b[k, n] scale[n] + bias[n]). */
static void matmul(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                   packing *pack, const void *b, int64_t b_row, int64_t b_col, const float *scale,
                   const float *bias, bool relu, float *c, int64_t c_row, float *room)
{
    const int64_t most = part(k, DEPTH);
    for (int64_t j = 0; j < n; j += COLUMNS) {
        const int64_t columns = least(n - j, COLUMNS);
        for (int64_t p = 0; p < k || p == 0; p += most) {
            const int64_t depth = least(k - p, most);
            pack(b, p * b_row + j * b_col, b_row, b_col, depth, columns, room);
            for (int64_t i = 0; i < m; i += ROWS)
                tile(least(m - i, ROWS), columns, depth, a + i * a_row + p * a_col, a_row, a_col, room,
                     c + i * c_row + j, c_row, p > 0);
            if (k == 0) break;
        }
        finish(m, columns, scale ? scale + j : scale, bias ? bias + j : bias, relu, c + j, c_row);
    }
}

/* x [n, h, w, c], weight [oc, kh, kw, c / groups], y [n, oh, ow, oc]; pad: above and to the left. */
typedef struct convolution {
    int64_t n, h, w, c, oc, kh, kw, oh, ow, groups, stride[2], pad[2], dilation[2];
} convolution;

/* A pixel of what a convolution makes: of y, or of gx, which goes `back`. */
typedef struct pixel {
    int64_t image, y, x;
} pixel;

static void next_pixel(const convolution *d, bool back, pixel *at)
{
    if (++at->x < (back ? d->w : d->ow)) return;
    at->x = 0;
    if (++at->y < (back ? d->h : d->oh)) return;
    at->y = 0;
    at->image++;
}

/* The element of x in channel 0 that lies under place (ky, kx) of the window of pixel `at` of y; NULL: beside
 * the image. */
static const float *under(const convolution *d, const float *x, const pixel *at, int64_t ky, int64_t kx)
{
    const int64_t row = at->y * d->stride[0] + ky * d->dilation[0] - d->pad[0];
    const int64_t column = at->x * d->stride[1] + kx * d->dilation[1] - d->pad[1];
    if (row < 0 || row >= d->h || column < 0 || column >= d->w) return NULL;
    return x + ((at->image * d->h + row) * d->w + column) * d->c;
}

/* The element of gy in channel 0 whose window has pixel `at` of the image at its place (ky, kx); NULL: none.
 */
static const float *over(const convolution *d, const float *gy, const pixel *at, int64_t ky, int64_t kx)
{
    const int64_t below = at->y + d->pad[0] - ky * d->dilation[0];
    const int64_t right = at->x + d->pad[1] - kx * d->dilation[1];
    const int64_t row = d->stride[0] == 1 ? below : below / d->stride[0],
                  column = d->stride[1] == 1 ? right : right / d->stride[1];
    if (below < 0 || right < 0 || row >= d->oh || column >= d->ow) return NULL;
    if (row * d->stride[0] != below || column * d->stride[1] != right) return NULL;
    return gy + ((at->image * d->oh + row) * d->ow + column) * d->oc;
}

/* out[p] = the terms first + p of a patch, in the order of places and `channels` channels from `channel` on.
 */
static void gather(const convolution *d, const float *x, bool back, const pixel *at, int64_t channel,
                   int64_t channels, int64_t first, int64_t count, float *restrict out)
{
    int64_t ch = first % channels, ky = first / channels / d->kw, kx = first / channels % d->kw;
    while (count > 0) {
        const int64_t run = least(channels - ch, count);
        const float *from = back ? over(d, x, at, ky, kx) : under(d, x, at, ky, kx);
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

/* Convolutions and their way back, patches times weights: y = act(patches of x * weight scale + bias), or
 * gx = patches of gy * weight. */
static void convolve(const convolution *d, bool back, const float *x, packing *pack, const void *weight,
                     const float *scale, const float *bias, bool relu, float *y, float *room)
{
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, filter = d->kh * d->kw * cg;
    const int64_t in = back ? og : cg, out = back ? cg : og, all = back ? d->c : d->oc;
    const int64_t k = d->kh * d->kw * in, most = part(k, DEPTH);
    const int64_t m = back ? d->n * d->h * d->w : d->n * d->oh * d->ow;
    const int64_t by_term = back ? filter : 1, by_output = back ? 1 : filter; /* in the weights */
    float *patch = room, *panels = room + PIXELS * most;
    for (int64_t o = 0; o < d->groups * out; o += least(out - o % out, WIDE))
        for (int64_t p = 0; p < k; p += most) {
            const int64_t g = o / out, depth = least(k - p, most), wide = least(out - o % out, WIDE);
            for (int64_t j = 0; j < wide; j += COLUMNS)
                for (int64_t q = 0, run; q < depth; q += run) { /* the channels of a place */
                    const int64_t place = (p + q) / in, ch = (p + q) % in;
                    run = least(in - ch, depth - q);
                    pack(weight, g * og * filter + place * cg + ch * by_term + (o % out + j) * by_output,
                         by_term, by_output, run, least(wide - j, COLUMNS), panels + j * depth + q * COLUMNS);
                }
            pixel at = {0};
            for (int64_t i = 0; i < m; i += PIXELS) {
                const int64_t pixels = least(m - i, PIXELS);
                for (int64_t r = 0; r < pixels; r++, next_pixel(d, back, &at))
                    gather(d, x, back, &at, g * in, in, p, depth, patch + r * depth);
                for (int64_t j = 0; j < wide; j += COLUMNS)
                    for (int64_t r = 0; r < pixels; r += ROWS)
                        tile(least(pixels - r, ROWS), least(wide - j, COLUMNS), depth, patch + r * depth,
                             depth, 1, panels + j * depth, y + (i + r) * all + o + j, all, p > 0);
                if (p + depth == k)
                    finish(pixels, wide, scale ? scale + o : scale, bias ? bias + o : bias, relu,
                           y + i * all + o, all);
            }
        }
}

static void conv2d(const convolution *d, const float *x, packing *pack, const void *weight,
                   const float *scale, const float *bias, bool relu, float *y, float *room)
{
    convolve(d, 0, x, pack, weight, scale, bias, relu, y, room);
}

/* gx, from gy and weight. */
static void conv2d_data_grad(const convolution *d, const float *gy, const float *weight, float *gx,
                             float *room)
{
    convolve(d, 1, gy, &pack_f32, weight, NULL, NULL, 0, gx, room);
}

/* gweight, from x and gy: the patches of SUMMED pixels are the panels, so that gy and x are read once. */
static void conv2d_weight_grad(const convolution *d, const float *x, const float *gy, float *gweight,
                               float *room)
{
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, k = d->kh * d->kw * cg,
                  m = d->n * d->oh * d->ow;
    float *patch = room, *panels = room + whole_columns(least(k, WIDE));
    for (int64_t i = 0; i < whole_columns(least(k, WIDE)); i++) patch[i] = 0; /* behind the last term */
    for (int64_t g = 0; g < d->groups; g++)
        for (int64_t j = 0; j < k; j += WIDE) {
            const int64_t wide = least(k - j, WIDE);
            pixel at = {0};
            for (int64_t p = 0; p < m; p += SUMMED) {
                const int64_t depth = least(m - p, SUMMED);
                for (int64_t q = 0; q < depth; q++, next_pixel(d, 0, &at)) {
                    gather(d, x, 0, &at, g * cg, cg, j, wide, patch);
                    for (int64_t t = 0; t < wide; t += COLUMNS)
                        for (int64_t l = 0; l < COLUMNS; l++)
                            panels[(t * depth) + q * COLUMNS + l] = patch[t + l];
                }
                for (int64_t t = 0; t < wide; t += COLUMNS)
                    for (int64_t i = 0; i < og; i += ROWS)
                        tile(least(og - i, ROWS), least(wide - t, COLUMNS), depth,
                             gy + p * d->oc + g * og + i, 1, d->oc, panels + t * depth,
                             gweight + (g * og + i) * k + j + t, k, p > 0);
            }
        }
}
