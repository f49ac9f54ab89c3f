#!/bin/sh
# test_finetune.sh - build/finetune and build/serve as a user runs them, small: what is loaded and frozen is said, what
# was frozen is in the file afterwards as it was before, and memory stays as it is over requests of varying size.
. tests/check.sh

bin=$PWD/$BUILD
case $BUILD in /*) bin=$BUILD ;; esac
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}" TENSOR_KERNEL_OPT=1

finetuned() { # from 10 % or so; the head alone learns first
    "$bin/finetune" --threads 2 --steps 60 --quiet --features "$tmp/features.safetensors" >"$tmp/finetune" || return
    cat "$tmp/finetune"
    cat >"$tmp/want" <<'WANT'
14 tensors loaded; not in the file, as they were: head.weight, head.bias; left out of the file: classifier.bias, classifier.weight
10 parameters are frozen
WANT
    head -n 2 "$tmp/finetune" | same "$tmp/want" - &&
        sed -n '3,$s/.*accuracy \([0-9.]*\) %$/\1/p' "$tmp/finetune" |
        awk '{ a[NR] = $1 } END { exit !(NR == 3 && a[1] < 20 && a[2] > a[1] + 10 && a[3] >= a[2]) }'
}

other_weights() { # those of a file; one of another net is refused
    "$bin/finetune" --steps 1 --quiet --weights "$tmp/features.safetensors" >"$tmp/other" && head -n 2 "$tmp/other" | same "$tmp/want" - || return
    "$bin/mnist_cnn" --steps 1 --quiet --save "$tmp/digits.safetensors" >/dev/null || return
    ! "$bin/finetune" --weights "$tmp/digits.safetensors" --quiet >"$tmp/other" 2>&1 && cat "$tmp/other" &&
        grep -q "^finetune: load .*this library has written the file" "$tmp/other"
}

served() { # after 400 of 4000 requests nothing comes on top; the weights are those of a file
    "$bin/serve" --requests 4000 --servers 2 >"$tmp/serve" 2>"$tmp/serve.err" || { cat "$tmp/serve" "$tmp/serve.err"; return 1; }
    cat "$tmp/serve" "$tmp/serve.err"
    grep -q -E '^4000 requests \([0-9]+ images\) on 2 threads: [0-9]+ a second, memory grew by [01]\.[0-9] MB$' "$tmp/serve" &&
        [ ! -s "$tmp/serve.err" ] || return
    ! "$bin/serve" --requests 100 --weights "$tmp/nowhere" >/dev/null 2>&1
}

if built_with STB; then
    check_with CJSON a_new_head_is_trained finetuned
    check_with CJSON weights_of_a_file other_weights
else
    skip a_new_head_is_trained "built without STB"
    skip weights_of_a_file "built without STB"
fi
check requests_are_served served
