#!/bin/sh
# test_tensor.sh - the program `tensor`: what it says of files, that it converts and compares them as they are, that no
# file ends it otherwise than with a line and a status, and that it tells of a program's steps.
. tests/check.sh
tensor=$BUILD/tensor
export TENSOR_KERNEL_OPT=0

# A safetensors file of three arrays: x f32 [2, 3], y i16 [2], z bf16 [2], one NaN and one infinity among them.
header='{"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"y":{"dtype":"I16","shape":[2],"data_offsets":[24,28]},"z":{"dtype":"BF16","shape":[2],"data_offsets":[28,32]}}'
weights() { # FILE X1: the second element of x as four bytes
    # shellcheck disable=SC2059
    printf "$(printf '\\%03o' ${#header})\0\0\0\0\0\0\0"
    printf '%s' "$header"
    printf '\0\0\200\077%b\0\0\100\100\0\0\300\177\0\0\200\177\0\0\0\277' "$1"
    printf '\377\377\007\0\200\077\0\300'
}
weights '\0\0\0\100' >"$tmp/a.safetensors"
weights '\0\0\040\100' >"$tmp/b.safetensors"

inspect() {
    cat >"$tmp/want" <<END
a.safetensors: safetensors, 3 tensors, 32 bytes
  format               pt
name dtype shape         bytes          min          max         mean      NaN      inf
x    F32   [2, 3]           24         -0.5            3        1.375        1        1
y    I16   [2]               4           -1            7            3        0        0
z    BF16  [2]               4           -2            1         -0.5        0        0
1 NaN and 1 infinities in all
END
    (cd "$tmp" && "$here/$tensor" inspect a.safetensors) >"$tmp/have" && same "$tmp/want" "$tmp/have"
}
here=$PWD
case $BUILD in /*) here= ;; esac
check_with CJSON inspect inspect

converted() { # to .npy and back nothing is lost but bf16's name
    "$tensor" convert "$tmp/a.safetensors" "$tmp/arrays/" && "$tensor" convert "$tmp/arrays/x.npy" "$tmp/arrays/y.npy" "$tmp/back.safetensors" &&
        "$tensor" convert --tensor x "$tmp/a.safetensors" "$tmp/xy.npy" && cmp "$tmp/xy.npy" "$tmp/arrays/x.npy" &&
        "$tensor" compare "$tmp/a.safetensors" "$tmp/back.safetensors" >"$tmp/have"
    [ $? = 1 ] && grep -q '^2 tensors compared, 0 differ by more than 0, 1 in one file only$' "$tmp/have" &&
        "$tensor" inspect "$tmp/arrays/z.npy" | grep -E '^z +F32 +\[2\] +8 +-2 +1 +-0.5 '
}
check_with CJSON convert converted

python=${PYTHON:-python3}
if "$python" -c 'import numpy' 2>/dev/null; then
    numpy() {
        "$python" - "$tmp" <<'END'
import sys, numpy as n
d = sys.argv[1]
x, y, z = (n.load(d + "/arrays/%s.npy" % k) for k in "xyz")
assert x.dtype == "f4" and x.shape == (2, 3) and x[0, 1] == 2 and n.isnan(x[1, 0]) and n.isinf(x[1, 1])
assert y.dtype == "i2" and list(y) == [-1, 7] and list(z) == [1, -2]
n.save(d + "/big.npy", n.arange(24, dtype="u2").reshape(2, 3, 4))
END
        "$tensor" inspect "$tmp/big.npy" | grep -E '^big +U16 +\[2, 3, 4\] +48 +0 +23 +11.5 '
    }
    check_with CJSON numpy_reads_and_writes_the_same numpy
else
    skip numpy_reads_and_writes_the_same "no python3 with numpy (PYTHON names one)"
fi

# A convolution's weight, OIHW [1, 2, 1, 3] of 0 to 5, is OHWI [1, 1, 3, 2] here; behind a flatten of 1 x 3 x 2 the
# columns of a [1, 6] go the same way, another [1, 6] and a vector stay. There and back again it is the same file.
pixels='\0\1\2\3\4\5'
laid_out() {
    head='{"__metadata__":{"format":"pt"},"c":{"dtype":"U8","shape":[1,2,1,3],"data_offsets":[0,6]},"f":{"dtype":"U8","shape":[1,6],"data_offsets":[6,12]},"m":{"dtype":"U8","shape":[1,6],"data_offsets":[12,18]},"v":{"dtype":"U8","shape":[6],"data_offsets":[18,24]}}'
    # shellcheck disable=SC2059
    { printf "$(printf '\\%03o\\%03o' $((${#head} % 256)) $((${#head} / 256)))\0\0\0\0\0\0"; printf '%s' "$head"; printf "$pixels$pixels$pixels$pixels"; } >"$tmp/pt.safetensors"
    "$tensor" convert "$tmp/pt.safetensors" "$tmp/here.safetensors" --layout libtensor --flatten f:1x3x2 >"$tmp/have" &&
        grep -q '^2 tensors turned; left as they are: 1 of two axes' "$tmp/have" || return
    "$tensor" inspect "$tmp/here.safetensors" | tee "$tmp/have" | grep -q -E '^c +U8 +\[1, 1, 3, 2\] ' && grep -q 'format  *libtensor' "$tmp/have" || return
    [ "$(tail -c 24 "$tmp/here.safetensors" | od -An -v -tu1 -w24 | tr -d ' ')" = 031425031425012345012345 ] || return
    "$tensor" convert "$tmp/here.safetensors" "$tmp/again.safetensors" --flatten f:1x3x2 --layout pytorch >/dev/null &&
        "$tensor" compare "$tmp/pt.safetensors" "$tmp/again.safetensors" && "$tensor" inspect "$tmp/again.safetensors" | grep -q 'format  *pt' &&
        "$tensor" convert "$tmp/again.safetensors" "$tmp/same.safetensors" --layout pytorch | grep '^0 tensors turned$'
}
check_with CJSON layouts laid_out

# What an optimizer has for a weight goes with it, of two layers; with one channel no byte moves, and what is left is told.
behind_flattens() {
    head='{"__metadata__":{"format":"pt"},"c":{"dtype":"U8","shape":[2,1,1,3],"data_offsets":[0,6]},"a.f":{"dtype":"U8","shape":[1,6],"data_offsets":[6,12]},"optimizer.0.exp_avg.a.f":{"dtype":"U8","shape":[1,6],"data_offsets":[12,18]},"g":{"dtype":"U8","shape":[1,6],"data_offsets":[18,24]},"b.a.f":{"dtype":"U8","shape":[1,6],"data_offsets":[24,30]}}'
    # shellcheck disable=SC2059
    { printf "$(printf '\\%03o\\%03o' $((${#head} % 256)) $((${#head} / 256)))\0\0\0\0\0\0"; printf '%s' "$head"; printf "$pixels$pixels$pixels$pixels$pixels"; } >"$tmp/pt.safetensors"
    "$tensor" convert "$tmp/pt.safetensors" "$tmp/here.safetensors" --layout libtensor | grep -q '^1 tensors turned; left as they are: 4 of two axes' || return
    "$tensor" convert "$tmp/pt.safetensors" "$tmp/here.safetensors" --flatten a.f:1x3x2 --flatten g:3x1x2 --layout libtensor |
        grep -q '^4 tensors turned; left as they are: 1 of two axes' || return
    [ "$(tail -c 30 "$tmp/here.safetensors" | od -An -v -tu1 -w30 | tr -d ' ')" = 031425012345012345031425031425 ]
}
check_with CJSON behind_flattens behind_flattens

compared() {
    "$tensor" compare "$tmp/a.safetensors" "$tmp/a.safetensors" | grep '^3 tensors compared, 0 differ' &&
        "$tensor" compare "$tmp/a.safetensors" "$tmp/b.safetensors" >"$tmp/have"
    [ $? = 1 ] && grep -E '^x +max abs 0.5 +max rel 0.2 ' "$tmp/have" &&
        "$tensor" compare "$tmp/a.safetensors" --tolerance 0.5 "$tmp/b.safetensors"
}
check_with CJSON compare compared

# Each prefix of a file, and the file with each of its first bytes changed: a status of the tool's own, and where that is not
# 0 a line that names the file.
survives() {
    for f in "$tmp/a.safetensors" "$tmp/arrays/x.npy" "$tmp/idx"; do
        size=$(wc -c <"$f") i=0
        while [ $i -lt "$size" ]; do
            head -c $i "$f" >"$tmp/hostile"
            hostile || { echo "$f: the first $i bytes"; return 1; }
            { head -c $i "$f"; printf '\377'; tail -c +$((i + 2)) "$f"; } >"$tmp/hostile"
            hostile || { echo "$f: byte $i"; return 1; }
            i=$((i + 7))
        done
    done
}
hostile() {
    "$tensor" inspect "$tmp/hostile" >"$tmp/out" 2>&1
    status=$?
    [ $status = 0 ] || { [ $status = 2 ] && grep -q '^tensor: .*hostile: ' "$tmp/out"; }
}
printf '\0\0\010\002\0\0\0\002\0\0\0\003abcdef' >"$tmp/idx"
check_with CJSON files_of_strangers survives

refused() { # STATUS WORDS COMMAND..: what it says on stderr
    want=$1 words=$2
    shift 2
    "$tensor" "$@" >/dev/null 2>"$tmp/said"
    [ $? = "$want" ] && grep -q "$words" "$tmp/said" || { cat "$tmp/said"; return 1; }
}
refusals() {
    printf '{"a":1}' >"$tmp/text"
    printf 'PK\3\4\0\0\10\10\0\0' >"$tmp/zip"
    mkfifo "$tmp/fifo"
    refused 64 'no command' && refused 64 "no command 'dance'" dance && refused 64 'which file' inspect &&
        refused 64 'usage: tensor compare A B' compare "$tmp/text" && refused 64 '^tensor: --tight: no option' compare --tight "$tmp/text" "$tmp/text" &&
        refused 2 'missing: No such file' inspect "$tmp/missing" && refused 2 'not a plain file' inspect "$tmp/fifo" &&
        refused 2 'a zip archive, as torch.save writes' inspect "$tmp/zip" &&
        refused 2 'text: none of the formats' compare "$tmp/text" "$tmp/text" &&
        refused 2 'there are 3' convert "$tmp/a.safetensors" "$tmp/o.npy" && [ ! -e "$tmp/o.npy" ] &&
        refused 2 "no tensor 'w'" convert "$tmp/a.safetensors" "$tmp/o.safetensors" --tensor w &&
        refused 64 'layout' convert "$tmp/a.safetensors" "$tmp/o.safetensors" --layout none &&
        refused 64 'flatten' convert "$tmp/a.safetensors" "$tmp/o.safetensors" --flatten x:1x1x3 &&
        refused 2 "'x' has 3 columns" convert "$tmp/a.safetensors" "$tmp/o.safetensors" --layout pytorch --flatten x:1x2x3 &&
        refused 2 "no 'w'" convert "$tmp/a.safetensors" "$tmp/o.safetensors" --layout pytorch --flatten w:1x1x3 &&
        refused 2 'says which layout' convert "$tmp/a.safetensors" "$tmp/o/" --layout pytorch &&
        refused 2 'ends in none of' convert "$tmp/a.safetensors" "$tmp/o.bin" &&
        refused 2 'cannot be started' explain "$tmp/missing" && (cd "$tmp" && ln -s /bin/true there-is && tensor=$here/$tensor refused 2 '(./there-is can)' explain there-is) && refused 2 'told of no step' explain true &&
        refused 7 'no luck' explain sh -c 'echo no luck >&2; exit 7' && refused 64 'ends in' report step.pdf true
}
check_with CJSON refusals refusals

# ---- programs and kernels ----

told() { # the same plan from a program that is run and as its report; another ending is another form
    TENSOR_CACHE=$tmp/cache "$tensor" plan "$BUILD/mnist_cnn" --steps 2 --batch 8 --quiet >"$tmp/plan" &&
        grep -q '^step: [0-9]* kernels, ' "$tmp/plan" && grep -q ' update .* adamw$' "$tmp/plan" &&
        TENSOR_CACHE=$tmp/cache "$tensor" report "$tmp/step.html" "$BUILD/mnist_cnn" --steps 2 --batch 8 --quiet &&
        grep -q '<html' "$tmp/step.html" &&
        TENSOR_CACHE=$tmp/cache TENSOR_DUMP=$tmp/dump "$tensor" explain "$BUILD/mnist_cnn" --steps 2 --batch 8 --quiet >"$tmp/explain" &&
        grep -q '^groups ' "$tmp/explain" || { cat "$tmp/explain"; return 1; }
    "$tensor" plan "$tmp/dump" | grep -q '^plan 1: '
}
check_with STB program_tells_of_its_step told

kernels() { # looking at an entry is no use of it, by which what is kept longest is chosen
    find "$tmp/cache" -type f -exec touch -d 2001-01-01 {} +
    "$tensor" cache verify --dir "$tmp/cache" >"$tmp/have" && [ -z "$(find "$tmp/cache" -type f -newermt 2002-01-01)" ] || return
    "$tensor" cache verify --dir "$tmp/cache" | grep -E ': [0-9]+ kernels verified, [0-9.]+ MB$' || return
    object=$(find "$tmp/cache" -name '*.so' | head -n 1)
    printf x >>"$object"
    "$tensor" cache verify --dir "$tmp/cache" >"$tmp/have"
    [ $? = 1 ] && grep -q 'damaged: it will be compiled anew' "$tmp/have" && touch "$tmp/cache/mine.txt" &&
        "$tensor" cache clear --dir "$tmp/cache" && [ "$(find "$tmp/cache" -type f)" = "$tmp/cache/mine.txt" ]
}
check_with STB kernel_cache kernels

doctor() { [ "$("$tensor" doctor | tee "$tmp/doctor" | grep -c -E '^(libtensor|processor|kernel compiler|kernel cache|CUDA|device|MPI|NCCL) ')" -eq 8 ]; }
check doctor doctor

helps() { # of all commands and of each, on 80 columns
    "$tensor" -h >"$tmp/help" && for c in $(sed -n 's/^  \([a-z]*\) .*/\1/p' "$tmp/help"); do
        "$tensor" "$c" -h >>"$tmp/help" && "$tensor" "$c" --help | grep -q "^usage: tensor $c" || return
    done
    [ "$(grep -c '^usage: tensor ' "$tmp/help")" = 9 ] && ! grep '.\{81\}' "$tmp/help"
}
check help helps

manual() { # each command stands in it
    "$tensor" --help | sed -n 's/^  \([a-z]*\) .*/\1/p' | while read -r c; do grep -q "\\b$c\\b" docs/tensor.1 || echo "$c"; done | grep . && return 1
    ! command -v man >/dev/null || man --warnings -l docs/tensor.1 >/dev/null
}
check man_page_has_each_command manual
