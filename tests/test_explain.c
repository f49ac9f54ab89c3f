/* test_explain.c - what the user can see of a step: the plan as committed text, the explanation, reports,
 * TENSOR_DUMP, tn_require_fused, pictures. UPDATE_PLANS=1 writes tests/plans/ anew. Start with any test. */
#include "explain_rig.h"
#include "folder.h"

#ifdef TN_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

static char *read_file(const char *path)
{
    static char *last;
    free(last);
    return last = slurp(path, NULL);
}

/* ---- the plan ---- */

TEST(the_plan_is_the_committed_one_for_any_number_of_threads)
{
    static const char path[] = "tests/plans/mlp.txt";
    for (int threads = 1; threads <= 2; threads++) {
        tn_session *s = open_as(TN_FUSED, threads);
        assert_string_equal(tn_plan_text(s), "");
        model m = make(s);
        for (int i = 0; i < 2; i++) train(&m, false);
        if (getenv("UPDATE_PLANS")) spill_text(path, tn_plan_text(s));
        const char *want = read_file(path);
        assert_non_null(want);
        assert_string_equal(tn_plan_text(s), want);
        assert_int_equal(tn_close(s), 0);
    }
}

TEST_ON(what_is_told_adds_up, open_as(TN_FUSED, 2))
{
    model m = make(s);
    train(&m, false);
    tn_stats a = {.size = sizeof a}, b = a;
    a = stats_of(s);
    train(&m, false);
    b = stats_of(s);
    tn_view v;
    assert_int_equal(tn_view_make(s, &v), 0);
    assert_int_equal(v.total.kernels, b.kernels + b.library_calls - a.kernels - a.library_calls);
    assert_int_equal(v.total.bytes, b.bytes_moved - a.bytes_moved);
    tn_sums sum = {0};
    for (int r = 0; r < v.n_row; r++)
        for (int w = 0; w < 2; w++) {
            tn_sums x = tn_view_row(&v, r, w ? TN_WAY_BACKWARD : TN_WAY_FORWARD);
            sum.kernels += x.kernels;
            sum.bytes += x.bytes;
            sum.before += x.before;
        }
    assert_int_equal(sum.kernels, v.total.kernels);
    assert_int_equal(sum.bytes, v.total.bytes);
    assert_int_equal(sum.before, v.total.before);
    assert_true(v.total.before > v.total.kernels);
    assert_true(v.kept_bytes >= (int64_t)BATCH * WIDTH * 4); /* z, at least */
    tn_view_free(&v);
}

static int64_t in_ledger(const tn_view *v, const char *how, const char *name)
{
    int64_t bytes = 0;
    for (int i = 0; i < v->n_kept; i++)
        if (!strcmp(v->kept[i].how, how) && strstr(v->kept[i].name, name)) bytes += v->kept[i].bytes;
    return bytes;
}

/* The product behind the loss is no value that a backward was known to need when the loss was read: it runs
 * again, which is the price of the read; eager mode would have kept it. */
TEST(a_read_in_the_middle_of_a_step)
{
    const int64_t logits = (int64_t)BATCH * CLASSES * 4, z = (int64_t)BATCH * WIDTH * 4;
    tn_session *s = open_as(TN_FUSED, 2), *whole = open_as(TN_FUSED, 2);
    model m = make(s), w = make(whole);
    for (int i = 0; i < 2; i++) {
        train(&m, true);
        train(&w, false);
    }
    tn_view v, u;
    assert_int_equal(tn_view_make(s, &v), 0);
    assert_int_equal(tn_view_make(whole, &u), 0);
    assert_int_equal(v.total.before, u.total.before);
    int repeated = 0;
    TN_EACH(l, v.launch, v.n_launch) {
        repeated += l->repeated;
        if (l->repeated) assert_string_equal(l->ops, "affine (computed again)");
        if (strstr(l->ops, "adamw"))
            assert_int_equal(l->way, strstr(l->ops, "affine'") ? TN_WAY_BACKWARD : TN_WAY_UPDATE);
    }
    assert_int_equal(repeated, 1);
    assert_int_equal(v.total.kernels, u.total.kernels + 1);
    assert_int_equal(in_ledger(&v, "computed again", "affine"), logits);
    assert_int_equal(in_ledger(&v, "kept", "affine"), 0);
    assert_int_equal(in_ledger(&v, "kept", "z"), z);
    /* its mean and deviation as they lie in memory, whatever they are spread over */
    assert_true(in_ledger(&v, "kept", "layer_norm") <= z + 2 * BATCH * 4);
    assert_int_equal(u.way[TN_WAY_UPDATE].kernels, 1);
    tn_view_free(&v);
    tn_view_free(&u);
    char *text = explained(s);
    has(text, "1 kernel run a second time");
    assert_null(strstr(text, "-0.00"));
    has(text, "  update  ");
    tn_close(s);
    tn_close(whole);
}

/* Where nothing but the update comes after the read, it costs nothing and need not be moved. */
TEST_ON(a_read_that_costs_nothing, open_as(TN_FUSED, 2))
{
    model m = make(s);
    for (int i = 0; i < 2; i++) {
        tn_step_begin(s);
        tn_tensor *loss = tn_cross_entropy(tn_linear_forward(m.out, tn_linear_forward(m.in, m.x)), m.y);
        tn_backward(loss);
        tn_item(loss);
        tn_optim_step(m.opt);
        tn_step_end(s);
    }
    has(explained(s), "nothing more is stored or computed");
    assert_null(strstr(explained(s), "move it down"));
}

/* What explain says of the step before fusing, beside what eager mode does. */
TEST(before_is_what_eager_mode_does)
{
    tn_stats a = {.size = sizeof a}, b = a;
    tn_session *e = open_as(TN_EAGER, 2), *f = open_as(TN_FUSED, 2);
    model me = make(e), mf = make(f);
    train(&me, false);
    a = stats_of(e);
    train(&me, false);
    b = stats_of(e);
    for (int i = 0; i < 2; i++) train(&mf, false);
    tn_view v;
    assert_int_equal(tn_view_make(f, &v), 0);
    double kernels = (double)(b.kernels + b.library_calls - a.kernels - a.library_calls),
           bytes = (double)(b.bytes_moved - a.bytes_moved);
    assert_true(fabs(v.total.before / kernels - 1) < 0.2);
    assert_true(fabs((double)v.total.bytes_before / bytes - 1) < 0.2);
    tn_view_free(&v);
    has(explained(e), "eager mode");
    tn_close(e);
    tn_close(f);
}

TEST_ON(it_names_tensors_lines_reasons_and_remedies, open_as(TN_FUSED, 2))
{
    has(explained(s), "no step has run");
    model m = make(s);
    train(&m, false);
    char *text = explained(s), line[80];
    has(text, "the last that trained");
    has(text, "gelu");
    has(text, "layer_norm'");
    has(text, "adamw");
    has(text, "layer_norm + gelu  (norm)");
    assert_null(strstr(text, "  adamw  ("));
    has(text, "affine' + adamw  (in)");
    has(text, "gradients of large parameters: 1.05 MB never stored");
    has(text, "[explain_rig.h:");
    has(text, "MB  kept            z");
    has(text, "one side is a library call; none needed");
    assert_null(strstr(text, "cut into segments"));
    assert_null(strstr(text, "used nowhere"));
    has(text, "predicted ms");
    has(text, "profile reference ");
    assert_null(strstr(text, " time, share"));
    for (int i = 0; i < 3; i++) train(&m, true); /* the last one repeats the one before it */
    text = explained(s);
    snprintf(line, sizeof line, "cut into segments: item of loss at explain_rig.h:%d before", m.line_of_read);
    has(text, line);
    has(text, "move it down");
    tn_profile(s, true);
    train(&m, false);
    has(explained(s), " time, share");
    has(explained(s), "GB/s");
    /* an evaluation afterwards does not push training out */
    tn_step_begin(s);
    tn_item(tn_mean(tn_relu(m.x), TN_ALL, 0));
    tn_step_end(s);
    has(explained(s), "the last that trained");
}

/* A short last batch is not told of in place of the steps before it; a program that changed is. */
TEST(the_usual_step_is_told)
{
    static const struct {
        int rows, times;
        const char *says[2];
    } run[] = {{8, 1, {"step 1 (the last that trained)", "w_8"}},
               {3, 1, {"step 2 (the last that trained)", "w_3"}}, /* after one, any is as usual */
               {8, 6, {"step 8 (the last that trained)", "w_8"}},
               {3, 1, {"step 8 (the last that trained as most do)", "w_8"}},
               {3, 1, {"step 8 (the last that trained as most do)", "w_8"}},
               {8, 1, {"step 11 (the last that trained)", "w_8"}},
               {3, 6, {"step 17 (the last that trained)", "w_3"}}};
    tn_session *s = open_as(TN_FUSED, 2);
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(8, 4)));
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        for (int k = 0; k < run[i].times; k++) {
            tn_step_begin(s);
            tn_tensor *part = tn_narrow(w, 0, 0, run[i].rows), *y = tn_softmax(part, 1);
            char name[8];
            snprintf(name, sizeof name, "w_%d", run[i].rows);
            tn_set_name(y, name);
            tn_backward(tn_sum(tn_square(y), TN_ALL, false));
            tn_step_end(s);
        }
        char *text = explained(s);
        has(text, run[i].says[0]);
        has(text, run[i].says[1]);
    }
    close_clean(s);
}

/* Each boundary has its line, or is one of those that the last line counts. */
TEST_ON(small_boundaries_are_one_line, open_as(TN_FUSED, 2))
{
    model m = make(s);
    train(&m, false);
    tn_view v;
    tn_told rest;
    assert_int_equal(tn_view_make(s, &v), 0);
    const int told = tn_view_told(&v, &rest);
    int64_t bytes = rest.bytes, all = 0;
    int n = 0;
    for (int i = 0; i < v.n_boundary; i++) {
        all += v.boundary[i].bytes;
        assert_int_equal(v.boundary[i].bytes * 100 >= v.total.bytes, i < told);
        if (i < told) bytes += v.boundary[i].bytes;
        if (i >= told) n += v.boundary[i].n;
    }
    assert_int_equal(bytes, all);
    assert_int_equal(rest.n, n);
    assert_true(told > 0 && n > 0);
    tn_view_free(&v);
    has(explained(s), "of less than 1 % each");
}

/* ---- files ---- */

/* What the step's end computes and nothing uses is named, in a repeated step too; not what a backward, a
 * watch, a read, an assignment or tn_keep asked for. */
TEST_ON(what_nobody_uses_is_named, open_as(TN_FUSED, 1))
{
    tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(16, 16)));
    tn_tensor *sum = tn_buffer(s, "sum", tn_zeros(s, TN_F32, TN_SHAPE(16, 16)));
    for (int i = 0; i < 6; i++) {
        const bool some = i < 3;
        tn_step_begin(s);
        tn_tensor *h = tn_tanh(w), *read = tn_mean(h, TN_ALL, false);
        tn_item(read);
        tn_watch(tn_max(h, TN_ALL, false));
        tn_assign(sum, tn_exp(h));
        tn_free(tn_keep(tn_sin(h)));
        int line = __LINE__ + 1;
        if (some) tn_erf(tn_cos(h));
        if (some) tn_sum(h, TN_ALL, false); /* a view of what is computed */
        if (some) tn_set_name(tn_neg(h), "minus");
        tn_backward(tn_sum(tn_square(h), TN_ALL, false));
        assert_int_equal(tn_step_end(s), 0);
        char wanted[120];
        snprintf(
            wanted, sizeof wanted,
            "nowhere: a result of erf at test_explain.c:%d, a result of sum at test_explain.c:%d, minus\n",
            line, line + 1);
        if (some) has(explained(s), wanted);
        if (!some) assert_null(strstr(explained(s), "used nowhere"));
    }
}

static int count(const char *text, const char *end, char what)
{
    int n = 0;
    for (; text < end; text++) n += *text == what;
    return n;
}

/* Of however many points a curve keeps 128 to 256 means, which lie where the points do; the first, the last
 * and the lowest are told as they were. */
TEST(curves_are_told)
{
    static const int points[] = {1, 2, 255, 256, 257, 513, 5000};
    const char *dir = fresh_dir();
    char path[300], words[120];
    assert_int_equal(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        tn_session *s = open_as(TN_FUSED, 1);
        tn_tensor *w = tn_ones(s, TN_F32, TN_SHAPE(4));
        const int n = points[i];
        for (int k = 0; k < n; k++) {
            tn_step_begin(s);
            if (!k) tn_item(tn_sum(tn_exp(w), TN_ALL, false)); /* a step that can be told of */
            if (k == n / 2) tn_curve_point(s, "loss", NAN);
            tn_curve_point(s, "loss", k == n / 2 ? -3 : 10 + k % 7);
            tn_curve_point(s, "a<b", 0);
            tn_step_end(s);
        }
        snprintf(words, sizeof words, "curve loss: %d > %d by step", n < 2 ? -3 : 10,
                 n / 2 == n - 1 ? -3 : 10 + (n - 1) % 7);
        has(explained(s), words);
        snprintf(words, sizeof words, "lowest -3 at step %d, 1 not finite", n / 2 + 1);
        has(explained(s), words);
        PRINTED(drawn, f) assert_int_equal(tn_curves(s, f), 0); /* two of 7 rows each, none wider than 67 */
        int rows = 0;
        for (const char *at = drawn; (at = strstr(at, "\n  |")); at++, rows++)
            assert_true(strcspn(at + 1, "\n") <= 67);
        assert_int_equal(rows, n > 2 ? 14 : 0);
        assert_int_equal(count(drawn, drawn + strlen(drawn), '*'), n > 2 ? 2 * (n < 64 ? n : 64) : 0);
        free(drawn);
        snprintf(path, sizeof path, "%s/%d.json", dir, n);
        assert_int_equal(tn_report(s, path), 0);
        const char *value = strstr(read_file(path), "\"curves\":[{\"name\":\"loss\",\"step\":[");
        assert_non_null(value);
        value = strstr(value, "\"value\":[");
        assert_non_null(value);
        const char *end = strchr(value, ']');
        const int held = count(value, end, ',') + 1;
        if (held > 256 || held < (n < 128 ? n : 128)) fail_msg("%d of %d points are held", held, n);
        for (value = strchr(value, '[') + 1; value < end; value += strcspn(value, ",]") + 1)
            assert_true(atof(value) >= -3 && atof(value) <= 16);
        snprintf(path, sizeof path, "%s/%d.html", dir, n);
        assert_int_equal(tn_report(s, path), 0);
        const char *html = read_file(path);
        has(html, "a&#60;b");
        assert_true((strstr(html, "<polyline") != NULL) == (n > 1));
        assert_int_equal(tn_curve_point(NULL, "x", 1), TN_E_NULL);
        tn_curve_point(s, "none\n\033[1m", NAN); /* cut between characters of UTF-8, and steers no terminal */
        tn_curve_point(s, "thirty bytes of ASCII, then a \303\251", 2);
        PRINTED(odd, f) assert_int_equal(tn_curves(s, f), 0);
        assert_non_null(strstr(odd, "curve none??[1m: 1 not finite\n"));
        assert_non_null(strstr(odd, "curve thirty bytes of ASCII, then a : 2 > 2 by step"));
        free(odd);
        close_clean(s);
    }
}

TEST_ON(reports_are_whole_files, open_as(TN_FUSED, 2))
{
    const char *dir = fresh_dir();
    char path[300];
    assert_int_equal(mkdir(dir, 0700), 0);
    model m = make(s);
    tn_profile(s, true);
    train(&m, true);
    train(&m, true);
    snprintf(path, sizeof path, "%s/a.html", dir);
    assert_int_equal(tn_report(s, path), 0);
    const char *html = read_file(path);
    assert_int_equal(strncmp(html, "<!doctype html>", 15), 0);
    has(html, "<svg");
    has(html, "layer_norm");
    has(html, "</html>");
    has(html, "<td>update<td class=o>adamw");
    has(html, "<td class=n title=kernels>"); /* which a phone shows beside the number */
    has(html, "<b>norm</b>");
    has(html, "<pre>");
    has(html, "<h2>Graph</h2>");
    has(html, "<title>z, 0.524 MB</title></path>");
    has(html, "layer_norm + gelu \302\267 norm</text>");
    assert_int_equal(count_text(html, "<details"), count_text(html, "</details>"));
    assert_int_equal(count_text(html, "<table"), count_text(html, "<div class=w>"));
    assert_null(strstr(html, "http"));
    snprintf(path, sizeof path, "%s/a.json", dir);
    assert_int_equal(tn_report(s, path), 0);
#ifdef TN_HAVE_CJSON
    cJSON *j = cJSON_Parse(read_file(path));
    assert_non_null(j);
    assert_true(cJSON_GetObjectItem(cJSON_GetObjectItem(j, "total"), "ms")->valuedouble > 0);
    assert_true(cJSON_GetObjectItem(cJSON_GetObjectItem(j, "total"), "predicted_ms")->valuedouble > 0);
    assert_int_equal(strncmp(cJSON_GetObjectItem(j, "profile")->valuestring, "reference ", 10), 0);
    assert_non_null(
        cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(j, "boundaries"), 0), "saves_ms"));
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(j, "groups")) > 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(j, "segments")), 1);
    assert_string_equal(cJSON_GetObjectItem(j, "unread")->valuestring, "");
    cJSON_Delete(j);
#endif
    snprintf(path, sizeof path, "%s/a.txt", dir);
    assert_int_equal(tn_report(s, path), 0);
    has(read_file(path), "groups");
    snprintf(path, sizeof path, "%s/trace.json", dir);
    assert_int_equal(tn_trace(s, path), 0);
#ifdef TN_HAVE_CJSON
    j = cJSON_Parse(read_file(path));
    assert_non_null(j);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(j, "traceEvents")) > 10);
    cJSON_Delete(j);
#endif
    fails_with(s, TN_E_ARG, "a.pdf", tn_report(s, "a.pdf"));
    snprintf(path, sizeof path, "%s/nowhere/a.txt", dir);
    fails_with(s, TN_E_IO, "nowhere/a.txt", tn_report(s, path));
}

TEST_ON(the_graph_has_a_box_for_each_group, open_as(TN_FUSED, 1))
{
    model m = make(s);
    train(&m, false);
    PRINTED(text, f) assert_int_equal(tn_graphviz(s, f), 0);
    assert_int_equal(strncmp(text, "digraph", 7), 0);
    has(text, "subgraph cluster_0");
    has(text, "in.weight");
    int open = 0;
    for (const char *p = text; *p; p++) open += *p == '{' ? 1 : *p == '}' ? -1 : 0;
    assert_int_equal(open, 0);
    free(text);
}

static char *dumped(const char *dir, const char *entry)
{
    static char all[1 << 16];
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[600];
        if (!strstr(e->d_name, entry)) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n += (size_t)snprintf(all + n, sizeof all - n, "%s", read_file(path));
        assert_true(n < sizeof all);
    }
    closedir(d);
    assert_true(n > 0);
    return all;
}

static int entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* The same operators at two lines: two dumps, one kernel. */
TEST(a_dump_shows_kernels_with_the_lines_they_come_from)
{
    for (int i = 0; i < 2; i++) {
        const char *dir = fresh_dir();
        char line[64];
        setenv("TENSOR_DUMP", dir, 1);
        tn_session *s = open_as(TN_FUSED, 1);
        unsetenv("TENSOR_DUMP");
        tn_tensor *x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(64, 96))), *y;
        tn_set_name(x, "pixels");
        tn_stats before = {.size = sizeof before}, after = before;
        before = stats_of(s);
        tn_step_begin(s);
        int at;
        if (i)
            at = __LINE__, y = tn_tanh(tn_relu(x));
        else
            at = __LINE__, y = tn_tanh(tn_relu(x));
        tn_keep(y);
        tn_step_end(s);
        after = stats_of(s);
        if (i) assert_int_equal(after.compiled - before.compiled, 0);
        int files = entries(dir);
        setenv("TENSOR_DUMP", dir, 1);
        tn_profile(s, true); /* what is run to measure the bandwidth is no plan of the program's */
        tn_step_begin(s);
        tn_keep(tn_tanh(tn_relu(x)));
        tn_step_end(s);
        FILE *null = fopen("/dev/null", "w");
        assert_int_equal(tn_explain(s, null), 0);
        fclose(null);
        unsetenv("TENSOR_DUMP");
        assert_int_equal(entries(dir), files);
        has(dumped(dir, "plan-001"), "randn");
        tn_close(s);
        snprintf(line, sizeof line, "relu at test_explain.c:%d", at);
        const char *text = dumped(dir, ".c");
        has(text, line);
        has(text, "pixels");
        has(dumped(dir, ".txt"), "simplified");
    }
}

/* ---- tn_require_fused ---- */

TEST_ON(what_is_required_is_fused_or_the_step_fails, open_as(TN_FUSED, 1))
{
    tn_tensor *x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(64, 96)));
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(96, 96)));
    for (int i = 0; i < 4; i++) { /* three good ones, which repeat the first, and a bad one */
        int bad = i == 3;
        tn_step_begin(s);
        tn_tensor *h = tn_mul(x, tn_slice(w, 0, 0, 1, 1));
        assert_int_equal(tn_require_fused(s), 0);
        tn_tensor *a = bad ? tn_matmul(h, w) : tn_relu(h);
        tn_tensor *b = tn_tanh(tn_mul_scalar(a, 0.1));
        assert_int_equal(tn_require_end(s), 0);
        tn_assign(w, tn_zeros(s, TN_F32, TN_SHAPE(96, 96)));
        tn_watch(tn_sum(b, TN_ALL, 0));
        assert_int_equal(tn_step_end(s), bad ? TN_E_STATE : 0);
    }
    has(tn_error_text(s), "require_fused at tests/test_explain.c:");
    has(tn_error_text(s), "matmul at test_explain.c:");
    has(tn_error_text(s), "one side is a library call");
    tn_clear_error(s);
    tn_step_begin(s);
    tn_require_fused(s);
    tn_tensor *a = tn_relu(x);
    tn_item(tn_sum(a, TN_ALL, 0));
    tn_tensor *b = tn_tanh(a);
    tn_require_end(s);
    tn_item(tn_sum(b, TN_ALL, 0));
    fails_with(s, TN_E_STATE, "ran apart", tn_step_end(s));
    assert_int_equal(tn_require_end(s), TN_E_STATE);
    tn_clear_error(s);
}

/* ---- no memory ---- */

TEST_ON(without_memory_it_says_so, open_as(TN_FUSED, 1))
{
    model m = make(s);
    train(&m, true);
    FILE *f = fopen("/dev/null", "w");
    assert_non_null(f);
    int failures = 0;
    for (long n = 0, status = 1; status; n++) {
        tn_alloc_fail_after(n);
        status = tn_explain(s, f);
        tn_alloc_fail_after(n);
        bool text = tn_plan_text(s) != NULL;
        tn_alloc_fail_after(n);
        int graph = tn_graphviz(s, f);
        tn_alloc_fail_after(-1);
        assert_true(!status || status == TN_E_NOMEM);
        assert_true(!graph || graph == TN_E_NOMEM);
        failures += status != 0;
        if (!n) assert_false(text);
        if (!text || graph) status = TN_E_NOMEM;
        assert_true(n < 10000);
    }
    assert_true(failures > 3);
    fclose(f);
}

RUN_TESTS(make_base, drop_base)
