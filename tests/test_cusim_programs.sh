#!/bin/sh
# test_cusim_programs.sh - a little of each kind of program on the CUDA device, on the simulated GPU: operators of
# each kernel form, forward and backward, in both modes. `make cusim-full` runs all of them.
. tests/check.sh

case $BUILD in /*) build=$BUILD ;; *) build=$PWD/$BUILD ;; esac
sim=$build/cusim/libcusim.so
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}" TENSOR_DEVICE=cuda
export TENSOR_CUDA_DRIVER="$sim" TENSOR_CUDA_NVRTC="$sim" TENSOR_CUDA_BLASLT="$sim"

# The tests of a program whose names contain what is given; none is a failure.
some() { # PROGRAM NAME
    "$build/tests/$1" "$2" >"$tmp/$1.log" 2>&1 && grep -q '^\[       OK \]' "$tmp/$1.log" || { cat "$tmp/$1.log" && return 1; }
}

for op in gelu where sum cumsum softmax layer_norm batch_norm matmul conv2d max_pool2d cross_entropy embedding \
    scatter_add dropout concat scaled_dot_product_attention; do
    check "$op" some test_ops "$op"
done
# Blocks and threads take turns in an order that no run has seen before; which it was is told where one fails.
seed=$(($(od -An -N4 -tu4 /dev/urandom) + 1))
any_order() { # NAME
    TENSOR_CUSIM_SEED=$seed some test_ops "$1" || { echo "with TENSOR_CUSIM_SEED=$seed" && return 1; }
}
for op in softmax batch_norm conv2d scatter_add; do check "$op in any order" any_order "$op"; done

check "attention: a_blind_query" some test_attention a_blind_query
check "functions of the program" some test_own_host called_once_a_step
for part in a_scale_of_zero a_scale_that_is_annealed what_explain_says; do
    check "attention: $part" some test_attention_written "$part"
done
