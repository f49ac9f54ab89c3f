#!/bin/sh
# check.sh - what `make gpu-check` does on a machine with a GPU, in stages that each end within minutes:
#
#   build       the library, examples, benchmarks and the suite
#   suite       the suite on the GPU
#   models      the examples train
#   fused       each operator, fused beside eager
#   kernels     the kernels of training at sizes that fill the chip: compared with the CPU, timed, beside PyTorch
#   rivals      training steps beside PyTorch and JAX in the same run, with TF32 off and then on
#   large       a GPT that fills the chip, in f32 and bf16, beside the same rivals
#   sanitize    some tests under compute-sanitizer
#
#   make gpu-check                                     all of them
#   make gpu-check STAGES="build suite" RESULTS=seen   some; a summary and each command's whole output below seen/
#
# It needs cc and the CUDA toolkit, and python3 with torch and jax for the rivals; no network, no cmocka, no stb.
# A command that fails, or is stopped after its own time, leaves the others; what it said is written down at once, so that
# an interrupted run leaves what it had seen. Exit status 1 if the build or a test failed or a sanitizer found something.
# REHEARSAL=1 asks for next to nothing of each command: all of it runs on a simulated GPU (tests/test_gpu_check.sh).
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build} GPU_BUILT=${GPU_BUILT:-$BUILD/tests} MAKE=${MAKE:-make} PYTHON=${PYTHON:-python3}
results=${RESULTS:+$RESULTS/RESULTS.md}
results=${results:-tests/gpu/RESULTS.md}
logs=${RESULTS:-$BUILD/gpu-check}
stages=${STAGES:-build suite models fused kernels rivals large sanitize}
failed=0

steps() { # FULL SMALL: which of the two
    if [ -n "${REHEARSAL:-}" ]; then echo "$2"; else echo "$1"; fi
}

say() {
    echo "$*"
    echo "$*" >>"$results"
}

has() { # STAGE
    case " $stages " in *" $1 "*) return 0 ;; esac
    return 1
}

run() { # NAME SECONDS LINES COMMAND...: its whole output goes to logs, its last lines to the results
    name=$1 seconds=$2 lines=$3
    [ -z "${REHEARSAL:-}" ] || seconds=$((seconds * 10)) # it shows that each comes to an end, not when
    shift 3
    begin=$(date +%s)
    timeout -k 5 "$seconds" "$@" >"$logs/$name.log" 2>&1
    status=$?
    took=$(($(date +%s) - begin))
    case $status in
    0) end=ok ;;
    124 | 137) end="stopped after $seconds s" ;;
    *) end="exit status $status" ;;
    esac
    say ""
    say "### $name: $end, $took s"
    say ""
    printf '```\n' >>"$results"
    tail -n "$lines" "$logs/$name.log" | tee -a "$results"
    printf '```\n' >>"$results"
    return $status
}

for stage in $stages; do
    case $stage in
    build | suite | models | fused | kernels | rivals | large | sanitize) ;;
    *) echo "gpu-check: there is no stage $stage" >&2 && exit 2 ;;
    esac
done
if ! command -v nvidia-smi >/dev/null || ! gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader); then
    echo "gpu-check: no GPU here (nvidia-smi does not answer)" >&2
    exit 1
fi
mkdir -p "$logs" || exit 1
[ -s "$results" ] && sed -i '/^Not yet measured/d' "$results"
python_has() { "$PYTHON" -c "import $1; print('$2', $1.__version__)" 2>/dev/null || echo "no $2"; }
say ""
say "## $(date -u +%Y-%m-%d): $(echo "$gpu" | head -n 1)"
say ""
say "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(cc --version | head -n 1), $(nvcc --version 2>/dev/null | grep release || echo 'no nvcc'), $(python_has torch PyTorch), $(python_has jax JAX). Stages: $stages."

if has build; then
    run build 240 3 "$MAKE" -j"${JOBS:-$(nproc)}" gpu-tests || exit 1
fi
export TENSOR_CACHE="$logs/cache"
if has suite; then
    # shellcheck disable=SC2046,SC2086
    run suite 400 60 env TEST_TIMEOUT=390 TEST_JOBS="${JOBS:-4}" BUILD="$logs" \
        TEST_ENV="TENSOR_DEVICE=cuda TENSOR_CACHE=$TENSOR_CACHE" \
        sh tests/run.sh $(for t in $GPU_TESTS; do echo "$GPU_BUILT/$t"; done) || failed=1
fi
if has models; then
    digits=data/digits
    if [ -z "${HAVE_STB:-}" ]; then # nothing here reads the images of data/digits: the same, drawn again, as plain IDX files
        digits=$logs/digits
        mkdir -p "$digits" && cc -O1 -o "$logs/make_digits" data/make_digits.c -lm && "$logs/make_digits" "$digits" 1 idx "$(steps 1 20)"
    fi
    run mnist_cnn 60 3 "$BUILD/mnist_cnn" --device cuda --data "$digits" --quiet --steps "$(steps 400 2)" --batch "$(steps 64 4)" || failed=1
    # shellcheck disable=SC2046
    run gpt 60 3 "$BUILD/gpt" --device cuda --quiet --steps "$(steps 1000 2)" --sample 0 $(steps '' '--layers 1 --ctx 16 --batch 2') || failed=1
fi
if has fused; then
    run fused_vs_eager 240 80 "$BUILD/fused_vs_eager" --device cuda --case "$(steps all softmax)" --shape "$(steps dram small)" \
        --rounds "$(steps 5 1)" --patience 0 --json "$logs/fused_vs_eager.json" || failed=1
fi
if has kernels; then
    # shellcheck disable=SC2046
    run kernels-on-cpu 240 3 env TENSOR_DEVICE=cpu "$BUILD/gpu/timed" --write "$logs/kernels.ref" $(steps '' small) &&
        run kernels 180 400 "$BUILD/gpu/timed" --time "$logs/kernels.ref" $(steps '' small) || failed=1
    run kernels-in-pytorch 180 80 "$PYTHON" bench/gpu_torch.py $(steps --compile small) || :
fi
rivals() { # NAME MODEL: what is missing here is said in the log, and is no failure
    beside=$1
    shift
    for tf32 in off on; do
        # shellcheck disable=SC2046
        run "$beside-tf32-$tf32" 280 40 "$PYTHON" bench/zoo.py --precision $([ $tf32 = off ] && echo f32 || echo tf32) --device cuda \
            --rounds "$(steps 3 1)" --build "$BUILD" --json "$logs/$beside-tf32-$tf32.json" "$@" || :
    done
}
if has rivals; then
    rivals mnist_cnn-beside-rivals mnist_cnn
    rivals gpt-beside-rivals gpt_small
fi
if has large; then
    rivals large-gpt-beside-rivals gpt_large
    for model in gpt_large resnet50; do
        # shellcheck disable=SC2046
        run $model-bf16-beside-rivals 280 12 "$PYTHON" bench/zoo.py $(steps $model gpt_small) --precision bf16 --device cuda \
            --rivals eager,compile --rounds "$(steps 3 1)" --build "$BUILD" --json "$logs/$model-bf16.json" || :
    done
    run large-gpt-bf16 120 6 env TENSOR_PRECISION=bf16 "$BUILD/gpt" --device cuda --quiet --sample 0 --steps "$(steps 60 2)" \
        --layers "$(steps 12 1)" --heads "$(steps 12 2)" --dim "$(steps 768 32)" --ctx "$(steps 1024 16)" --batch "$(steps 8 2)" \
        --log "$logs/large-gpt-bf16.jsonl" || failed=1
fi
if has sanitize; then
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    for tool in memcheck racecheck; do
        for test in $SANITIZED; do
            [ -n "$sanitizer" ] || { say "" && say "### $tool $test: refused, no compute-sanitizer on this machine" && continue; }
            TENSOR_DEVICE=cuda run "$tool-$test" 120 6 "$sanitizer" --tool "$tool" --error-exitcode 9 "$GPU_BUILT/$test"
            [ $? -ne 9 ] || failed=1 # another status: refused, or stopped, which is written down
        done
    done
fi
exit $failed
