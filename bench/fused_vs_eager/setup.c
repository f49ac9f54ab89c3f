/* setup.c - what a measurement needs: inputs in host memory that both modes read, a session for each, copies,
 * and the kernel written by hand. Start with make_inputs. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "case.h"

enum { ROWS_CACHED = 256 }; /* of each thread: a megabyte */

/* ---- host memory ---- */

int64_t count_of(const struct field *f)
{
    int64_t n = 1;
    for (int i = 0; i < f->ndim; i++) n *= f->dim[i];
    return n;
}

/* In huge pages, as the library's own memory is: a model's values lie there, and the copy's. */
void *host_array(int64_t bytes)
{
    enum { PAGE = 4096, HUGE_PAGE = 1 << 21 };
    const size_t page = bytes < HUGE_PAGE ? PAGE : HUGE_PAGE;
    const size_t room = ((size_t)bytes + PAGE + page - 1) & ~(page - 1);
    void *p = aligned_alloc(page, room);
    if (p && page == HUGE_PAGE) madvise(p, room, MADV_HUGEPAGE); /* where refused: small pages */
    return p;
}

/* Numbers that depend on seed alone; a normal one is the sum of four uniform ones. */
void fill(void *p, const struct field *f, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    int64_t n = count_of(f);
    for (int64_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint64_t four = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
        if (f->kind == 'i')
            ((int32_t *)p)[i] = (int32_t)(x % (uint64_t)f->below);
        else if (f->kind == 'u')
            ((float *)p)[i] = 0.5f + (float)(x >> 40) * 0x1p-24f;
        else
            ((float *)p)[i] = ((float)four * 0x1p-16f - 2) * 1.7320508f;
    }
}

static tn_tensor *borrow(tn_session *s, void *p, const struct field *f)
{
    tn_tensor *t = tn_borrow(s, p, f->kind == 'i' ? TN_I32 : TN_F32, f->ndim, f->dim, NULL, NULL);
    if (f->gradient) tn_requires_grad(t, true);
    return t;
}

void shape_of(const char *shape, int64_t *n, int64_t *c)
{
    *c = 1024;
    *n = !strcmp(shape, "dram") ? 65536 : !strcmp(shape, "cache") ? 4096 : 512;
    if (!strcmp(shape, "small")) *c = 256;
}

tn_session *open_mode(const struct options *o, tn_mode mode)
{
    return tn_open(.device = !strcmp(o->device, "cuda")  ? TN_CUDA
                             : !strcmp(o->device, "cpu") ? TN_CPU
                                                         : TN_AUTO,
                   .mode = mode, .seed = 1, .threads = o->threads);
}

struct work work_now(const tn_session *s)
{
    tn_stats t = {.size = sizeof t};
    tn_get_stats(s, &t);
    return (struct work){t.kernels + t.library_calls + t.copies, t.bytes_moved};
}

bool open_copies(struct copies *c, const struct options *o, int64_t elements)
{
    for (int k = 0; k < 2; k++) {
        if (!(c->s[k] = open_mode(o, TN_FUSED))) return false;
        inside_stream(c->s[k], k == 1);
        c->from[k] = tn_ones(c->s[k], TN_F32, TN_SHAPE(elements));
        c->to[k] = tn_zeros(c->s[k], TN_F32, TN_SHAPE(elements));
    }
    return true;
}

double run_copy(const struct copies *c, int k, const struct options *o)
{
    double start = clock_ms(o);
    tn_step_begin(c->s[k]);
    tn_assign(c->to[k], c->from[k]);
    return tn_step_end(c->s[k]) || tn_synchronize(c->s[k]) ? -1 : clock_ms(o) - start;
}

void close_copies(struct copies *c)
{
    for (int k = 0; k < 2; k++) tn_close(c->s[k]);
}

/* ---- making and unmaking ---- */

static bool make_inputs(struct setup *u, const struct options *o)
{
    int64_t n, c;
    shape_of(o->shape, &n, &c);
    u->n_field = u->f->fields(n, c, u->field, &u->g);
    for (int k = 0; k <= u->n_field; k++) {
        const struct field *f = k < u->n_field ? &u->field[k] : &u->g;
        void **p = k < u->n_field ? &u->host[k] : &u->host_g;
        if (!(*p = host_array(count_of(f) * 4))) return false;
        fill(*p, f, (uint64_t)k + 1);
    }
    u->g.gradient = false;
    for (int m = 0; m < 2; m++) {
        struct in *i = &u->in[m];
        if (!(i->s = open_mode(o, m ? TN_FUSED : TN_EAGER))) return false;
        for (int k = 0; k < u->n_field; k++) i->t[k] = borrow(i->s, u->host[k], &u->field[k]);
        i->g = borrow(i->s, u->host_g, &u->g);
    }
    return true;
}

/* A few rows of the same, and one for each thread, which takes as long as starting takes. */
static bool make_few(struct setup *u, const struct options *o, struct few *few, int64_t each)
{
    struct field field[MAX_INPUTS], g;
    int64_t n, c, rows = each * tn_threads(u->in[1].s);
    shape_of(o->shape, &n, &c);
    if (rows > n) rows = n;
    few->share = (double)rows / (double)n;
    u->f->fields(rows, c, field, &g);
    g.gradient = false;
    if (!(few->in.s = open_mode(o, TN_FUSED))) return false;
    for (int k = 0; k <= u->n_field; k++) {
        const struct field *f = k < u->n_field ? &field[k] : &g;
        if (!(few->host[k] = host_array(count_of(f) * 4))) return false;
        fill(few->host[k], f, (uint64_t)k + 1);
        *(k < u->n_field ? &few->in.t[k] : &few->in.g) = borrow(few->in.s, few->host[k], f);
    }
    return true;
}

static bool make_cached(struct setup *u, const struct options *o)
{
    if (u->f->forward.reads == 0) return true;
    return make_few(u, o, &u->few[0], ROWS_CACHED) && make_few(u, o, &u->few[1], 2);
}

/* As many bytes read and written as the forward must move. */
static bool make_copy(struct setup *u, const struct options *o)
{
    int64_t n, c;
    shape_of(o->shape, &n, &c);
    double moved = u->f->forward.reads + u->f->forward.writes;
    return open_copies(&u->copy, o, moved > 0 ? (int64_t)(moved * (double)(n * c) / 2) : n * c);
}

void choose_stores(yard *y, yard_fn *fn)
{
    double best[2] = {1e300, 1e300};
    for (int round = 0; round < 6; round++) {
        double start = now_ms();
        y->stream = round & 1;
        fn(y);
        double ms = now_ms() - start;
        if (ms < best[round & 1]) best[round & 1] = ms;
    }
    y->stream = best[1] < best[0];
}

static bool make_hand(struct setup *u, const struct options *o)
{
    int64_t n, c;
    if (!strcmp(tn_device_name(u->in[0].s), "cuda")) return true; /* those by hand are for a processor */
    if (!(u->hand = yard_find(u->f->name))) return true;
    shape_of(o->shape, &n, &c);
    yard y = {.n = n, .c = c, .g = u->host_g, .p = 0.1, .seed = 1, .draw = CHECK_DRAW};
    for (int k = 0; k < u->n_field; k++) y.in[k] = u->host[k];
    y.pool = yard_pool_new(tn_threads(u->in[0].s));
    y.scratch = malloc((size_t)yard_scratch_bytes());
    u->forward = u->step = y;
    if (!y.pool || !y.scratch) return false;
    for (int k = 0; k < u->hand->outs; k++)
        if (!(u->forward.out[k] = host_array(n * c * 4))) return false;
    for (int k = 0, at = 0; k < u->n_field; k++)
        if (u->field[k].gradient && !(u->step.out[at++] = host_array(count_of(&u->field[k]) * 4)))
            return false;
    choose_stores(&u->forward, u->hand->forward);
    choose_stores(&u->step, u->hand->step);
    return true;
}

bool set_up(struct setup *u, const struct options *o)
{
    return make_inputs(u, o) && make_cached(u, o) && make_copy(u, o) && make_hand(u, o);
}

void unmake(struct setup *u)
{
    for (int m = 0; m < 2; m++) tn_close(u->in[m].s);
    close_copies(&u->copy);
    for (int i = 0; i < 2; i++) {
        tn_close(u->few[i].in.s);
        for (int k = 0; k <= MAX_INPUTS; k++) free(u->few[i].host[k]);
    }
    for (int k = 0; k < MAX_INPUTS; k++) free(u->host[k]);
    for (int k = 0; k < YARD_BUFS; k++) {
        free(u->forward.out[k]);
        free(u->step.out[k]);
    }
    free(u->host_g);
    yard_pool_free(u->forward.pool);
    free(u->forward.scratch);
}
