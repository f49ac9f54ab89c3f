/* test_nn_events.c - files of events for TensorBoard, read by a reader of the formats that knows nothing of
 * the writer: lengths, check sums by a table, messages of any field order. Start with read_events. */
#include "folder.h"
#include "rig.h"

#include "../include/tensor_nn.h"

#include <time.h>

typedef struct event {
    double time;
    int64_t step;
    char version[32], tag[256];
    float value;
} event;

/* The remainder of the message by the polynomial 0x1EDC6F41, bit by bit from the highest: bytes come in
 * reflected, and so does the result leave. */
static uint32_t reflected(uint32_t x, int bits)
{
    uint32_t r = 0;
    for (int i = 0; i < bits; i++) r |= (x >> i & 1) << (bits - 1 - i);
    return r;
}

static uint32_t crc32c(const unsigned char *p, size_t n)
{
    uint32_t r = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        r ^= reflected(p[i], 8) << 24;
        for (int k = 0; k < 8; k++) r = r & 0x80000000u ? r << 1 ^ 0x1edc6f41u : r << 1;
    }
    return reflected(~r, 32);
}

static uint64_t little(const unsigned char *p, int n)
{
    uint64_t x = 0;
    while (n-- > 0) x = x << 8 | p[n];
    return x;
}

static void check_sum(const unsigned char *p, size_t n, const unsigned char *sum)
{
    const uint32_t rotated = (uint32_t)little(sum, 4) - 0xa282ead8u;
    assert_int_equal(rotated << 15 | rotated >> 17, crc32c(p, n));
}

static uint64_t varint(const unsigned char **p)
{
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(shift < 70);
        x |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128)) return x;
    }
}

/* depth 0: Event, 1: Summary, 2: Summary.Value */
static void read_message(const unsigned char *p, const unsigned char *end, int depth, event *e)
{
    while (p < end) {
        const uint64_t key = varint(&p);
        const int at = depth * 1000 + (int)(key >> 3) * 10 + (int)(key & 7);
        const uint64_t n = (key & 7) == 2 ? varint(&p) : (key & 7) == 1 ? 8 : 4;
        uint64_t bits = 0;
        assert_true((key & 7) == 0 || n <= (uint64_t)(end - p));
        switch (at) {
        case 11: bits = little(p, 8), memcpy(&e->time, &bits, 8); break;
        case 20: e->step = (int64_t)varint(&p); continue;
        case 32: memcpy(e->version, p, n < 31 ? n : 31); break;
        case 52: read_message(p, p + n, 1, e); break;
        case 1012: read_message(p, p + n, 2, e); break;
        case 2012: memcpy(e->tag, p, n < 255 ? n : 255); break;
        case 2025: bits = little(p, 4), memcpy(&e->value, &(uint32_t){(uint32_t)bits}, 4); break;
        default: fail_msg("field %llu of depth %d", (unsigned long long)key >> 3, depth);
        }
        p += n;
    }
    assert_true(p == end);
}

/* All events of the folder's files; the files are counted. */
static int read_events(const char *dir, event *out, int most, int *files)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    *files = 0;
    for (struct dirent *f; (f = readdir(d));) {
        char path[600];
        size_t bytes = 0;
        if (f->d_name[0] == '.') continue;
        assert_non_null(strstr(f->d_name, "tfevents"));
        ++*files;
        snprintf(path, sizeof(path), "%s/%s", dir, f->d_name);
        unsigned char *all = (unsigned char *)slurp(path, &bytes);
        for (size_t at = 0; at < bytes; n++) {
            assert_true(bytes - at >= 16 && n < most);
            const size_t length = (size_t)little(all + at, 8);
            check_sum(all + at, 8, all + at + 8);
            assert_true(length <= bytes - at - 16);
            check_sum(all + at + 12, length, all + at + 12 + length);
            out[n] = (event){.step = 0};
            read_message(all + at + 12, all + at + 12 + length, 0, &out[n]);
            at += length + 16;
        }
        free(all);
    }
    closedir(d);
    return n;
}

TEST(the_check_sum_is_crc32c)
{
    assert_int_equal(crc32c((const unsigned char *)"123456789", 9), 0xe3069283u); /* RFC 3720's polynomial */
}

TEST_ON(what_is_written_is_read_back, tn_open(.device = TN_CPU, .threads = 1))
{
    enum { N = 300 };
    static event e[N + 2];
    static const int64_t steps[] = {0, 1, 127, 128, 16384, INT64_MAX, -1};
    const char *dir = fresh_dir();
    char long_tag[202] = "";
    int files = 0;
    tn_events *out = tn_events_open(s, dir);
    assert_non_null(out);
    memset(long_tag, 'x', 200);
    for (int i = 0; i < N; i++) {
        const char *tag = i % 3 ? "loss/train" : long_tag + i % 200;
        assert_int_equal(tn_events_scalar(out, tag, steps[i % 7], i % 5 ? 1.0 / (i + 1) : -INFINITY), 0);
        if (i == N / 2) assert_int_equal(read_events(dir, e, N + 2, &files), i + 2); /* while it is written */
    }
    assert_int_equal(read_events(dir, e, N + 2, &files), N + 1);
    assert_int_equal(files, 1);
    assert_string_equal(e[0].version, "brain.Event:2");
    assert_true(fabs(e[0].time - (double)time(NULL)) < 100);
    for (int i = 0; i < N; i++) {
        assert_string_equal(e[i + 1].tag, i % 3 ? "loss/train" : long_tag + i % 200);
        assert_true(e[i + 1].step == steps[i % 7] && e[i + 1].time >= e[i].time);
        assert_true(e[i + 1].value == (i % 5 ? (float)(1.0 / (i + 1)) : -INFINITY));
    }
    assert_non_null(tn_events_open(s, dir)); /* in the same second, in a file of its own */
    assert_int_equal(read_events(dir, e, N + 2, &files), N + 2);
    assert_int_equal(files, 2);
}

TEST_ON(what_cannot_be_written_is_said, tn_open(.device = TN_CPU, .threads = 1))
{
    char path[400], tag[300];
    const char *dir = fresh_dir();
    snprintf(path, sizeof(path), "%s/none/deeper", dir);
    null_with(s, TN_E_IO, "none/deeper", tn_events_open(s, path));
    tn_events *e = tn_events_open(s, dir);
    memset(tag, 'x', sizeof(tag));
    tag[201] = 0;
    fails_with(s, TN_E_ARG, "201 bytes|test_nn_events.c", tn_events_scalar(e, tag, 1, 1));
    assert_int_equal(tn_events_scalar(e, "", 1, 1), TN_E_ARG);
    tn_clear_error(s);
    assert_int_equal(tn_events_scalar(e, NULL, 1, 1), TN_E_NULL);
    assert_int_equal(tn_events_scalar(NULL, "a", 1, 1), TN_E_NULL);
    tn_clear_error(s);
}

RUN_TESTS(make_base, drop_base)
