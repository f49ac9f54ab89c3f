#!/bin/sh
# test_zoo.sh - a model of the zoo trains alike in both modes, tells its launches beside their floors, and answers whom it
# serves. Times are not looked at.
. tests/check.sh

program=$PWD/$BUILD/zoo
case $BUILD in /*) program=$BUILD/zoo ;; esac
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}" TENSOR_KERNEL_OPT=0

alike() { # both modes say one loss, to five digits
    "$program" dlrm --steps 1 --mode eager >"$tmp/eager" && "$program" dlrm --steps 1 --profile >"$tmp/fused" || return
    cat "$tmp/eager" "$tmp/fused"
    [ "$(grep -o 'loss 0.[0-9]*' "$tmp/eager" | cut -c 1-12)" = "$(grep -o 'loss 0.[0-9]*' "$tmp/fused" | cut -c 1-12)" ]
}
check modes_have_one_loss alike

floors() { # no launch is faster than its floor, and together they are no more than their parts
    awk '/ launch$/ { rows = 1; next } rows { n++; if ($1 + 0.0011 < $2) bad = 1 } END { exit bad || n < 10 }' "$tmp/fused"
}
check floors_are_below floors

serves() {
    printf 'check 2\nsteps 1\npeak\n' | "$program" dlrm --serve --save "$tmp/weights" >"$tmp/out" || return
    cat "$tmp/out"
    [ -s "$tmp/weights" ] && [ "$(wc -l <"$tmp/out")" -eq 3 ] && grep -q '^\[0\.[0-9]*, 0\.[0-9]*\]$' "$tmp/out"
}
check answers_by_lists_of_numbers serves

refused() { # TEXT OPTION...
    text=$1
    shift
    "$program" "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
    cat "$tmp/err"
    [ $status -eq 2 ] && grep -q -- "$text" "$tmp/err" && [ "$(wc -l <"$tmp/err")" -eq 1 ]
}
check no_such_model refused "no model 'nothing'" nothing
check no_such_option refused "--nothing: not understood" dlrm --nothing
check no_model refused usage:
