/* product.h - products and convolutions of f32 as plain loops of C99, for a file that is to be compiled alone
 * (src/export). No text of the library is built of it.
 *
 * All are one register tile: TN_ROWS rows of the left operand against COLUMNS columns of the right one, which
 * have been packed side by side, a panel. A convolution is a product of its patches, which are gathered a few
 * at a time, and its weights, all panels of which are packed first.
 *
 * What a step calls takes a product or a convolution, `room` to pack into, as much as blocks.h says, and
 * which of its items to compute: none reads what another writes, and how they are cut changes no bit.
 *
 * As in portable.h each definition is named by the line it begins with. Read first: whole_tile, then matmul.
 */

/* c[i][j] (+)= sum over p < depth of a[i * a_row + p * a_col] * b[p * COLUMNS + j] for i < TN_ROWS, j < COLUMNS.
 * The sums of each row stand in an array of their own, which compilers keep in registers. */
static void whole_tile(int64_t depth, const float *restrict a, int64_t a_row, int64_t a_col,
                       const float *restrict b, float *restrict c, int64_t c_row, bool add)
{
    const float *restrict far = a + 4 * a_row; /* spares registers for addresses */
#define TN_ROW_SUMS(i) float s##i[COLUMNS];
#define TN_ROW_ZERO(i) for (int j = 0; j < COLUMNS; j++) s##i[j] = 0;
#define TN_ROW_BEGIN(i) for (int j = 0; j < COLUMNS; j++) s##i[j] = c[i * c_row + j];
#define TN_ROW_VALUE(i) const float v##i = (i < 4 ? a : far)[i % 4 * a_row];
#define TN_ROW_ADD(i) s##i[j] = tn_fma_f32(v##i, v, s##i[j]);
#define TN_ROW_END(i) for (int j = 0; j < COLUMNS; j++) c[i * c_row + j] = s##i[j];
    TN_EACH_ROW(TN_ROW_SUMS)
    if (add) {
        TN_EACH_ROW(TN_ROW_BEGIN)
    } else {
        TN_EACH_ROW(TN_ROW_ZERO)
    }
    for (int64_t p = 0; p < depth; p++, a += a_col, far += a_col, b += COLUMNS) {
        TN_EACH_ROW(TN_ROW_VALUE)
        for (int j = 0; j < COLUMNS; j++) {
            const float v = b[j];
            TN_EACH_ROW(TN_ROW_ADD)
        }
    }
    TN_EACH_ROW(TN_ROW_END)
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
    float edge[TN_ROWS * COLUMNS];
    const bool narrow = columns < COLUMNS;
    float *to = narrow ? edge : c;
    const int64_t to_row = narrow ? COLUMNS : c_row;
    if (rows == TN_ROWS)
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
    if (columns == COLUMNS && column == 1)
        for (int64_t q = 0; q < depth; q++, out += COLUMNS)
            for (int64_t l = 0; l < COLUMNS; l++) out[l] = b[q * row + l];
    else
        for (int64_t l = 0; l < COLUMNS; l++)
            for (int64_t q = 0; q < depth; q++)
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

/* c[m, n] = act(a[m, k] b[k, n] scale[n] + bias[n]), for each of a batch: distances of rows, columns and
 * those of the batch in elements. */
typedef struct product {
    int64_t m, n, k, a_row, a_col, b_row, b_col, c_row, batch[4], a_batch[4], b_batch[4], c_batch[4];
    const float *a;
    packing *pack;
    const void *b;
    const float *scale, *bias;
    bool relu;
    float *c;
} product;

/* Rows [first, last) of COLUMNS columns from j on. */
static void matmul_panel(const product *d, int64_t first, int64_t last, int64_t j, const float *a, int64_t b,
                         float *c, float *room)
{
    const int64_t most = part(d->k, DEPTH), columns = least(d->n - j, COLUMNS);
    for (int64_t p = 0; p < d->k || p == 0; p += most) {
        const int64_t depth = least(d->k - p, most);
        d->pack(d->b, b + p * d->b_row + j * d->b_col, d->b_row, d->b_col, depth, columns, room);
        for (int64_t i = first; i < last; i += TN_ROWS)
            tile(least(last - i, TN_ROWS), columns, depth, a + i * d->a_row + p * d->a_col, d->a_row, d->a_col,
                 room, c + i * d->c_row + j, d->c_row, p > 0);
        if (d->k == 0) break;
    }
    finish(last - first, columns, d->scale ? d->scale + j : d->scale, d->bias ? d->bias + j : d->bias,
           d->relu, c + first * d->c_row + j, d->c_row);
}

/* An item is BLOCK rows of a panel. */
static int matmul(const void *what, float *room, int64_t begin, int64_t end)
{
    const product *d = (const product *)what;
    const int64_t blocks = blocks_of(d->m, BLOCK), panels = blocks_of(d->n, COLUMNS);
    for (int64_t i = begin, n; i < end; i += n) {
        const int64_t first = i % blocks, panel = i / blocks % panels;
        int64_t entry = i / blocks / panels, a = 0, b = 0, c = 0;
        for (int k = 3; k >= 0; entry /= d->batch[k] ? d->batch[k] : 1, k--) {
            const int64_t at = d->batch[k] ? entry % d->batch[k] : 0;
            a += at * d->a_batch[k];
            b += at * d->b_batch[k];
            c += at * d->c_batch[k];
        }
        n = least(blocks - first, end - i);
        matmul_panel(d, first * BLOCK, least((first + n) * BLOCK, d->m), panel * COLUMNS, d->a + a, b,
                     d->c + c, room);
    }
    return 0;
}

/* x [n, h, w, c], weight [oc, kh, kw, c / groups], y [n, oh, ow, oc]; pad: above and to the left. It goes from
 * x to y, `back` from gy to gx, and for the gradient of the weight from x and gy. That is summed in `parts`,
 * whose sums are behind each other; of winograd_plain.h, the weights transformed are there, too. */
typedef struct convolution {
    int64_t n, h, w, c, oc, kh, kw, oh, ow, groups, stride[2], pad[2], dilation[2];
    bool back, relu;
    const float *from;
    packing *pack;
    const void *weight;
    const float *scale, *bias, *gy;
    float *to, *sums;
    int64_t parts;
} convolution;

/* A pixel of what a convolution makes: of y, or of gx, which goes `back`. */
typedef struct pixel {
    int64_t image, y, x;
} pixel;

static pixel pixel_of(int64_t at, int64_t h, int64_t w)
{
    return (pixel){at / w / h, at / w % h, at % w};
}

static void next_pixel(pixel *at, int64_t h, int64_t w)
{
    if (++at->x < w) return;
    at->x = 0;
    if (++at->y < h) return;
    at->y = 0;
    at->image++;
}

/* The element of x in channel 0 that lies under place (ky, kx) of the window of pixel `at` of y; NULL: beside
 * the image. */
static const float *under(const convolution *d, const pixel *at, int64_t ky, int64_t kx)
{
    const int64_t row = at->y * d->stride[0] + ky * d->dilation[0] - d->pad[0];
    const int64_t column = at->x * d->stride[1] + kx * d->dilation[1] - d->pad[1];
    if (row < 0 || row >= d->h || column < 0 || column >= d->w) return NULL;
    return d->from + ((at->image * d->h + row) * d->w + column) * d->c;
}

/* The element of gy in channel 0 whose window has pixel `at` of the image at its place (ky, kx); NULL: none.
 */
static const float *over(const convolution *d, const pixel *at, int64_t ky, int64_t kx)
{
    const int64_t below = at->y + d->pad[0] - ky * d->dilation[0];
    const int64_t right = at->x + d->pad[1] - kx * d->dilation[1];
    const int64_t row = d->stride[0] == 1 ? below : below / d->stride[0],
                  column = d->stride[1] == 1 ? right : right / d->stride[1];
    if (below < 0 || right < 0 || row >= d->oh || column >= d->ow) return NULL;
    if (row * d->stride[0] != below || column * d->stride[1] != right) return NULL;
    return d->from + ((at->image * d->oh + row) * d->ow + column) * d->oc;
}

/* out[p] = the terms first + p of a patch, in the order of places and `channels` channels from `channel` on.
 */
TN_INLINE void gather(const convolution *d, const pixel *at, int64_t channel, int64_t channels, int64_t first,
                      int64_t count, float *restrict out)
{
    int64_t ch = first % channels, ky = first / channels / d->kw, kx = first / channels % d->kw;
    while (count > 0) {
        const int64_t run = least(channels - ch, count);
        const float *from = d->back ? over(d, at, ky, kx) : under(d, at, ky, kx);
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
 * gx = patches of gy * weight. An item is PIXELS pixels. */
static int conv2d(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, filter = d->kh * d->kw * cg;
    const int64_t in = d->back ? og : cg, out = d->back ? cg : og, all = d->back ? d->c : d->oc;
    const int64_t k = d->kh * d->kw * in, most = part(k, DEPTH);
    const int64_t h = d->back ? d->h : d->oh, w = d->back ? d->w : d->ow, m = d->n * h * w;
    const int64_t by_term = d->back ? filter : 1, by_output = d->back ? 1 : filter; /* in the weights */
    float *patch = room, *panels = room + PIXELS * most;
    for (int64_t o = 0; o < d->groups * out; o += least(out - o % out, WIDE))
        for (int64_t p = 0; p < k; p += most) {
            const int64_t g = o / out, depth = least(k - p, most), wide = least(out - o % out, WIDE);
            for (int64_t j = 0; j < wide; j += COLUMNS)
                for (int64_t q = 0, run; q < depth; q += run) { /* the channels of a place */
                    const int64_t place = (p + q) / in, ch = (p + q) % in;
                    run = least(in - ch, depth - q);
                    d->pack(d->weight,
                            g * og * filter + place * cg + ch * by_term + (o % out + j) * by_output, by_term,
                            by_output, run, least(wide - j, COLUMNS), panels + j * depth + q * COLUMNS);
                }
            pixel at = pixel_of(begin * PIXELS, h, w);
            for (int64_t i = begin * PIXELS; i < least(end * PIXELS, m); i += PIXELS) {
                const int64_t pixels = least(m - i, PIXELS);
                for (int64_t r = 0; r < pixels; r++, next_pixel(&at, h, w))
                    gather(d, &at, g * in, in, p, depth, patch + r * depth);
                float *to = d->to + i * all + o;
                for (int64_t j = 0; j < wide; j += COLUMNS)
                    for (int64_t r = 0; r < pixels; r += TN_ROWS)
                        tile(least(pixels - r, TN_ROWS), least(wide - j, COLUMNS), depth, patch + r * depth,
                             depth, 1, panels + j * depth, to + r * all + j, all, p > 0);
                if (p + depth == k)
                    finish(pixels, wide, d->scale ? d->scale + o : d->scale, d->bias ? d->bias + o : d->bias,
                           d->relu, to, all);
            }
        }
    return 0;
}

/* gweight, from x and gy: the patches of SUMMED pixels are the panels, so that gy and x are read once. An item
 * is a part. */
static int conv2d_weight_grad(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const int64_t cg = d->c / d->groups, og = d->oc / d->groups, k = d->kh * d->kw * cg;
    const int64_t m = d->n * d->oh * d->ow, each = blocks_of(m, d->parts);
    float *patch = room, *panels = room + whole_columns(least(k, WIDE));
    for (int64_t i = 0; i < whole_columns(least(k, WIDE)); i++) patch[i] = 0; /* behind the last term */
    for (int64_t part_of = begin; part_of < end; part_of++)
        for (int64_t gj = 0; gj < d->groups * k; gj += least(k - gj % k, WIDE)) {
            const int64_t g = gj / k, j = gj % k, wide = least(k - j, WIDE);
            const int64_t first = least(part_of * each, m), last = least(first + each, m);
            float *sums = d->sums + part_of * d->oc * k;
            pixel at = pixel_of(first, d->oh, d->ow);
            for (int64_t p = first; p < last || p == first; p += SUMMED) {
                const int64_t depth = least(last - p, SUMMED);
                for (int64_t q = 0; q < depth; q++, next_pixel(&at, d->oh, d->ow)) {
                    gather(d, &at, g * cg, cg, j, wide, patch);
                    for (int64_t t = 0; t < wide; t += COLUMNS)
                        for (int64_t l = 0; l < COLUMNS; l++)
                            panels[(t * depth) + q * COLUMNS + l] = patch[t + l];
                }
                for (int64_t t = 0; t < wide; t += COLUMNS)
                    for (int64_t i = 0; i < og; i += TN_ROWS)
                        tile(least(og - i, TN_ROWS), least(wide - t, COLUMNS), depth,
                             d->gy + p * d->oc + g * og + i, 1, d->oc, panels + t * depth,
                             sums + (g * og + i) * k + j + t, k, p > first);
            }
        }
    return 0;
}

/* The parts of a gradient together, in order. An item is the weights of an output. */
static int conv2d_weight_join(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const int64_t k = d->kh * d->kw * d->c / d->groups;
    (void)room;
    for (int64_t i = begin * k; i < end * k; i++) {
        float sum = d->sums[i];
        for (int64_t p = 1; p < d->parts; p++) sum += d->sums[p * d->oc * k + i];
        d->to[i] = sum;
    }
    return 0;
}
