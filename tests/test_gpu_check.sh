#!/bin/sh
# test_gpu_check.sh - what a machine with a GPU is asked with: the stand-in for cmocka fails where it should, and the check
# says what is missing instead of writing results.
. tests/check.sh

cat >"$tmp/test_stand_in.c" <<'EOF'
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static int left = 0;
static int up(void **state) { static int v = 7; *state = &v; return 0; }
static int down(void **state) { left += *(int *)*state == 7; return 0; }
static int cannot(void **state) { (void)state; return -1; }
static void passes(void **state) { assert_int_equal(*(int *)*state, 7); assert_int_equal(-1, (int64_t)-1); }
static void left_behind(void **state) { (void)state; assert_int_equal(left, 1); }
static void int_differs(void **state) { (void)state; assert_int_equal(1, 2); }
static void text_differs(void **state) { (void)state; assert_string_equal("a", "b"); }
static void bytes_differ(void **state) { (void)state; assert_memory_equal("a", "b", 1); }
static void far(void **state) { (void)state; assert_float_equal(1, 1.5, 0.25); }
static void not_a_number(void **state) { (void)state; assert_float_equal(0, __builtin_nanf(""), 1); }
static void null(void **state) { (void)state; assert_non_null(NULL); }
static void says(void **state) { (void)state; fail_msg("%d", 3); }
static void not_set_up(void **state) { (void)state; }
static void left_out(void **state) { (void)state; skip(); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(passes, up, down), cmocka_unit_test(left_behind), cmocka_unit_test(int_differs),
        cmocka_unit_test(text_differs), cmocka_unit_test(bytes_differ), cmocka_unit_test(far), cmocka_unit_test(not_a_number),
        cmocka_unit_test(null), cmocka_unit_test(says), cmocka_unit_test_setup(not_set_up, cannot), cmocka_unit_test(left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
EOF

stand_in() { # passes where it should, fails and skips where it should, and run.sh counts it so
    "$CC" -std=c11 -D_GNU_SOURCE -Itests/gpu/cmocka -o "$tmp/test_stand_in" "$tmp/test_stand_in.c" || return
    mkdir -p "$tmp/build/tests"
    BUILD=$tmp/build sh tests/run.sh "$tmp/test_stand_in" >"$tmp/counted"
    [ $? -eq 1 ] && grep -qx '2 passed, 8 failed, 1 skipped' "$tmp/counted"
}
check stand_in stand_in

no_gpu() { # nothing is written where there is nothing to measure
    mkdir "$tmp/bin"
    printf '#!/bin/sh\nexit 9\n' >"$tmp/bin/nvidia-smi" && chmod +x "$tmp/bin/nvidia-smi"
    PATH=$tmp/bin:$PATH RESULTS=$tmp/results sh tests/gpu/check.sh 2>"$tmp/err"
    [ $? -eq 1 ] && [ ! -e "$tmp/results" ] && grep -q 'no GPU here' "$tmp/err"
}
check no_gpu no_gpu

all_build() { # the suite a GPU is asked with needs no cmocka
    "$MAKE" --no-print-directory BUILD="$BUILD" STAND_IN_OPT=-O0 stand-in
}
check all_build_with_the_stand_in all_build

# The same commands, each asked for next to nothing, on the simulated GPU, which the loader finds by the names of the real
# libraries; nothing of the library is asked to read a PNG.
rehearsal() {
    mkdir -p "$tmp/lib64" "$tmp/gpu"
    for name in libcuda.so.1 libnvrtc.so.13 libcublasLt.so.13; do ln -s "$(cd "$BUILD" && pwd)/cusim/libcusim.so" "$tmp/lib64/$name"; done
    printf '#!/bin/sh\necho "simulated GPU, 0, 0 MiB"\n' >"$tmp/gpu/nvidia-smi" && chmod +x "$tmp/gpu/nvidia-smi"
    PATH=$tmp/gpu:$PATH LD_LIBRARY_PATH=$tmp/lib64 CUDA_HOME=$tmp CUDA_PATH=$tmp TENSOR_CUSIM_CHECK=0 REHEARSAL=1 PYTHON=false STAGES='suite fused kernels rivals large' \
        RESULTS=$tmp/seen GPU_TESTS='test_views' SANITIZED='' HAVE_STB='' GPU_BUILT=$BUILD/stand-in sh tests/gpu/check.sh || return
    for name in suite fused_vs_eager kernels-on-cpu kernels large-gpt-bf16; do
        if ! grep -q "^### $name: ok, " "$tmp/seen/RESULTS.md" || ! [ -s "$tmp/seen/$name.log" ]; then
            echo "$name did not end well"
            return 1
        fi
    done
    grep -q '^### gpt-beside-rivals-tf32-on: exit status 1' "$tmp/seen/RESULTS.md" && grep -q 'passed, 0 failed' "$tmp/seen/suite.log"
}
if [ -f "$BUILD/cusim/libcusim.so" ]; then check rehearsal rehearsal; else skip rehearsal 'no simulated GPU in this build'; fi

# All stages from a clean clone, in a file system of its own that lacks cmocka, stb and cJSON.
cat >"$tmp/bare.sh" <<'EOF'
# CLONE WORK
mount --make-rprivate / && mount -t tmpfs none "$2" || exit 99
for dir in /usr/include "$(dirname "$(realpath "$(cc -print-file-name=libc.so)")")"; do
    layer=$2/$(echo "$dir" | tr / -)
    mkdir -p "$layer/upper" "$layer/work"
    mount -t overlay overlay -o "lowerdir=$dir,upperdir=$layer/upper,workdir=$layer/work" "$dir" || exit 99
    for name in cmocka stb cjson; do rm -rf "$dir/$name"* "$dir/lib$name"* || exit 99; done
done
cd "$1" && exec make -s gpu-check
EOF
as_root='unshare -m'
[ "$(id -u)" -eq 0 ] || as_root='unshare -rm'
may_mount() {
    $as_root sh -c "mount -t tmpfs none '$tmp/work' && mkdir '$tmp/work/u' '$tmp/work/w' &&
        mount -t overlay overlay -o 'lowerdir=/usr/include,upperdir=$tmp/work/u,workdir=$tmp/work/w' /usr/include" 2>/dev/null
}
bare_machine() {
    git clone -q . "$tmp/clone" || return
    # shellcheck disable=SC2086
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL PATH="$tmp/gpu:$PATH" LD_LIBRARY_PATH="$tmp/lib64" CUDA_HOME="$tmp" CUDA_PATH="$tmp" \
        TENSOR_CUSIM_CHECK=0 REHEARSAL=1 PYTHON=false JOBS=2 OPT='-O1 -g0' STAND_IN_OPT=-O0 BUILD=build RESULTS="$tmp/clone/seen" \
        GPU_TESTS=test_views SANITIZED=test_views $as_root sh "$tmp/bare.sh" "$tmp/clone" "$tmp/work"
    if grep -e STB -e CJSON "$tmp/clone/build/flags"; then
        echo 'a library was found that is not there'
        return 1
    fi
    for name in build suite mnist_cnn gpt fused_vs_eager kernels large-gpt-bf16; do
        grep -q "^### $name: ok, " "$tmp/clone/seen/RESULTS.md" || return 1
    done
    for name in mnist_cnn-beside-rivals-tf32-off gpt-beside-rivals-tf32-on large-gpt-beside-rivals-tf32-on memcheck.test_views racecheck.test_views; do
        grep -q "^### $name: " "$tmp/clone/seen/RESULTS.md" || return 1
    done
}
mkdir "$tmp/work"
if ! [ -f "$BUILD/cusim/libcusim.so" ]; then
    skip bare_machine 'no simulated GPU in this build'
elif [ -n "$SAN" ] || ! git rev-parse --git-dir >/dev/null 2>&1; then
    skip bare_machine 'built with sanitizers, or no clone'
elif ! may_mount; then
    skip bare_machine 'this system lets nobody mount a file system of his own'
else
    check bare_machine bare_machine
fi
