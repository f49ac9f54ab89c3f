/* test_data.c - data sets, the loader's order and positions, and the progress line.
 *
 * Read passes_and_positions first. */
#include "idx_files.h"
#include "said.h"
#include "needs.h"

static tn_session *session(void)
{
    tn_session *s = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 1, .log = quiet);
    assert_non_null(s);
    return s;
}

static void expect(tn_session *s, int status, const char *text)
{
    assert_int_equal(tn_error(s), status);
    if (!strstr(tn_error_text(s), text)) fail_msg("'%s' lacks '%s'", tn_error_text(s), text);
    tn_clear_error(s);
}

TEST_ON(dataset_from_a_folder, session())
{
    good_files();
    tn_dataset *d = tn_dataset_idx(s, base, TN_TRAIN, .mean = 0.5, .std = 0.25);
    assert_non_null(d);
    assert_int_equal(tn_dataset_count(d), N);
    tn_batch b;
    int seen = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 3); tn_next(l, &b); seen++) {
        float x[3 * H * W];
        int32_t y[3];
        assert_int_equal(b.number, seen);
        assert_int_equal(b.n, seen < 2 ? 3 : 1); /* the short last batch is kept */
        assert_int_equal(tn_ndim(b.x), 4);
        assert_int_equal(tn_dim(b.x, 0), b.n);
        assert_int_equal(tn_dim(b.x, 1), H);
        assert_int_equal(tn_dim(b.x, 2), W);
        assert_int_equal(tn_dim(b.x, 3), 1);
        assert_int_equal(tn_read(b.x, TN_F32, x, (size_t)b.n * H * W * sizeof(float)), TN_OK);
        assert_int_equal(tn_read(b.y, TN_I32, y, (size_t)b.n * sizeof(int32_t)), TN_OK);
        for (int i = 0; i < b.n; i++) {
            assert_int_equal(y[i], (3 * seen + i) % 10);
            for (int k = 0; k < H * W; k++)
                assert_true(x[i * H * W + k] == (float)((pixel(3 * seen + i, k) / 255.0 - 0.5) / 0.25));
        }
    }
    assert_int_equal(seen, 3);

    assert_int_equal(tn_dataset_count(tn_dataset_idx(s, base, TN_TRAIN, .limit = 2)), 2);
    assert_null(tn_dataset_idx(s, base, TN_TEST));
    expect(s, TN_E_IO, "t10k-labels-idx1-ubyte");
    assert_null(tn_dataset_idx(s, "/nowhere", TN_TRAIN));
    expect(s, TN_E_IO, "/nowhere");
    assert_null(tn_dataset_idx(s, base, TN_TRAIN, .classes = 4));
    expect(s, TN_E_FORMAT, "label 4 of item 4");
    assert_null(tn_dataset_idx(s, NULL, TN_TRAIN));
    expect(s, TN_E_NULL, "dir");
    assert_null(tn_dataset_idx(s, base, (tn_part)7));
    expect(s, TN_E_ARG, "part 7");
    uint8_t f[64];
    idx_labels(f);
    f[7] = N - 1;
    put("train-labels-idx1-ubyte", f, 8 + N - 1);
    assert_null(tn_dataset_idx(s, base, TN_TRAIN));
    expect(s, TN_E_FORMAT, "7 images for 6 labels");
}

TEST(the_shipped_digits)
{
#ifdef TN_HAVE_STB
    tn_session *s = session();
    static const struct {
        tn_part part;
        int n;
    } parts[] = {{TN_TRAIN, 6000}, {TN_TEST, 1000}};
    for (int i = 0; i < 2; i++) {
        tn_dataset *d = tn_dataset_idx(s, "data/digits", parts[i].part);
        if (!d) fail_msg("%s", tn_error_text(s));
        assert_int_equal(tn_dataset_count(d), parts[i].n);
        int count[10] = {0};
        double ink = 0;
        for (int64_t k = 0; k < d->n; k++) count[((const int32_t *)d->array[1].own)[k]]++;
        for (int64_t k = 0; k < d->n * d->array[0].item; k++) ink += d->array[0].data[k] / 255.0;
        for (int k = 0; k < 10; k++) assert_int_equal(count[k], parts[i].n / 10);
        ink /= (double)(d->n * d->array[0].item);
        assert_true(ink > 0.08 && ink < 0.2); /* strokes, neither blank nor full */
    }
    tn_close(s);
#else
    skip();
#endif
}

TEST(the_order)
{
    enum { COUNT = 1000 };
    uint32_t a[COUNT], b[COUNT];
    int seen[COUNT] = {0}, same = 0;
    tn_nn_order(a, COUNT, 1, 0);
    tn_nn_order(b, COUNT, 1, 0);
    assert_memory_equal(a, b, sizeof(a));
    for (int i = 0; i < COUNT; i++) seen[a[i]]++;
    for (int i = 0; i < COUNT; i++) assert_int_equal(seen[i], 1);
    tn_nn_order(b, COUNT, 1, 1);
    for (int i = 0; i < COUNT; i++) same += a[i] == b[i];
    assert_true(same < 12); /* 1 expected */
    tn_nn_order(a, COUNT, 1, 2);
    for (int i = same = 0; i < COUNT; i++) same += a[i] == b[i];
    assert_true(same < 12);
    tn_nn_order(a, COUNT, 1, 0);
    tn_nn_order(b, COUNT, 2, 0);
    for (same = 0; same < COUNT && a[same] == b[same];) same++;
    assert_true(same < 5);
    /* The documented algorithm, pinned: these are part of the file format of a training run. */
    uint32_t pinned[8];
    static const uint32_t want[8] = {0, 1, 4, 3, 7, 2, 6, 5};
    tn_nn_order(pinned, 8, 1, 0);
    assert_memory_equal(pinned, want, sizeof(want));
    /* Each place is equally likely: 6 orders of 3, 6000 seeds. */
    int tally[6] = {0};
    for (uint64_t seed = 0; seed < 6000; seed++) {
        uint32_t p[3];
        tn_nn_order(p, 3, seed * 7919, 3);
        tally[p[0] * 2 + (p[1] > p[2])]++;
    }
    for (int i = 0; i < 6; i++) assert_in_range(tally[i], 870, 1130);
}

static tn_dataset *numbers(tn_session *s, int n)
{
    float x[64];
    int32_t y[64];
    for (int i = 0; i < n; i++) {
        x[i] = (float)i;
        y[i] = i % 3;
    }
    return tn_dataset_from(s, x, y, n, 1, (int64_t[]){1});
}

TEST_ON(passes_and_positions, session())
{
    tn_dataset *d = numbers(s, 10);
    tn_batch b;
    uint32_t order[10];
    int64_t epoch, at;
    for (int pass = 0; pass < 3; pass++) {
        assert_int_equal(tn_dataset_epoch(d), pass);
        tn_nn_order(order, 10, 1, pass);
        int k = 0;
        tn_loader *l = tn_loader_open(d, .batch = 4, .shuffle = 1);
        assert_int_equal(tn_loader_batches(l), 3);
        while (tn_next(l, &b)) {
            float x[4];
            assert_int_equal(tn_read(b.x, TN_F32, x, (size_t)b.n * sizeof(float)), TN_OK);
            for (int i = 0; i < b.n; i++) assert_true(x[i] == (float)order[k++]);
            tn_nn_dataset_position(d, &epoch, &at);
            assert_int_equal(epoch, k < 10 ? pass : pass + 1);
            assert_int_equal(at, k < 10 ? k : 0);
        }
        assert_int_equal(k, 10);
    }
    int count = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 4, .drop_last = 1); tn_next(l, &b); count++)
        assert_int_equal(b.n, 4);
    assert_int_equal(count, 2);
    /* a batch larger than the set, and stopping early */
    tn_loader *l = tn_loader_open(d, .batch = 100);
    assert_int_equal(tn_next(l, &b), 1);
    assert_int_equal(b.n, 10);
    tn_loader_close(l);
    assert_int_equal(tn_dataset_epoch(d), 5);
    count = 0;
    for (l = tn_loader_open(d, .batch = 100, .drop_last = 1); tn_next(l, &b);) count++;
    assert_int_equal(count, 0);
    /* a loader left open belongs to tn_close; nothing leaks */
    assert_int_equal(tn_next(tn_loader_open(d), &b), 1);
    assert_null(tn_loader_open(d, .batch = -1));
    expect(s, TN_E_ARG, "batch -1");
    assert_null(tn_dataset_from(s, NULL, NULL, 1, 0, NULL));
    expect(s, TN_E_NULL, "dataset_from");
    assert_null(tn_dataset_from(s, (float[]){1}, (int32_t[]){1}, 1, 2, (int64_t[]){1, -7}));
    expect(s, TN_E_ARG, "shape[1] is -7");
    assert_null(tn_loader_open(NULL));
    assert_int_equal(tn_next(NULL, &b), 0);
}

/* Of several loaders the newest says where training stands, whatever is left open. */
TEST_ON(positions_beside_a_loader_left_open, session())
{
    needs_cjson();
    char path[64];
    snprintf(path, sizeof path, "/tmp/tn_position_%ld.safetensors", (long)getpid());
    tn_dataset *d = numbers(s, 10);
    tn_batch b;
    int64_t epoch, at;
    assert_int_equal(tn_next(tn_loader_open(d, .batch = 1), &b), 1); /* somebody has looked at an item */
    for (tn_loader *l = tn_loader_open(d, .batch = 4); tn_next(l, &b);) continue;
    tn_nn_dataset_position(d, &epoch, &at);
    assert_int_equal(epoch, 2);
    assert_int_equal(at, 0);
    tn_loader *l = tn_loader_open(d, .batch = 4), *cut;
    assert_int_equal(tn_next(l, &b), 1);
    assert_int_equal(tn_save(s, path), TN_OK);
    for (cut = tn_loader_open(d, .batch = 2, .batches = 3); tn_next(cut, &b);) continue;
    tn_nn_dataset_position(d, &epoch, &at);
    assert_int_equal(epoch, 3);
    assert_int_equal(at, 6);
    while (tn_next(l, &b)) continue; /* an older one moves nothing */
    tn_nn_dataset_position(d, &epoch, &at);
    assert_int_equal(epoch, 3);
    assert_int_equal(at, 6);
    assert_non_null(tn_loader_open(d, .batch = 5));
    assert_int_equal(tn_load(s, path), TN_OK);
    tn_nn_dataset_position(d, &epoch, &at);
    assert_int_equal(epoch, 2);
    assert_int_equal(at, 4);
    unlink(path);
}

TEST_ON(a_broken_session_ends_the_loop, session())
{
    tn_dataset *d = numbers(s, 9);
    tn_batch b;
    int count = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 1); tn_next(l, &b);)
        if (++count == 4) tn_fail(s, TN_E_ARG, "test", "broken here");
    assert_int_equal(count, 4);
    expect(s, TN_E_ARG, "broken here");
}

TEST(data_reports_lack_of_memory)
{
    good_files();
    int failed = 0;
    for (long k = 0; k < 200; k++) {
        tn_session *s = session();
        tn_batch b;
        tn_alloc_fail_after(k);
        tn_dataset *d = tn_dataset_idx(s, base, TN_TRAIN);
        tn_loader *l = tn_loader_open(d, .batch = 2, .shuffle = 1);
        int got = tn_next(l, &b);
        tn_alloc_fail_after(-1);
        if (got) {
            tn_close(s);
            break;
        }
        assert_int_equal(tn_error(s), TN_E_NOMEM);
        failed++;
        tn_close(s);
    }
    assert_in_range(failed, 8, 199);
}

TEST(the_progress_line)
{
    nn_progress p = {.steps = 938, .done = 412, .epoch = 0, .n = 2, .start = 100, .terminal = true};
    char line[256];
    strcpy(p.name[0], "loss");
    strcpy(p.name[1], "acc");
    tn_nn_progress_value(&p, 0, 0.1234);
    tn_nn_progress_value(&p, 1, 0.96875);
    tn_nn_progress_line(&p, 104.12, line, sizeof(line));
    assert_string_equal(
        line, "epoch 1 [========>           ] 412/938  loss 0.1234  acc 0.9688  10.0 ms/step  ETA 5 s");
    p.terminal = false;
    p.known[1] = false; /* asked for, and not there yet */
    p.done = 938;
    tn_nn_progress_line(&p, 109.38, line, sizeof(line));
    assert_string_equal(line, "epoch 1 938/938  loss 0.1234  10.0 ms/step  9.4 s");
    tn_nn_progress_value(&p, 1, NAN); /* this is what it is */
    tn_nn_progress_line(&p, 109.38, line, sizeof(line));
    assert_string_equal(line, "epoch 1 938/938  loss 0.1234  acc nan  10.0 ms/step  9.4 s");
    p.start = 109.3; /* short steps are not 0.0 ms */
    tn_nn_progress_line(&p, 109.38, line, sizeof(line));
    assert_string_equal(line, "epoch 1 938/938  loss 0.1234  acc nan  85 us/step  0.1 s");
    p.start = 100;
    for (size_t size = 1; size < 60; size++) { /* never writes past the end */
        memset(line, 'x', sizeof(line));
        tn_nn_progress_line(&p, 109.38, line, size);
        assert_int_equal(line[size], 'x');
        assert_true(strlen(line) < size);
    }
}

TEST_ON(progress_in_a_file, session())
{
    tn_dataset *d = numbers(s, 40);
    tn_batch b;
    PRINTED(text, f)
    for (tn_loader *l = tn_loader_open(d, .batch = 1, .progress = 1, .progress_to = f); tn_next(l, &b);)
        tn_progress(l, "number", b.number == 0 ? NULL : b.x, "acc", b.x);
    int lines = 0;
    for (char *c = text; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 10);
    assert_null(strchr(text, '\r'));
    assert_non_null(strstr(text, "epoch 1 40/40"));
    assert_non_null(strstr(text, "number"));
    free(text);
}

/* Each line is about the step that has just ended, in fused mode too, where a value asked for in a step is
 * there only once that step has run; what is not a number is shown as what it is. */
TEST(progress_shows_the_step_that_ended)
{
    const struct {
        tn_device_kind device;
        tn_mode mode;
    } way[] = {{TN_REF, TN_EAGER}, {TN_CPU, TN_EAGER}, {TN_CPU, TN_FUSED}};
    for (int w = 0; w < 3; w++) {
        tn_session *s = tn_open(.device = way[w].device, .mode = way[w].mode, .log = quiet);
        tn_dataset *d = numbers(s, 40);
        tn_batch b;
        PRINTED(text, f)
        for (tn_loader *l = tn_loader_open(d, .batch = 2, .progress = 1, .progress_to = f); tn_next(l, &b);) {
            tn_step_begin(s);
            tn_tensor *last = tn_max(b.x, TN_ALL, false);
            if (b.number != 13) tn_progress(l, "last", last, "root", tn_sqrt(tn_rsub_scalar(last, 30)));
            tn_step_end(s);
        }
        assert_int_equal(tn_error(s), 0);
        const char *const want[] = {"2/20  last 3.0000  root 5.1962  ", "10/20  last 19.0000  root 3.3166  ",
                                    "14/20  last 25.0000  root 2.2361  ", /* what was told last */
                                    "20/20  last 39.0000  root "};
        for (int i = 0; i < 4; i++)
            if (!strstr(text, want[i])) fail_msg("way %d: no \"%s\" in\n%s", w, want[i], text);
        assert_non_null(strstr(strstr(text, "20/20"), "nan"));
        free(text);
        tn_close(s);
    }
}

RUN_TESTS(make_base, drop_base)
