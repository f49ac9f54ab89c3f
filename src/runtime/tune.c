/* tune.c - choosing tiles by timing them, where TENSOR_TUNE=1 asks for it.
 *
 * The cost model (fuser/loops/conv_model.c) names the few tiles that it takes for the fastest. Once for each
 * shape, each of these runs alone, on memory of its own, in turns, by the device's own clock; the model's
 * first choice gives way to what is faster by more than the clock's noise. What was chosen is kept beside the
 * compiled kernels, one small file a shape:
 *
 *     libtensor tile
 *     cuda 132 processors ...; capability 90; kernels 1f..; forward f16 tf32 0 stats 1: 64 56 56 64 ...
 *     tile 128 64 64 4 2 2 splits 1
 *     check 0123456789abcdef
 *
 * The name has a hash of the second line, which is compared whole: machine, texts of the kernels, shape. A
 * file that is not exactly so is not there. So the first session with a shape times it, all others do as it
 * did, and their results are the same to the last bit. The choice is made known to the fuser as a part of its
 * target (tn_target.tuned), which decides how a kernel is cut and nothing else.
 *
 * Nothing here fails a step: what cannot be timed, for want of memory for example, stays as the model has it,
 * and is tried again by the next session.
 *
 * Read first: tn_tune_plan.
 */
#include "tune.h"

#include <string.h>

#include "../../fuser/loops/conv_tile.h"
#include "../core/dtype.h"
#include "../core/growing.h"
#include "../core/hash.h"
#include "../core/settings.h"
#include "../core/whole_file.h"
#include "../device/embed.h"

enum { CANDIDATES = 6, ROUNDS = 6, KEY = 640, FILE_BYTES = 1024, OPERANDS = 6 };

struct tn_tune {
    fu_tuned table;
    int measured;
    bool told; /* that choices cannot be kept */
};

/* ---- what is kept ---- */

static void key_of(const tn_session *s, const fu_conv_way *w, char *out)
{
    static const tn_embedded text[] = {TN_EMBED_PTX_CUH, TN_EMBED_CONV2D_WGMMA_CU, TN_EMBED_CONV_HALO_CU,
                                       TN_EMBED_CONV_HALO_WEIGHTS_CU, TN_EMBED_CONV_PLAIN_CUH};
    static const char *const pass[] = {"forward", "data gradient", "weight gradient"};
    const tn_conv2d_desc *d = &w->d;
    uint64_t kernels = 0;
    for (int i = 0; i < 5; i++)
        kernels =
            tn_hash_mix(kernels ^ 1, tn_hash_bytes(tn_embed_text(text[i]), strlen(tn_embed_text(text[i]))));
    snprintf(out, KEY,
             "%s; capability %d; shared %lld; kernels %016llx; %s %s tf32 %d stats %d: %lld %lld %lld %lld, "
             "%lld %lld "
             "%lld, %lld %lld, groups %lld, stride %lld %lld, pad %lld %lld %lld %lld, dilation %lld %lld",
             s->device->machine, s->target.capability, (long long)s->target.shared_most,
             (unsigned long long)kernels, pass[d->pass], tn_dtype_name(d->dtype), d->tf32, w->stats,
             (long long)d->n, (long long)d->h, (long long)d->w, (long long)d->c, (long long)d->oc,
             (long long)d->kh, (long long)d->kw, (long long)d->oh, (long long)d->ow, (long long)d->groups,
             (long long)d->stride[0], (long long)d->stride[1], (long long)d->pad[0], (long long)d->pad[1],
             (long long)d->pad[2], (long long)d->pad[3], (long long)d->dilation[0],
             (long long)d->dilation[1]);
}

static bool path_of(const tn_session *s, const char *key, char *out, size_t n)
{
    if (!s->device->folder) return false;
    int k = snprintf(out, n, "%s/tile-%016llx.txt", s->device->folder,
                     (unsigned long long)tn_hash_bytes(key, strlen(key)));
    return k > 0 && (size_t)k < n;
}

static int print_way(const char *key, const fu_conv_way *w, char *out)
{
    int n = snprintf(out, FILE_BYTES, "libtensor tile\n%s\ntile %d %d %d %d %d %d halo %d splits %lld\n", key,
                     w->bm, w->bn, w->bk, w->stages, w->warps_m, w->warps_n, w->halo, (long long)w->splits);
    return n + snprintf(out + n, FILE_BYTES - (size_t)n, "check %016llx\n",
                        (unsigned long long)tn_hash_bytes(out, (size_t)n));
}

/* The file's choice is taken over as it would be written again, to the byte; else there is none. */
static bool load(const tn_session *s, const char *key, fu_conv_way *w)
{
    char path[4096], text[FILE_BYTES + 1], again[FILE_BYTES];
    FILE *f = path_of(s, key, path, sizeof path) ? fopen(path, "re") : NULL;
    if (!f) return false;
    size_t n = fread(text, 1, FILE_BYTES, f);
    fclose(f);
    text[n] = 0;
    long long splits = 0;
    int halo = 0;
    const char *at = strstr(text, "\ntile ");
    fu_conv_way found = *w;
    if (!at || sscanf(at, "\ntile %d %d %d %d %d %d halo %d splits %lld", &found.bm, &found.bn, &found.bk,
                      &found.stages, &found.warps_m, &found.warps_n, &halo, &splits) != 8)
        return false;
    found.splits = splits;
    found.halo = halo;
    if ((size_t)print_way(key, &found, again) != n || memcmp(again, text, n)) return false;
    *w = found;
    return true;
}

static void store(tn_session *s, const char *key, const fu_conv_way *w)
{
    char path[4096], text[FILE_BYTES];
    tn_whole_file file;
    if (!path_of(s, key, path, sizeof path)) return;
    int n = print_way(key, w, text), why = tn_whole_open(&file, path);
    if (!why) fwrite(text, 1, (size_t)n, file.f);
    if (!why) why = tn_whole_commit(&file);
    if (!why || s->tune->told) return;
    s->tune->told = true;
    tn_warn(s, "%s cannot be written: %s; the next session will time its kernels anew", path,
            tn_whole_why(why));
}

/* ---- timing ---- */

typedef struct trial {
    tn_device *device;
    void *buf[OPERANDS]; /* in0 in1 out partials mean variance */
    struct fu_conv_tile tile[CANDIDATES];
    tn_kernel *kernel[CANDIDATES];
    char *text[CANDIDATES], name[CANDIDATES][64];
    double seconds[CANDIDATES]; /* the best */
    int n;
} trial;

static int64_t elements(const tn_conv2d_desc *d, int which) /* 0 x  1 weight  2 y */
{
    return which == 0   ? d->n * d->h * d->w * d->c
           : which == 1 ? d->oc * d->kh * d->kw * (d->c / d->groups)
                        : d->n * d->oh * d->ow * d->oc;
}

/* Numbers as a network has them: how fast a GPU is depends on how many bits change. */
static void *numbers(tn_device *d, tn_dtype dtype, int64_t n)
{
    enum { SOME = 4096 };
    uint32_t state = 1;
    float some[SOME];
    uint16_t half[SOME];
    for (int i = 0; i < SOME; i++) {
        state = state * 1664525u + 1013904223u;
        some[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
        half[i] = dtype == TN_F16 ? tn_f32_to_f16(some[i]) : tn_f32_to_bf16(some[i]);
    }
    const size_t bytes = (size_t)n * tn_dtype_size(dtype), first = (size_t)SOME * tn_dtype_size(dtype);
    char *p = d->alloc(d, bytes);
    size_t done = bytes < first ? bytes : first;
    bool ok = p && !d->upload(d, p, dtype == TN_F32 ? (const void *)some : half, done);
    for (; ok && done < bytes;) {
        const size_t more = done < bytes - done ? done : bytes - done;
        ok = !d->copy(d, p + done, p, more);
        done += more;
    }
    if (ok) return p;
    if (p) d->free(d, p);
    return NULL;
}

static bool make_room(trial *t, const fu_conv_way *w)
{
    static const int in[3][2] = {{0, 1}, {2, 1}, {0, 2}}, to[3] = {2, 0, 1};
    const tn_conv2d_desc *d = &w->d;
    tn_device *v = t->device;
    int64_t scratch = 4;
    for (int i = 0; i < t->n; i++) scratch = t->tile[i].scratch > scratch ? t->tile[i].scratch : scratch;
    for (int i = 0; i < 2; i++)
        if (!(t->buf[i] = numbers(v, d->dtype, elements(d, in[d->pass][i])))) return false;
    const size_t rest[] = {(size_t)elements(d, to[d->pass]) * tn_dtype_size(d->dtype), (size_t)scratch,
                           (size_t)d->oc * 4, (size_t)d->oc * 4};
    for (int i = 2; i < OPERANDS; i++)
        if (!(t->buf[i] = v->alloc(v, rest[i - 2]))) return false;
    return true;
}

static bool compile(trial *t)
{
    tn_source source[CANDIDATES];
    tn_errbuf err;
    for (int i = 0; i < t->n; i++) {
        const struct fu_conv_tile *o = &t->tile[i];
        tn_growing text = {0};
        snprintf(t->name[i], sizeof t->name[i], "tile_%d_%d_%d_%d_of_%d", o->bm, o->bn, o->bk, o->stages, i);
        tn_put(&text, "%s#define ENTRY %s\n#define PARTIALS 3\n%s%s%s", o->defines, t->name[i], o->before,
               tn_embed_text(TN_EMBED_CONV_PLAIN_CUH), o->text);
        t->text[i] = text.p;
        if (text.failed) return false;
        source[i] = (tn_source){t->name[i], text.p};
    }
    return !t->device->compile(t->device, source, t->n, t->kernel, &err);
}

/* All of them in turns, the first time for nothing. */
static bool run(trial *t)
{
    tn_errbuf err;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < t->n; i++) {
            int64_t dim[TN_MAX_KERNEL_DIMS];
            double seconds;
            memcpy(dim, t->tile[i].dim, (size_t)t->tile[i].n_dim * sizeof *dim);
            dim[t->tile[i].n_dim] = t->tile[i].columns;
            const tn_args args = {
                .buf = t->buf, .dim = dim, .n_buf = OPERANDS, .n_dim = t->tile[i].n_dim + 1};
            if (t->device->time(t->device, t->kernel[i], &args, &t->tile[i].grid, &seconds, &err))
                return false;
            if (round == 1 || (round && seconds < t->seconds[i])) t->seconds[i] = seconds;
        }
    return true;
}

/* The fastest tile into *w. */
static bool measure(tn_session *s, trial *t, fu_conv_way *w)
{
    const double noise = 0.98;
    memset(t, 0, sizeof *t);
    t->device = s->device;
    t->n = fu_conv_tiles(&w->d, &s->target, w->stats, CANDIDATES, t->tile);
    bool ok = t->n > 1 && make_room(t, w) && compile(t) && run(t);
    int best = 0;
    for (int i = 1; i < t->n && ok; i++)
        if (t->seconds[i] < noise * t->seconds[best]) best = i;
    const struct fu_conv_tile *o = &t->tile[best];
    if (ok) {
        w->bm = o->bm, w->bn = o->bn, w->bk = o->bk, w->stages = o->stages;
        w->warps_m = o->warps_m, w->warps_n = o->warps_n, w->splits = o->splits, w->halo = o->halo;
        s->tune->measured++;
    }
    for (int i = 0; i < OPERANDS; i++)
        if (t->buf[i]) t->device->free(t->device, t->buf[i]);
    for (int i = 0; i < t->n; i++) tn_free_mem(t->text[i]);
    return ok;
}

/* ---- the whole ---- */

int tn_tune_open(tn_session *s)
{
    if (!tn_settings_read(NULL, NULL).tune || !s->device->time) return TN_OK;
    s->tune = tn_calloc(1, sizeof *s->tune);
    if (!s->tune) return TN_E_NOMEM;
    s->target.tuned = &s->tune->table;
    return TN_OK;
}

void tn_tune_close(tn_session *s)
{
    if (!s->tune) return;
    tn_free_mem(s->tune->table.way);
    tn_free_mem(s->tune);
    s->tune = NULL;
    s->target.tuned = NULL;
}

static bool cut_so(const struct fu_conv_tile *o, const fu_conv_way *w)
{
    return o->bm == w->bm && o->bn == w->bn && o->bk == w->bk && o->stages == w->stages &&
           o->warps_m == w->warps_m && o->warps_n == w->warps_n && o->splits == w->splits &&
           o->halo == w->halo;
}

/* Finds the fastest tile for the convolution that the step computes, in the file or by timing, and enters it
 * in the table. false: none found, or no memory. */
static bool find_out(tn_session *s, const tn_step *st, fu_conv_way *w)
{
    fu_tuned *table = &s->tune->table;
    char key[KEY];
    trial *t = NULL;
    *w = (fu_conv_way){.d = st->conv, .stats = st->tile->stats};
    if (!tn_reserve(&table->way, &table->cap, table->n + 1, sizeof *table->way)) return false;
    key_of(s, w, key);
    bool found = load(s, key, w);
    if (!found && (t = tn_malloc(sizeof *t)) && measure(s, t, w)) {
        found = true;
        store(s, key, w);
    }
    tn_free_mem(t);
    if (found) table->way[table->n++] = *w;
    return found;
}

bool tn_tune_plan(tn_session *s, const tn_plan *p)
{
    bool others = false;
    for (int i = 0; s->tune && i < p->n_step; i++) {
        const tn_step *st = &p->step[i];
        fu_conv_way w;
        if (st->kind != TN_STEP_KERNEL || !st->tile ||
            fu_conv_known(&s->tune->table, &st->conv, st->tile->stats))
            continue;
        if (find_out(s, st, &w)) others = others || !cut_so(st->tile, &w);
    }
    return others;
}

uint32_t tn_tune_digest(const tn_session *s)
{
    uint64_t all = 0;
    for (int i = 0; s->tune && i < s->tune->table.n; i++) {
        char key[KEY], text[FILE_BYTES];
        key_of(s, &s->tune->table.way[i], key);
        all ^= tn_hash_bytes(text, (size_t)print_way(key, &s->tune->table.way[i], text));
    }
    return (uint32_t)(all >> 32);
}

int tn_tune_measured(const tn_session *s) { return s->tune ? s->tune->measured : 0; }
