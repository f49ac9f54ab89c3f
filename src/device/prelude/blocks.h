/* blocks.h - the blocks that products and convolutions of an exported file are computed in (product.h of
 * src/device/cpu/kernels), and the room that takes: src/export reserves it, the file fills it.
 *
 * As in portable.h each definition is named by the line it begins with.
 */

/* A tile is ROWS x COLUMNS sums, of at most DEPTH terms each. A convolution gathers PIXELS patches, for at
 * most WIDE outputs; or as many, of at most WIDE terms, as the gradient of its weight is summed over at once.
 */
enum { ROWS = 4, COLUMNS = 16, DEPTH = 320, PIXELS = 8, WIDE = 256, SUMMED = 64, TILES = 32 };

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The length of the parts that `count` is cut into, none of more than `most`. */
static inline int64_t part(int64_t count, int64_t most)
{
    const int64_t parts = (count + most - 1) / most;
    return parts > 1 ? (count + parts - 1) / parts : count;
}

static inline int64_t whole_columns(int64_t n)
{
    return (n + COLUMNS - 1) / COLUMNS * COLUMNS;
}

/* In floats. */
static inline int64_t matmul_room(int64_t k)
{
    return part(k, DEPTH) * COLUMNS;
}

static inline int64_t convolve_room(int64_t terms, int64_t outputs)
{
    return part(terms, DEPTH) * (PIXELS + whole_columns(least(outputs, WIDE)));
}

static inline int64_t conv2d_weight_grad_room(int64_t pixels, int64_t terms)
{
    return (least(pixels, SUMMED) + 1) * whole_columns(least(terms, WIDE));
}

/* Of winograd_plain.h: TILES of so many channels at one place, whose distance is no power of two, as all
 * places of a tile are written one after the other. */
static inline int64_t place_of_tiles(int64_t channels)
{
    return TILES * channels + COLUMNS;
}

static inline int64_t conv2d_3x3_room(int64_t in, int64_t out)
{
    return 16 * (in * out + place_of_tiles(in) + place_of_tiles(out));
}
