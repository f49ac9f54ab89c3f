/* stream.h - stores that go past the caches, for results too large to be found there by whoever reads them.
 *
 * A plain store reads the line it is about to overwrite; a streaming store does not, which is a third of the
 * traffic of a copy. Kernels compute a piece of a row into a small array and hand it to tn_stream. Before a
 * kernel returns it calls tn_stream_end, so that other threads see what was written.
 */
#ifndef TN_PRELUDE_STREAM_H
#define TN_PRELUDE_STREAM_H

#if defined(__x86_64__) && defined(__SSE2__)
typedef uint32_t tn_line_word __attribute__((may_alias));
#if defined(__AVX512F__)
typedef float tn_line __attribute__((vector_size(64), aligned(1), may_alias));
typedef float tn_line_at __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float tn_line __attribute__((vector_size(32), aligned(1), may_alias));
typedef float tn_line_at __attribute__((vector_size(32)));
#else
typedef float tn_line __attribute__((vector_size(16), aligned(1), may_alias));
typedef float tn_line_at __attribute__((vector_size(16)));
#endif

TN_FN void tn_stream_line(void *to, const void *from)
{
    tn_line_at v = *(const tn_line *)from;
#if defined(__clang__)
    __builtin_nontemporal_store(v, (tn_line_at *)to);
#elif defined(__AVX512F__)
    __builtin_ia32_movntps512((float *)to, v);
#elif defined(__AVX__)
    __builtin_ia32_movntps256((float *)to, v);
#else
    __builtin_ia32_movntps((float *)to, v);
#endif
}

#ifdef __OPTIMIZE__
#define TN_FN_APART static __attribute__((noinline, unused))
#else /* see TN_FN_LARGE */
#define TN_FN_APART static inline __attribute__((unused))
#endif

/* Writes a piece of any length to any address: bytes before the first whole line and behind the last by plain
 * stores. */
TN_FN_APART void tn_stream_apart(char *q, const char *p, int64_t bytes)
{
    const bool words = ((uintptr_t)q | (uintptr_t)p | (uint64_t)bytes) % 4 == 0;
    const int step = words ? 4 : 1;
    for (; bytes > 0 && (uintptr_t)q % sizeof(tn_line); q += step, p += step, bytes -= step) {
        if (words)
            *(tn_line_word *)q = *(const tn_line_word *)p;
        else
            *q = *p;
    }
    for (; bytes >= (int64_t)sizeof(tn_line); bytes -= (int64_t)sizeof(tn_line)) {
        tn_stream_line(q, p);
        q += sizeof(tn_line);
        p += sizeof(tn_line);
    }
    for (; bytes > 0; q += step, p += step, bytes -= step) {
        if (words)
            *(tn_line_word *)q = *(const tn_line_word *)p;
        else
            *q = *p;
    }
}

TN_FN void tn_stream(void *to, const void *from, int64_t bytes)
{
    if (__builtin_expect(((uintptr_t)to | (uint64_t)bytes) % sizeof(tn_line) != 0, 0))
        tn_stream_apart((char *)to, (const char *)from, bytes);
    else
        for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(tn_line))
            tn_stream_line((char *)to + i, (const char *)from + i);
}

TN_FN void tn_stream_end(void) { __builtin_ia32_sfence(); }
#else
TN_FN void tn_stream(void *to, const void *from, int64_t bytes)
{
    __builtin_memcpy(to, from, (uint64_t)bytes);
}
TN_FN void tn_stream_end(void) {}
#endif

#endif
