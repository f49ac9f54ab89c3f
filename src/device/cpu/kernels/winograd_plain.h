/* winograd_plain.h - 3x3 convolutions of stride 1, and both their gradients, by Winograd's algorithm, for a
 * file that is to be compiled alone; it stands behind product.h.
 *
 * A tile is 2 x 2 pixels of y, which 4 x 4 of x make. Where x and the weights are transformed to 4 x 4
 * places, y is their product place by place: 16 products of a tile for 36. In one dimension, of four elements
 * d and three weights g,
 *
 *     m0 = (d0 - d2) g0                     y0 = m0 + m1 + m2
 *     m1 = (d1 + d2) (g0 + g1 + g2) / 2     y1 = m1 - m2 - m3
 *     m2 = (d2 - d1) (g0 - g1 + g2) / 2
 *     m3 = (d1 - d3) g2
 *
 * and in two both ways. The gradient of the weights is the same with three sums of two gradients. Channels
 * are whole COLUMNS, so that all loops over them have fixed trip counts. Read first: conv2d_3x3.
 */

/* Transforms along four rows or columns of places: d is [16][COLUMNS], `step` is between two places. */
static void spread_data(float *d, int step)
{
    for (int l = 0; l < COLUMNS; l++) {
        const float d0 = d[l];
        const float d1 = d[step * COLUMNS + l];
        const float d2 = d[2 * step * COLUMNS + l];
        const float d3 = d[3 * step * COLUMNS + l];
        d[l] = d0 - d2;
        d[step * COLUMNS + l] = d1 + d2;
        d[2 * step * COLUMNS + l] = d2 - d1;
        d[3 * step * COLUMNS + l] = d1 - d3;
    }
}

/* Of two gradients at the first places. */
static void spread_gradient(float *d, int step)
{
    for (int l = 0; l < COLUMNS; l++) {
        const float g0 = d[l];
        const float g1 = d[step * COLUMNS + l];
        d[step * COLUMNS + l] = 0.5f * (g0 + g1);
        d[2 * step * COLUMNS + l] = 0.5f * (g0 - g1);
        d[3 * step * COLUMNS + l] = g1;
    }
}

/* To y, at the first two places; and to gradients of three weights, at the first three. */
static void join_pixels(float *d, int step)
{
    for (int l = 0; l < COLUMNS; l++) {
        const float m1 = d[step * COLUMNS + l];
        const float m2 = d[2 * step * COLUMNS + l];
        d[l] = d[l] + m1 + m2;
        d[step * COLUMNS + l] = m1 - m2 - d[3 * step * COLUMNS + l];
    }
}

static void join_weights(float *d, int step)
{
    for (int l = 0; l < COLUMNS; l++) {
        const float m1 = d[step * COLUMNS + l];
        const float m2 = d[2 * step * COLUMNS + l];
        d[l] = d[l] + m1 + m2;
        d[step * COLUMNS + l] = m1 - m2;
        d[2 * step * COLUMNS + l] = m1 + m2 - d[3 * step * COLUMNS + l];
    }
}

/* What tiles read from or write to: n images of h x w pixels of c channels, of which a tile begins `pad`
 * above and to the left of twice its own place. */
typedef struct tiled {
    int64_t n, h, w, c, pad[2];
    int64_t rows, columns; /* tiles of an image */
} tiled;

/* The first pixel of tile `at`. */
static pixel corner(const tiled *i, int64_t at)
{
    return (pixel){.image = at / (i->rows * i->columns),
                   .y = at / i->columns % i->rows * 2 - i->pad[0],
                   .x = at % i->columns * 2 - i->pad[1]};
}

/* Where the pixel y below and x to the right of it begins; -1: beside the image, or there is no such tile. */
static int64_t pixel_at(const tiled *i, const pixel *from, int64_t y, int64_t x)
{
    const int64_t row = from->y + y, column = from->x + x;
    if (from->image >= i->n || row < 0 || row >= i->h || column < 0 || column >= i->w) return -1;
    return ((from->image * i->h + row) * i->w + column) * i->c;
}

static void move(float *restrict to, const float *restrict from)
{
    for (int l = 0; l < COLUMNS; l++) to[l] = from[l];
}

/* size x size pixels of tile `at`, transformed: place p of COLUMNS channels goes to out + p * step, of the
 * next COLUMNS `block` behind. */
static void spread_tile(const tiled *i, const float *x, int64_t at, int size, float *restrict out,
                        int64_t step, int64_t block)
{
    static const float zeros[COLUMNS] = {0};
    const pixel from = corner(i, at);
    for (int64_t c = 0; c < i->c; c += COLUMNS, out += block) {
        float d[16 * COLUMNS];
        for (int row = 0; row < size; row++)
            for (int column = 0; column < size; column++) {
                const int64_t begin = pixel_at(i, &from, row, column);
                move(d + (4 * row + column) * COLUMNS, begin < 0 ? zeros : x + begin + c);
            }
        for (int k = 0; k < size; k++)
            if (size == 4)
                spread_data(d + 4 * k * COLUMNS, 1);
            else
                spread_gradient(d + 4 * k * COLUMNS, 1);
        for (int k = 0; k < 4; k++)
            if (size == 4)
                spread_data(d + k * COLUMNS, 4);
            else
                spread_gradient(d + k * COLUMNS, 4);
        for (int64_t p = 0; p < 16; p++) move(out + p * step, d + p * COLUMNS);
    }
}

/* The weights transformed, as panels: out[p][output / COLUMNS][input][output % COLUMNS]. */
static void spread_weights(const float *weight, bool back, int64_t in, int64_t out, float *restrict to)
{
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            const float *g = weight + (back ? i * 9 * out + o : o * 9 * in + i);
            const int64_t step = back ? out : in;
            float rows[12];
            for (int k = 0; k < 3; k++) { /* along the columns of the window; backwards it is turned round */
                const float g0 = g[(back ? 8 - k : k) * step], g1 = g[(back ? 5 - k : 3 + k) * step],
                            g2 = g[(back ? 2 - k : 6 + k) * step];
                rows[k] = g0;
                rows[3 + k] = 0.5f * (g0 + g1 + g2);
                rows[6 + k] = 0.5f * (g0 - g1 + g2);
                rows[9 + k] = g2;
            }
            for (int k = 0; k < 4; k++) {
                const float g0 = rows[3 * k], g1 = rows[3 * k + 1], g2 = rows[3 * k + 2];
                float *at = to + ((4 * k * out + o / COLUMNS * COLUMNS) * in + i * COLUMNS + o % COLUMNS);
                at[0] = g0;
                at[in * out] = 0.5f * (g0 + g1 + g2);
                at[2 * in * out] = 0.5f * (g0 - g1 + g2);
                at[3 * in * out] = g2;
            }
        }
}

static tiled tiles_of(const convolution *d, bool y, bool back)
{
    tiled t = {.n = d->n, .h = y ? d->oh : d->h, .w = y ? d->ow : d->w, .c = y ? d->oc : d->c};
    t.rows = ((back ? d->h : d->oh) + 1) / 2;
    t.columns = ((back ? d->w : d->ow) + 1) / 2;
    for (int k = 0; k < 2; k++) t.pad[k] = y == back ? (back ? 2 - d->pad[k] : d->pad[k]) : 0;
    return t;
}

/* y = relu(x * weight + bias), or back: gx of gy. */
static void conv2d_3x3(const convolution *d, bool back, const float *x, const float *weight,
                       const float *bias, bool relu, float *y, float *room)
{
    const tiled from = tiles_of(d, back, back), to = tiles_of(d, !back, back);
    const int64_t in = from.c, out = to.c, count = from.n * from.rows * from.columns;
    const int64_t data_place = place_of_tiles(in), made_place = place_of_tiles(out);
    float *weights = room, *data = weights + 16 * in * out, *made = data + 16 * data_place;
    spread_weights(weight, back, in, out, weights);
    for (int64_t first = 0; first < count; first += TILES) {
        for (int64_t t = 0; t < TILES; t++)
            spread_tile(&from, x, first + t, 4, data + t * in, data_place, COLUMNS);
        for (int64_t p = 0; p < 16; p++)
            for (int64_t o = 0; o < out; o += COLUMNS)
                for (int64_t t = 0; t < TILES; t += ROWS)
                    whole_tile(in, data + p * data_place + t * in, in, 1, weights + (p * out + o) * in,
                               made + p * made_place + t * out + o, out, 0);
        for (int64_t t = 0; t < least(count - first, TILES); t++) {
            const pixel begin = corner(&to, first + t);
            for (int64_t o = 0; o < out; o += COLUMNS) {
                float m[16 * COLUMNS];
                for (int64_t p = 0; p < 16; p++) move(m + p * COLUMNS, made + p * made_place + t * out + o);
                for (int k = 0; k < 4; k++) join_pixels(m + 4 * k * COLUMNS, 1);
                for (int k = 0; k < 2; k++) join_pixels(m + k * COLUMNS, 4);
                for (int64_t p = 0; p < 4; p++) {
                    const int64_t at = pixel_at(&to, &begin, p / 2, p % 2);
                    if (at < 0) continue;
                    move(y + at + o, m + (p / 2 * 4 + p % 2) * COLUMNS);
                    finish(1, COLUMNS, NULL, bias ? bias + o : bias, relu, y + at + o, out);
                }
            }
        }
    }
}

/* gweight, from x and gy. */
static void conv2d_3x3_weight_grad(const convolution *d, const float *x, const float *gy, float *gweight,
                                   float *room)
{
    const tiled from = tiles_of(d, 0, 0), to = tiles_of(d, 1, 0);
    const int64_t in = from.c, out = to.c, count = from.n * from.rows * from.columns;
    const int64_t data_place = place_of_tiles(in), gradient_place = place_of_tiles(out);
    float *sums = room, *data = sums + 16 * in * out, *gradients = data + 16 * data_place;
    for (int64_t first = 0; first < count; first += TILES) {
        for (int64_t t = 0; t < TILES; t++) {
            spread_tile(&from, x, first + t, 4, data + t * COLUMNS, data_place, TILES * COLUMNS); /* panels */
            spread_tile(&to, gy, first + t, 2, gradients + t * out, gradient_place, COLUMNS);
        }
        for (int64_t p = 0; p < 16; p++)
            for (int64_t i = 0; i < in; i += COLUMNS)
                for (int64_t o = 0; o < out; o += ROWS)
                    whole_tile(TILES, gradients + p * gradient_place + o, 1, out,
                               data + p * data_place + i * TILES, sums + (p * out + o) * in + i, in,
                               first > 0);
    }
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i += COLUMNS) {
            float m[16 * COLUMNS];
            for (int64_t p = 0; p < 16; p++) move(m + p * COLUMNS, sums + (p * out + o) * in + i);
            for (int k = 0; k < 4; k++) join_weights(m + 4 * k * COLUMNS, 1);
            for (int k = 0; k < 3; k++) join_weights(m + k * COLUMNS, 4);
            for (int64_t p = 0; p < 9; p++)
                move(gweight + (o * 9 + p) * in + i, m + (p / 3 * 4 + p % 3) * COLUMNS);
        }
}
