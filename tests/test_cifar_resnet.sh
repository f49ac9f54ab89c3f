#!/bin/sh
# test_cifar_resnet.sh - build/cifar_resnet as a user runs it, on images that build/make_folders makes up: it learns, a
# run that is cut in two is the same run, bit for bit, with augmentation and threads, and what is missing is named.
. tests/check.sh

net=$PWD/$BUILD/cifar_resnet make_folders=$PWD/$BUILD/make_folders
case $BUILD in /*) net=$BUILD/cifar_resnet make_folders=$BUILD/make_folders ;; esac
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}" TENSOR_KERNEL_OPT=1

if ! built_with STB; then
    skip it_learns "built without STB"
    exit 0
fi

run() { # OUT OPTION...
    out=$1
    shift
    "$net" --data "$tmp/shapes" --threads 2 --blocks 1 --width 8 --batch 20 --lr 0.1 --quiet "$@" >"$out" 2>"$out.err"
}

shapes() { # of three classes, to train with and to test with
    "$make_folders" --shapes 60 "$tmp/shapes" && [ "$(find "$tmp/shapes" -name '*.png' | wc -l)" -eq 360 ]
}
check shapes_are_made shapes

learns() { # from ln 3 on; the end is the mean of the last pass
    run "$tmp/learn" --epochs 7 --log "$tmp/learn.jsonl" || return
    cat "$tmp/learn"
    [ ! -s "$tmp/learn.err" ] && [ "$(grep -c -E '^test accuracy [0-9.]* % \([0-9]*/180\)$' "$tmp/learn")" -eq 7 ] || return
    sed 's/.*"loss":\([0-9.]*\),.*/\1/' "$tmp/learn.jsonl" |
        awk '{ print } NR <= 9 { first += $1 } NR > 54 { last += $1 } END { exit NR != 63 || first < 9 || last > 5 }'
}
check it_learns learns

resumes() { # 14 steps in one run, and 5 and 9, the cut within a pass; the warm-up alone does not depend on the end
    run "$tmp/whole" --steps 14 --save "$tmp/whole.safetensors" && run "$tmp/one" --steps 5 --save "$tmp/half.safetensors" &&
        run "$tmp/two" --steps 14 --resume "$tmp/half.safetensors" --save "$tmp/two.safetensors" --seed 9 || return
    cmp "$tmp/whole.safetensors" "$tmp/two.safetensors"
}
check_with CJSON a_run_in_two_parts_is_the_same resumes

missing() {
    ! "$net" --data "$tmp/nowhere" 2>"$tmp/missing" && grep -q "^cifar_resnet: dataset_images .*$tmp/nowhere/train: No such file" "$tmp/missing"
}
check what_is_missing_is_named missing

damaged() { # cut in the middle
    file=$(find "$tmp/shapes/train/cross" -name '*.png' | sort | head -n 1)
    head -c 100 "$file" >"$file.part" && mv "$file.part" "$file"
    ! run "$tmp/damaged" --steps 20 && cat "$tmp/damaged.err" && grep -q "$file: corrupt or cut off" "$tmp/damaged.err"
}
check a_damaged_file_is_named damaged

cifar() { # binary files of CIFAR-10's form become folders
    mkdir -p "$tmp/cifar"
    for i in 1 2 3 4 5; do head -c 6146 /dev/zero >"$tmp/cifar/data_batch_$i.bin"; done
    head -c 3073 /dev/zero >"$tmp/cifar/test_batch.bin"
    "$make_folders" "$tmp/cifar" "$tmp/folders" || return
    [ "$(find "$tmp/folders/train/airplane" -name '*.png' | wc -l)" -eq 10 ] && [ -f "$tmp/folders/test/airplane/00000.png" ] || return
    ! "$make_folders" "$tmp/nowhere" "$tmp/folders" && ! "$make_folders" --shapes 0 "$tmp/folders"
}
check folders_of_cifar10 cifar
