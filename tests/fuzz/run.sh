#!/bin/sh
# run.sh - make fuzz: RUNS executions of each of the targets named, under AddressSanitizer and UBSan.
#
#   BUILD=build-fuzz MAKE=make RUNS=10000000 sh tests/fuzz/run.sh [checkpoint idx ..]
#
# With clang's libFuzzer, whose inputs stay in BUILD/corpus/TARGET from run to run; where that is missing, with the
# mutations of tests/test_fuzz.c. What ends a program is left in BUILD. Exit status 1 where something did.
set -u
BUILD=${BUILD:-build-fuzz}
MAKE=${MAKE:-make}
RUNS=${RUNS:-10000000}
[ $# -gt 0 ] || set -- checkpoint idx sheet image cifar npy text profile settings formula calls

mkdir -p "$BUILD" || exit 1
san=-fsanitize=address,undefined
if printf 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n); int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return p == 0 && n; }' |
    clang -fsanitize=fuzzer,address -x c - -o "$BUILD/probe" 2>/dev/null; then
    program=fuzz/libfuzzer compiler=clang san=$san,fuzzer-no-link
else
    echo 'make fuzz: no clang with libFuzzer (Debian: clang, libclang-rt-14-dev); mutations of our own, which follow no coverage'
    program=tests/test_fuzz compiler=${CC:-cc}
fi
rm -f "$BUILD/probe"
# build FOLDER [FLAG..]: the program there
build() {
    folder=$1
    shift
    "$MAKE" --no-print-directory CC="$compiler" BUILD="$folder" SAN="$san $* -fno-sanitize-recover=all" \
        OPT='-O1 -g1 -fno-omit-frame-pointer' "$folder/$program" || exit 1
}
failed=0
for target; do
    folder=$BUILD more=
    case "$program $target" in
    *libfuzzer\ calls) # what numbers are compared with is of no use to it, and that and the choice of inputs are most of the time
        folder=$BUILD/calls more=-entropic=0
        build "$folder" -fno-sanitize-coverage=trace-cmp ;;
    *) build "$BUILD" ;;
    esac
    run=$(realpath "$folder/$program")
    case $program in
    *libfuzzer)
        mkdir -p "$BUILD/corpus/$target"
        FUZZ_TARGET=$target "$run" -runs="$RUNS" $more -seed="${SEED:-1}" -max_len=16384 -rss_limit_mb=6000 -timeout=60 \
            -artifact_prefix="$BUILD/$target-" -verbosity=0 -print_final_stats=1 "$BUILD/corpus/$target" 2>"$BUILD/$target.log"
        status=$?
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$BUILD/$target.log") ;;
    *)
        (cd "$BUILD" && "$run" --target "$target" --runs "$RUNS" --seed "${SEED:-1}") >"$BUILD/$target.log" 2>&1
        status=$?
        runs=$(sed -n 's/.*: \([0-9]*\) runs$/\1/p' "$BUILD/$target.log" | tail -n 1) ;;
    esac
    if [ $status = 0 ]; then
        echo "ok     $target: ${runs:-0} executions"
    else
        failed=1
        echo "FAILED $target after ${runs:-?} executions: $BUILD/$target.log"
        tail -n 30 "$BUILD/$target.log"
    fi
done
exit $failed
