/* cuda.h - what generated CUDA kernels share: packs of elements moved 16 bytes at a time, reductions by the
 * threads of a team in one fixed order, the block that arrives last, faults.
 *
 *   pack   V elements that stand side by side and that one thread reads, computes and writes together. Arrays
 *          of V elements with constant indices; the compiler keeps them in registers.
 *   team   S threads that share a row: 1, 2, 4, .. 32 lanes of a warp, or a whole block of at least 64
 *          threads, or every W-th thread of a block of W teams. Every thread of a team gets the result of a
 *          reduction, and the bits of it depend on S and W alone. All threads of a warp, or of the
 *          block, come to it together.
 *
 * Comes after abi.h, math.h, philox.h and half.h, and like them includes nothing under NVRTC. All of it is
 * C++ that other compilers take too, once the few names of CUDA's own are defined.
 *
 * Read first: tn_load, then tn_team_reduce.
 */
#ifndef TN_PRELUDE_CUDA_H
#define TN_PRELUDE_CUDA_H

#if defined(__CUDACC_RTC__)  /* what other compilers have in their headers or built in */
#pragma nv_diag_suppress 177 /* a coordinate that happens not to be used */
#define __builtin_inff()  TN_INF
#define __builtin_inf()   ((double)TN_INF)
#define __builtin_nanf(s) TN_NAN
#define __builtin_nan(s)  ((double)TN_NAN)
#define INT32_MAX         2147483647
#define INT32_MIN         (-INT32_MAX - 1)
#define INT64_C(v)        v##L
#define INT64_MAX         INT64_C(9223372036854775807)
#define INT64_MIN         (-INT64_MAX - 1)
#endif

/* In front of a member function, which cannot be TN_FN. */
#if defined(__CUDACC__)
#define TN_MEMBER __device__ __forceinline__
#else
#define TN_MEMBER inline __attribute__((always_inline))
#endif

/* In front of a loop whose turns are written out. */
#define TN_UNROLL(...) _Pragma("unroll") for (__VA_ARGS__)

/* ---- packs ---- */

/* The sizes that one instruction moves. Elements of any type are read through them. */
typedef struct __attribute__((aligned(16), may_alias)) tn_move16 {
    uint32_t w[4];
} tn_move16;
typedef struct __attribute__((aligned(8), may_alias)) tn_move8 {
    uint32_t w[2];
} tn_move8;
typedef struct __attribute__((aligned(4), may_alias)) tn_move4 {
    uint32_t w[1];
} tn_move4;
typedef struct __attribute__((aligned(2), may_alias)) tn_move2 {
    uint16_t w[1];
} tn_move2;

template <int BYTES> struct tn_move_of {
    typedef tn_move16 type; /* of 16 and whatever is a multiple of it */
};
template <> struct tn_move_of<8> {
    typedef tn_move8 type;
};
template <> struct tn_move_of<4> {
    typedef tn_move4 type;
};
template <> struct tn_move_of<2> {
    typedef tn_move2 type;
};

/* V elements from an address that is a multiple of their size or of 16 bytes. */
template <class T, int V> TN_FN void tn_load(T (&to)[V], const T *from)
{
    typedef typename tn_move_of<(int)sizeof(T) * V>::type move;
    enum { MOVES = (int)sizeof(T) * V / (int)sizeof(move) };
    union {
        move m[MOVES];
        T t[V];
    } u;
    TN_UNROLL(int i = 0; i < MOVES; i++) u.m[i] = ((const move *)from)[i];
    TN_UNROLL(int i = 0; i < V; i++) to[i] = u.t[i];
}

template <class T, int V> TN_FN void tn_store(T *to, const T (&from)[V])
{
    typedef typename tn_move_of<(int)sizeof(T) * V>::type move;
    enum { MOVES = (int)sizeof(T) * V / (int)sizeof(move) };
    union {
        move m[MOVES];
        T t[V];
    } u;
    TN_UNROLL(int i = 0; i < V; i++) u.t[i] = from[i];
    TN_UNROLL(int i = 0; i < MOVES; i++) ((move *)to)[i] = u.m[i];
}

/* Random words, and standard normals, of elements index .. index + V - 1. index is a multiple of V; one
 * counter serves four elements. */
template <int V> TN_FN void tn_random_pack(uint64_t seed, uint64_t draw, uint64_t index, uint32_t (&out)[V])
{
    if constexpr (V == 1) {
        out[0] = tn_philox_u32(seed, draw, index);
    } else {
        uint32_t w[4];
        TN_UNROLL(int i = 0; i < V; i += 4) {
            tn_philox_block(seed, draw, (index + (uint64_t)i) / 4, w);
            TN_UNROLL(int l = 0; l < (V < 4 ? V : 4); l++)
                out[i + l] = V == 2 && (index & 2) ? w[l + 2] : w[l];
        }
    }
}

template <int V> TN_FN void tn_random_pack(uint64_t seed, uint64_t draw, uint64_t index, float (&out)[V])
{
    if constexpr (V == 1) {
        out[0] = tn_philox_normal(seed, draw, index);
    } else {
        uint32_t w[4];
        TN_UNROLL(int i = 0; i < V; i += 4) {
            tn_philox_block(seed, draw, (index + (uint64_t)i) / 4, w);
            if (V == 2) {
                tn_normal_pair(index & 2 ? w[2] : w[0], index & 2 ? w[3] : w[1], &out[0], &out[1]);
            } else {
                tn_normal_pair(w[0], w[1], &out[i], &out[(i + 1) % V]);
                tn_normal_pair(w[2], w[3], &out[(i + 2) % V], &out[(i + 3) % V]);
            }
        }
    }
}

/* ---- reductions ---- */

/* A sum of floats and of what its additions have rounded away, each of which two-sum finds exactly (Knuth):
 * as good as one in double, which costs most GPUs many times as much. An infinite sum has lost nothing. */
struct tn_twice {
    float sum, lost;
    tn_twice() = default;
    TN_MEMBER tn_twice(float x) : sum(x), lost(0) {}
    TN_MEMBER tn_twice &operator+=(float x)
    {
        const float to = sum + x, by = to - sum;
        lost += (sum - (to - by)) + (x - by);
        sum = to;
        return *this;
    }
    TN_MEMBER explicit operator float() const { return lost == lost ? sum + lost : sum; }
};
TN_FN tn_twice operator+(tn_twice a, tn_twice b)
{
    a += b.sum;
    a.lost += b.lost;
    return a;
}

struct tn_sum_of {
    template <class T> static TN_MEMBER T of(T a, T b) { return (T)(a + b); }
};
struct tn_prod_of {
    template <class T> static TN_MEMBER T of(T a, T b) { return (T)(a * b); }
};
struct tn_max_of {
    template <class T> static TN_MEMBER T of(T a, T b) { return tn_max(a, b); }
    template <class T> static TN_MEMBER bool better(T a, T b) { return a > b; }
};
struct tn_min_of {
    template <class T> static TN_MEMBER T of(T a, T b) { return tn_min(a, b); }
    template <class T> static TN_MEMBER bool better(T a, T b) { return a < b; }
};

TN_FN int tn_count_bits(uint32_t u)
{
    u = u - (u >> 1 & 0x55555555u);
    u = (u & 0x33333333u) + (u >> 2 & 0x33333333u);
    return (int)(((u + (u >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

/* Another lane's value, of a whole warp, and that of the lane whose number differs in bit d. Any type of up to
 * 8 bytes. */
#define TN_OF_LANE(name, which, word)                                                                        \
    template <class T> TN_FN T name(T x, int which)                                                          \
    {                                                                                                        \
        enum { WORDS = ((int)sizeof(T) + 3) / 4 };                                                           \
        union {                                                                                              \
            uint32_t w[WORDS];                                                                               \
            T x;                                                                                             \
        } u;                                                                                                 \
        u.w[0] = 0;                                                                                          \
        u.x = x;                                                                                             \
        TN_UNROLL(int i = 0; i < WORDS; i++) u.w[i] = word;                                                  \
        return u.x;                                                                                          \
    }
TN_OF_LANE(tn_lane_value, lane, __shfl_sync(0xffffffffu, u.w[i], lane & 31))
TN_OF_LANE(tn_xor_lane, d, __shfl_xor_sync(0xffffffffu, u.w[i], d))

template <class OP, int S, class T, int W = 1> TN_FN T tn_lanes_reduce(T x)
{
    TN_UNROLL(int d = S / 2; d >= W; d /= 2) {
        T y = tn_xor_lane(x, d);
        x = threadIdx.x & d ? OP::of(y, x) : OP::of(x, y);
    }
    return x;
}

/* Reduces the packs of accumulators of all threads of a team to one value, which every thread of it gets. */
template <class OP, int S, int W = 1, class T, int V> TN_FN T tn_team_reduce(const T (&lane)[V])
{
    enum { ALL = S * W, WARPS = ALL > 32 ? ALL / 32 : 1 };
    T fold[V];
    TN_UNROLL(int l = 0; l < V; l++) fold[l] = lane[l];
    TN_UNROLL(int h = V / 2; h > 0; h /= 2)
        TN_UNROLL(int l = 0; l < h; l++) fold[l] = OP::of(fold[l], fold[l + h]);
    T x = tn_lanes_reduce<OP, (ALL < 32 ? ALL : 32), T, W>(fold[0]);
    if (ALL <= 32) return x;
    __shared__ T room[WARPS * W];
    const int team = (int)threadIdx.x % W;
    if (threadIdx.x % 32 < W) room[threadIdx.x / 32 * W + team] = x;
    __syncthreads();
    x = room[team];
    TN_UNROLL(int w = 1; w < WARPS; w++) x = OP::of(x, room[w * W + team]);
    __syncthreads(); /* the room is free again */
    return x;
}

/* Of two candidates the better one: a NaN beats everything but an earlier NaN, an earlier position an equal
 * value, and any position none at all (-1). */
template <class OP, class T> TN_FN void tn_take_better(T &value, int64_t &at, T other, int64_t other_at)
{
    const bool nan = value != value, other_nan = other != other;
    const bool same = value == other || (nan && other_nan);
    const bool better = OP::better(other, value) || (other_nan && !nan) || (same && other_at < at);
    if (other_at >= 0 && (at < 0 || better)) {
        value = other;
        at = other_at;
    }
}

/* The position of the best of the team's candidates. */
template <class OP, int S, class T, int V>
TN_FN int64_t tn_team_choose(const T (&lane)[V], const int64_t (&at)[V])
{
    T x = lane[0];
    int64_t p = at[0];
    TN_UNROLL(int l = 1; l < V; l++) tn_take_better<OP>(x, p, lane[l], at[l]);
    TN_UNROLL(int d = (S < 32 ? S : 32) / 2; d > 0; d /= 2) {
        T y = tn_xor_lane(x, d);
        int64_t q = tn_xor_lane(p, d);
        tn_take_better<OP>(x, p, y, q);
    }
    if (S <= 32) return p;
    __shared__ T room[S > 32 ? S / 32 : 1];
    __shared__ int64_t room_at[S > 32 ? S / 32 : 1];
    if (threadIdx.x % 32 == 0) {
        room[threadIdx.x / 32] = x;
        room_at[threadIdx.x / 32] = p;
    }
    __syncthreads();
    x = room[0];
    p = room_at[0];
    TN_UNROLL(int w = 1; w < S / 32; w++) tn_take_better<OP>(x, p, room[w], room_at[w]);
    __syncthreads();
    return p;
}

/* Column sums: a block is TX packs of columns by TY rows, thread x + y * TX. The accumulators of the threads
 * of a column are added up by halves; every thread gets its columns' totals. */
template <class OP, int TX, int TY, class T, int V> TN_FN void tn_columns_reduce(T (&acc)[V])
{
    __shared__ T room[V * TX * TY];
    const int x = (int)threadIdx.x % TX, y = (int)threadIdx.x / TX;
    TN_UNROLL(int l = 0; l < V; l++) room[(l * TY + y) * TX + x] = acc[l];
    __syncthreads();
    for (int h = TY / 2; h > 0; h /= 2) {
        if (y < h) {
            TN_UNROLL(int l = 0; l < V; l++) {
                acc[l] = OP::of(acc[l], room[(l * TY + y + h) * TX + x]);
                room[(l * TY + y) * TX + x] = acc[l];
            }
        }
        __syncthreads();
    }
    TN_UNROLL(int l = 0; l < V; l++) acc[l] = room[l * TY * TX + x];
    __syncthreads();
}

template <class OP, int TX, int TY, class T, int V>
TN_FN void tn_columns_choose(T (&acc)[V], int64_t (&at)[V])
{
    __shared__ T room[V * TX * TY];
    __shared__ int64_t room_at[V * TX * TY];
    const int x = (int)threadIdx.x % TX, y = (int)threadIdx.x / TX;
    TN_UNROLL(int l = 0; l < V; l++) {
        room[(l * TY + y) * TX + x] = acc[l];
        room_at[(l * TY + y) * TX + x] = at[l];
    }
    __syncthreads();
    for (int h = TY / 2; h > 0; h /= 2) {
        if (y < h) {
            TN_UNROLL(int l = 0; l < V; l++) {
                const int mine = (l * TY + y) * TX + x, other = (l * TY + y + h) * TX + x;
                tn_take_better<OP>(acc[l], at[l], room[other], room_at[other]);
                room[mine] = acc[l];
                room_at[mine] = at[l];
            }
        }
        __syncthreads();
    }
    TN_UNROLL(int l = 0; l < V; l++) {
        acc[l] = room[l * TY * TX + x];
        at[l] = room_at[l * TY * TX + x];
    }
    __syncthreads();
}

/* ---- blocks ---- */

/* Returns how many threads before this one have a hit, and sets *all to how many there are in the block of
 * THREADS. */
template <int THREADS> TN_FN int tn_place_in_block(bool hit, int *all)
{
    __shared__ int room[THREADS / 32];
    const uint32_t hits = __ballot_sync(0xffffffffu, hit);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (lane == 0) room[warp] = tn_count_bits(hits);
    __syncthreads();
    int place = tn_count_bits(hits & ((1u << lane) - 1)), sum = 0;
    TN_UNROLL(int w = 0; w < THREADS / 32; w++) {
        if (w < warp) place += room[w];
        sum += room[w];
    }
    __syncthreads(); /* the room is free again */
    *all = sum;
    return place;
}

/* Returns how many lanes before this one have the same digit of 8 bits, and sets *all to how many of the warp
 * have it; lanes that are not there have none. */
TN_FN int tn_place_of_digit(int digit, bool there, int *all)
{
    uint32_t same = __ballot_sync(0xffffffffu, there);
    TN_UNROLL(int b = 0; b < 8; b++) {
        const uint32_t set = __ballot_sync(0xffffffffu, digit >> b & 1);
        same &= digit >> b & 1 ? set : ~set;
    }
    *all = tn_count_bits(same);
    return tn_count_bits(same & ((1u << threadIdx.x % 32) - 1));
}

/* Returns true in every thread of the last of `blocks` blocks to arrive here, which then sees what the others
 * wrote. Called once, by all threads of these blocks. */
TN_FN bool tn_arrive_last(uint32_t *ticket, uint32_t blocks)
{
    __shared__ uint32_t last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == blocks - 1;
        if (last) *ticket = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last != 0;
}

/* The first fault stays. */
TN_FN void index_fault(const tn_cuda_args &a, int64_t where, int64_t value)
{
    if (atomicCAS(&a.fault->code, (int32_t)TN_FAULT_NONE, (int32_t)TN_FAULT_INDEX) != TN_FAULT_NONE) return;
    a.fault->where = (int32_t)where;
    a.fault->value = value;
    a.fault->in = a.fault->now;
}

#endif
