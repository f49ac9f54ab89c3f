/* test_nn_checkpoint_broken.c - tn_save and tn_load: every mismatch is an error that names the tensor, and
 * changes nothing; truncated and mutated files; a host without memory. Read first: expect_refused. */
#include "checkpoint_rig.h"

/* ---- refused ---- */

typedef struct snapshot {
    double v[512];
    int n;
    double lr;
    int64_t steps;
    uint64_t draw;
} snapshot;

static void take(const run *r, snapshot *p)
{
    memset(p, 0, sizeof(*p));
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < (kind ? tn_buffer_count(r->s) : tn_param_count(r->s)); i++) {
            tn_tensor *t = kind ? tn_buffer_at(r->s, i) : tn_param_at(r->s, i);
            assert_true(p->n + tn_numel(t) <= 512);
            tn_read(t, TN_F64, p->v + p->n, (size_t)tn_numel(t) * sizeof(double));
            p->n += (int)tn_numel(t);
        }
    double m[256];
    const nn_optim_entry *e = &r->o[0]->entries[0];
    assert_int_equal(tn_read(r->o[0]->rows[0].state[0], TN_F64, m, 0) == 0, 0);
    tn_clear_error(r->s);
    float moment[256];
    assert_int_equal(tn_nn_optim_read(r->o[0], e, 0, moment), TN_OK);
    for (int64_t i = 0; i < e->count; i++) p->v[p->n++] = (double)moment[i];
    p->lr = tn_optim_lr(r->o[0]);
    p->steps = e->steps;
    p->draw = tn_rng_draw(r->s);
}

static void expect_refused(run *r, const char *path, int status, const char *part)
{
    snapshot before, after;
    take(r, &before);
    int got = tn_load(r->s, path);
    if (got != status)
        fail_msg("status %d instead of %d (%s), waiting for '%s'", got, status, tn_error_text(r->s), part);
    failed(r->s, status, part);
    take(r, &after);
    assert_memory_equal(&before, &after, sizeof(before));
}

/* A copy of the file with every `from` in its header replaced by `to`, of the same length. */
static void edit(const char *from_path, const char *to_path, const char *from, const char *to)
{
    size_t n, k = strlen(from);
    char *text = slurp(from_path, &n);
    assert_non_null(text);
    assert_int_equal(k, strlen(to));
    int found = 0;
    for (size_t i = 8; i + k <= n; i++)
        if (!memcmp(text + i, from, k)) memcpy(text + i, to, k), found++;
    if (!found) fail_msg("'%s' is not in the file", from);
    spill(to_path, text, n);
    free(text);
}

TEST(mismatches)
{
    needs_cjson();
    const char *good = in_base("good");
    const char *bad = in_base("bad");
    for (int at = 0; at < PLACE_COUNT; at++) {
        run r;
        open_run(&r, &PLACES[at], ADAMW);
        go_on(&r, 4, NULL);
        assert_int_equal(tn_save(r.s, good), TN_OK);
        go_on(&r, 2, NULL);
        expect_refused(&r, "/dev/null/file", TN_E_IO, "/dev/null/file");
        static const struct {
            const char *from, *to;
            int status;
            const char *says;
        } edits[] = {
            {"\"fc.bias\"", "\"fc.bios\"", TN_E_SHAPE, "'fc.bias' is missing"},
            {"\"norm.running_var\"", "\"norm.running_vax\"", TN_E_SHAPE, "'norm.running_var' is missing"},
            {"exp_avg.fc.bias", "exp_avg.fc.bios", TN_E_SHAPE, "'optimizer.0.exp_avg.fc.bias' is missing"},
            {"\"shape\":[4,3,3,1]", "\"shape\":[4,3,1,3]", TN_E_SHAPE, "[4, 3, 1, 3], [4, 3, 3, 1] expected"},
            {"method\":\"adamw\"", "method\":\"adamx\"", TN_E_SHAPE, "'adamx', 'adamw' expected"},
            {"\"optimizer.0.step\":{\"dtype\":\"I64\"", "\"optimizer.0.step\":{\"dtype\":\"F64\"", TN_E_DTYPE,
             "is F64"},
            {"\"shape\":[2]", "\"shape\":[3]", TN_E_FORMAT, "data_offsets"},
            {"\"dtype\":\"F32\"", "\"dtype\":\"F31\"", TN_E_FORMAT, "unknown dtype 'F31'"},
            {"\"data.0.at\":\"32\"", "\"data.0.at\":\"41\"", TN_E_FORMAT, "'data.0.at' is 41, of 40 items"},
            {"\"data.0.epoch\":\"0\"", "\"data.0.epoch\":\"-\"", TN_E_FORMAT, "no count"},
            {"optimizer.0.lr\":\"0", "optimizer.0.lr\":\"-", TN_E_FORMAT, "no rate"},
            {"optimizer.0.gathered\":\"0", "optimizer.0.gathered\":\"x", TN_E_FORMAT, "no count"},
            {"{\"__metadata__\"", "x\"__metadata__\"", TN_E_FORMAT, "not a safetensors file"},
        };
        for (size_t i = 0; i < sizeof(edits) / sizeof(*edits); i++) {
            edit(good, bad, edits[i].from, edits[i].to);
            expect_refused(&r, bad, edits[i].status, edits[i].says);
        }
        size_t n;
        char *text = slurp(good, &n);
        spill(bad, text, n + 1); /* one byte too many */
        free(text);
        expect_refused(&r, bad, TN_E_FORMAT, "bytes of data");
        spill(bad, "PK\3\4\0\0\10\10\0\0", 10);
        expect_refused(&r, bad, TN_E_FORMAT, "a zip archive, as torch.save writes");
        edit(good, bad, "\"data.0.at\":\"32\"", "\"data.0.at\":\"40\""); /* all have been seen */
        if (tn_load(r.s, bad)) fail_msg("%s", tn_error_text(r.s));
        if (tn_load(r.s, good)) fail_msg("%s", tn_error_text(r.s)); /* and the good one still is */
        close_run(&r);
    }
}

/* A file of a model with one more layer. */
TEST(another_model)
{
    needs_cjson();
    const char *path = in_base("other");
    run r, more;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 1, NULL);
    open_run(&more, &PLACES[0], ADAMW);
    tn_linear_new(more.s, "extra", 2, 2);
    assert_int_equal(tn_save(more.s, path), TN_OK);
    expect_refused(&r, path, TN_E_SHAPE, "is in the file only");
    close_run(&r);
    close_run(&more);
}

static int files_like(const char *prefix)
{
    DIR *d = opendir(base);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += !strncmp(e->d_name, prefix, strlen(prefix));
    closedir(d);
    return n;
}

TEST(saving_fails_cleanly)
{
    needs_cjson();
    const char *path = in_base("save");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 1, NULL);
    fails_with(r.s, TN_E_IO, "/dev/null/file", tn_save(r.s, "/dev/null/file"));
    fails_with(r.s, TN_E_NULL, "", tn_save(r.s, NULL));
    assert_int_equal(tn_save(NULL, path), TN_E_NULL);
    assert_int_equal(tn_load(NULL, path), TN_E_NULL);
    /* a folder stands where the file should go: the temporary file goes again */
    assert_int_equal(mkdir(path, 0700), 0);
    fails_with(r.s, TN_E_IO, "", tn_save(r.s, path));
    assert_int_equal(files_like("save"), 1);
    assert_int_equal(rmdir(path), 0);
    /* a session with an error saves nothing */
    assert_null(tn_add(r.fc->weight, r.fc->bias));
    assert_int_equal(tn_save(r.s, path), TN_E_SHAPE);
    assert_int_equal(access(path, F_OK), -1);
    tn_clear_error(r.s);
    /* reserved names */
    tn_param(r.s, "optimizer.7", tn_zeros(r.s, TN_F32, TN_SHAPE(1)));
    assert_int_equal(tn_save(r.s, path), TN_E_ARG);
    assert_non_null(strstr(tn_error_text(r.s), "'optimizer.7'"));
    tn_close(r.s);
}

/* ---- broken ---- */

/* How often each parameter was updated decides what else the file must have, and where it goes. */
TEST(update_counts)
{
    needs_cjson();
    static const int64_t count[] = {0, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 53 | 1, 1, INT64_C(1) << 53};
    const char *path = in_base("counts");
    for (int kind = ADAMW; kind <= ACCUMULATE; kind++) {
        if (kind == TWO) continue;
        run r;
        open_run(&r, &PLACES[0], (run_kind)kind);
        go_on(&r, 6, NULL);
        assert_int_equal(tn_save(r.s, path), TN_OK);
        size_t n;
        unsigned char *file = (unsigned char *)slurp(path, &n);
        nn_safetensors f;
        nn_why why = {0};
        assert_int_equal(tn_nn_safetensors_read(path, &f, &why), TN_OK);
        const nn_saved *steps = tn_nn_safetensors_find(&f, "optimizer.0.step");
        size_t at = (size_t)(steps->data - f.file);
        int params = (int)steps->shape[0];
        tn_nn_safetensors_free(&f);
        for (int k = 0; k < params; k++) {
            unsigned char was[8];
            memcpy(was, file + at + 8 * k, 8);
            for (int c = 0; c < 7; c++) {
                memcpy(file + at + 8 * k, &count[c], 8);
                spill(path, file, n);
                if (c < 5)
                    expect_refused(&r, path, TN_E_FORMAT, "has been updated");
                else if (tn_load(r.s, path))
                    fail_msg("%s", tn_error_text(r.s));
            }
            memcpy(file + at + 8 * k, was, 8);
        }
        free(file);
        close_run(&r);
    }
}

/* Mutated files: the reader says what is wrong or delivers tensors inside the file; a session refuses without
 * effect, or takes it. Mutations sit mostly in the header. */
TEST(any_bytes)
{
    needs_cjson();
    enum { PARSED = 4000, LOADED = 400 };
    const char *path = in_base("fuzz");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 2, NULL);
    assert_int_equal(tn_save(r.s, path), TN_OK);
    size_t n;
    unsigned char *good = (unsigned char *)slurp(path, &n), *bad = malloc(n);
    assert_non_null(bad);
    rng g = {11};
    int refused = 0, taken = 0;
    for (int i = 0; i < PARSED; i++) {
        memcpy(bad, good, n);
        size_t size = rng_below(&g, 4) ? n : (size_t)rng_below(&g, (int64_t)n);
        int flips = (int)rng_below(&g, 4) + (size == n);
        for (int k = 0; k < flips; k++) {
            size_t at = (size_t)rng_below(&g, rng_below(&g, 8) ? 3000 : (int64_t)n);
            bad[at] = rng_below(&g, 2) ? (unsigned char)rng_below(&g, 256)
                                       : (unsigned char)"0123456789,:[]{}\"-e."[rng_below(&g, 20)];
        }
        spill(path, bad, size);
        nn_safetensors f;
        nn_why why = {0};
        int status = tn_nn_safetensors_read(path, &f, &why);
        assert_true(status == TN_OK || (status == TN_E_FORMAT && *why.text));
        for (int k = 0; !status && k < f.n; k++)
            assert_true(f.saved[k].data + f.saved[k].bytes <= f.file + size);
        refused += status != TN_OK;
        taken += status == TN_OK;
        if (!status) tn_nn_safetensors_free(&f);
        if (i >= LOADED) continue;
        snapshot before, after;
        take(&r, &before);
        if (tn_load(r.s, path)) {
            tn_clear_error(r.s);
            take(&r, &after);
            assert_memory_equal(&before, &after, sizeof(before));
        }
    }
    assert_true(refused > PARSED / 2 && taken > 50);
    free(good);
    free(bad);
    close_run(&r);
}

/* A key of the metadata whose name is damaged is missed, and not taken for a file that never had it. */
TEST(damaged_keys)
{
    needs_cjson();
    static const char *const key[] = {"optimizer.0.method", "optimizer.0.lr", "seed", "draw"};
    char quoted[64];
    const char *path = in_base("keys");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 2, NULL);
    assert_int_equal(tn_save(r.s, path), TN_OK);
    size_t n;
    unsigned char *file = (unsigned char *)slurp(path, &n);
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        snprintf(quoted, sizeof quoted, "\"%s\":", key[i]);
        unsigned char *at = memmem(file, n, quoted, strlen(quoted));
        assert_non_null(at);
        at[strlen(quoted) - 3] ^= 1;
        spill(path, file, n);
        snapshot before, after;
        take(&r, &before);
        if (!tn_load(r.s, path)) fail_msg("loaded without %s", key[i]);
        tn_clear_error(r.s);
        take(&r, &after);
        assert_memory_equal(&before, &after, sizeof(before));
        at[strlen(quoted) - 3] ^= 1;
    }
    free(file);
    close_run(&r);
}

/* Allocation k fails, for every k until none does. */
TEST(no_memory)
{
    needs_cjson();
    const char *path = in_base("memory");
    const char *other = in_base("memory2");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 2, NULL);
    assert_int_equal(tn_save(r.s, path), TN_OK);
    for (long k = 0;; k++) {
        snapshot before, after;
        go_on(&r, 1, NULL);
        take(&r, &before);
        tn_alloc_fail_after(k);
        int status = tn_load(r.s, path);
        tn_alloc_fail_after(-1);
        if (!status) break;
        if (status != TN_E_NOMEM) fail_msg("allocation %ld: %d, %s", k, status, tn_error_text(r.s));
        failed(r.s, TN_E_NOMEM, "");
        take(&r, &after);
        assert_true(before.draw == after.draw && before.steps == after.steps && before.lr == after.lr);
        assert_true(k < 100000);
    }
    for (long k = 0;; k++) {
        tn_alloc_fail_after(k);
        int status = tn_save(r.s, other);
        tn_alloc_fail_after(-1);
        if (!status) break;
        if (status != TN_E_NOMEM) fail_msg("allocation %ld: %d, %s", k, status, tn_error_text(r.s));
        assert_int_equal(access(other, F_OK), -1);
        tn_clear_error(r.s);
        assert_true(k < 100000);
    }
    close_run(&r);
}

RUN_TESTS(make_base, drop_base)
