/* transpose.h - a block of an operand that lies crosswise, read along its own lines and turned.
 *
 * Element by element a turn costs a load and a store each; from registers, lines of a vector's length are
 * turned by log2(lanes) rounds of interleaving: round by round line i and line i + lanes/2 become lines 2i
 * and 2i + 1, which rotates the bits of an element's place (line, lane) by one, and after as many rounds as a
 * lane has bits, line and lane have changed places. Lines and columns that are left over are turned one by
 * one.
 *
 * Read first: tn_turn.
 */
#ifndef TN_PRELUDE_TRANSPOSE_H
#define TN_PRELUDE_TRANSPOSE_H

#if defined(__AVX512F__)
#define TN_TURN_LANES 16
#define TN_TURN_LOW   0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define TN_TURN_HIGH  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define TN_TURN_LANES 8
#define TN_TURN_LOW   0, 8, 1, 9, 2, 10, 3, 11
#define TN_TURN_HIGH  4, 12, 5, 13, 6, 14, 7, 15
#elif defined(__GNUC__)
#define TN_TURN_LANES 4
#define TN_TURN_LOW   0, 4, 1, 5
#define TN_TURN_HIGH  2, 6, 3, 7
#endif

#if defined(TN_TURN_LANES)
typedef uint32_t tn_turned __attribute__((vector_size(4 * TN_TURN_LANES)));
typedef uint32_t tn_turned_at __attribute__((vector_size(4 * TN_TURN_LANES), aligned(4), may_alias));

#if defined(__clang__)
#define TN_INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TN_INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (tn_turned){__VA_ARGS__})
#endif

TN_FN void tn_turn_square(char *to, int64_t to_line, const char *from, int64_t from_line)
{
    tn_turned line[TN_TURN_LANES], next[TN_TURN_LANES];
    for (int i = 0; i < TN_TURN_LANES; i++) line[i] = *(const tn_turned_at *)(from + i * from_line);
    for (int bit = 1; bit < TN_TURN_LANES; bit *= 2) {
        for (int i = 0; i < TN_TURN_LANES / 2; i++) {
            next[2 * i] = TN_INTERLEAVE(line[i], line[i + TN_TURN_LANES / 2], TN_TURN_LOW);
            next[2 * i + 1] = TN_INTERLEAVE(line[i], line[i + TN_TURN_LANES / 2], TN_TURN_HIGH);
        }
        for (int i = 0; i < TN_TURN_LANES; i++) line[i] = next[i];
    }
    for (int i = 0; i < TN_TURN_LANES; i++) *(tn_turned_at *)(to + i * to_line) = line[i];
}
#endif

/* to[c * to_line + l] = from[l * from_line + c] for l < lines, c < columns: elements of 4 bytes, strides in
 * elements. */
TN_FN_LARGE void tn_turn(void *to, int64_t to_line, const void *from, int64_t from_line, int64_t lines,
                         int64_t columns)
{
    typedef uint32_t word __attribute__((may_alias));
    word *t = (word *)to;
    const word *f = (const word *)from;
    int64_t l = 0;
#if defined(TN_TURN_LANES)
    for (; l + TN_TURN_LANES <= lines; l += TN_TURN_LANES) {
        int64_t c = 0;
        for (; c + TN_TURN_LANES <= columns; c += TN_TURN_LANES)
            tn_turn_square((char *)(t + c * to_line + l), 4 * to_line, (const char *)(f + l * from_line + c),
                           4 * from_line);
        for (; c < columns; c++)
            for (int64_t k = l; k < l + TN_TURN_LANES; k++) t[c * to_line + k] = f[k * from_line + c];
    }
#endif
    for (; l < lines; l++)
        for (int64_t c = 0; c < columns; c++) t[c * to_line + l] = f[l * from_line + c];
}

#endif
