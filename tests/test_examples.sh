#!/bin/sh
# test_examples.sh - the smaller examples as a user runs them, on little and for a second or two each: they learn, print
# what their openings say, and name what is wrong. (Others: test_gpt.sh, test_cifar_resnet.sh; mnist_cnn: test_readme.sh.)
. tests/check.sh

at=$PWD/$BUILD
case $BUILD in /*) at=$BUILD ;; esac
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}" TENSOR_KERNEL_OPT=1

run() { # EXAMPLE OPTION...: what it prints is in $tmp/EXAMPLE, and nothing on stderr
    name=$1
    shift
    "$at/$name" --threads 2 --quiet "$@" >"$tmp/$name" 2>"$tmp/$name.err"
    status=$?
    cat "$tmp/$name" "$tmp/$name.err"
    [ $status -eq 0 ] && [ ! -s "$tmp/$name.err" ]
}

between() { # FILE PATTERN LEAST MOST: the number behind the pattern, once in the file
    sed -n "s/^$2\([0-9.]*\).*/\1/p" "$1" |
        awk -v least="$3" -v most="$4" '{ n++; ok = $1 >= least && $1 <= most } END { exit !(n == 1 && ok) }'
}

custom_op() { # its own operators fuse, and have the gradients that differences show
    run custom_op --epochs 3 && grep -q '^gradients agree with differences$' "$tmp/custom_op" &&
        grep -q -E '^ *[0-9]+ forward .*layer_norm \+ swish$' "$tmp/custom_op" && between "$tmp/custom_op" 'test accuracy ' 88 100
}
export_digits() { # both accuracies, and a file that compiles; a name that is none is an error
    run export_digits --steps 60 --out "$tmp/net.c" && [ "$(grep -c 'test accuracy [6-9][0-9]\.' "$tmp/export_digits")" -eq 2 ] &&
        grep -q '^weights in int8: test accuracy' "$tmp/export_digits" && grep -q 'int8_t fc_weight_data' "$tmp/net.c" &&
        cc -std=c99 -c "$tmp/net.c" -o "$tmp/net.o" && ! "$at/export_digits" --quiet --steps 1 --out "$tmp/no.h" 2>"$tmp/err" && grep 'NAME.c' "$tmp/err"
}
vit() {
    run vit --epochs 1 --blocks 1 --width 32 --batch 32 --lr 4e-3 && between "$tmp/vit" 'test accuracy ' 40 100
}
vae() { # 28 rows of pixels in 7 lines of four digits
    run vae --epochs 3 --hidden 64 --lr 3e-3 && between "$tmp/vae" 'test loss ' 90 215 && [ "$(sed 1d "$tmp/vae" | awk 'length == 56' | wc -l)" -eq 7 ]
}
gru_text() { # the frequencies of pairs of letters alone give 2.23
    run gru_text --steps 120 --width 64 --ctx 32 --lr 1e-2 --sample 40 && between "$tmp/gru_text" 'validation loss ' 0.5 2.15 &&
        [ "$(head -n -1 "$tmp/gru_text" | wc -c)" -eq 41 ]
}
small="--layers 2 --heads 2 --dim 16 --ctx 32"
generate() { # as many characters as there are places behind the prompt; steps are replayed
    # shellcheck disable=SC2086
    run gpt $small --steps 20 --sample 0 --save "$tmp/gpt.safetensors" && run generate $small --resume "$tmp/gpt.safetensors" --prompt 'The otter' || return
    grep -q -E '^23 characters, [0-9]+ a second; [0-9]+ plans, (1[5-9]|2[0-9]) of 23 steps replayed$' "$tmp/generate" &&
        head -n -1 "$tmp/generate" | head -c 9 | grep -q '^The otter$' && [ "$(head -n -1 "$tmp/generate" | wc -c)" -eq 33 ]
}
mistakes() { # one line each, and status 1
    for line in '--prompt {' "--prompt x --resume $tmp/no" '--prompt x --data no.txt'; do
        # shellcheck disable=SC2086
        "$at/generate" $small $line >"$tmp/out" 2>"$tmp/err"
        [ $? -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] || { echo "$line:" && cat "$tmp/err" && return 1; }
    done
}
check custom_op custom_op
check export_digits export_digits
check vit vit
check vae vae
check gru_text gru_text
check_with CJSON generate generate
check_with CJSON mistakes mistakes
