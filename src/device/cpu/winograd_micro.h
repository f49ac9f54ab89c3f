/* winograd_micro.h - the transforms of Winograd's convolution F(2x2, 3x3), written once and included by
 * winograd_kernel.c per instruction set.
 *
 * The includer defines: V (a vector of VL floats), TARGET (function attribute), NAME(x) (mangles), SPLAT(x),
 * LOAD(p), STORE(p, v), MUL(a, b), ADD(a, b), SUB(a, b), RELU(v). Everything is element by element along
 * channels, of which there is a multiple of VL. What each function computes stands in winograd_kernel.h. */

/* B^T d for one column of four: the rows of B^T are (1 0 -1 0), (0 1 1 0), (0 -1 1 0), (0 1 0 -1). */
static inline __attribute__((always_inline)) TARGET void NAME(spread_4)(const V d[4], V t[4])
{
    t[0] = SUB(d[0], d[2]);
    t[1] = ADD(d[1], d[2]);
    t[2] = SUB(d[2], d[1]);
    t[3] = SUB(d[1], d[3]);
}

static TARGET void NAME(input)(const float *const pixel[16], int64_t n, float *v, int64_t step)
{
    for (int64_t c = 0; c < n; c += VL) {
        V t[4][4];
        UNROLL for (int j = 0; j < 4; j++)
        {
            V d[4], u[4];
            UNROLL for (int i = 0; i < 4; i++)
            {
                d[i] = LOAD(pixel[4 * i + j] + c);
            }
            NAME(spread_4)(d, u);
            UNROLL for (int i = 0; i < 4; i++)
            {
                t[i][j] = u[i];
            }
        }
        UNROLL for (int i = 0; i < 4; i++)
        {
            V u[4];
            NAME(spread_4)(t[i], u);
            UNROLL for (int j = 0; j < 4; j++)
            {
                STORE(v + (4 * i + j) * step + c, u[j]);
            }
        }
    }
}

/* A y for a column of two: the rows of A are (1 0), (1 1), (1 -1), (0 -1). */
static inline __attribute__((always_inline)) TARGET void NAME(spread_2)(V y0, V y1, V t[4])
{
    t[0] = y0;
    t[1] = ADD(y0, y1);
    t[2] = SUB(y0, y1);
    t[3] = SUB(SPLAT(0), y1);
}

static TARGET void NAME(gradient)(const float *const pixel[4], int64_t n, float *z, int64_t step)
{
    for (int64_t c = 0; c < n; c += VL) {
        V left[4], right[4];
        NAME(spread_2)(LOAD(pixel[0] + c), LOAD(pixel[2] + c), left);
        NAME(spread_2)(LOAD(pixel[1] + c), LOAD(pixel[3] + c), right);
        UNROLL for (int i = 0; i < 4; i++)
        {
            V u[4];
            NAME(spread_2)(left[i], right[i], u);
            UNROLL for (int j = 0; j < 4; j++)
            {
                STORE(z + (4 * i + j) * step + c, u[j]);
            }
        }
    }
}

/* A^T m A. */
static TARGET void NAME(output)(const float *m, int64_t step, int64_t n, const float *bias, bool relu,
                                float *const pixel[4])
{
    for (int64_t c = 0; c < n; c += VL) {
        V t[2][4];
        UNROLL for (int j = 0; j < 4; j++)
        {
            V m0 = LOAD(m + j * step + c), m1 = LOAD(m + (4 + j) * step + c),
              m2 = LOAD(m + (8 + j) * step + c), m3 = LOAD(m + (12 + j) * step + c);
            t[0][j] = ADD(ADD(m0, m1), m2);
            t[1][j] = SUB(SUB(m1, m2), m3);
        }
        V b = bias ? LOAD(bias + c) : SPLAT(0);
        UNROLL for (int i = 0; i < 2; i++)
        {
            V y0 = ADD(ADD(ADD(t[i][0], t[i][1]), t[i][2]), b),
              y1 = ADD(SUB(SUB(t[i][1], t[i][2]), t[i][3]), b);
            STORE(pixel[2 * i] + c, relu ? RELU(y0) : y0);
            STORE(pixel[2 * i + 1] + c, relu ? RELU(y1) : y1);
        }
    }
}

/* G g for a column of three: the rows of G are (1 0 0), (1/2 1/2 1/2), (1/2 -1/2 1/2), (0 0 1). */
static inline __attribute__((always_inline)) TARGET void NAME(spread_3)(V g0, V g1, V g2, V t[4])
{
    V half = SPLAT(0.5f), outer = MUL(half, ADD(g0, g2)), inner = MUL(half, g1);
    t[0] = g0;
    t[1] = ADD(outer, inner);
    t[2] = SUB(outer, inner);
    t[3] = g2;
}

static TARGET void NAME(filter)(const float *const tap[9], int64_t n, float *u, int64_t step)
{
    for (int64_t c = 0; c < n; c += VL) {
        V t[3][4];
        UNROLL for (int j = 0; j < 3; j++)
        {
            NAME(spread_3)(LOAD(tap[j] + c), LOAD(tap[3 + j] + c), LOAD(tap[6 + j] + c), t[j]);
        }
        UNROLL for (int i = 0; i < 4; i++)
        {
            V w[4];
            NAME(spread_3)(t[0][i], t[1][i], t[2][i], w);
            UNROLL for (int j = 0; j < 4; j++)
            {
                STORE(u + (4 * i + j) * step + c, w[j]);
            }
        }
    }
}

/* G^T u for a column of four. */
static inline __attribute__((always_inline)) TARGET void NAME(gather_3)(const V u[4], V g[3])
{
    V half = SPLAT(0.5f), outer = MUL(half, ADD(u[1], u[2]));
    g[0] = ADD(u[0], outer);
    g[1] = MUL(half, SUB(u[1], u[2]));
    g[2] = ADD(outer, u[3]);
}

static TARGET void NAME(filter_gradient)(const float *u, int64_t step, int64_t n, float *const tap[9])
{
    for (int64_t c = 0; c < n; c += VL) {
        V t[3][4];
        UNROLL for (int j = 0; j < 4; j++)
        {
            V column[4], g[3];
            UNROLL for (int i = 0; i < 4; i++)
            {
                column[i] = LOAD(u + (4 * i + j) * step + c);
            }
            NAME(gather_3)(column, g);
            UNROLL for (int i = 0; i < 3; i++)
            {
                t[i][j] = g[i];
            }
        }
        UNROLL for (int i = 0; i < 3; i++)
        {
            V g[3];
            NAME(gather_3)(t[i], g);
            UNROLL for (int j = 0; j < 3; j++)
            {
                STORE(tap[3 * i + j] + c, g[j]);
            }
        }
    }
}

static TARGET void NAME(add)(float *sum, const float *more, int64_t n)
{
    for (int64_t c = 0; c < n; c += VL) STORE(sum + c, ADD(LOAD(sum + c), LOAD(more + c)));
}

#undef V
#undef VL
#undef TARGET
#undef NAME
#undef SPLAT
#undef LOAD
#undef STORE
#undef MUL
#undef ADD
#undef SUB
#undef RELU
