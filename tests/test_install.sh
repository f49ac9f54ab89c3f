#!/bin/sh
# test_install.sh - what `make install` lays down: the files, what the headers ask of a compiler, the symbols
# of both libraries, and programs linked with what pkg-config says.
. tests/check.sh

root=$tmp/root prefix=/opt/tensor
at=$root$prefix
version=$(sed -n 's/^.define TN_VERSION_.* \([0-9]*\)$/\1/p' include/tensor.h | paste -sd .)

check install "$MAKE" install DESTDIR="$root" PREFIX=$prefix

files() {
    (cd "$at" && find . ! -type d | sort) >"$tmp/have"
    for f in include/*.h; do echo "./$f"; done >"$tmp/want"
    for f in a so so.0 "so.$version"; do echo "./lib/libtensor.$f"; done >>"$tmp/want"
    [ ! -e "$BUILD/libtensor_mpi.so" ] || echo ./lib/libtensor_mpi.so >>"$tmp/want"
    for f in lib/pkgconfig/libtensor.pc lib/cmake/libtensor/libtensorConfig.cmake lib/cmake/libtensor/libtensorConfigVersion.cmake \
        bin/tensor share/man/man1/tensor.1; do echo "./$f"; done >>"$tmp/want"
    for f in doc/libtensor/LICENSE doc/libtensor/CHANGELOG.md doc/libtensor/operators.md libtensor/libtensor.py; do echo "./share/$f"; done >>"$tmp/want"
    sort -o "$tmp/want" "$tmp/want"
    same "$tmp/want" "$tmp/have"
}
check files files

# ---- headers ----

alone() { # COMPILER...: each header is complete in itself
    for f in "$at"/include/*.h; do
        printf '#include <%s>\nextern int something;\n' "$(basename "$f")" >"$tmp/alone"
        "$@" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$at/include" "$tmp/alone" || return
    done
}
check headers_c11 alone "$CC" -x c -std=c11
check headers_without_macros alone "$CC" -x c -std=c11 -DTN_NO_MACROS
if command -v "$CXX" >/dev/null; then
    check headers_cxx alone "$CXX" -x c++ -std=c++11
else
    skip headers_cxx "no C++ compiler ($CXX)"
fi

# ---- symbols ----

# Every function the headers declare. The attribute of TN_API marks them once the preprocessor is through.
for f in include/*.h; do echo "#include <$(basename "$f")>"; done >"$tmp/all.c"
"$CC" -std=c11 -DTN_NO_MACROS -I "$at/include" -E -P "$tmp/all.c" | tr '\n' ' ' | tr ';' '\n' |
    sed -n 's/.*visibility("default")))[^(]*(*\(tn_[a-z0-9_]*\))* *(.*/\1/p' | sort -u >"$tmp/declared"

exported() {
    [ "$(wc -l <"$tmp/declared")" -gt 200 ] || return
    nm -D --defined-only "$at/lib/libtensor.so" | awk '{ print $3 }' | sort >"$tmp/exported"
    same "$tmp/declared" "$tmp/exported"
}
check exports_what_is_declared_and_nothing_else exported

archived() {
    nm -g --defined-only "$at/lib/libtensor.a" | awk 'NF == 3 { print $3 }' | sort >"$tmp/archived"
    same "$tmp/declared" "$tmp/archived"
}
check archive_shows_the_same_names archived

soname() {
    readelf -d "$at/lib/libtensor.so" | grep -F 'soname: [libtensor.so.0]'
}
check soname soname

# ---- programs ----

cat >"$tmp/use.c" <<'END'
#include <tensor_nn.h>

int main(void)
{
    tn_session *s = tn_open(.device = TN_CPU, .threads = 1);
    tn_linear *fc = tn_linear_new(s, "fc", 3, 2);
    tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.1);
    tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(4, 3)), *y = tn_zeros(s, TN_I32, TN_SHAPE(4));
    double loss = 0;
    for (int i = 0; i < 20; i++) {
        tn_step_begin(s);
        tn_tensor *l = tn_cross_entropy(tn_linear_forward(fc, x), y);
        tn_backward(l);
        tn_optim_step(opt);
        loss = tn_item(l);
        tn_step_end(s);
    }
    if (tn_error(s)) fprintf(stderr, "%s\n", tn_error_text(s));
    printf("%s %.3f\n", tn_version(), loss);
    return tn_close(s) || !(loss < 0.3);
}
END
cat >"$tmp/use.cc" <<'END'
#include <tensor.h>
#include <cstdio>

int main()
{
    tn_options o = tn_options();
    o.size = sizeof o;
    o.device = TN_REF;
    tn_session *s = tn_open_with(&o);
    const int64_t shape[] = {2, 3};
    double sum = tn_item(tn_sum(tn_ones(s, TN_F32, 2, shape), 0, nullptr, false));
    std::printf("%s %g\n", tn_version(), sum);
    return tn_close(s) || sum != 6;
}
END

pkg() {
    PKG_CONFIG_PATH=$at/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root pkg-config "$@"
}
if command -v pkg-config >/dev/null; then
    version() { [ "$(pkg --modversion libtensor)" = "$version" ]; }
    # shellcheck disable=SC2046,SC2086
    shared() {
        $CC -std=c11 -Wall -Wextra -Werror $SAN "$tmp/use.c" -o "$tmp/shared" $(pkg --cflags --libs libtensor) &&
            LD_LIBRARY_PATH=$at/lib "$tmp/shared"
    }
    # shellcheck disable=SC2046,SC2086
    archive() { # what a program links that takes the library along
        $CC -std=c11 $SAN "$tmp/use.c" -o "$tmp/static" $(pkg --cflags libtensor) "$at/lib/libtensor.a" \
            $(pkg --static --libs-only-other libtensor) \
            $(pkg --static --libs-only-l libtensor | sed 's/-ltensor//') && "$tmp/static"
    }
    # shellcheck disable=SC2046,SC2086
    cxx() {
        $CXX -std=c++11 -Wall -Wextra -Werror $SAN "$tmp/use.cc" -o "$tmp/cxx" $(pkg --cflags --libs libtensor) &&
            LD_LIBRARY_PATH=$at/lib "$tmp/cxx"
    }
    check pkg_config_version version
    check program_with_the_shared_library shared
    check program_with_the_archive archive
    if command -v "$CXX" >/dev/null; then check program_in_cxx cxx; else skip program_in_cxx "no C++ compiler ($CXX)"; fi
else
    skip programs "no pkg-config"
fi

# The example that is built outside of the tree, in both ways that stand beside it; elsewhere than where it is to be used, as
# packages are, so that for cmake, which knows no DESTDIR, it is installed once more.
fits() { [ "$("$@")" = 'y = 2.0 x - 1.0' ]; }
cp -r examples/link_me "$tmp/link_me"
by_make() {
    export PKG_CONFIG_PATH="$at/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
    env -u MAKEFLAGS "$MAKE" -C "$tmp/link_me" CC="$CC $SAN" && LD_LIBRARY_PATH=$at/lib fits "$tmp/link_me/link_me"
}
by_cmake() {
    "$MAKE" install PREFIX="$tmp/own place" &&
        cmake -S "$tmp/link_me" -B "$tmp/by_cmake" -DCMAKE_PREFIX_PATH="$tmp/own place" -DCMAKE_C_COMPILER="$CC" -DCMAKE_C_FLAGS="$SAN" &&
        cmake --build "$tmp/by_cmake" && fits "$tmp/by_cmake/link_me" || return
    sed 's/libtensor 0.1 /libtensor 9.1 /' examples/link_me/CMakeLists.txt >"$tmp/link_me/CMakeLists.txt"
    ! cmake -S "$tmp/link_me" -B "$tmp/too_old" -DCMAKE_PREFIX_PATH="$tmp/own place" && "$MAKE" uninstall PREFIX="$tmp/own place"
}
if command -v pkg-config >/dev/null; then check link_me_by_pkg_config by_make; else skip link_me_by_pkg_config "no pkg-config"; fi
if command -v cmake >/dev/null; then check link_me_by_cmake by_cmake; else skip link_me_by_cmake "no cmake"; fi

manual() { # each operator stands in it
    sed -n 's/^TN_OP(\([a-z_0-9]*\),.*/tn_\1/p' include/tensor_ops.h | sort >"$tmp/operators"
    sed -n 's/^- `\([a-z_0-9]*\)(.*)`.*/\1/p' "$at/share/doc/libtensor/operators.md" | sort | same "$tmp/operators" -
}
check manual_of_operators manual

plane() { "$BUILD/linear_regression" --quiet | tee "$tmp/plane" | grep -E '^y = (3.00|2.99|3.01) x0 - (2.00|1.99|2.01) x1 [+] 0.(50|49|51), root mean square error 0.(09|10)[0-9]$'; }
check linear_regression plane

uninstalled() {
    "$MAKE" uninstall DESTDIR="$root" PREFIX=$prefix && [ -z "$(find "$root" ! -type d)" ]
}
check uninstall uninstalled
