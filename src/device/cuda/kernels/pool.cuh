/* pool.cuh - pooling on a GPU: what the thread of an item does. It has a pack of channels, 16 bytes of them where their
 * number allows. Of windows it makes one; of an image the elements of one step of the windows, STEP_Y by STEP_X, so that
 * no two threads of a warp go different ways, and each reads what the windows over its elements gave only once.
 *
 * It stands behind the operands, x or g and index, out and place, in the scope of item ITEM. fuser/text/window_cuda.c
 * defines the rest: at_t, of coordinates and positions; what is read, added up and written, and how; PACK, and packs of a
 * pixel, a row, an image; which of the operators it is: BACK, MAX, CHOSEN, TAKES.
 */

#define LANES TN_UNROLL(int l = 0; l < PACK; l++)
#if PACK > 1
#define READ(to, from)  tn_load(to, from)
#define WRITE(to, from) tn_store(to, from)
#else
#define READ(to, from)  to[0] = *(from)
#define WRITE(to, from) *(to) = from[0]
#endif

#if !BACK

    const at_t c0 = (at_t)(ITEM % PACKS) * PACK, ox = (at_t)(ITEM / PACKS % OW), oy = (at_t)(ITEM / ROW_PACKS % OH),
               n = (at_t)(ITEM / IMAGE_PACKS), to = ((n * OH + oy) * OW + ox) * C + c0;
    sum_t best[PACK];
    LANES best[l] = START;
#if CHOSEN
    int32_t which[PACK];
    LANES which[l] = -1;
#endif
#if TAKES
    chosen_t index_pack[PACK];
    READ(index_pack, index + to);
#endif
    UNROLL_WINDOW
    for (int ky = 0; ky < WINDOW_Y; ky++) {
        const at_t iy = oy * STEP_Y + ky - PAD_Y;
        if (iy < 0 || iy >= H) continue;
        for (int k0 = 0; k0 < WINDOW_X; k0 += AHEAD) {
            read_t x_pack[AHEAD][PACK];
            TN_UNROLL(int k = 0; k < AHEAD; k++) { /* of what lies outside, the nearest column */
                const at_t ix = ox * STEP_X + k0 + k - PAD_X, in = ix < 0 ? 0 : ix < W ? ix : W - 1;
                READ(x_pack[k], x + ((n * H + iy) * W + in) * C + c0);
            }
            TN_UNROLL(int k = 0; k < AHEAD; k++) {
                const int kx = k0 + k;
                const at_t ix = ox * STEP_X + kx - PAD_X;
                if (kx >= WINDOW_X) break;
                if (ix < 0 || ix >= W) continue;
                LANES {
                    const sum_t v = LOAD(x_pack[k][l]);
#if CHOSEN
                    const bool won = v > best[l] || which[l] < 0 || (v != v && best[l] == best[l]);
                    which[l] = won ? (int32_t)(ky * WINDOW_X + kx) : which[l];
                    best[l] = won ? v : best[l];
#elif MAX
                    best[l] = tn_max(best[l], v);
#elif TAKES
                    best[l] = (int32_t)index_pack[l] == (int32_t)(ky * WINDOW_X + kx) ? v : best[l];
#else
                    best[l] += v;
#endif
                }
            }
        }
    }
#if MAX || !CHOSEN
    written_t out_piece[PACK];
    LANES out_piece[l] = STORE(best[l]);
    WRITE(out + to, out_piece);
#endif
#if CHOSEN
    uint8_t place_piece[PACK];
    LANES place_piece[l] = (uint8_t)(which[l] < 0 ? 0 : which[l]);
    WRITE(place + to, place_piece);
#endif

#else /* MOST windows cover the elements of a step, BEFORE of them begin earlier; FIRST is the first step's number */

/* What window w gave, and which element it chose; beside the border, those of the nearest one. */
#define READ_WINDOW(slot)                                                                                              \
    const at_t at_y = oy0 + w / MOST_X, wy = at_y < 0 ? 0 : at_y < OH ? at_y : OH - 1;                                 \
    const at_t at_x = ox0 + w % MOST_X, wx = at_x < 0 ? 0 : at_x < OW ? at_x : OW - 1;                                 \
    READ(g_pack[slot], g + ((n * OH + wy) * OW + wx) * C + c0);                                                     \
    READ_CHOSEN(slot)
#if CHOSEN
#define READ_CHOSEN(slot) READ(index_pack[slot], index + ((n * OH + wy) * OW + wx) * C + c0);
#else
#define READ_CHOSEN(slot)
#endif

    const at_t c0 = (at_t)(ITEM % PACKS) * PACK, bx = (at_t)(ITEM / PACKS % STEPS_X),
               by = (at_t)(ITEM / ROW_PACKS % STEPS_Y), n = (at_t)(ITEM / IMAGE_PACKS);
    const at_t top0 = (by + FIRST_Y) * STEP_Y, left0 = (bx + FIRST_X) * STEP_X;
    const at_t oy0 = MOST_Y <= BEFORE_Y && by < BEFORE_Y - FIRST_Y ? 0 : by - (BEFORE_Y - FIRST_Y);
    const at_t ox0 = MOST_X <= BEFORE_X && bx < BEFORE_X - FIRST_X ? 0 : bx - (BEFORE_X - FIRST_X);
    read_t g_pack[HELD ? MOST_Y * MOST_X : 1][PACK];
#if CHOSEN
    chosen_t index_pack[HELD ? MOST_Y * MOST_X : 1][PACK];
#endif
#if HELD
    TN_UNROLL(int w = 0; w < MOST_Y * MOST_X; w++) { READ_WINDOW(w) }
#endif
    UNROLL_STEPS
    for (int ry = 0; ry < STEP_Y; ry++) {
        const at_t y = top0 + ry - PAD_Y;
        if (y < 0 || y >= H) continue;
        UNROLL_STEPS
        for (int rx = 0; rx < STEP_X; rx++) {
            const at_t x = left0 + rx - PAD_X;
            if (x < 0 || x >= W) continue;
            sum_t sum[PACK];
            LANES sum[l] = 0;
            UNROLL_HELD
            for (int w = 0; w < MOST_Y * MOST_X; w++) {
                const at_t oy = oy0 + w / MOST_X, ox = ox0 + w % MOST_X;
                const at_t ky = MOST_Y > BEFORE_Y ? ry + (BEFORE_Y - w / MOST_X) * STEP_Y : (by + FIRST_Y - oy) * STEP_Y + ry;
                const at_t kx = MOST_X > BEFORE_X ? rx + (BEFORE_X - w % MOST_X) * STEP_X : (bx + FIRST_X - ox) * STEP_X + rx;
                if (ky < 0 || ky >= WINDOW_Y || oy < 0 || oy >= OH) continue;
                if (kx < 0 || kx >= WINDOW_X || ox < 0 || ox >= OW) continue;
                const int slot = HELD ? w : 0;
#if !HELD
                READ_WINDOW(0)
#endif
                LANES {
#if CHOSEN
                    sum[l] += (int32_t)index_pack[slot][l] == (int32_t)(ky * WINDOW_X + kx) ? LOAD(g_pack[slot][l]) : 0;
#else
                    sum[l] += LOAD(g_pack[slot][l]);
#endif
                }
            }
            written_t out_piece[PACK];
            LANES out_piece[l] = STORE(sum[l]);
            WRITE(out + (((n * H + y) * W + x) * C + c0), out_piece);
        }
    }

#endif
