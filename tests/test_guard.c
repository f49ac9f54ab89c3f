/* test_guard.c - exceptions of C++ end at tn_guarded, in C. */
#include "tests/test.h"
#include <dlfcn.h>
#include <pthread.h>

#include "src/device/cpu/guard.h"

static void (*throw_it)(void); /* std::bad_alloc */
static int (*under_way)(void); /* exceptions of this thread that nobody has caught */

static int find_cxx(void **state)
{
    (void)state;
    void *cxx = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_GLOBAL);
    if (!cxx) return 0;
    *(void **)&throw_it = dlsym(cxx, "_ZSt17__throw_bad_allocv");
    *(void **)&under_way = dlsym(cxx, "_ZSt19uncaught_exceptionsv");
    return 0;
}

typedef struct work {
    int depth, begun, ended, caught;
} work;

static void go(void *arg)
{
    work *w = arg;
    w->begun++;
    if (w->depth-- > 0) {
        w->caught += !tn_guarded(go, w);
        if (w->depth % 2) throw_it();
    } else if (w->depth < -1) {
        throw_it();
    }
    w->ended++;
}

TEST(nothing_is_thrown)
{
    work w = {0};
    assert_true(tn_guarded(go, &w));
    assert_int_equal(w.ended, 1);
}

static void *many(void *arg)
{
    work *w = arg;
    for (int i = 0; i < 1000; i++) {
        work one = {.depth = -1};
        w->caught += !tn_guarded(go, &one);
        w->ended += one.ended;
        w->begun += under_way();
    }
    return NULL;
}

TEST(thrown_is_caught)
{
    if (!throw_it || !under_way) skip();
    work w = {.depth = -1};
    assert_false(tn_guarded(go, &w));
    assert_int_equal(w.ended, 0);
    assert_int_equal(under_way(), 0);
    w = (work){.depth = -1};
    assert_false(tn_guarded(go, &w)); /* again */
}

/* Each guard takes what is thrown below it, and only that. */
TEST(inner_guards_come_first)
{
    if (!throw_it || !under_way) skip();
    work w = {.depth = 4};
    assert_false(tn_guarded(go, &w));
    assert_int_equal(w.begun, 5);
    assert_int_equal(w.begun - w.ended, 4);
    assert_int_equal(w.caught, 3);
    assert_int_equal(under_way(), 0);
}

TEST(each_thread_has_its_own)
{
    if (!throw_it || !under_way) skip();
    pthread_t t[4];
    work w[4] = {{0}};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, many, &w[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].caught, 1000);
        assert_int_equal(w[i].ended + w[i].begun, 0);
    }
}

RUN_TESTS(find_cxx, NULL)
