#!/bin/sh
# check.sh - what `make gpu-check` does on a machine with a GPU: builds, runs the suite on it, compares fused with eager
# and with PyTorch and JAX in the same run, and puts some tests under compute-sanitizer. It needs cc and nvcc's toolkit,
# and python3 with torch and jax for the rivals; no network, no cmocka, no oneDNN.
#
# Each stage is stopped by itself after its own time, all within nine minutes, and what it said goes to
# tests/gpu/RESULTS.md at once, so that an interrupted run leaves what it had seen. Exit status 1 if the build or a test
# failed or a sanitizer found something.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build} GPU_BUILT=${GPU_BUILT:-$BUILD/tests} MAKE=${MAKE:-make} PYTHON=${PYTHON:-python3}
results=${RESULTS:-tests/gpu/RESULTS.md}
log=$(mktemp -d) || exit 1
trap 'rm -rf "$log"' EXIT
failed=0

say() {
    echo "$*"
    echo "$*" >>"$results"
}

block() { # FILE LINES: its last lines, as they are
    printf '```\n' >>"$results"
    tail -n "$2" "$1" | tee -a "$results"
    printf '```\n' >>"$results"
}

stage() { # SECONDS LINES TITLE COMMAND...: runs it; its last lines go to the results
    seconds=$1 lines=$2 title=$3
    shift 3
    begin=$(date +%s)
    timeout -k 5 "$seconds" "$@" >"$log/out" 2>&1
    status=$?
    took=$(($(date +%s) - begin))
    case $status in
    0) end=ok ;;
    124 | 137) end="stopped after $seconds s" ;;
    *) end="exit status $status" ;;
    esac
    say ""
    say "### $title: $end, $took s"
    say ""
    block "$log/out" "$lines"
    return $status
}

if ! command -v nvidia-smi >/dev/null || ! gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader); then
    echo "gpu-check: no GPU here (nvidia-smi does not answer)" >&2
    exit 1
fi
[ -s "$results" ] && sed -i '/^Not yet measured/d' "$results"
say ""
say "## $(date -u +%Y-%m-%d): $(echo "$gpu" | head -n 1)"
say ""
say "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(cc --version | head -n 1), $(nvcc --version 2>/dev/null | grep release || echo 'no nvcc'), $("$PYTHON" -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null || echo 'no PyTorch'), $("$PYTHON" -c 'import jax; print("JAX", jax.__version__)' 2>/dev/null || echo 'no JAX')."

stage 100 3 build "$MAKE" -j"${JOBS:-4}" gpu-tests || exit 1

export TENSOR_CACHE="$log/cache"
# shellcheck disable=SC2046,SC2086
stage 150 40 "the suite on the GPU" env TEST_TIMEOUT=140 TEST_JOBS="${JOBS:-4}" \
    TEST_ENV="TENSOR_DEVICE=cuda TENSOR_CACHE=$log/cache" BUILD="$BUILD" \
    sh tests/run.sh $(for t in $GPU_TESTS; do echo "$GPU_BUILT/$t"; done) || failed=1
if [ -n "${HAVE_STB:-}" ]; then
    stage 20 3 "mnist_cnn" "$BUILD/mnist_cnn" --device cuda --quiet --steps 400 || failed=1
else
    say "" && say "### mnist_cnn: left out, no stb to read the images with"
fi
stage 30 3 "gpt" "$BUILD/gpt" --device cuda --quiet --steps 1000 --sample 0 || failed=1
stage 60 70 "fused beside eager" "$BUILD/fused_vs_eager" --device cuda --case all --shape dram --rounds 5 --patience 0 || failed=1
stage 100 40 "training steps beside PyTorch and JAX" "$PYTHON" bench/rivals.py --device cuda --rounds 3 --build "$BUILD" || :

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck; do
    for test in $SANITIZED; do
        [ -n "$sanitizer" ] || { say "" && say "### $tool $test: refused, no compute-sanitizer on this machine" && continue; }
        TENSOR_DEVICE=cuda stage 20 6 "compute-sanitizer $tool, $test" "$sanitizer" --tool "$tool" --error-exitcode 9 \
            "$GPU_BUILT/$test"
        [ $? -ne 9 ] || failed=1 # another status: refused, or stopped, which is written down
    done
done
exit $failed
