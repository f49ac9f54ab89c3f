#!/bin/sh
# test_public.sh - nn/ and examples/ are what a user could have written: of the library they take what include/
# declares, by their #include lines and by the symbols of their objects. And what the headers declare with a
# caller's line has the macro that gives it. (Who else may know whom: test_rooms.sh.)
. tests/check.sh

# ---- #include lines ----

public_includes() { # FILE...: quoted ones are of the same folder or of include/, others not of the library's rooms
    grep -n '^ *# *include' "$@" /dev/null | grep -v -E '"[a-z_0-9]+\.h"|"(\.\./)?include/[a-z_0-9]+\.h"|<[a-z_0-9/]+\.h>|<cjson/cJSON\.h>' && return 1
    for name in $(sed -n 's/^ *# *include "\([a-z_0-9]*\.h\)".*/\1/p' "$@" | sort -u); do
        [ -e "$(dirname "$1")/$name" ] || { echo "$name is not in $(dirname "$1")"; return 1; }
    done
    ! grep -n -E '^ *# *include *<(src|fuser|autograd|nn|tests)/' "$@"
}
check nn_includes_public_headers_alone public_includes nn/*.[ch]
check examples_include_public_headers_alone public_includes examples/*.[ch]

# ---- symbols ----

names() { # NM'S OPTION FILE...
    nm "$@" | awk 'NF >= 2 { print $NF }' | sort -u
}
names -D --defined-only "$BUILD/libtensor.so" >"$tmp/exported"
names -g --defined-only "$BUILD"/obj/nn/*.o >"$tmp/nn"
find "$BUILD/obj" -name '*.o' ! -path '*/obj/nn/*' ! -name libtensor.o >"$tmp/objects"
# shellcheck disable=SC2046
names -g --defined-only $(cat "$tmp/objects") | sort -u - "$tmp/nn" | comm -23 - "$tmp/exported" >"$tmp/inside"

public_symbols() { # FILE OBJECT...: none of the names in FILE is asked for
    of=$1
    shift
    [ "$(wc -l <"$of")" -gt 50 ] || return
    names -u "$@" | comm -12 - "$of" >"$tmp/taken"
    cat "$tmp/taken"
    [ ! -s "$tmp/taken" ]
}
comm -23 "$tmp/inside" "$tmp/nn" >"$tmp/others"
check nn_takes_public_symbols_alone public_symbols "$tmp/others" "$BUILD"/obj/nn/*.o

examples() {
    for f in examples/*.c; do
        $CC -std=c11 -D_GNU_SOURCE -Iinclude -c "$f" -o "$tmp/$(basename "$f" .c).o" || return
    done
    public_symbols "$tmp/inside" "$tmp"/*.o
}
check examples_take_public_symbols_alone examples

# ---- macros ----

# tn_NAME_at(.., file, line) is called by a macro tn_NAME, tn_NAME_with's by tn_NAME, and tn_NAME_new's of a parameter
# or buffer by tn_NAME: so far as tools/calls.awk has read the headers as a compiler does.
macros() {
    for f in include/*.h; do echo "#include \"$f\""; done >"$tmp/all.c"
    $CC -std=c11 -DTN_NO_MACROS -I. -E -P "$tmp/all.c" | tr '\n' ' ' | tr ';' '\n' |
        sed -n 's/.*[ *]\(tn_[a-z0-9_]*\)_at *(.*const char \*file, int line).*/\1/p' |
        sed 's/_with$//; s/^\(tn_param\|tn_buffer\)_new$/\1/' | sort -u >"$tmp/placed"
    cat include/*.h | sed -n 's/^# *define \(tn_[a-z0-9_]*\)(.*/\1/p' | grep -v -x -e tn_open -e tn_progress | sort >"$tmp/defined"
    [ "$(wc -l <"$tmp/placed")" -gt 100 ] && same "$tmp/placed" "$tmp/defined"
}
check what_has_a_line_has_a_macro macros
