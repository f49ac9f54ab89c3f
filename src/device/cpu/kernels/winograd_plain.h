/* winograd_plain.h - 3x3 convolutions of stride 1, and both their gradients, by Winograd's algorithm, for a
 * file that is to be compiled alone; it stands behind product.h.
 *
 * A tile is 4 x 4 pixels of y, which 6 x 6 of x make. Where x and the weights are transformed to 6 x 6
 * places, y is their product place by place: 36 products of a tile for 144. As polynomials, y and the weights
 * are taken at 0, 5/8, -5/8, 3/2 and -3/2 and by their highest term (../winograd_kernel.h has the matrices,
 * and why these points): the error is about twice that of the sums written out. In two dimensions each
 * transform goes both ways.
 *
 * Channels are whole COLUMNS, so that all loops over them have fixed trip counts. Read first: conv2d_3x3.
 */

/* The points, and 1 / the product of the distances of 0 and of each to all others. */
#define TN_P  0.625f
#define TN_Q  1.5f
#define TN_N0 (1 / (TN_P * TN_P * TN_Q * TN_Q))
#define TN_NP (1 / (2 * TN_P * TN_P * (TN_P * TN_P - TN_Q * TN_Q)))
#define TN_NQ (1 / (2 * TN_Q * TN_Q * (TN_Q * TN_Q - TN_P * TN_P)))

static void move(float *restrict to, const float *restrict from)
{
    for (int l = 0; l < COLUMNS; l++) to[l] = from[l];
}

/* Six pixels of x, or rows of them, become six places, `step` floats apart. */
static void spread_data(const float *restrict d0, const float *restrict d1, const float *restrict d2,
                        const float *restrict d3, const float *restrict d4, const float *restrict d5,
                        float *restrict to, int64_t step)
{
    float t0[COLUMNS], t1[COLUMNS], t2[COLUMNS], t3[COLUMNS], t4[COLUMNS], t5[COLUMNS];
    for (int l = 0; l < COLUMNS; l++) {
        const float p = tn_fma_f32(-TN_Q * TN_Q, d2[l], d4[l]);
        const float q = tn_fma_f32(-TN_P * TN_P, d2[l], d4[l]);
        const float by_p = tn_fma_f32(-TN_Q * TN_Q, d1[l], d3[l]);
        const float by_q = tn_fma_f32(-TN_P * TN_P, d1[l], d3[l]);
        t1[l] = tn_fma_f32(TN_P, by_p, p);
        t2[l] = tn_fma_f32(-TN_P, by_p, p);
        t3[l] = tn_fma_f32(TN_Q, by_q, q);
        t4[l] = tn_fma_f32(-TN_Q, by_q, q);
        t0[l] = tn_fma_f32(TN_P * TN_P * TN_Q * TN_Q, d0[l],
                           tn_fma_f32(-(TN_P * TN_P + TN_Q * TN_Q), d2[l], d4[l]));
        t5[l] = tn_fma_f32(TN_P * TN_P * TN_Q * TN_Q, d1[l],
                           tn_fma_f32(-(TN_P * TN_P + TN_Q * TN_Q), d3[l], d5[l]));
    }
    move(to, t0);
    move(to + step, t1);
    move(to + 2 * step, t2);
    move(to + 3 * step, t3);
    move(to + 4 * step, t4);
    move(to + 5 * step, t5);
}

/* Of four gradients. */
static void spread_gradient(const float *restrict y0, const float *restrict y1, const float *restrict y2,
                            const float *restrict y3, float *restrict to, int64_t step)
{
    float t1[COLUMNS], t2[COLUMNS], t3[COLUMNS], t4[COLUMNS];
    for (int l = 0; l < COLUMNS; l++) {
        const float p = tn_fma_f32(TN_P * TN_P, y2[l], y0[l]);
        const float q = tn_fma_f32(TN_Q * TN_Q, y2[l], y0[l]);
        const float by_p = tn_fma_f32(TN_P * TN_P, y3[l], y1[l]);
        const float by_q = tn_fma_f32(TN_Q * TN_Q, y3[l], y1[l]);
        t1[l] = tn_fma_f32(TN_P, by_p, p);
        t2[l] = tn_fma_f32(-TN_P, by_p, p);
        t3[l] = tn_fma_f32(TN_Q, by_q, q);
        t4[l] = tn_fma_f32(-TN_Q, by_q, q);
    }
    move(to, y0);
    move(to + step, t1);
    move(to + 2 * step, t2);
    move(to + 3 * step, t3);
    move(to + 4 * step, t4);
    move(to + 5 * step, y3);
}

/* Of three weights, one channel. */
static void spread_weight(const float *g, float *to)
{
    const float p = TN_NP * tn_fma_f32(TN_P * TN_P, g[2], g[0]),
                q = TN_NQ * tn_fma_f32(TN_Q * TN_Q, g[2], g[0]);
    to[0] = TN_N0 * g[0];
    to[1] = tn_fma_f32(TN_P * TN_NP, g[1], p);
    to[2] = tn_fma_f32(-TN_P * TN_NP, g[1], p);
    to[3] = tn_fma_f32(TN_Q * TN_NQ, g[1], q);
    to[4] = tn_fma_f32(-TN_Q * TN_NQ, g[1], q);
    to[5] = g[2];
}

/* Back again: six places become four pixels of y, or the gradients of three weights. */
static void join_pixels(const float *restrict u0, const float *restrict u1, const float *restrict u2,
                        const float *restrict u3, const float *restrict u4, const float *restrict u5,
                        float *restrict to, int64_t step)
{
    float y0[COLUMNS], y1[COLUMNS], y2[COLUMNS], y3[COLUMNS];
    for (int l = 0; l < COLUMNS; l++) {
        const float sp = u1[l] + u2[l];
        const float dp = u1[l] - u2[l];
        const float sq = u3[l] + u4[l];
        const float dq = u3[l] - u4[l];
        y0[l] = u0[l] + (sp + sq);
        y1[l] = tn_fma_f32(TN_Q, dq, TN_P * dp);
        y2[l] = tn_fma_f32(TN_Q * TN_Q, sq, TN_P * TN_P * sp);
        y3[l] = tn_fma_f32(TN_Q * TN_Q * TN_Q, dq, tn_fma_f32(TN_P * TN_P * TN_P, dp, u5[l]));
    }
    move(to, y0);
    move(to + step, y1);
    move(to + 2 * step, y2);
    move(to + 3 * step, y3);
}

static void join_weights(const float *restrict u0, const float *restrict u1, const float *restrict u2,
                         const float *restrict u3, const float *restrict u4, const float *restrict u5,
                         float *restrict to, int64_t step)
{
    float g0[COLUMNS], g1[COLUMNS], g2[COLUMNS];
    for (int l = 0; l < COLUMNS; l++) {
        const float sp = TN_NP * (u1[l] + u2[l]);
        const float sq = TN_NQ * (u3[l] + u4[l]);
        g0[l] = tn_fma_f32(TN_N0, u0[l], sp + sq);
        g1[l] = tn_fma_f32(TN_Q * TN_NQ, u3[l] - u4[l], TN_P * TN_NP * (u1[l] - u2[l]));
        g2[l] = tn_fma_f32(TN_Q * TN_Q, sq, tn_fma_f32(TN_P * TN_P, sp, u5[l]));
    }
    move(to, g0);
    move(to + step, g1);
    move(to + 2 * step, g2);
}

/* What tiles read from or write to: n images of h x w pixels of c channels, of which a tile begins `pad`
 * above and to the left of four times its own place. */
typedef struct tiled {
    int64_t n, h, w, c, pad[2];
    int64_t rows, columns; /* tiles of an image */
} tiled;

static tiled tiles_of(const convolution *d, bool y, bool back)
{
    tiled t = {.n = d->n, .h = y ? d->oh : d->h, .w = y ? d->ow : d->w, .c = y ? d->oc : d->c};
    t.rows = blocks_of(back ? d->h : d->oh, 4);
    t.columns = blocks_of(back ? d->w : d->ow, 4);
    for (int k = 0; k < 2; k++) t.pad[k] = y == back ? (back ? 2 - d->pad[k] : d->pad[k]) : 0;
    return t;
}

/* Where the size x size pixels of tile `at` begin; -1: beside the image, or there is no such tile. */
static void pixels_of(const tiled *i, int64_t at, int size, int64_t *pixels)
{
    const int64_t image = at / (i->rows * i->columns), y = at / i->columns % i->rows * 4 - i->pad[0],
                  x = at % i->columns * 4 - i->pad[1];
    for (int row = 0; row < size; row++)
        for (int column = 0; column < size; column++) {
            const bool there =
                image < i->n && y + row >= 0 && y + row < i->h && x + column >= 0 && x + column < i->w;
            pixels[row * size + column] = there ? ((image * i->h + y + row) * i->w + x + column) * i->c : -1;
        }
}

/* The pixels of tile `at`, transformed: place p of COLUMNS channels goes to out + p * step, of the next
 * COLUMNS `block` behind. A tile has six pixels each way, or four gradients. */
TN_INLINE void spread_tile(const tiled *i, const float *x, int64_t at, int size, float *restrict out,
                           int64_t step, int64_t block)
{
    static const float zeros[COLUMNS] = {0};
    int64_t pixels[PLACES];
    pixels_of(i, at, size, pixels);
    for (int64_t c = 0; c < i->c; c += COLUMNS, out += block) {
        const float *d[SPAN];
        float t[PLACES * COLUMNS];
        for (int row = 0; row < size; row++) {
            for (int k = 0; k < size; k++)
                d[k] = pixels[row * size + k] < 0 ? zeros : x + pixels[row * size + k] + c;
            if (size == SPAN)
                spread_data(d[0], d[1], d[2], d[3], d[4], d[5], t + row * SPAN * COLUMNS, COLUMNS);
            else
                spread_gradient(d[0], d[1], d[2], d[3], t + row * SPAN * COLUMNS, COLUMNS);
        }
        for (int column = 0; column < SPAN; column++) {
            for (int k = 0; k < size; k++) d[k] = t + (k * SPAN + column) * COLUMNS;
            if (size == SPAN)
                spread_data(d[0], d[1], d[2], d[3], d[4], d[5], out + column * step, SPAN * step);
            else
                spread_gradient(d[0], d[1], d[2], d[3], out + column * step, SPAN * step);
        }
    }
}

/* The weights transformed, as panels: sums[p][output / COLUMNS][input][output % COLUMNS]. An item is a
 * panel. */
static int conv2d_3x3_weights(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const int64_t in = d->back ? d->oc : d->c, out = d->back ? d->c : d->oc;
    (void)room;
    for (int64_t o = begin * COLUMNS; o < end * COLUMNS; o++)
        for (int64_t i = 0; i < in; i++) {
            const float *g = (const float *)d->weight + (d->back ? i * 9 * out + o : o * 9 * in + i);
            float *to = d->sums + (o / COLUMNS * in + i) * COLUMNS + o % COLUMNS;
            float rows[3 * SPAN], column[3], places[SPAN];
            for (int k = 0; k < 3; k++) { /* backwards the window is turned round */
                for (int l = 0; l < 3; l++) column[l] = g[d->back ? (8 - 3 * k - l) * out : (3 * k + l) * in];
                spread_weight(column, rows + k * SPAN);
            }
            for (int l = 0; l < SPAN; l++) {
                for (int k = 0; k < 3; k++) column[k] = rows[k * SPAN + l];
                spread_weight(column, places);
                for (int k = 0; k < SPAN; k++) to[(k * SPAN + l) * in * out] = places[k];
            }
        }
    return 0;
}

static void put_pixel(const float *y, const float *bias, float lowest, float *restrict to)
{
    for (int l = 0; l < COLUMNS; l++) {
        const float v = y[l] + bias[l];
        to[l] = v < lowest ? lowest : v;
    }
}

/* y = relu(x * weight + bias), or back: gx of gy; behind conv2d_3x3_weights. An item is TILES tiles. */
static int conv2d_3x3(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const tiled from = tiles_of(d, d->back, d->back), to = tiles_of(d, !d->back, d->back);
    const int64_t in = from.c, out = to.c, count = from.n * from.rows * from.columns;
    const int64_t data_place = place_of_tiles(in), made_place = place_of_tiles(out);
    float *data = room, *made = data + PLACES * data_place;
    for (int64_t first = begin * TILES; first < end * TILES; first += TILES) {
        for (int64_t t = 0; t < TILES; t++)
            spread_tile(&from, d->from, first + t, SPAN, data + t * in, data_place, COLUMNS);
        for (int64_t p = 0; p < PLACES; p++)
            for (int64_t o = 0; o < out; o += COLUMNS)
                for (int64_t t = 0; t < TILES; t += TN_ROWS)
                    whole_tile(in, data + p * data_place + t * in, in, 1, d->sums + (p * out + o) * in,
                               made + p * made_place + t * out + o, out, 0);
        for (int64_t t = 0; t < least(count - first, TILES); t++) {
            int64_t pixels[16];
            pixels_of(&to, first + t, 4, pixels);
            for (int64_t o = 0; o < out; o += COLUMNS) {
                const float *u[SPAN];
                float m[SPAN * 4 * COLUMNS], y[16 * COLUMNS], bias[COLUMNS] = {0};
                for (int l = 0; l < COLUMNS && d->bias; l++) bias[l] = d->bias[o + l];
                for (int row = 0; row < SPAN; row++) {
                    for (int k = 0; k < SPAN; k++) u[k] = made + (row * SPAN + k) * made_place + t * out + o;
                    join_pixels(u[0], u[1], u[2], u[3], u[4], u[5], m + row * 4 * COLUMNS, COLUMNS);
                }
                for (int column = 0; column < 4; column++) {
                    for (int k = 0; k < SPAN; k++) u[k] = m + (k * 4 + column) * COLUMNS;
                    join_pixels(u[0], u[1], u[2], u[3], u[4], u[5], y + column * COLUMNS, 4 * COLUMNS);
                }
                for (int p = 0; p < 16; p++)
                    if (pixels[p] >= 0)
                        put_pixel(y + p * COLUMNS, bias, d->relu ? 0 : -TN_INF, d->to + pixels[p] + o);
            }
        }
    }
    return 0;
}

/* gweight, from x and gy, transformed: sums[part][p][output][input]. An item is a part. */
static int conv2d_3x3_weight_grad(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const tiled from = tiles_of(d, 0, 0), to = tiles_of(d, 1, 0);
    const int64_t in = from.c, out = to.c, count = from.n * from.rows * from.columns;
    const int64_t each = blocks_of(blocks_of(count, TILES), d->parts) * TILES;
    const int64_t data_place = place_of_tiles(in), gradient_place = place_of_tiles(out);
    float *data = room, *gradients = data + PLACES * data_place;
    for (int64_t part_of = begin; part_of < end; part_of++)
        for (int64_t first = part_of * each; first < (part_of + 1) * each; first += TILES) {
            float *sums = d->sums + part_of * PLACES * in * out;
            for (int64_t t = 0; t < TILES; t++) {
                spread_tile(&from, d->from, first + t, SPAN, data + t * COLUMNS, data_place,
                            TILES * COLUMNS); /* panels */
                spread_tile(&to, d->gy, first + t, 4, gradients + t * out, gradient_place, COLUMNS);
            }
            for (int64_t p = 0; p < PLACES; p++)
                for (int64_t i = 0; i < in; i += COLUMNS)
                    for (int64_t o = 0; o < out; o += TN_ROWS)
                        whole_tile(TILES, gradients + p * gradient_place + o, 1, out,
                                   data + p * data_place + i * TILES, sums + (p * out + o) * in + i, in,
                                   first > part_of * each);
        }
    return 0;
}

static void add(const float *from, bool more, float *restrict to)
{
    for (int l = 0; l < COLUMNS; l++) to[l] = more ? to[l] + from[l] : from[l];
}

/* The parts together, in order, and back to weights. An item is an output. */
static int conv2d_3x3_weight_join(const void *what, float *room, int64_t begin, int64_t end)
{
    const convolution *d = (const convolution *)what;
    const int64_t in = d->c, out = d->oc;
    (void)room;
    for (int64_t o = begin; o < end; o++)
        for (int64_t i = 0; i < in; i += COLUMNS) {
            const float *u[SPAN];
            float sums[PLACES * COLUMNS], m[SPAN * 3 * COLUMNS];
            for (int p = 0; p < PLACES; p++)
                for (int64_t k = 0; k < d->parts; k++)
                    add(d->sums + ((k * PLACES + p) * out + o) * in + i, k > 0, sums + p * COLUMNS);
            for (int row = 0; row < SPAN; row++) {
                for (int k = 0; k < SPAN; k++) u[k] = sums + (row * SPAN + k) * COLUMNS;
                join_weights(u[0], u[1], u[2], u[3], u[4], u[5], m + row * 3 * COLUMNS, COLUMNS);
            }
            for (int column = 0; column < 3; column++) {
                for (int k = 0; k < SPAN; k++) u[k] = m + (k * 3 + column) * COLUMNS;
                join_weights(u[0], u[1], u[2], u[3], u[4], u[5], d->to + (o * 9 + column) * in + i, 3 * in);
            }
        }
    return 0;
}
