/* test_nn_arrays.c - a program's own data: arrays in memory and in files, items that a function makes,
 * tokens, steps without data; what is read is compared with what was written here, or by NumPy.
 *
 * Read any_arrays_in_any_order first. */
#include "idx_files.h"
#include "rig.h"
#include "said.h"

static tn_session *session(void)
{
    tn_session *s = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 1, .threads = 2, .log = quiet);
    assert_non_null(s);
    return s;
}

/* Bytes of which each dtype takes every value as a number. */
static void fill(unsigned char *data, size_t n, tn_dtype d, rng *r)
{
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)(d == TN_BOOL ? rng_below(r, 2) : rng_below(r, 120));
}

/* ---- arrays ---- */

/* Arrays of random dtypes and shapes, some in files: each batch has the items of the documented order,
 * whatever the number of threads. */
TEST(any_arrays_in_any_order)
{
    rng r = {5};
    for (int round = 0; round < 40; round++) {
        tn_session *s = session();
        const int64_t n = 1 + rng_below(&r, 50), batch = 1 + rng_below(&r, 20);
        const int arrays = 1 + (int)rng_below(&r, 4), workers = (int)rng_below(&r, 5) - 1;
        tn_array a[4] = {{.data = NULL}};
        unsigned char *data[4];
        char path[4][128];
        size_t bytes[4];
        for (int i = 0; i < arrays; i++) {
            a[i].dtype = (tn_dtype)rng_below(&r, TN_DTYPE_COUNT);
            bytes[i] = tn_dtype_size(a[i].dtype);
            for (int k = (int)rng_below(&r, 4); k > 0; k--) a[i].shape[k - 1] = 1 + rng_below(&r, 4);
            for (int k = 0; a[i].shape[k]; k++) bytes[i] *= (size_t)a[i].shape[k];
            assert_non_null(data[i] = malloc((size_t)n * bytes[i]));
            fill(data[i], (size_t)n * bytes[i], a[i].dtype, &r);
            a[i].data = data[i];
            if (rng_below(&r, 2)) {
                snprintf(path[i], sizeof(path[i]), "%s/%d.bin", base, i);
                put(strrchr(path[i], '/') + 1, data[i], (size_t)n * bytes[i]);
                a[i].data = NULL;
                a[i].path = path[i];
            }
        }
        tn_dataset *d = tn_dataset_arrays(s, a[0].path && rng_below(&r, 2) ? 0 : n, arrays, a);
        if (!d) fail_msg("%s", tn_error_text(s));
        assert_int_equal(tn_dataset_count(d), n);
        uint32_t order[64];
        tn_nn_order(order, n, 1, 0);
        tn_batch b;
        int64_t k = 0;
        for (tn_loader *l = tn_loader_open(d, .batch = batch, .shuffle = 1, .workers = workers);
             tn_next(l, &b); k += b.n) {
            assert_ptr_equal(b.x, b.of[0]);
            assert_ptr_equal(b.y, b.of[1]);
            for (int i = 0; i < TN_MAX_ARRAYS; i++) {
                if (i >= arrays) {
                    assert_null(b.of[i]);
                    continue;
                }
                assert_int_equal(tn_dtype_of(b.of[i]), a[i].dtype);
                int ndim = 0;
                for (; a[i].shape[ndim]; ndim++)
                    assert_int_equal(tn_dim(b.of[i], ndim + 1), a[i].shape[ndim]);
                assert_int_equal(tn_ndim(b.of[i]), ndim + 1);
                unsigned char *got = malloc((size_t)b.n * bytes[i]);
                assert_int_equal(tn_read(b.of[i], a[i].dtype, got, (size_t)b.n * bytes[i]), TN_OK);
                for (int64_t j = 0; j < b.n; j++)
                    assert_memory_equal(got + (size_t)j * bytes[i], data[i] + order[k + j] * bytes[i],
                                        bytes[i]);
                free(got);
            }
        }
        assert_int_equal(k, n);
        assert_int_equal(tn_close(s), TN_OK);
        for (int i = 0; i < arrays; i++) free(data[i]);
    }
}

TEST_ON(images_in_an_array, session())
{
    unsigned char x[3 * 2 * 2 * 3];
    float got[2 * 2 * 2 * 3];
    int64_t y[3] = {2, 0, 1}, labels[2];
    for (int i = 0; i < 36; i++) x[i] = (unsigned char)(i * 7);
    tn_dataset *d = tn_dataset_arrays(
        s, 3,
        TN_ARRAYS({.data = x, .dtype = TN_U8, .shape = {2, 2, 3}, .mean = {.1, .2, .3}, .std = {1, 2, 4}},
                  {.data = y, .dtype = TN_I64}));
    tn_batch b;
    tn_loader *l = tn_loader_open(d, .batch = 2);
    assert_int_equal(tn_next(l, &b), 1);
    assert_int_equal(tn_read(b.x, TN_F32, got, sizeof(got)), TN_OK);
    assert_int_equal(tn_read(b.y, TN_I64, labels, sizeof(labels)), TN_OK);
    assert_int_equal(labels[0], 2);
    for (int i = 0; i < 24; i++) {
        const double want = (x[i] / 255.0 - .1 * (i % 3 + 1)) / (1 << i % 3);
        if (!(fabs((double)got[i] - want) < 1e-6)) fail_msg("%d: %g, not %g", i, (double)got[i], want);
    }
    tn_loader_close(l);
}

TEST_ON(arrays_refused, session())
{
    static const float x[12];
    static const unsigned char p[48];
    const struct {
        int64_t n;
        tn_array a;
        int status;
        const char *text;
    } bad[] = {
        {3, {.shape = {2}}, TN_E_NULL, "array 0 has neither"},
        {0, {.data = x}, TN_E_ARG, "0 items"},
        {-1, {.data = x}, TN_E_ARG, "-1 items"},
        {INT64_C(1) << 33, {.data = x}, TN_E_ARG, "8589934592 items"},
        {3, {.data = x, .path = "x"}, TN_E_ARG, "data and a path"},
        {3, {.data = x, .shape = {-2}}, TN_E_ARG, "above 0"},
        {3, {.data = x, .shape = {1 << 30, 1 << 30, 1 << 30}}, TN_E_ARG, "counted"},
        {3, {.data = x, .dtype = (tn_dtype)77}, TN_E_ARG, "dtype 77"},
        {3, {.data = x, .std = {1}}, TN_E_ARG, "std"},
        {3, {.data = p, .dtype = TN_U8, .shape = {2, 2, 2}, .std = {1}}, TN_E_ARG, "each channel"},
        {3, {.data = p, .dtype = TN_U8, .shape = {2, 8}, .std = {1, 1, 1, 1}}, TN_E_ARG, "u8 [h, w"},
        {3,
         {.data = p, .dtype = TN_U8, .shape = {1, 2, 2}, .mean = {0, NAN}, .std = {1, 1}},
         TN_E_ARG,
         "means"},
        {3, {.path = "/nowhere/x.npy"}, TN_E_IO, "/nowhere/x.npy"},
        {3, {.path = "/nowhere/x.bin"}, TN_E_IO, "/nowhere/x.bin"},
        {0, {.path = "/tmp", .shape = {2}}, TN_E_IO, "not a plain file"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_null(tn_dataset_arrays(s, bad[i].n, 1, &bad[i].a));
        failed(s, bad[i].status, bad[i].text);
    }
    put("ten", x, 10);
    assert_null(tn_dataset_arrays(s, 0, TN_ARRAYS({.path = in_base("ten")})));
    failed(s, TN_E_FORMAT, "10 bytes are not items of 4");
    assert_null(tn_dataset_arrays(s, 4, TN_ARRAYS({.path = in_base("ten"), .dtype = TN_U8})));
    failed(s, TN_E_SHAPE, "10 items, 4 expected");
    put("none", x, 0);
    assert_null(tn_dataset_arrays(s, 0, TN_ARRAYS({.path = in_base("none"), .dtype = TN_U8})));
    failed(s, TN_E_FORMAT, "0 items");
    null_with(s, TN_E_ARG, "9 arrays", tn_dataset_arrays(s, 3, 9, &bad[0].a));
    null_with(s, TN_E_NULL, "NULL", tn_dataset_arrays(s, 3, 1, NULL));
    assert_null(tn_dataset_arrays(NULL, 3, 1, &bad[0].a));
    null_with(s, TN_E_NULL, "no function", tn_dataset_fn(s, 3, NULL, NULL, 1, &bad[0].a));
}

/* ---- .npy ---- */

/* What NumPy 2 writes, to the byte: numpy.save of an int16 of shape (2, 3) with the elements 0 to 5. */
static const char of_numpy[] = "\x93NUMPY\1\0v\0{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }"
                               "                                                          \n"
                               "\0\0\1\0\2\0\3\0\4\0\5";

TEST_ON(a_file_of_numpy, session())
{
    int32_t x[6];
    tn_batch b;
    put("x.npy", of_numpy, sizeof(of_numpy));
    tn_dataset *d = tn_dataset_arrays(s, 0, TN_ARRAYS({.path = in_base("x.npy")}));
    if (!d) fail_msg("%s", tn_error_text(s));
    assert_int_equal(tn_next(tn_loader_open(d), &b), 1);
    assert_int_equal(tn_dtype_of(b.x), TN_I32);
    assert_int_equal(tn_dim(b.x, 0), 2);
    assert_int_equal(tn_dim(b.x, 1), 3);
    assert_int_equal(tn_read(b.x, TN_I32, x, sizeof(x)), TN_OK);
    for (int i = 0; i < 6; i++) assert_int_equal(x[i], i);
    d = tn_dataset_arrays(s, 2, TN_ARRAYS({.path = in_base("x.npy"), .shape = {1, 3, 1}}));
    assert_int_equal(tn_next(tn_loader_open(d), &b), 1);
    assert_int_equal(tn_ndim(b.x), 4);
    assert_null(tn_dataset_arrays(s, 0, TN_ARRAYS({.path = in_base("x.npy"), .shape = {2}})));
    failed(s, TN_E_SHAPE, "items of 3 elements do not fit a shape of 2");
    assert_null(tn_dataset_arrays(s, 3, TN_ARRAYS({.path = in_base("x.npy")})));
    failed(s, TN_E_SHAPE, "2 items, 3 expected");
}

/* A file of version 1, 2 or 3 whose header is `text`. */
static size_t npy(unsigned char *out, int version, const char *text, size_t bytes)
{
    const size_t n = strlen(text), at = version == 1 ? 10 : 12;
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (unsigned char)version;
    out[7] = 0;
    for (size_t i = 8; i < at; i++) out[i] = (unsigned char)(n >> 8 * (i - 8));
    memcpy(out + at, text, n);
    for (size_t i = 0; i < bytes; i++) out[at + n + i] = (unsigned char)i;
    return at + n + bytes;
}

TEST(npy_headers)
{
    const struct {
        const char *header;
        size_t bytes;
        int status; /* TN_OK: read */
        const char *text;
    } files[] = {
        {"{'descr':'<f4','fortran_order':False,'shape':(2,3)}", 24, TN_OK, ""},
        {" { \"shape\" : ( 2 , 3 , ) , 'descr' : '|u1' , 'fortran_order' : False , } \n", 6, TN_OK, ""},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", 24, TN_OK, ""},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 5)}", 5, TN_OK, ""},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }", 12, TN_E_DTYPE, "other order of bytes"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }", 24, TN_E_FORMAT, "ascontiguousarray"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", 24, TN_E_DTYPE, "'<c8'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", 24, TN_E_DTYPE, "'|O'"},
        {"{'descr': '<u8', 'fortran_order': False, 'shape': (3,), }", 24, TN_E_DTYPE, "'<u8'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (3,), }", 24, TN_E_DTYPE, "''"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", 12, TN_E_FORMAT, "records"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, TN_E_FORMAT, "one number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }", 0, TN_E_FORMAT, "axis 0 is empty"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0), }", 0, TN_E_FORMAT, "axis 1 is empty"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }", 12, TN_E_FORMAT, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, TN_E_FORMAT,
         "8 axes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 12, TN_E_FORMAT, "cut off"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 16, TN_E_FORMAT, "too long"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 14, TN_E_FORMAT, "too long"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }", 16,
         TN_E_FORMAT, "cut off"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 1), }", 16, TN_E_FORMAT,
         "too large"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, TN_E_FORMAT, "missing"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4, TN_E_FORMAT, "fortran_order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", 4, TN_E_FORMAT, "unknown key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1", 4, TN_E_FORMAT, "header"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}", 4, TN_E_DTYPE, "'<f4, '"},
        {"", 4, TN_E_FORMAT, "header"},
    };
    for (int version = 1; version <= 3; version++)
        for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
            unsigned char file[512];
            nn_array a;
            nn_why why = {0};
            int64_t n = 0;
            const size_t size = npy(file, version, files[i].header, files[i].bytes);
            put("h.npy", file, size);
            const int status = tn_nn_npy(in_base("h.npy"), &a, &n, &why);
            if (status != files[i].status || !strstr(why.text, files[i].text) ||
                (status && !strstr(why.text, "h.npy")))
                fail_msg("%s: %d '%s'", files[i].header, status, why.text);
            if (status) {
                assert_null(a.file.data);
                continue;
            }
            assert_int_equal((size_t)(n * a.item) * tn_nn_raw_size(&a), files[i].bytes);
            for (size_t k = 0; k < files[i].bytes; k++) assert_int_equal(a.data[k], k);
            tn_nn_unmap(&a.file);
            for (size_t k = 0; k < size; k++) { /* cut off anywhere */
                put("h.npy", file, k);
                why = (nn_why){0};
                assert_int_equal(tn_nn_npy(in_base("h.npy"), &a, &n, &why), TN_E_FORMAT);
                if (version == 2) k += 6;
            }
        }
    unsigned char file[512];
    nn_array a;
    nn_why why = {0};
    int64_t n;
    put("h.npy", file, npy(file, 4, files[0].header, 24));
    assert_int_equal(tn_nn_npy(in_base("h.npy"), &a, &n, &why), TN_E_FORMAT);
    assert_non_null(strstr(why.text, "version 4"));
}

/* Arrays that NumPy has made of each dtype and version, where a python3 has it: it adds up what it wrote. */
TEST(numpy_and_we_agree)
{
    const char *python = getenv("PYTHON");
    char line[2048];
    snprintf(line, sizeof(line),
             "%s - %s <<'PY' 2>/dev/null\nimport sys, numpy as np\nr = np.random.default_rng(1)\n"
             "for i, t in enumerate('f4 f2 f8 i4 i8 u1 ?  i1 i2 u2 u4'.split()):\n"
             "  for v in (1, 2, 3):\n"
             "    s = tuple(r.integers(1, 5, r.integers(1, 5)))\n"
             "    x = (r.integers(0, 100, s)).astype(t)\n"
             "    if v == 2 and x.ndim > 1: x = np.ascontiguousarray(x.T)\n"
             "    with open(f'{sys.argv[1]}/n{i}.{v}.npy', 'wb') as f: np.lib.format.write_array(f, x, "
             "version=(v, 0))\n"
             "    w = np.arange(1, x.size + 1)\n"
             "    print(i, v, x.shape[0], x.size, float((x.astype('f8').ravel() * w).sum()))\nPY",
             python ? python : "python3", base);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    int i, v, files = 0;
    long count, size;
    double sum;
    while (fscanf(f, "%d %d %ld %ld %lf", &i, &v, &count, &size, &sum) == 5) {
        char name[32];
        snprintf(name, sizeof(name), "n%d.%d.npy", i, v);
        tn_session *s = session();
        tn_dataset *d = tn_dataset_arrays(s, 0, TN_ARRAYS({.path = in_base(name)}));
        if (!d) fail_msg("%s", tn_error_text(s));
        assert_int_equal(tn_dataset_count(d), count);
        tn_batch b;
        double x[1024], got = 0;
        assert_int_equal(tn_next(tn_loader_open(d), &b), 1);
        assert_int_equal(tn_numel(b.x), size);
        assert_int_equal(tn_read(b.x, TN_F64, x, (size_t)size * sizeof(*x)), TN_OK);
        for (long k = 0; k < size; k++) got += x[k] * (double)(k + 1);
        assert_true(got == sum);
        tn_close(s);
        files++;
    }
    pclose(f);
    if (!files) {
        print_message("no python3 with numpy (PYTHON names one)\n");
        skip();
    }
    assert_int_equal(files, 33);
}

/* ---- items of a function ---- */

static int squares(int64_t index, void *const *out, void *user)
{
    const int64_t bad = *(int64_t *)user;
    if (index == bad) return bad % 2 ? TN_E_IO : 7;
    for (int i = 0; i < 3; i++) ((double *)out[0])[i] = (double)(index * index + i);
    return TN_OK;
}

TEST(a_function_makes_items)
{
    enum { COUNT = 100 };
    int32_t y[COUNT];
    for (int i = 0; i < COUNT; i++) y[i] = i;
    for (int workers = -1; workers <= 4; workers++)
        for (int64_t begin = -1; begin < COUNT; begin += 33) {
            int64_t bad = begin;
            tn_session *s = session();
            tn_dataset *d =
                tn_dataset_fn(s, COUNT, squares, &bad,
                              TN_ARRAYS({.dtype = TN_F64, .shape = {3}}, {.data = y, .dtype = TN_I32}));
            tn_batch b;
            int64_t seen = 0;
            for (tn_loader *l = tn_loader_open(d, .batch = 8, .workers = workers); tn_next(l, &b);
                 seen += b.n) {
                double x[24];
                assert_int_equal(tn_read(b.x, TN_F64, x, (size_t)b.n * 3 * sizeof(*x)), TN_OK);
                for (int64_t i = 0; i < b.n * 3; i++)
                    assert_true(x[i] == (double)((seen + i / 3) * (seen + i / 3) + i % 3));
            }
            assert_int_equal(seen, bad < 0 ? COUNT : bad / 8 * 8);
            if (bad >= 0) {
                char text[64];
                snprintf(text, sizeof(text), "for item %lld", (long long)bad);
                failed(s, bad % 2 ? TN_E_IO : TN_E_ARG, text);
            }
            /* left in the middle, threads at work or not */
            bad = -1;
            assert_int_equal(tn_next(tn_loader_open(d, .batch = 5, .workers = workers), &b), 1);
            tn_loader *l = tn_loader_open(d, .batch = 5, .workers = workers);
            assert_int_equal(tn_next(l, &b), 1);
            tn_loader_close(l);
            assert_int_equal(tn_close(s), TN_OK);
        }
}

/* ---- tokens ---- */

TEST(files_of_tokens)
{
    enum { COUNT = 1000, CTX = 9, MOST = 50000 };
    for (int bits = 16; bits <= 32; bits += 16) {
        unsigned char file[COUNT * 4];
        int32_t token[COUNT], x[4 * CTX], y[4 * CTX];
        rng r = {3};
        for (int i = 0; i < COUNT; i++) {
            token[i] = (int32_t)rng_below(&r, MOST);
            memcpy(file + i * bits / 8, &token[i], (size_t)bits / 8);
        }
        put("tokens", file, (size_t)(COUNT * bits / 8));
        tn_session *s = session();
        tn_dataset *d = tn_dataset_tokens(s, in_base("tokens"), .ctx = CTX, .bits = bits, .vocabulary = MOST);
        if (!d) fail_msg("%s", tn_error_text(s));
        assert_int_equal(tn_text_vocabulary(d), MOST);
        assert_int_equal(tn_text_byte(d, 1) + tn_text_token(d, 1), -2);
        assert_int_equal(tn_dataset_count(d), (COUNT - 1 + CTX - 1) / CTX);
        tn_batch b;
        for (int drawn = 0; drawn < 2; drawn++) {
            int64_t k = 0;
            uint32_t place[COUNT];
            tn_nn_places(place, 0, COUNT, COUNT - CTX, 1, drawn);
            for (tn_loader *l = tn_loader_open(d, .batch = 4, .shuffle = drawn, .workers = 2);
                 tn_next(l, &b);) {
                assert_int_equal(tn_read(b.x, TN_I32, x, (size_t)b.n * CTX * 4), TN_OK);
                assert_int_equal(tn_read(b.y, TN_I32, y, (size_t)b.n * CTX * 4), TN_OK);
                for (int64_t i = 0; i < b.n * CTX; i++) {
                    const int64_t at = (drawn ? place[k + i / CTX] : (k + i / CTX) * CTX) + i % CTX;
                    assert_int_equal(x[i], at + 1 < COUNT ? token[at] : 0);
                    assert_int_equal(y[i], at + 1 < COUNT ? token[at + 1] : -100);
                }
                k += b.n;
            }
            assert_int_equal(k, tn_dataset_count(d));
        }
        d = tn_dataset_tokens(s, in_base("tokens"), .ctx = CTX, .bits = bits, .vocabulary = MOST / 2);
        for (tn_loader *l = tn_loader_open(d, .batch = 4); tn_next(l, &b);) continue;
        failed(s, TN_E_FORMAT, "is not below 25000");
        assert_null(tn_dataset_tokens(s, in_base("tokens"), .ctx = COUNT, .bits = bits));
        failed(s, TN_E_FORMAT, "more than a window");
        null_with(s, TN_E_ARG, "bits 8", tn_dataset_tokens(s, in_base("tokens"), .bits = 8));
        null_with(s, TN_E_ARG, "vocabulary -1", tn_dataset_tokens(s, in_base("tokens"), .vocabulary = -1));
        null_with(s, TN_E_NULL, "NULL", tn_dataset_tokens(s, NULL));
        null_with(s, TN_E_IO, "/nowhere/t", tn_dataset_tokens(s, "/nowhere/t"));
        put("odd", file, 333);
        null_with(s, TN_E_FORMAT, "333 bytes", tn_dataset_tokens(s, in_base("odd"), .ctx = 5));
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* ---- loops of one's own, and evaluation of any arrays ---- */

TEST(steps_without_data)
{
    tn_session *s = session();
    tn_linear_new(s, "fc", 2, 2);
    tn_dataset *steps = tn_dataset_arrays(s, 30, 0, NULL);
    tn_batch b = {0};
    PRINTED(text, f)
    for (tn_loader *l = tn_loader_open(steps, .batches = 20, .progress = 1, .progress_to = f);
         tn_next(l, &b);) {
        assert_null(b.x);
        assert_int_equal(b.n, 1);
        tn_step_begin(s);
        tn_progress(l, "twice", tn_full(s, 2.0 * (double)b.number, TN_F32, TN_SCALAR));
        tn_step_end(s);
    }
    assert_non_null(strstr(text, "epoch 1 20/20  twice 38.0000"));
    free(text);
    assert_int_equal(tn_save(s, in_base("steps.safetensors")), TN_OK);
    tn_close(s);
#ifdef TN_HAVE_CJSON
    s = session();
    tn_linear_new(s, "fc", 2, 2);
    steps = tn_dataset_arrays(s, 30, 0, NULL);
    assert_int_equal(tn_load(s, in_base("steps.safetensors")), TN_OK);
    int64_t number = 20;
    for (tn_loader *l = tn_loader_open(steps); tn_next(l, &b); number++) assert_int_equal(b.number, number);
    assert_int_equal(number, 30);
    tn_close(s);
#endif
}

/* The mean square of x w - y, weighted by a third array. */
static tn_tensor *weighted(tn_session *s, const tn_batch *b, void *user)
{
    (void)s;
    tn_tensor *off = tn_sub(tn_squeeze(tn_linear_forward(user, b->x), 1), b->y);
    return tn_mean(tn_mul(tn_square(off), b->of[2]), TN_ALL, false);
}

static tn_tensor *apply(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return tn_linear_forward(user, x);
}

TEST(evaluation_of_arrays)
{
    enum { COUNT = 700, SIDE = 3, CLASSES = 4 };
    static float x[COUNT * 2], y[COUNT], weight[COUNT], maps[COUNT * SIDE * SIDE * 2];
    static int64_t mask[COUNT * SIDE * SIDE];
    rng r = {9};
    for (int i = 0; i < COUNT; i++) {
        x[2 * i] = (float)rng_below(&r, 100) / 50;
        x[2 * i + 1] = (float)rng_below(&r, 100) / 50;
        y[i] = (float)rng_below(&r, 100) / 20;
        weight[i] = (float)rng_below(&r, 5);
    }
    for (int i = 0; i < COUNT * SIDE * SIDE; i++) {
        maps[2 * i] = (float)rng_below(&r, 100) / 50;
        maps[2 * i + 1] = (float)rng_below(&r, 100) / 50;
        mask[i] = rng_below(&r, 5) ? rng_below(&r, CLASSES) : -100;
    }
    tn_session *s = session();
    tn_linear *one = tn_linear_new(s, "one", 2, 1), *four = tn_linear_new(s, "four", 2, CLASSES);
    double w[2], bias, sum = 0;
    tn_read(one->weight, TN_F64, w, sizeof(w));
    tn_read(one->bias, TN_F64, &bias, sizeof(bias));
    for (int i = 0; i < COUNT; i++) {
        const double off = (double)x[2 * i] * w[0] + (double)x[2 * i + 1] * w[1] + bias - (double)y[i];
        sum += off * off * (double)weight[i];
    }
    tn_dataset *d =
        tn_dataset_arrays(s, COUNT, TN_ARRAYS({.data = x, .shape = {2}}, {.data = y}, {.data = weight}));
    const double got = tn_evaluate_mean(s, d, weighted, one);
    if (!(fabs(got - sum / COUNT) < 1e-6 * sum / COUNT)) fail_msg("%.9g, not %.9g", got, sum / COUNT);
    assert_true(isnan(tn_evaluate(s, d, apply, one)));
    failed(s, TN_E_ARG, "tn_evaluate_mean");
    /* a class for each pixel */
    double v[CLASSES * 2], c[CLASSES], right = 0, counted = 0;
    tn_read(four->weight, TN_F64, v, sizeof(v));
    tn_read(four->bias, TN_F64, c, sizeof(c));
    for (int i = 0; i < COUNT * SIDE * SIDE; i++) {
        int best = 0;
        double most = -1e9;
        for (int k = 0; k < CLASSES; k++) {
            const double z = (double)maps[2 * i] * v[2 * k] + (double)maps[2 * i + 1] * v[2 * k + 1] + c[k];
            if (z > most) most = z, best = k;
        }
        counted += mask[i] >= 0;
        right += mask[i] == best;
    }
    d = tn_dataset_arrays(s, COUNT,
                          TN_ARRAYS({.data = maps, .shape = {SIDE, SIDE, 2}},
                                    {.data = mask, .dtype = TN_I64, .shape = {SIDE, SIDE}}));
    assert_true(fabs(tn_evaluate(s, d, apply, four) - right / counted) < 1e-3);
    assert_true(tn_evaluate_loss(s, d, apply, four) > 0);
    assert_true(isnan(tn_evaluate_mean(s, d, NULL, NULL)));
    failed(s, TN_E_NULL, "function is NULL");
    assert_int_equal(tn_close(s), TN_OK);
}

TEST(arrays_report_lack_of_memory)
{
    put("x.npy", of_numpy, sizeof(of_numpy));
    int64_t bad = -1;
    int failed = 0;
    for (long k = 0; k < 300; k++) {
        tn_session *s = session();
        tn_batch b = {0};
        tn_alloc_fail_after(k);
        tn_dataset *d = tn_dataset_fn(s, 2, squares, &bad,
                                      TN_ARRAYS({.dtype = TN_F64, .shape = {3}}, {.path = in_base("x.npy")}));
        tn_loader *l = tn_loader_open(d, .batch = 2, .shuffle = 1, .workers = 2);
        int got = tn_next(l, &b);
        tn_alloc_fail_after(-1);
        const int status = tn_error(s);
        tn_close(s);
        if (got) break;
        assert_int_equal(status, TN_E_NOMEM);
        failed++;
    }
    assert_in_range(failed, 8, 299);
}

RUN_TESTS(make_base, drop_base)
