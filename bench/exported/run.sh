#!/bin/sh
# run.sh LLM.C KANN [ROUNDS] - the training step of exported files beside the session's, and beside llm.c's and KANN's own
# on the same models: one thread, all of them compiled by $CC (cc) with -O3 -march=native, in turns (bench/exported.c).
# LLM.C and KANN are checkouts of github.com/karpathy/llm.c and github.com/attractivechaos/kann; nothing is written there.
set -eu
[ $# -ge 2 ] || { echo "use: $0 LLM.C KANN [ROUNDS]" >&2 && exit 2; }
llmc=$(cd "$1" && pwd) kann=$(cd "$2" && pwd)
top=$(dirname "$0")/../.. cc="${CC:-cc} -O3 -march=native -w -fPIC -shared" tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
make -s -C "$top" "${BUILD:=build}/bench/exported"
cd "$top"
$cc -I"$llmc" bench/exported/llmc.c -o "$tmp/llmc.so" -lm
$cc -I"$kann" bench/exported/kann.c "$kann/kann.c" "$kann/kautodiff.c" -o "$tmp/kann.so" -lm
for model in cnn gpt kann llmc; do
    peer=
    [ ! -f "$tmp/$model.so" ] || peer=$tmp/$model.so
    "$BUILD/bench/exported" "$model" "$tmp" "${3:-20}" ${peer:+"$peer"}
done
