/* readers.h - fuzz targets that read files: checkpoints with an optimizer's state, IDX, sheets, images,
 * CIFAR-10, arrays, texts. */
#pragma once

#include <unistd.h>
#ifdef TN_HAVE_ZLIB
#include <zlib.h>
#endif

#include "fuzz.h"

/* ---- checkpoints ---- */

/* A network with every kind of thing that a checkpoint holds, on the interpreter, which has no kernels to
 * compile. */
typedef struct fuzz_run {
    tn_session *s;
    tn_optim *adamw, *sgd;
    tn_dataset *data;
    tn_linear *fc;
    tn_conv *conv;
    int taken;
} fuzz_run;

static void fuzz_close_run(fuzz_run *r)
{
    if (r->s) FUZZ_CHECK(tn_close(r->s) == TN_OK);
    r->s = NULL;
}

static void fuzz_open_run(fuzz_run *r)
{
    static const float x[6] = {0, 1, 2, 3, 4, 5};
    static const int32_t y[6] = {0, 1, 0, 1, 0, 1};
    tn_session *s = tn_open(.device = TN_REF, .threads = 1, .seed = 3, .log = fuzz_quiet);
    *r = (fuzz_run){.s = s};
    FUZZ_CHECK(s);
    r->conv = tn_conv2d_new(s, "c", 2, 2, 1);
    tn_batch_norm_new(s, "n", 2);
    r->fc = tn_linear_new(s, "f", 3, 2);
    tn_linear_new(s, "g", 12, 8, .flattened = {2, 3, 2}, .unflattened = {2, 2, 2});
    tn_tensor *wide = tn_param(s, "w", tn_full(s, 1.5, TN_F64, TN_SHAPE(2)));
    tn_buffer(s, "b", tn_zeros(s, TN_BOOL, TN_SHAPE(2)));
    r->adamw = tn_adamw(s, TN_PARAMS(r->fc->weight, r->fc->bias, wide), .lr = .5, .accumulate = 3);
    r->sgd = tn_sgd(s, TN_PARAMS(r->conv->weight, r->conv->bias), .momentum = .5);
    r->data = tn_dataset_from(s, x, y, 6, TN_SHAPE(1));
    FUZZ_CHECK(!tn_error(s));
}

/* What must not change where a file is refused. */
static uint64_t fuzz_state_of(const fuzz_run *r)
{
    double v[256];
    uint64_t h = tn_rng_draw(r->s) ^ tn_seed(r->s) << 1 ^ (uint64_t)tn_dataset_epoch(r->data) << 2;
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < (kind ? tn_buffer_count(r->s) : tn_param_count(r->s)); i++) {
            tn_tensor *t = kind ? tn_buffer_at(r->s, i) : tn_param_at(r->s, i);
            FUZZ_CHECK(!tn_read(t, TN_F64, v, (size_t)tn_numel(t) * sizeof *v));
            for (int64_t k = 0; k < tn_numel(t); k++) {
                uint64_t bits;
                memcpy(&bits, &v[k], 8);
                h = (h ^ bits) * 0x9e3779b97f4a7c15u;
            }
        }
    const tn_optim *o[] = {r->adamw, r->sgd};
    for (int k = 0; k < 2; k++) {
        h = (h ^ (uint64_t)o[k]->gathered) * 0x9e3779b97f4a7c15u;
        for (int i = 0; i < o[k]->n; i++)
            h = (h ^ (uint64_t)o[k]->entries[i].steps ^ o[k]->entries[i].summed) * 0x9e3779b97f4a7c15u;
    }
    return h;
}

static void fuzz_train(fuzz_run *r)
{
    static const float x[3] = {1, 2, 3};
    tn_session *s = r->s;
    tn_step_begin(s);
    tn_tensor *h = tn_linear_forward(r->fc, tn_from(s, x, TN_F32, TN_SHAPE(1, 3)));
    tn_tensor *g = tn_conv2d_forward(r->conv, tn_reshape(h, TN_SHAPE(1, 1, 1, 2)));
    tn_backward(tn_sum(tn_square(g), TN_ALL, false));
    tn_optim_step(r->adamw);
    tn_optim_step(r->sgd);
    tn_step_end(s);
}

static void fuzz_one_checkpoint(const uint8_t *data, size_t size)
{
    static fuzz_run r;
    static uint64_t state;
    if (!r.s || r.taken >= 200) { /* NULL and 0 at the first call */
        fuzz_close_run(&r);
        fuzz_open_run(&r);
        state = fuzz_state_of(&r);
    }
    served.data = data;
    served.size = size;
    const int way = (int)(size % 8);
    const tn_layout layout = way < 5 ? TN_LAYOUT_MARKED : way == 5 ? TN_LAYOUT_TENSOR : TN_LAYOUT_PYTORCH;
    if (tn_load(r.s, "file", .layout = layout, .no_flatten = way == 7)) {
        FUZZ_CHECK(*tn_error_text(r.s));
        tn_clear_error(r.s);
        if (size % 8 == 0) FUZZ_CHECK(fuzz_state_of(&r) == state); /* it would be another one ever after */
        return;
    }
    r.taken++;
    if (r.taken % 16 == 1) { /* what was taken can be trained on, whatever it is */
        tn_batch b;
        fuzz_train(&r);
        tn_loader *l = tn_loader_open(r.data, .batch = 2, .shuffle = true);
        if (l && tn_next(l, &b)) tn_loader_close(l);
        tn_clear_error(r.s);
    }
    state = fuzz_state_of(&r);
}

/* Saved after k steps, of which some gather and some update. */
static size_t fuzz_good_checkpoint(unsigned k, uint8_t *out, size_t room)
{
    enum { MADE = 4 };
    static uint8_t *made[MADE];
    static size_t bytes[MADE];
    k %= MADE;
    if (!made[k]) {
        char path[64];
        fuzz_run r;
        snprintf(path, sizeof path, "/tmp/tn_fuzz_%ld.safetensors", (long)getpid());
        fuzz_open_run(&r);
        for (unsigned i = 0; i < k + 1; i++) fuzz_train(&r);
        FUZZ_CHECK(!tn_save(r.s, path));
        fuzz_close_run(&r);
        FILE *f = fopen(path, "rb");
        FUZZ_CHECK(f);
        made[k] = calloc(1, 1 << 16);
        FUZZ_CHECK(made[k]);
        bytes[k] = fread(made[k], 1, 1 << 16, f);
        fclose(f);
        unlink(path);
    }
    FUZZ_CHECK(bytes[k] <= room);
    memcpy(out, made[k], bytes[k]);
    return bytes[k];
}

/* ---- IDX ---- */

static void fuzz_one_idx(const uint8_t *data, size_t size)
{
    nn_why why = {0};
    nn_images images = {0};
    unsigned char *labels = NULL, sum = 0;
    int64_t n = 0;
    served.data = data;
    served.size = size;
    if (!tn_nn_idx_images("images", &images, &why)) {
        for (int64_t i = 0; i < images.n * images.h * images.w; i++) sum ^= images.pixels[i];
        tn_free_mem(images.pixels);
    } else
        FUZZ_CHECK(*why.text);
    why = (nn_why){0};
    if (!tn_nn_idx_labels("labels", &labels, &n, &why)) {
        for (int64_t i = 0; i < n; i++) sum ^= labels[i];
        tn_free_mem(labels);
    } else
        FUZZ_CHECK(*why.text);
    volatile unsigned char read = sum;
    (void)read;
}

#ifdef TN_HAVE_ZLIB
static size_t fuzz_pack(const uint8_t *in, size_t n, uint8_t *out, size_t room)
{
    z_stream z = {0};
    FUZZ_CHECK(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    uint8_t copy[256];
    memcpy(copy, in, n);
    z.next_in = copy;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)room;
    FUZZ_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    size_t bytes = z.total_out;
    deflateEnd(&z);
    return bytes;
}
#endif

static size_t fuzz_good_idx(unsigned k, uint8_t *out, size_t room)
{
    uint8_t file[256] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3, 4, 5};
    size_t n = 16 + 24;
    for (size_t i = 16; i < n; i++) file[i] = (uint8_t)(i * 37);
    if (k & 1) memcpy(file, labels, n = sizeof labels);
    if (k & 4) file[k / 8 % n] ^= (uint8_t)(1 << k % 8); /* packed, nothing changes a header */
#ifdef TN_HAVE_ZLIB
    if (k & 2) return fuzz_pack(file, n, out, room);
#endif
    memcpy(out, file, n <= room ? n : room);
    return n <= room ? n : room;
}

/* ---- sheets ---- */

/* Whether the header of a PNG or one of its parts, or a frame of a JPEG, claims so much that memory for it is
 * most of the work: one in 64 will do. */
static bool fuzz_claims_much(const uint8_t *data, size_t size)
{
    enum { MANY = 1 << 14 };
    if (size % 64 == 0) return false;
    const bool png = size && data[0] != 0xff;
    uint64_t side[2] = {0};
    for (size_t i = 0; png && size >= 24 && i < 8; i++) side[i / 4] = side[i / 4] << 8 | data[16 + i];
    bool much = side[0] * side[1] > MANY;
    for (size_t i = 2; i + 9 <= size && !much; i++)
        if (png) /* the length is longer than a file is */
            much = !memcmp(data + i + 2, "IDAT", 4) && (data[i - 2] || data[i - 1]);
        else if (data[i] == 0xff && data[i + 1] >= 0xc0 && data[i + 1] <= 0xc2) /* length, 8, sides */
            much = (data[i + 5] << 8u | data[i + 6]) * (int64_t)(data[i + 7] << 8u | data[i + 8]) > MANY;
    return much;
}

static uint32_t fuzz_crc(const uint8_t *p, size_t n)
{
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
    }
    return ~c;
}

/* A PNG as it is, or, mostly, with check sums that fit, without which nothing else of it is looked at. */
static const uint8_t *fuzz_sealed(const uint8_t *data, size_t size)
{
    static uint8_t copy[1 << 16];
    if (size % 8 == 0 || size > sizeof copy || data[0] == 0xff) return data;
    memcpy(copy, data, size);
    for (size_t at = 8, n; at + 12 <= size; at += n + 12) {
        n = (size_t)copy[at] << 24 | (size_t)copy[at + 1] << 16 | (size_t)copy[at + 2] << 8 | copy[at + 3];
        if (n > size - at - 12) break;
        const uint32_t crc = fuzz_crc(copy + at + 4, n + 4);
        for (size_t i = 0; i < 4; i++) copy[at + 8 + n + i] = (uint8_t)(crc >> 8 * (3 - i));
    }
    return copy;
}

static void fuzz_one_sheet(const uint8_t *data, size_t size)
{
    static const int64_t tile[][3] = {{1, 1, 1}, {4, 2, 2}, {6, 3, 5}, {2, 28, 28}, {1000000, 28, 28}};
    if (fuzz_claims_much(data, size)) return;
    served.data = fuzz_sealed(data, size);
    served.size = size;
    const int64_t *t = tile[size % 5];
    nn_why why = {0};
    nn_images images = {0};
    if (tn_nn_sheet("sheet", t[0], t[1], t[2], &images, &why)) {
        FUZZ_CHECK(*why.text);
        return;
    }
    unsigned char sum = 0;
    for (int64_t k = 0; k < images.n * images.h * images.w; k++) sum ^= images.pixels[k];
    volatile unsigned char read = sum;
    (void)read;
    tn_free_mem(images.pixels);
}

static size_t fuzz_chunk(uint8_t *out, const char *kind, const uint8_t *data, size_t n)
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(n >> 8 * (3 - i));
    memcpy(out + 4, kind, 4);
    if (n) memcpy(out + 8, data, n);
    uint32_t crc = fuzz_crc(out + 4, n + 4);
    for (int i = 0; i < 4; i++) out[8 + n + i] = (uint8_t)(crc >> 8 * (3 - i));
    return n + 12;
}

/* A PNG of each colour type and depth, interlaced or not, with stored blocks that need no packer. */
static size_t fuzz_good_sheet(unsigned k, uint8_t *out, size_t room)
{
    static const uint8_t form[][2] = {{0, 8}, {0, 1}, {0, 2}, {0, 4}, {0, 16}, {2, 8}, {2, 16},
                                      {3, 8}, {3, 4}, {3, 1}, {4, 8}, {4, 16}, {6, 8}, {6, 16}};
    const uint8_t *f = form[k % 14];
    bool laced = k / 14 % 2;
    enum { W = 6, H = 6 };
    size_t channels = f[0] == 2   ? 3
                      : f[0] == 4 ? 2
                      : f[0] == 6 ? 4
                                  : 1,
           n = 0, row = (W * channels * f[1] + 7) / 8;
    uint8_t raw[1024], z[1100], head[13] = {0, 0, 0, W, 0, 0, 0, H, f[1], f[0], 0, 0, laced};
    static const uint8_t first[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const int pass[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                   {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    uint32_t a = 1, b = 0;
    for (int p = 0; p < (laced ? 7 : 1); p++) {
        int w = laced ? (W - pass[p][0] + pass[p][2] - 1) / pass[p][2] : W;
        int h = laced ? (H - pass[p][1] + pass[p][3] - 1) / pass[p][3] : H;
        if (laced) row = ((size_t)w * channels * f[1] + 7) / 8;
        for (int y = 0; y < h && w > 0; y++) {
            raw[n++] = (uint8_t)((unsigned)y % 5); /* each filter */
            for (size_t x = 0; x < row; x++, n++) raw[n] = (uint8_t)(17 * n + k);
        }
    }
    size_t at = 0, zn = 7 + n + 4;
    const uint8_t begin[7] = {0x78, 1, 1, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n, (uint8_t)(~n >> 8)};
    memcpy(z, begin, 7);
    memcpy(z + 7, raw, n);
    for (size_t i = 0; i < n; i++) a = (a + raw[i]) % 65521, b = (b + a) % 65521;
    for (int i = 0; i < 4; i++) z[7 + n + (size_t)i] = (uint8_t)((b << 16 | a) >> 8 * (3 - i));
    FUZZ_CHECK(room >= zn + 4096);
    memcpy(out, first, at = 8);
    at += fuzz_chunk(out + at, "IHDR", head, 13);
    if (f[0] == 3) {
        uint8_t palette[768];
        for (int i = 0; i < 768; i++) palette[i] = (uint8_t)(i * 7);
        at += fuzz_chunk(out + at, "PLTE", palette, 3u << f[1]);
        at += fuzz_chunk(out + at, "tRNS", palette, 1u << f[1]);
    } else if (f[0] < 3 && k & 32) { /* one colour is transparent */
        at += fuzz_chunk(out + at, "tRNS", raw, f[0] == 2 ? 6 : 2);
    }
    at += fuzz_chunk(out + at, "IDAT", z, zn);
    return at + fuzz_chunk(out + at, "IEND", NULL, 0);
}

/* ---- images ---- */

/* As a file of a folder, decoded and scaled to what an item is. */
static void fuzz_one_image(const uint8_t *data, size_t size)
{
    static const int channels[] = {1, 3, 4};
    static unsigned char out[9 * 7 * 4];
    const int c = channels[size % 3];
    if (fuzz_claims_much(data, size)) return;
    nn_why why = {0};
    nn_picture image = {.pixels = NULL};
    if (tn_nn_decode("image", fuzz_sealed(data, size), size, c, &image, &why)) {
        FUZZ_CHECK(*why.text && !image.pixels);
        return;
    }
    FUZZ_CHECK(image.h > 0 && image.w > 0);
    const double box[][4] = {{0, 0, (double)image.h, (double)image.w},
                             {(double)image.h / 3, 0, (double)image.h / 3 + 1, 1}};
    if (image.h * image.w < 1 << 20) FUZZ_CHECK(!tn_nn_resize(&image, c, box[size % 2], out, 9, 7));
    unsigned char sum = 0;
    for (int64_t k = 0; k < image.h * image.w * c; k++) sum ^= image.pixels[k];
    volatile unsigned char read = sum;
    (void)read;
    tn_free_mem(image.pixels);
}

/* JPEGs of 20 x 12 pixels: progressive with a quarter of the colours, and with marks to restart at. */
static const char fuzz_progressive[] =
    "\377\330\377\333\000\103\000\050\034\036\043\036\031\050\043\041\043\055\053\050\060\074\144\101\074"
    "\067\067\074\173\130\135\111\144\221\200\231\226\217\200\214\212\240\264\346\303\240\252\332\255\212"
    "\214\310\377\313\332\356\365\377\377\377\233\301\377\377\377\372\377\346\375\377\370\377\333\000\103"
    "\001\053\055\055\074\065\074\166\101\101\166\370\245\214\245\370\370\370\370\370\370\370\370\370\370"
    "\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370"
    "\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\377\302\000\021\010\000\014\000\024\003"
    "\001\042\000\002\021\001\003\021\001\377\304\000\027\000\001\001\001\001\000\000\000\000\000\000\000"
    "\000\000\000\000\000\003\000\002\004\377\304\000\026\001\001\001\001\000\000\000\000\000\000\000\000"
    "\000\000\000\000\000\001\002\003\377\332\000\014\003\001\000\002\020\003\020\000\000\001\015\252\022"
    "\067\114\355\377\304\000\026\020\001\001\001\000\000\000\000\000\000\000\000\000\000\000\000\000\022"
    "\000\040\377\332\000\010\001\001\000\001\005\002\061\216\077\377\304\000\026\021\001\001\001\000\000"
    "\000\000\000\000\000\000\000\000\000\000\000\000\002\022\377\332\000\010\001\003\001\001\077\001\233"
    "\155\377\304\000\025\021\001\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\021\377"
    "\332\000\010\001\002\001\001\077\001\252\377\304\000\024\020\001\000\000\000\000\000\000\000\000\000"
    "\000\000\000\000\000\000\040\377\332\000\010\001\001\000\006\077\002\137\377\304\000\027\020\001\001"
    "\001\001\000\000\000\000\000\000\000\000\000\000\000\000\001\000\020\021\377\332\000\010\001\001\000"
    "\001\077\041\041\200\020\027\013\377\332\000\014\003\001\000\002\000\003\000\000\000\020\143\057\377"
    "\304\000\025\021\001\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001\000\377\332\000"
    "\010\001\003\001\001\077\020\110\127\377\304\000\025\021\001\001\000\000\000\000\000\000\000\000\000"
    "\000\000\000\000\000\001\020\377\332\000\010\001\002\001\001\077\020\041\377\304\000\032\020\000\001"
    "\005\001\000\000\000\000\000\000\000\000\000\000\000\000\000\001\021\061\121\141\041\377\332\000\010"
    "\001\001\000\001\077\020\310\310\116\040\254\126\021\250\077\377\331";
static const char fuzz_restarting[] =
    "\377\330\377\333\000\103\000\050\034\036\043\036\031\050\043\041\043\055\053\050\060\074\144\101\074"
    "\067\067\074\173\130\135\111\144\221\200\231\226\217\200\214\212\240\264\346\303\240\252\332\255\212"
    "\214\310\377\313\332\356\365\377\377\377\233\301\377\377\377\372\377\346\375\377\370\377\333\000\103"
    "\001\053\055\055\074\065\074\166\101\101\166\370\245\214\245\370\370\370\370\370\370\370\370\370\370"
    "\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370"
    "\370\370\370\370\370\370\370\370\370\370\370\370\370\370\370\377\300\000\021\010\000\014\000\024\003"
    "\001\041\000\002\021\001\003\021\001\377\304\000\031\000\000\002\003\001\000\000\000\000\000\000\000"
    "\000\000\000\000\000\000\003\001\002\004\005\377\304\000\034\020\000\002\001\005\001\000\000\000\000"
    "\000\000\000\000\000\000\000\000\002\004\001\021\061\121\141\041\377\304\000\030\001\000\002\003\000"
    "\000\000\000\000\000\000\000\000\000\000\000\000\002\004\000\001\003\377\304\000\030\021\001\001\001"
    "\001\001\000\000\000\000\000\000\000\000\000\000\000\001\000\003\021\023\377\335\000\004\000\001\377"
    "\332\000\014\003\001\000\002\021\003\021\000\077\000\302\221\370\075\043\360\203\026\172\137\377\320"
    "\212\107\363\000\037\147\175\057\377\321\272\042\350\172\042\350\314\145\263\133\377\322\350\121\026"
    "\330\002\242\026\377\331";

static size_t fuzz_good_image(unsigned k, uint8_t *out, size_t room)
{
    if (k % 3 == 0) return fuzz_good_sheet(k / 3, out, room);
    const size_t n = k % 3 == 1 ? sizeof fuzz_progressive - 1 : sizeof fuzz_restarting - 1;
    FUZZ_CHECK(n <= room);
    memcpy(out, k % 3 == 1 ? fuzz_progressive : fuzz_restarting, n);
    return n;
}

/* ---- data sets ---- */

/* A session reads files until it owns 500 data sets, which end with it alone. */
struct reading {
    tn_session *s;
    int made;
};

/* The file that is read is `data`. */
static tn_session *read_in(struct reading *r, const uint8_t *data, size_t size)
{
    if (!r->s || r->made >= 500) {
        if (r->s) FUZZ_CHECK(tn_close(r->s) == TN_OK);
        r->s = tn_open(.device = TN_REF, .threads = 1, .seed = 3, .log = fuzz_quiet);
        FUZZ_CHECK(r->s);
        r->made = 0;
    }
    served.data = data;
    served.size = size;
    return r->s;
}

/* ---- texts ---- */

static void fuzz_one_text(const uint8_t *data, size_t size)
{
    static struct reading r;
    tn_session *s = read_in(&r, data, size);
    const int64_t ctx = size ? fuzz_hostile[data[0] % FUZZ_HOSTILE] : 1;
    const tn_part part = size > 1 && data[1] & 1 ? TN_TEST : TN_TRAIN;
    tn_dataset *d = tn_dataset_text(s, "text", part, .ctx = ctx);
    FUZZ_CHECK(!d == (tn_error(s) != TN_OK));
    tn_clear_error(s);
    if (!d) return;
    r.made++;
    int vocabulary = tn_text_vocabulary(d);
    FUZZ_CHECK(vocabulary >= 1 && vocabulary <= 256 && tn_dataset_count(d) >= 1);
    for (int k = 0; k < 6; k++) {
        int b = k < 2 ? 257 * k - 1 : (int)data[size / 6 * (size_t)k], t = tn_text_token(d, b);
        FUZZ_CHECK(t >= -1 && t < vocabulary && (t < 0 || tn_text_byte(d, t) == b));
    }
    if (d->array[0].item > 256) return;
    int32_t x[256], y[256];
    for (int64_t from = 0; from < d->corpus->n; from += 1 + d->corpus->n / 3) {
        tn_nn_window(d, from, x, y);
        for (int64_t i = 0; i < d->array[0].item; i++)
            FUZZ_CHECK(x[i] >= 0 && x[i] < vocabulary &&
                       (y[i] == NN_NO_LABEL || (y[i] >= 0 && y[i] < vocabulary)));
    }
    tn_batch b = {0};
    tn_loader *l = tn_loader_open(d, .batch = 3, .shuffle = size > 2 && data[2] & 1);
    while (l && tn_next(l, &b) && b.number < 3) continue;
    if (l && !tn_error(s) && b.number == 3) tn_loader_close(l);
    tn_clear_error(s);
}

static size_t fuzz_good_text(unsigned k, uint8_t *out, size_t room)
{
    size_t n = 20 + 13 * (k % 30);
    for (size_t i = 0; i < n && i < room; i++)
        out[i] = (uint8_t)("\x03\0\x01the quick brown fox jumps"[i < 3 ? i : 3 + (i * (1 + k / 8)) % 25]);
    return n < room ? n : room;
}

/* ---- arrays ---- */

/* As NumPy's array, one of bare numbers, or tokens; what is accepted is handed over whole. */
static void fuzz_one_npy(const uint8_t *data, size_t size)
{
    static struct reading r;
    tn_session *s = read_in(&r, data, size);
    const tn_array as[] = {{.path = "x.npy"},
                           {.path = "x.npy", .shape = {2, 3, 1}, .mean = {.5}, .std = {.5}},
                           {.path = "x.npy", .shape = {6}},
                           {.path = "x", .dtype = TN_I64, .shape = {3}}};
    const int way = (int)(size % 6);
    tn_dataset *d =
        way < 4 ? tn_dataset_arrays(s, 0, 1, &as[way])
                : tn_dataset_tokens(s, "x", .bits = way == 4 ? 16 : 32, .ctx = 3, .vocabulary = 1 << 15);
    FUZZ_CHECK(!d == (tn_error(s) != TN_OK));
    if (d) r.made++;
    tn_batch b = {0};
    tn_loader *l = d ? tn_loader_open(d, .batch = 7) : NULL;
    while (l && tn_next(l, &b)) FUZZ_CHECK(b.n >= 1 && b.n <= 7);
    tn_clear_error(s);
}

static size_t fuzz_good_npy(unsigned k, uint8_t *out, size_t room)
{
    static const struct {
        const char *type, *shape;
        size_t bytes;
    } form[] = {
        {"<f4", "(6,)", 24}, {"|u1", "(2, 2, 3)", 12}, {"<i2", "(4, 6)", 48}, {"<f8", "(1, 2, 3, 1)", 48}};
    char text[128];
    const unsigned version = 1 + k / 4 % 3;
    const size_t n = (size_t)snprintf(text, sizeof text,
                                      "{'descr': '%s', 'fortran_order': False, 'shape': %s, }%*s\n",
                                      form[k % 4].type, form[k % 4].shape, (int)(k / 16), ""),
                 at = version == 1 ? 10 : 12;
    FUZZ_CHECK(room >= at + n + 64);
    memset(out, 0, at);
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (uint8_t)version;
    out[8] = (uint8_t)n;
    memcpy(out + at, text, n);
    for (size_t i = 0; i < form[k % 4].bytes; i++) out[at + n + i] = (uint8_t)(i * (1 + k));
    return at + n + form[k % 4].bytes;
}

/* ---- CIFAR-10 ---- */

static void fuzz_one_cifar(const uint8_t *data, size_t size)
{
    static struct reading r;
    tn_session *s = read_in(&r, data, size);
    tn_dataset *d = tn_dataset_cifar10(s, "folder", TN_TEST, .std = {size % 2 ? .5 : 0, .5, .5});
    FUZZ_CHECK(!d == (tn_error(s) != TN_OK));
    if (d) FUZZ_CHECK(tn_dataset_count(d) * 3073 == (int64_t)size && ++r.made);
    tn_batch b = {0};
    tn_loader *l = d ? tn_loader_open(d, .batch = 2) : NULL;
    while (l && tn_next(l, &b)) FUZZ_CHECK(b.n >= 1 && b.n <= 2);
    tn_clear_error(s);
}

static size_t fuzz_good_cifar(unsigned k, uint8_t *out, size_t room)
{
    const size_t n = 3073 * (1 + k % 3);
    FUZZ_CHECK(n <= room);
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(i % 3073 ? i * (1 + k) : i / 3073 + k % 8);
    return n;
}

static const fuzz_target fuzz_checkpoint = {"checkpoint", fuzz_one_checkpoint, fuzz_good_checkpoint, 1 << 14,
                                            true};
static const fuzz_target fuzz_idx = {"idx", fuzz_one_idx, fuzz_good_idx, 1 << 10, false};
static const fuzz_target fuzz_sheet = {"sheet", fuzz_one_sheet, fuzz_good_sheet, 1 << 13, false};
static const fuzz_target fuzz_image = {"image", fuzz_one_image, fuzz_good_image, 1 << 13, false};
static const fuzz_target fuzz_cifar = {"cifar", fuzz_one_cifar, fuzz_good_cifar, 10000, false};
static const fuzz_target fuzz_npy = {"npy", fuzz_one_npy, fuzz_good_npy, 1 << 10, true};
static const fuzz_target fuzz_text = {"text", fuzz_one_text, fuzz_good_text, 1 << 10, false};
