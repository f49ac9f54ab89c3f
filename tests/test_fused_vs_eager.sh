#!/bin/sh
# test_fused_vs_eager.sh - the benchmark of the two modes runs, its figures can be read by programs and say what they
# must whatever the machine is busy with: kernels are not more for fusing, values are the same. Times are not looked at.
. tests/check.sh

program=$PWD/$BUILD/fused_vs_eager
case $BUILD in /*) program=$BUILD/fused_vs_eager ;; esac
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}"

run() { # NAME: the case, as small and short as can be
    "$program" --case "$1" --shape small --rounds 1 --patience 0 --json "$tmp/$1.json" >"$tmp/$1"
}

# The numbers of one key, one a line.
values() { # NAME KEY
    grep -o "\"$2\":[-+.0-9e]*" "$tmp/$1.json" | cut -d: -f2
}

counts() { # NAME ROWS: each row has fewer kernels fused, or as many, and the same values
    run "$1" || return
    cat "$tmp/$1" "$tmp/$1.json"
    values "$1" eager_kernels >"$tmp/eager" && values "$1" fused_kernels | paste "$tmp/eager" - >"$tmp/both"
    # a backward (the second row) that the loss's kernel makes has none of its own
    awk 'NR != 2 && $2 < 1 || $2 > $1 { bad = 1 } END { exit bad }' "$tmp/both" && [ "$(wc -l <"$tmp/both")" -eq "$2" ] || return
    values "$1" max_err | awk '$1 > 1e-4 { bad = 1 } END { exit bad || NR < 1 }'
}
check chain counts chain 3
check softmax counts softmax 3
check adamw counts adamw 1

check_with CJSON json "$BUILD/tests/json_check" "$tmp/chain.json"

table() { # NAME DIRECTION..: the rows of the table below the case's name, in 80 columns
    name=$1 && shift
    grep -q '^case  *eager ms  *fused ms' "$tmp/$name" && grep -q "^$name, [1-9]" "$tmp/$name" &&
        [ "$(sed -n "/^$name, /,\$p" "$tmp/$name" | sed -n 's/^\([a-z][a-z]*\)  *-*[0-9][0-9.]* .*/\1/p' | paste -sd ' ')" = "$*" ] &&
        awk 'length > 80 { bad = 1; print "over 80 columns: " $0 } END { exit bad }' "$tmp/$name"
}
check table_of_chain table chain forward backward step
check table_of_adamw table adamw forward

disturbed() { # beside a loop for each processor all rounds are, and the table says so; beside none the two agree
    loops=
    for _ in $(seq "$(nproc)"); do
        sh -c 'while :; do :; done' &
        loops="$loops $!"
    done
    run siblings
    status=$?
    # shellcheck disable=SC2086
    kill $loops && wait $loops 2>/dev/null
    cat "$tmp/siblings"
    [ $status -eq 0 ] && grep -q '"quiet":false' "$tmp/siblings.json" || return
    [ "$(grep -c '^[a-z]* .* ~$' "$tmp/siblings")" -eq 3 ] && table siblings forward backward step || return
    grep -q '^~ disturbed: in 1 of 1 rounds of 1 row other programs took over 5 % of the$' "$tmp/siblings"
}
if [ "$(nproc)" -eq "$(getconf _NPROCESSORS_ONLN)" ]; then
    check disturbed_times_are_called_so disturbed
else
    skip disturbed_times_are_called_so "may not use all processors, so cannot keep them busy"
fi

undisturbed() {
    grep -q '"quiet":true' "$tmp/chain.json" && said=0 || said=1
    [ "$(grep -c '^~ disturbed' "$tmp/chain")" -eq $said ]
}
check others_are_not undisturbed

names() {
    "$program" --list >"$tmp/list" && [ "$(wc -l <"$tmp/list")" -eq 21 ] && grep -qx attention "$tmp/list"
}
check list names

refused() { # STATUS TEXT OPTION...
    want=$1 text=$2
    shift 2
    "$program" "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
    cat "$tmp/err"
    [ $status -eq "$want" ] && grep -q -- "$text" "$tmp/err" && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ]
}
check no_such_option refused 2 "--nothing : no such option" --nothing 1
check no_such_case refused 2 nothing --case nothing
check no_such_shape refused 2 "--shape large: must be dram, cache or small" --shape large
check no_value refused 2 "--case : no such option, or it needs a value" --case
check half_a_thread refused 2 "--threads 0.5: must be a whole number" --threads 0.5
check a_file_that_cannot_be_written refused 1 no/such/folder --json no/such/folder/a.json
