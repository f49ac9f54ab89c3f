#!/bin/sh
# test_faults.sh - one of many points of tests/faults: a short training in which a call of the system fails.
. tests/check.sh

if [ -n "$SAN" ]; then
    skip faults 'the sanitizers have a malloc of their own'
elif ! "$MAKE" --no-print-directory BUILD="$BUILD" "$BUILD/faults/sweep" "$BUILD/faults/cc" >"$tmp/log" 2>&1; then
    if grep -q __libc_malloc "$tmp/log"; then
        skip faults 'this libc has no malloc that can be stood in for'
    else
        check faults_are_built cat "$tmp/log" /no/such/file
    fi
else
    check faults_are_survived sh tests/faults/run.sh "$BUILD" --jobs 2 --every 251 --scene cnn
    check memory_may_run_out sh tests/faults/run.sh "$BUILD" --jobs 2 --every 5 --scene cnn --cache warm --kind addresses
fi
