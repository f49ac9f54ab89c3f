#!/bin/sh
# test_build.sh - the Makefile: the library without its optional libraries, what is rebuilt when, and how
# missing packages are asked for.
. tests/check.sh

mkdir "$tmp/the tree" # its path may hold spaces
cp -r Makefile include src autograd fuser nn tests data examples tools bench "$tmp/the tree"
cd "$tmp/the tree" || exit 1

run() { "$MAKE" --no-print-directory -j2 BUILD=b OPT=-O1 "$@" >"$tmp/make.log" 2>&1; }
report() { cat "$tmp/make.log" && return 1; }
compiled() { grep -c '^  CC ' "$tmp/make.log"; }
none='HAVE_ZLIB= HAVE_STB= HAVE_CJSON='

# ---- without the optional libraries -----------------------------------------------------------------------

# shellcheck disable=SC2086
bare() {
    run $none lib examples || report || return
    ! grep -n 'warning' "$tmp/make.log" || return
    run $none b/tests/test_semantics b/tests/test_data || report || return
    export TENSOR_KERNEL_OPT=0
    readelf -d b/libtensor.so | grep NEEDED | grep -v -E 'lib(c|m|dl|pthread)\.so|ld-linux' && return 1
    b/tests/test_semantics && b/tests/test_data
}
check without_optional_libraries bare

# ---- what is rebuilt --------------------------------------------------------------------------------------

# shellcheck disable=SC2086
again() { # MAKE ARGUMENT... : how many files are compiled now
    run $none "$@" lib || report || return
    compiled || :
}
number() { # EXPECTED ARGUMENT...
    expected=$1
    shift
    n=$(again "$@") || { echo "$n" && return 1; }
    echo "compiled $n, expected $expected"
    [ "$n" -eq "$expected" ]
}
check nothing_twice number 0
touch nn/nn.h
check a_header number "$(grep -l '\bnn/nn\.h' b/obj/nn/*.d | wc -l)"
echo 'int tn_extra(void); int tn_extra(void) { return 1; }' >nn/extra.c
check a_new_file number 1
has_extra() { nm b/libtensor.so | grep -q tn_extra; }
check a_new_file_is_in_the_library has_extra
rm nn/extra.c
gone_extra() { number 0 && ! has_extra; }
check a_file_that_is_gone gone_extra
touch src/device/prelude/math.h
embedded() { again >/dev/null && grep -q 'CC *src/device/embed.c' "$tmp/make.log"; }
check embedded_text embedded

one() { # MAKE ARGUMENT... : compiles one object, if that is needed
    # shellcheck disable=SC2086
    run $none "$@" b/obj/src/core/dtype.o || report || return
    compiled | grep -v -x 0
}
check other_flags one OPT=-O0
check other_libraries one OPT=-O0 HAVE_ZLIB=1
printf '#!/bin/sh\nexec %s "$@"\n' "$CC" >"$tmp/othercc"
chmod +x "$tmp/othercc"
check other_compiler one OPT=-O0 HAVE_ZLIB=1 CC="$tmp/othercc"
same_again() { ! one OPT=-O0 HAVE_ZLIB=1 CC="$tmp/othercc"; }
check same_flags same_again

# ---- what is refused --------------------------------------------------------------------------------------

refused() { # WHAT IT SAYS, MAKE ARGUMENT...
    says=$1
    shift
    ! run "$@" lib && grep -q "$says" "$tmp/make.log" || report
}
if [ "$(uname -m)" = x86_64 ]; then check compilers_for_32_bits refused '32 bits.*Name a compiler for 64' CC="$CC -m32"; fi
check a_build_folder_with_a_space refused 'without a space' BUILD='b c'

# ---- packages ---------------------------------------------------------------------------------------------

# A PATH in which there is what make needs and, by choice, sudo; id says whose shell this is, apt-get takes
# notes. The compiler knows everything but cmocka.
mkdir "$tmp/bin"
for tool in sh tr sed head printf cat grep nproc mkdir cmp mv rm; do ln -s "$(command -v $tool)" "$tmp/bin"; done
ln -s "$(command -v "$MAKE")" "$tmp/bin/make"
cc=$(command -v "${CC%% *}")
{
    printf '#!/bin/sh\nPATH=%s\n' "$PATH"
    # shellcheck disable=SC2016
    printf 'case $* in *"-E -x c -"*) text=$(cat); case $text in *cmocka*) exit 1 ;; esac; echo "$text" | exec %s "$@" ;; esac\n' "$cc"
    printf 'exec %s "$@"\n' "$cc"
} >"$tmp/bin/somecc"
printf '#!/bin/sh\necho "$*" >>%s/apt\n' "$tmp" >"$tmp/bin/apt-get"
chmod +x "$tmp/bin/somecc" "$tmp/bin/apt-get"
user() { # UID [sudo]
    printf '#!/bin/sh\necho %s\n' "$1" >"$tmp/bin/id"
    printf '#!/bin/sh\necho sudo "$@" >>%s/apt\n' "$tmp" >"$tmp/bin/sudo"
    chmod +x "$tmp/bin/id" "$tmp/bin/sudo"
    [ $# -eq 2 ] || rm "$tmp/bin/sudo"
    rm -f "$tmp/apt"
}
ask() { # MAKE ARGUMENT...
    PATH=$tmp/bin make --no-print-directory CC=somecc JOBS=1 "$@" >"$tmp/make.log" 2>&1
    status=$?
    cat "$tmp/make.log"
    cat "$tmp/apt" 2>/dev/null
    return $status
}
root_installs() { user 0 && ask need-test && grep -q '^install .*libcmocka-dev' "$tmp/apt" && grep -q 'missing here: .*cmocka' "$tmp/make.log" && grep -q '^install .* clang$' "$tmp/apt"; }
sudo_installs() { user 1000 sudo && ask deps && grep -q '^sudo apt-get install .*zlib1g-dev' "$tmp/apt" && grep -q '^make deps: sudo apt-get install' "$tmp/make.log"; }
others_are_told() { user 1000 && ! ask deps && grep -q '^ *apt-get install .*zlib1g-dev' "$tmp/make.log" && [ ! -e "$tmp/apt" ]; }
no_refuses() { user 0 && ! ask need-test DEPS=no && grep -q 'not without cmocka' "$tmp/make.log" && [ ! -e "$tmp/apt" ]; }
demo_needs_less() { user 0 && ask need-demo && [ ! -e "$tmp/apt" ]; }
all_installs_nothing() { user 0 && ask -n all >/dev/null && [ ! -e "$tmp/apt" ]; }
check root_installs root_installs
check sudo_installs sudo_installs
check others_are_told_the_line others_are_told
check deps_no_refuses no_refuses
check demo_does_without_cmocka demo_needs_less
check make_installs_nothing all_installs_nothing
doctor() { "$MAKE" --no-print-directory doctor | tee "$tmp/doctor" && [ "$(grep -c -E '^(compiler|zlib|stb|cJSON|cmocka|libtensor) ' "$tmp/doctor")" -eq 6 ]; }
check doctor doctor
# A compiler that finds no header at all: nothing is there then.
blind() { [ "$("$MAKE" --no-print-directory doctor CC="$CC -nostdinc" | tee "$tmp/doctor" | grep -c -E '^(compiler|zlib|stb|cJSON|cmocka) .* no - ')" -eq 5 ] || ! cat "$tmp/doctor"; }
check doctor_without_headers blind
