# check.sh - what the shell tests share; they source it from the top of the source tree.
#
# A test is reported by one line, which run.sh counts: "ok NAME", "not ok NAME: why" or "skip NAME: why".
# $tmp is an empty folder that goes when the script ends. $BUILD, $CC, $CXX, $SAN and $MAKE are those of the
# make that runs the tests.
# shellcheck shell=sh
set -u

BUILD=${BUILD:-build} CC=${CC:-gcc} CXX=${CXX:-g++} SAN=${SAN:-} MAKE=${MAKE:-make}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/libtensor-test-XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM HUP

# check NAME COMMAND [ARGUMENT...]: the test is whether the command succeeds; its output shows if it does not.
check() {
    check_name=$1
    shift
    if "$@" >"$tmp/check.log" 2>&1; then
        echo "ok $check_name"
    else
        echo "not ok $check_name: exit status $?"
        sed 's/^/    /' "$tmp/check.log"
    fi
}

skip() { # NAME WHY
    echo "skip $1: $2"
}

# check_with LIBRARY NAME COMMAND [ARGUMENT...]: the same where the build has taken that library (ZLIB, STB, CJSON).
built_with() {
    grep -q -e "-DTN_HAVE_$1 " "$BUILD/flags"
}
check_with() {
    library=$1
    shift
    if built_with "$library"; then check "$@"; else skip "$1" "built without $library"; fi
}

# same FILE FILE: both hold the same lines; the difference shows if they do not.
same() {
    diff "$1" "$2"
}
