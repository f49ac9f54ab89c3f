/* device_run.c - running plans on a device with memory of its own, which runs later than it is told to.
 *
 * words: the run-time scalars of a plan stand in one block on the device, uploaded before the plan runs and
 * only when one has changed. Kernels read them through a pointer, so a recording stays right.
 *
 * recordings: a plan that runs for the second time with the same addresses is recorded (device.h), and from
 * then on is one launch. Several are kept, for addresses that alternate; a plan whose addresses never come
 * back is left alone. What cannot be recorded runs step by step, and explain says why.
 *
 * faults: a kernel that finds an index out of range sets a word on the device, which is read when a value is.
 * By then the nodes are gone, so a plan notes which of its calls index, and the session which plans have run
 * since; and a plan that indexes writes to the device which run it is, as the kernels of those behind it do
 * nothing.
 *
 * Read first: tn_device_run, then tn_device_run_steps. */
#include "device_run.h"

#include "log.h"

#include <string.h>

enum { RECORDINGS = 8, MOST_MISSES = 64, FEWEST_STEPS = 2, MOST_RAN = 64 };

struct recorded {
    void **address; /* of each slot; NULL: free */
    int n;
    uint64_t seen, used; /* how often, and when last */
    tn_recording *recording;
};

struct site {
    int node; /* of the plan */
    tn_index_site index;
    tn_call call;
};

struct tn_plan_run {
    tn_device *device;
    int n_word;
    tn_word *word; /* as they are on the device */
    tn_word *block;
    bool uploaded;
    struct recorded recorded[RECORDINGS];
    uint64_t clock;
    int misses; /* addresses that went without having come back */
    bool refused;
    int n_site;
    struct site *site;
    bool listed; /* among the session's plans that have run */
};

/* ---- making and freeing ---- */

static void forget(struct tn_plan_run *r, struct recorded *v)
{
    if (v->recording) r->device->forget(r->device, v->recording);
    tn_free_mem(v->address);
    memset(v, 0, sizeof *v);
}

static void run_free(struct tn_plan_run *r)
{
    for (int i = 0; i < RECORDINGS; i++) forget(r, &r->recorded[i]);
    r->device->free(r->device, r->block);
    for (int i = 0; i < r->n_site; i++) tn_free_mem((void *)(uintptr_t)r->site[i].call.name);
    tn_free_mem(r->site);
    tn_free_mem(r->word);
    tn_free_mem(r);
}

/* The calls that index, copied: names are the user's own strings, files literals of his. */
static bool note_sites(struct tn_plan_run *r, const tn_flush_scratch *f)
{
    int n = 0;
    for (int i = 0; i < f->node.n; i++) n += tn_node_indexes(f->node.at[i]);
    r->site = tn_calloc((size_t)n + 1, sizeof *r->site);
    for (int i = 0; i < f->node.n && r->site; i++) {
        const tn_call *c = f->node.at[i]->call;
        if (!tn_node_indexes(f->node.at[i]) || !c) continue;
        char *name = tn_strdup(c->name ? c->name : "");
        if (!name) return false;
        struct site *t = &r->site[r->n_site++];
        t->node = i;
        t->index = tn_index_site_of(f->node.at[i]);
        t->call = (tn_call){.name = name, .file = c->file, .line = c->line};
    }
    return r->site != NULL;
}

static struct tn_plan_run *run_new(tn_session *s, const tn_flush_scratch *f, int n_word)
{
    struct tn_plan_run *r = tn_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->device = s->device;
    r->n_word = n_word;
    r->word = tn_malloc((size_t)n_word * sizeof *r->word + 1);
    if (n_word) r->block = s->device->alloc(s->device, (size_t)n_word * sizeof *r->block);
    if (r->word && (r->block || !n_word) && note_sites(r, f)) return r;
    run_free(r);
    return NULL;
}

static bool mark_run(tn_session *s)
{
    const tn_run_mark now = {(int64_t)s->stats.runs, (int64_t)s->drawn};
    char *word = s->device->fault_word;
    return !s->device->upload(s->device, word + offsetof(tn_fault, now), &now, sizeof now);
}

struct tn_plan_run *tn_device_run(tn_session *s, const tn_flush_scratch *f, tn_plan *p, const tn_word *word,
                                  int n_word)
{
    size_t bytes = (size_t)n_word * sizeof *word;
    struct tn_plan_run *r = p->run;
    if (!r) {
        r = p->run = run_new(s, f, n_word);
        p->run_free = run_free;
        if (!r) {
            tn_error_set(&s->graph, TN_E_NOMEM, "no memory for the numbers of a step: %s",
                         s->device->failure.text);
            return NULL;
        }
    }
    if (r->n_site && !r->listed && s->n_ran < MOST_RAN) {
        if (tn_reserve(&s->ran, &s->cap_ran, s->n_ran + 1, sizeof *s->ran)) {
            s->ran[s->n_ran++] = p;
            r->listed = true;
            p->refs++;
        }
    }
    const bool marked = !r->n_site || mark_run(s);
    if (marked && (!bytes || (r->uploaded && !memcmp(r->word, word, bytes)))) return r;
    r->uploaded = marked && !s->device->upload(s->device, r->block, word, bytes);
    if (!r->uploaded) {
        tn_error_set(&s->graph, TN_E_DEVICE, "the numbers of a step could not be copied to the device: %s",
                     s->device->failure.text);
        return NULL;
    }
    memcpy(r->word, word, bytes);
    return r;
}

/* ---- recordings ---- */

static void refuse(tn_session *s, struct tn_plan_run *r, const char *why)
{
    r->refused = true;
    snprintf(s->not_recorded, sizeof s->not_recorded, "%s", why);
    if (s->options.log) {
        char text[400];
        snprintf(text, sizeof text, "a step is launched kernel by kernel: %s", why);
        s->options.log(TN_LOG_INFO, text, s->options.log_user);
    }
}

/* The entry for the addresses of this run, which counts it; NULL: none was free, or no memory. */
static struct recorded *find(tn_session *s, struct tn_plan_run *r, const tn_flush_scratch *f, int n_slot)
{
    struct recorded *oldest = &r->recorded[0];
    size_t bytes = (size_t)n_slot * sizeof(void *);
    r->clock++;
    TN_EACH(v, r->recorded, RECORDINGS) {
        if (v->used < oldest->used) oldest = v;
        if (!v->address || v->n != n_slot || memcmp(v->address, f->address, bytes)) continue;
        v->used = r->clock;
        v->seen++;
        return v;
    }
    r->misses += oldest->address != NULL && oldest->seen < 2;
    if (r->misses > MOST_MISSES) {
        refuse(s, r, "its tensors stand at new addresses each time");
        return NULL;
    }
    forget(r, oldest);
    oldest->address = tn_malloc(bytes + 1);
    if (!oldest->address) return NULL;
    memcpy(oldest->address, f->address, bytes);
    oldest->n = n_slot;
    oldest->used = r->clock;
    oldest->seen = 1;
    return oldest;
}

static void count_steps(tn_session *s, const tn_plan *p)
{
    for (int i = 0; i < p->n_step; i++) {
        s->stats.kernels += p->step[i].kind == TN_STEP_KERNEL;
        s->stats.library_calls += p->step[i].kind != TN_STEP_KERNEL;
        s->stats.bytes_moved += (uint64_t)p->step[i].bytes;
    }
}

/* Has the device note the plan's steps. What goes wrong leaves nothing behind, and why is said. */
static void record(tn_session *s, tn_flush_scratch *f, tn_plan *p, struct tn_plan_run *r, struct recorded *v,
                   tn_steps_fn *steps)
{
    tn_device *d = s->device;
    tn_errbuf why = {""}, end = {""};
    tn_stats before = s->stats;
    int at = 0, status = d->record_begin(d, &why);
    if (!status) {
        status = steps(s, f, p, r->block, &at, &why);
        int ended = d->record_end(d, status ? NULL : &v->recording, &end);
        if (!status && ended) {
            status = ended;
            why = end;
        }
    }
    s->stats = before;
    if (status) refuse(s, r, why.text[0] ? why.text : tn_status_text(status));
}

int tn_device_run_steps(tn_session *s, tn_flush_scratch *f, tn_plan *p, struct tn_plan_run *r, int n_slot,
                        tn_steps_fn *steps, int *at, tn_errbuf *err)
{
    tn_device *d = s->device;
    bool able = d->record_begin && !r->refused && tn_deferred(s) && p->n_step >= FEWEST_STEPS;
    if (able && tn_probing(s)) {
        snprintf(s->not_recorded, sizeof s->not_recorded, "each kernel is timed or checked by itself");
        able = false;
    }
    for (int i = 0; i < p->n_step && able; i++) {
        if (p->step[i].kind != TN_STEP_HOST) continue;
        refuse(s, r, "a function of the program's runs on the host in its midst");
        able = false;
    }
    struct recorded *v = able ? find(s, r, f, n_slot) : NULL;
    if (v && !v->recording && v->seen > 1) record(s, f, p, r, v, steps);
    if (!v || !v->recording) return steps(s, f, p, r->block, at, err);
    *at = 0;
    count_steps(s, p);
    return d->replay(d, v->recording, err);
}

/* ---- faults ---- */

void tn_device_forget_runs(tn_session *s)
{
    for (int i = 0; i < s->n_ran; i++) {
        s->ran[i]->run->listed = false;
        tn_plan_free(s->ran[i]);
    }
    s->n_ran = 0;
}

bool tn_device_fault_site(const tn_session *s, const tn_fault *fault, tn_index_site *index, tn_call *call)
{
    const struct site *best = NULL;
    for (int i = 0; i < s->n_ran && !best; i++) {
        const struct tn_plan_run *r = s->ran[i]->run;
        for (int k = 0; k < r->n_site && !best; k++)
            if (r->site[k].node == fault->where) best = &r->site[k];
    }
    if (!best) return false;
    *index = best->index;
    *call = best->call;
    return true;
}
