#!/bin/sh
# precision.sh - what bf16 and f16 do to accuracy and to the time of a step: sh bench/precision.sh [SEEDS] [STEPS]
#
# The examples mnist_cnn and gpt are trained in f32, bf16 and f16, one after the other for each seed, so that what else
# the machine does hits all three. A line a model and precision: the result at the end of each seed - the accuracy on
# the test digits, the mean loss of the last tenth of gpt's steps - with their mean, and the step's median time beside f32's.
# A loss of f16's step that overflowed counts like any other.
set -eu

seeds=${1:-3} steps=${2:-300} build=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# The median of the steps' times but for the first tenth, which compiles.
median() {
    sed 's/.*"ms":\([0-9.]*\)}.*/\1/' "$1" | awk -v n="$(wc -l <"$1")" 'NR > n / 10' | sort -g |
        awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'
}

for seed in $(seq "$seeds"); do
    for precision in f32 bf16 f16; do
        export TENSOR_PRECISION=$precision
        log=$tmp/log
        "$build/mnist_cnn" --seed "$seed" --epochs 1000 --steps "$steps" --quiet --log "$log" >"$tmp/out"
        echo "cnn $precision $(sed -n 's/^test accuracy \([0-9.]*\) %.*/\1/p' "$tmp/out" | tail -n 1) $(median "$log")"
        "$build/gpt" --seed "$seed" --steps "$steps" --sample 0 --quiet --log "$log" >/dev/null
        echo "gpt $precision $(sed 's/.*"loss":\([0-9.a-z]*\),.*/\1/' "$log" |
            awk -v n="$steps" 'NR > 0.9 * n { s += $1; k++ } END { printf "%.4f", s / k }') $(median "$log")"
    done
done >"$tmp/all"

awk '
    { key = $1 " " $2; if (!(key in n)) order[++keys] = key
      n[key]++; sum[key] += $3; each[key] = each[key] " " $3; time[key] += $4 }
    END {
        printf "%-9s %-24s %9s %9s %8s\n", "", "of each seed", "mean", "ms/step", "of f32"
        for (i = 1; i <= keys; i++) {
            key = order[i]; split(key, part, " ")
            printf "%-9s %-24s %9.3f %9.2f %8.2f\n", key, each[key], sum[key] / n[key], time[key] / n[key],
                   time[key] / time[part[1] " f32"] * n[part[1] " f32"] / n[key]
        }
    }' "$tmp/all" | sort
