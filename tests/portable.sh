#!/bin/sh
# portable.sh - what `make portable` does: builds the library with other compilers, for another libc and for other
# processors, and runs it there: some tests, then 20 steps of mnist_cnn and gpt, whose losses must be those of this
# machine to the printed digits. They are: no sum depends on how wide vectors are, and products add with one rounding
# wherever all processors of a kind can. (An x86 from before 2013 cannot, and is off in the 6th digit after 15 steps.)
# Other processors are simulated by qemu; kernels are compiled by the cross compiler, which runs as it is. All builds
# are without the optional libraries, which are seldom there for other processors, and tests take the stand-in for
# cmocka (tests/gpu/cmocka).
#
# What is not installed is skipped, named and counted. On Debian all of it is
#
#   apt-get install clang musl-tools qemu-user gcc-aarch64-linux-gnu gcc-riscv64-linux-gnu libstb-dev
#
# PORTABLE_TESTS and TARGETS choose some of it, BUILD is the folder for the builds. Read target first.
. tests/check.sh

PORTABLE_TESTS=${PORTABLE_TESTS:-test_pool test_philox test_semantics test_draws test_promotion test_views}
TARGETS=${TARGETS:-host clang musl aarch64 riscv64 m32}
at=$BUILD
unset TENSOR_CC

wanted() {
    case " $TARGETS " in *" $1 "*) ;; *) return 1 ;; esac
}

# qemu 7 takes memory for each page of a range of addresses, also where none is touched: 13 GB for the tests of sessions.
# shellcheck disable=SC3045
few_addresses() { (ulimit -v 33554432 && "$@"); }

builds() { # TARGET COMPILER: without a warning
    # stb is but a header, which a compiler for another libc does not look for where this machine's are.
    # shellcheck disable=SC2046
    "$MAKE" --no-print-directory -j2 BUILD="$at/$1" CC="$2" CPPFLAGS='-idirafter /usr/include' HAVE_ZLIB= \
        HAVE_CJSON= examples lib $(for t in $PORTABLE_TESTS; do echo "$at/$1/stand-in/$t"; done) >"$tmp/make.log" 2>&1 &&
        ! grep -q 'warning:' "$tmp/make.log" || { cat "$tmp/make.log" && return 1; }
}

trains() { # TARGET PROGRAM OPTION... -- RUN...: the losses of 20 steps
    name=$1 program=$2
    shift 2
    options=
    while [ "$1" != -- ]; do options="$options $1" && shift; done
    shift
    # shellcheck disable=SC2086
    few_addresses "$@" "$at/$name/$program" --threads 2 --steps 20 --quiet --log "$tmp/log" $options || return
    sed 's/,"ms".*//' "$tmp/log" >"$at/$name/$program.losses"
    [ "$(wc -l <"$at/$name/$program.losses")" -eq 20 ] && same "$at/host/$program.losses" "$at/$name/$program.losses"
}

target() { # NAME COMPILER RUN...: builds, tests and trains; RUN is what starts a program there
    name=$1 compiler=$2
    shift 2
    wanted "$name" || return
    for tool in "${compiler%% *}" ${1:+"$1"}; do
        command -v "$tool" >/dev/null || { skip "$name" "no $tool" && return; }
    done
    export TENSOR_CACHE="$tmp/cache"
    rm -rf "$TENSOR_CACHE"
    check "${name}_builds" builds "$name" "$compiler"
    for t in $PORTABLE_TESTS; do check "${name}_$t" few_addresses "$@" "$at/$name/stand-in/$t"; done
    check "${name}_gpt" trains "$name" gpt --layers 2 --dim 32 --heads 2 --ctx 32 --batch 4 --sample 0 -- "$@"
    [ $# -gt 0 ] || check "${name}_serve" "$at/$name/serve" --requests 2000 # steps on threads of the program's
    if [ -e /usr/include/stb/stb_image.h ]; then
        check "${name}_mnist_cnn" trains "$name" mnist_cnn --batch 16 --epochs 1 -- "$@"
    else
        skip "${name}_mnist_cnn" "no stb to read images with"
    fi
}

refused() { # COMPILER: the message says why and what to do
    ! "$MAKE" BUILD="$at/m32" CC="$1" lib >"$tmp/make.log" 2>&1 || return
    cat "$tmp/make.log"
    grep -q '32 bits.*Name a compiler for 64 bits' "$tmp/make.log"
}

mkdir -p "$at"
here=$CC
unset CC
target host "$here"
target clang clang
target musl musl-gcc
target aarch64 aarch64-linux-gnu-gcc qemu-aarch64 -L /usr/aarch64-linux-gnu
target riscv64 riscv64-linux-gnu-gcc qemu-riscv64 -L /usr/riscv64-linux-gnu
! wanted m32 || check m32_is_refused refused "$here -m32"
