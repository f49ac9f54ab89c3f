#!/bin/sh
# test_readme.sh - what README.md says is so: its programs compile and run, its commands work, the targets,
# files and environment variables it names are those there are, and the operator it adds can be added.
#
# A block of the README is named by what stands behind its language: "```c train.c" is a file for the blocks
# of commands after it, "```c src/core/ops.def" lines for that file of the library. Blocks of commands run in
# a folder that looks like the top of the source tree, with a home of its own.
# shellcheck disable=SC2016
. tests/check.sh

home=$tmp/home work=$tmp/work
mkdir -p "$home" "$work" "$tmp/bin" "$tmp/block"

# Block N is block/N, its language and name block/N.info.
awk -v dir="$tmp/block" '
    /^```/ { if (file) { close(file); file = "" } else { file = sprintf("%s/%02d", dir, ++n); print substr($0, 4) >(file ".info"); printf "" >file }; next }
    file   { print >file }' README.md

# ---- commands ---------------------------------------------------------------------------------------------

for f in Makefile LICENSE include src autograd fuser nn examples bench tests data; do ln -s "$PWD/$f" "$work/$f"; done
[ "$BUILD" = build ] || ln -s "$(realpath "$BUILD")" "$work/build"
case $BUILD in /*) ;; *) mkdir -p "$work/$(dirname "$BUILD")" && ln -s "$(realpath "$BUILD")" "$work/$BUILD" ;; esac
printf '#!/bin/sh\nexec %s %s "$@"\n' "$CC" "$SAN" >"$tmp/bin/cc"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$MAKE")" >"$tmp/bin/make"
chmod +x "$tmp/bin/cc" "$tmp/bin/make"

# What trains for long or runs the tests is only looked for among the targets, below.
commands() {
    grep -v -E '^make (demo|test|asan|tsan|test-long|bench|bench-peers|deps)$' "$1" |
        sed "s/ -ldnnl -lz -lcjson /$there/" >"$tmp/commands"
    (cd "$work" && HOME=$home PATH=$tmp/bin:$PATH sh -eux "$tmp/commands")
}
# Of the libraries that are named, those that the build has taken.
there=' '
! built_with DNNL || there="$there-ldnnl "
! built_with ZLIB || there="$there-lz "
! built_with CJSON || there="$there-lcjson "
reads=yes
built_with STB && built_with CJSON || reads=
for info in "$tmp"/block/*.info; do
    block=${info%.info}
    case $(cat "$info") in
    sh)
        if grep -q -e pkg-config -e libtensor.a "$block" && ! command -v pkg-config >/dev/null; then
            skip "commands_$(basename "$block")" "no pkg-config"
            continue
        fi
        if [ -z "$reads" ] && grep -q -e train -e mnist -e resume "$block"; then
            skip "commands_$(basename "$block")" "built without stb or cJSON, which images and checkpoints are read with"
            continue
        fi
        check "commands_$(basename "$block")" commands "$block"
        grep '^test accuracy [0-9.]* %$' "$tmp/check.log" >>"$tmp/accuracy"
        ;;
    'c '*.c) cp "$block" "$work/$(sed 's/^c //' "$info")" ;;
    esac
done

# Of what lies in a clone after them git shall see nothing.
clean_tree() {
    for f in "$work"/* "$work"/.[!.]*; do
        [ -L "$f" ] || [ ! -e "$f" ] || grep -q -x -e "/$(basename "$f")" -e "/$(basename "$f")/" .gitignore || {
            echo "left behind: $(basename "$f")"
            return 1
        }
    done
}
check clean_tree clean_tree

# By hand the same is named as pkg-config would.
private() {
    sed -n 's/^Libs.private: *//p' "$home/.local/lib/pkgconfig/libtensor.pc" >"$tmp/private"
    sed -n 's/^cc .*libtensor.a //p' "$tmp"/block/?? | sed "s/ -ldnnl -lz -lcjson /$there/" | same - "$tmp/private"
}
if command -v pkg-config >/dev/null && [ -n "$reads" ]; then check links_by_hand private; fi

learned() { # the accuracies printed, by the README's program as it is and as it goes on from its checkpoint
    awk '{ print } $3 < 90 { bad = 1 } END { exit bad || NR < 4 }' "$tmp/accuracy"
}
if command -v pkg-config >/dev/null && [ -n "$reads" ]; then check the_program_learns learned; fi

# ---- names ------------------------------------------------------------------------------------------------

grep -o '`make [a-z-]*' README.md | cut -d' ' -f2 | sort -u >"$tmp/named"
"$MAKE" help | sed -n 's/^make \([a-z][a-z-]*\) .*/\1/p' | sort -u >"$tmp/helped"
targets() {
    while read -r target; do grep -q "^$target:" Makefile || { echo "no target $target" && return 1; }; done <"$tmp/named"
    comm -13 "$tmp/named" "$tmp/helped" | sed 's/^/not in README: /' | { ! grep .; }
}
check targets targets

variables() {
    sed -n 's/^| \(`TENSOR_[^|]*\)|.*/\1/p' README.md | grep -o 'TENSOR_[A-Z_]*' | sort >"$tmp/documented"
    find src nn autograd fuser -name '*.[ch]' -exec grep -oh '"TENSOR_[A-Z_]*"' {} + | tr -d '"' | sort -u >"$tmp/read"
    same "$tmp/documented" "$tmp/read"
}
check environment_variables variables

paths() { # in `backquotes` or (links): whatever looks like a file of the tree
    grep -o '[`(][a-z]*/[a-z_/.0-9]*[`)]' README.md | tr -d '`()' | sort -u >"$tmp/paths"
    for dir in include nn src/core autograd fuser examples tests data; do grep -q "^$dir/" "$tmp/paths" || echo "$dir: no file named"; done
    while read -r path; do
        case $path in build/*) continue ;; esac
        # shellcheck disable=SC2086
        ls -d $path >/dev/null || return
    done <"$tmp/paths"
}
check files paths

plan() { # what it shows of a plan is how the committed one begins
    sed -n '/^step: [0-9]* kernels/,/^```/p' README.md | grep -v '^```' >"$tmp/shown"
    [ "$(wc -l <"$tmp/shown")" -ge 3 ] && head -n "$(wc -l <"$tmp/shown")" tests/plans/mlp.txt | same - "$tmp/shown"
}
check the_plan_is_the_committed_one plan

# ---- the operator -----------------------------------------------------------------------------------------

# Each line goes behind neg's in its file; then the test of all operators knows the new one.
operator() {
    mkdir "$tmp/tree" && cp -r Makefile include src autograd fuser nn bench tests data "$tmp/tree" && cd "$tmp/tree" || return
    for info in "$tmp"/block/*.info; do
        case $(cat "$info") in
        'c src/'* | 'c include/'*)
            file=$(sed 's/^c //' "$info")
            line=$(grep -n -m 1 -E '^(TN_UNARY\(neg,|TN_OP\(neg,|#define tn_neg\()' "$file" | cut -d: -f1)
            sed -i "${line}r ${info%.info}" "$file" || return
            ;;
        esac
    done
    "$MAKE" -j2 BUILD=b OPT=-O0 b/tests/test_ops && b/tests/test_ops gaussian >"$tmp/ops" 2>&1
    status=$?
    cat "$tmp/ops"
    [ $status -eq 0 ] && grep -q 'OK \] gaussian' "$tmp/ops"
}
# What is tested here is text, not memory: once is enough.
[ -n "$SAN" ] || check an_operator_is_added operator
