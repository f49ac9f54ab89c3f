#!/bin/sh
# run.sh - run.sh BUILD [OPTION...]: the sweep of sweep.c in a folder of its own, in memory where there is /dev/shm.
build=$1
shift
dir=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/libtensor-faults-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
env -u TENSOR_CACHE "$build/faults/sweep" --dir "$dir" --cc "$(pwd)/$build/faults/cc" "$@"
