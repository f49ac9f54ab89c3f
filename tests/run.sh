#!/bin/sh
# run.sh - runs test programs two at a time and counts what they report.
#
#   BUILD=build sh tests/run.sh build/tests/test_ops tests/test_install.sh test_views ...
#
# A test is a cmocka program or a shell script; a bare name stands for either. Each runs with a time limit, without the
# user's TENSOR_ variables, by the profile `reference`, and with an empty kernel cache of its own; what the compiler of the
# simulated GPU makes is kept in CUSIM_KERNELS, where the sanitized build finds it as well. One line appears as each ends;
# the output of those that failed follows, then what was skipped, and last the line
#
#   N passed, N failed, N skipped
#
# which counts the tests inside the programs. Exit status 1 if any failed, crashed or timed out, or if nothing
# ran. Environment: BUILD, TEST_JOBS (2), TEST_TIMEOUT (seconds for one program, 1800), TEST_ENV (settings the
# tests do get, such as TEST_ENV="TENSOR_DEVICE=cuda"). TEST_SKIP names tests that were left out, to be
# counted as skipped, TEST_SKIP_WHY says why.
#
# A cmocka program says how many tests it runs; whatever of these neither passed nor was skipped has failed,
# so that a program that ends early cannot hide the rest. A script prints a line "ok NAME", "not ok NAME: why"
# or "skip NAME: why" for each test (tests/check.sh); for it, and for the program as a whole, the exit status
# counts as well. Read count first, then one.
set -u

BUILD=${BUILD:-build}
limit=${TEST_TIMEOUT:-1800}
out=$BUILD/tests/out

# count LOG STATUS: "passed failed skipped" on the first line, then the skipped ones with their reasons.
count() {
    awk -v status="$2" '
        /^\[=+\]/ && match($0, /Running [0-9]+ test\(s\)/) { planned += substr($0, RSTART + 8, RLENGTH - 8); next }
        /test\(s\) run\./         { test = "" }
        /^\[ RUN      \] /        { test = substr($0, 14); text = ""; next }
        /\[       OK \] /         { if (test != "") passed++; test = ""; next }
        /^\[  SKIPPED \] /        { if (test != "") { skipped++; why[skipped] = test (text == "" ? "" : ": " text) } test = ""; next }
        /^ok /                    { planned++; passed++; next }
        /^not ok /                { planned++; next }
        /^skip /                  { planned++; why[++skipped] = substr($0, 6); next }
        NF                        { text = $0 }
        END {
            failed = planned - passed - skipped
            if (failed <= 0) failed = status != 0 || planned == 0
            printf "%d %d %d\n", passed, failed, skipped
            for (i = 1; i <= skipped; i++) print why[i]
        }' "$1"
}

# one TEST: runs it; leaves out/NAME.log and out/NAME.count, and prints its line.
one() {
    name=$(basename "$1" .sh)
    case $1 in *.sh) set -- sh "$1" ;; esac
    cache=$CACHES/$name
    # What is tested is mostly which values meet where, which does not depend on how far kernels are optimised: those of
    # most tests are not, which takes gcc a third of the time. That they are right as users get them, too, is seen by the
    # tests that are about fusion and about kernels' numbers, compiler and cache, and by the examples.
    opt=TENSOR_KERNEL_OPT=0
    case $name in
    test_golden | test_math | test_conv | test_gemm | test_special | test_cpu_* | test_kcache | test_settings | test_texts) opt= ;;
    test_readme | test_gpt | test_fused_vs_eager | test_locale | test_install | test_public | test_fusion) opt= ;;
    esac
    # What the sanitizers watch is what memory kernels touch, at any level: gcc takes a third of the time for none. Some
    # programs run their kernels for longer than gcc takes for them.
    case ${SAN:+sanitized}$name in
    sanitizedtest_cpu_* | sanitizedtest_kcache | sanitizedtest_settings) ;;
    sanitizedtest_golden | sanitizedtest_fusion | sanitizedtest_explain | sanitizedtest_profile | sanitizedtest_edges | \
        sanitizedtest_nn_optim | sanitizedtest_optimizers) opt=TENSOR_KERNEL_OPT=1 ;;
    sanitized*) opt=TENSOR_KERNEL_OPT=0 ;;
    esac
    rm -rf "$cache"
    start=$(date +%s%N)
    # In the background, so that an interrupt reaches it: timeout keeps a process group of its own.
    # shellcheck disable=SC2086
    env TENSOR_CACHE="$cache" TENSOR_CUSIM_CACHE="${CUSIM_KERNELS:-$BUILD/cusim/kernels}" TENSOR_PROFILE=reference $opt ${TEST_ENV:-} timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null &
    pid=$!
    trap 'kill $pid; exit 255' INT TERM HUP
    wait $pid
    status=$?
    ms=$((($(date +%s%N) - start) / 1000000))
    count "$out/$name.log" $status >"$out/$name.count"
    read -r passed failed skipped <"$out/$name.count"
    # What it and its children took of the processors, which says more than the time where others are at work.
    times >"$out/$name.cpu"
    cpu=$(awk 'NR == 2 { split($0, t, /[ms ]+/); printf "%.1f", t[1] * 60 + t[2] + t[3] * 60 + t[4] }' "$out/$name.cpu")
    why=
    if [ $status -ge 124 ] && [ $ms -ge $((limit * 1000)) ]; then
        why=" - stopped after $limit s"
    elif [ $status -gt 128 ]; then
        why=" - killed by signal $((status - 128))"
    fi
    [ "$failed" -eq 0 ] && word=ok || word=FAILED
    printf '%-6s %-28s %4d passed %3d failed %3d skipped %6d.%d s %6s s of CPU%s\n' "$word" "$name" "$passed" "$failed" \
        "$skipped" $((ms / 1000)) $((ms / 100 % 10)) "$cpu" "$why"
    echo "$ms" >"$BUILD/tests/$name.ms"
}

if [ "${1:-}" = --one ]; then
    one "$2"
    exit 0
fi

for variable in $(env | sed -n 's/^\(TENSOR_[A-Z_]*\)=.*/\1/p'); do unset "$variable"; done
rm -rf "$out" "$BUILD/tests/cache"
mkdir -p "$out"

# Below a folder of somebody else's, as of who checked this out, the library would keep no kernels.
export CACHES="$BUILD/tests/cache"
folder=$(cd "$out" && pwd -P)
while [ "$folder" ]; do
    case $(stat -c %u "$folder") in
    0 | "$(id -u)") folder=${folder%/*} ;;
    *)
        CACHES=$(mktemp -d "${TMPDIR:-/tmp}/libtensor-caches-XXXXXX") || exit 1
        trap 'rm -rf "$CACHES"' EXIT
        break
        ;;
    esac
done

# The longest of the last run first, so that none of them runs alone at the end; in a first run those that are known
# to be long.
place=99
for name in test_random_graphs test_ops test_cuda_text test_cuda_attention test_cuda_cases test_readme test_drills \
    test_cusim_programs test_replay test_golden test_build test_cuda_sizes test_fuser_kernels test_fusion test_cuda_tiles \
    test_random_programs test_attention test_cuda_train test_cuda_kernels test_cuda_conv test_explain test_optimizers; do
    place=$((place - 1))
    eval "long_$name=$((place * 1000))"
done
tests=
for test in "$@"; do
    [ -e "$test" ] || test=$BUILD/tests/$test
    [ -e "$test" ] || test=tests/$(basename "$test").sh
    if [ ! -e "$test" ]; then
        echo "run.sh: no test $(basename "$test" .sh)" >&2
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
    name=$(basename "$test" .sh)
    ms=$(cat "$BUILD/tests/$name.ms" 2>/dev/null || eval "echo \${long_$name:-0}")
    tests="$tests$ms $test
"
done
printf %s "$tests" | sort -s -k1,1rn | cut -d' ' -f2- | xargs -P "${TEST_JOBS:-2}" -I{} sh "$0" --one {}

passed=0 failed=0 skipped=0
for counted in "$out"/*.count; do
    [ -e "$counted" ] || break
    read -r p f s <"$counted"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -ne 0 ]; then
        printf '\n==== %s\n' "$(basename "$counted" .count)"
        cat "${counted%.count}.log"
    fi
done
for test in "$@"; do # a test whose run left nothing behind was not run at all
    name=$(basename "$test" .sh)
    [ -e "$out/$name.count" ] || { failed=$((failed + 1)) && echo "$name: did not end"; }
done
for name in ${TEST_SKIP:-}; do skipped=$((skipped + 1)); done
[ $skipped -eq 0 ] || printf '\nskipped:\n'
for name in ${TEST_SKIP:-}; do printf '  %s: %s\n' "$name" "${TEST_SKIP_WHY:-left out}"; done
for counted in "$out"/*.count; do
    [ -e "$counted" ] && sed -n "2,\$s/^/  $(basename "$counted" .count) /p" "$counted"
done
[ $((passed + failed + skipped)) -ne 0 ] || failed=1
printf '\n%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed -eq 0 ]
