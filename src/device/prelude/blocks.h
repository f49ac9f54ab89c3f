/* blocks.h - the blocks that products and convolutions of an exported file are computed in (product.h of
 * src/device/cpu/kernels), and the room that takes: src/export reserves it, the file fills it.
 *
 * As in portable.h each definition is named by the line it begins with.
 */

/* A tile is TN_ROWS x COLUMNS sums, of at most DEPTH terms each: as many rows as vectors of that width stay
 * in registers, each of which is named. */
#if defined(__AVX512F__)
#define TN_ROWS        8
#define TN_EACH_ROW(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#else
#define TN_ROWS        4
#define TN_EACH_ROW(f) f(0) f(1) f(2) f(3)
#endif

/* What is called with constants that it gains much by. */
#if defined(__GNUC__)
#define TN_INLINE static inline __attribute__((always_inline))
#else
#define TN_INLINE static inline
#endif

/* A product is cut into BLOCK rows of a panel of COLUMNS. A convolution gathers PIXELS patches, for at most
 * WIDE outputs; or as many, of at most WIDE terms, as the gradient of its weight is summed over at once. */
enum { COLUMNS = 16, DEPTH = 320, BLOCK = 64, PIXELS = 8, WIDE = 256, SUMMED = 64 };

/* Of winograd_plain.h: so many tiles at a time, of SPAN x SPAN pixels. */
enum { TILES = 24, SPAN = 6, PLACES = 36 };

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t blocks_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

/* The length of the parts that `count` is cut into, none of more than `most`. */
static inline int64_t part(int64_t count, int64_t most)
{
    return count > most ? blocks_of(count, blocks_of(count, most)) : count;
}

static inline int64_t whole_columns(int64_t n) { return blocks_of(n, COLUMNS) * COLUMNS; }

/* In floats. */
static inline int64_t matmul_room(int64_t k) { return part(k, DEPTH) * COLUMNS; }

static inline int64_t convolve_room(int64_t terms, int64_t outputs)
{
    return part(terms, DEPTH) * (PIXELS + whole_columns(least(outputs, WIDE)));
}

static inline int64_t conv2d_weight_grad_room(int64_t pixels, int64_t terms)
{
    return (least(pixels, SUMMED) + 1) * whole_columns(least(terms, WIDE));
}

/* TILES of so many channels at one place, whose distance is no power of two, as all places of a tile are
 * written one after the other. */
static inline int64_t place_of_tiles(int64_t channels) { return TILES * channels + COLUMNS; }

static inline int64_t conv2d_3x3_room(int64_t in, int64_t out)
{
    return PLACES * (place_of_tiles(in) + place_of_tiles(out));
}
