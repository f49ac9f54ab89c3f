#!/bin/sh
# test_readme.sh - what README.md, docs/ and CONTRIBUTING.md say is so: their programs compile and run, their commands work,
# what they quote is what is made now, the targets, files, names and environment variables are those there are, and the
# operator they add can be added.
#
# A block is named by what stands behind its language: "```c train.c" is a file for the blocks of commands after it,
# "```c src/core/ops.def" lines for that file of the library, "```c from dump/plan.txt" a quotation, whose parts stand
# between lines of dots. Blocks of commands run in a folder that looks like the top of the source tree, with a home of
# its own.
# shellcheck disable=SC2016
. tests/check.sh

docs="README.md docs/pipeline.md $(echo docs/*.md | sed s,docs/pipeline.md,,) CONTRIBUTING.md"
home=$tmp/home work=$tmp/work
mkdir -p "$home" "$work" "$tmp/bin" "$tmp/block"

# Block N is block/N, its language and name block/N.info.
# shellcheck disable=SC2086
awk -v dir="$tmp/block" '
    /^```/ { if (file) { close(file); file = "" } else { file = sprintf("%s/%02d", dir, ++n); print substr($0, 4) >(file ".info"); printf "" >file }; next }
    file   { print >file }' $docs

# ---- commands ---------------------------------------------------------------------------------------------

for f in Makefile LICENSE CHANGELOG.md docs include src autograd fuser nn examples tools python bench tests data; do ln -s "$PWD/$f" "$work/$f"; done
[ "$BUILD" = build ] || ln -s "$(realpath "$BUILD")" "$work/build"
case $BUILD in /*) ;; *) mkdir -p "$work/$(dirname "$BUILD")" && ln -s "$(realpath "$BUILD")" "$work/$BUILD" ;; esac
printf '#!/bin/sh\nexec %s %s "$@"\n' "$CC" "$SAN" >"$tmp/bin/cc"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$MAKE")" >"$tmp/bin/make"
chmod +x "$tmp/bin/cc" "$tmp/bin/make"

# What trains for long or runs the tests is only looked for among the targets, below.
commands() {
    grep -v -E '^make (demo|test|asan|tsan|test-long|bench|bench-peers|deps|texts|calibrate)( |$)' "$1" |
        sed "s/ -lz -lcjson /$there/" >"$tmp/commands"
    (cd "$work" && HOME=$home PATH=$tmp/bin:$PATH sh -eux "$tmp/commands")
}
# Of the libraries that are named, those that the build has taken.
there=' '
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
        if [ -z "$reads" ] && grep -q -e train -e mnist -e resume -e mlp "$block"; then
            skip "commands_$(basename "$block")" "built without stb or cJSON, which images and checkpoints are read with"
            continue
        fi
        check "commands_$(basename "$block")" commands "$block"
        grep '^test accuracy [0-9.]* %$' "$tmp/check.log" >>"$tmp/accuracy"
        ;;
    'c from '* | 'text from '*) echo "$block" >>"$tmp/quotations" ;;
    'c src/'* | 'c include/'* | 'c nn/'* | 'c fuser/'*) ;;
    'c '*.c) cp "$block" "$work/$(sed 's/^c //' "$info")" ;;
    esac
done

# Of each part of a quotation the lines follow each other in the file, too.
quoted() { # BLOCK FILE
    awk 'NR == FNR { text = text $0 "\n"; next }
         /^ *[.][.][.]$/ { part(); next }
         { want = want $0 "\n" }
         function part() { if (want != "" && !index("\n" text, "\n" want)) { printf "not there:\n%s", want; bad = 1 } want = "" }
         END { part(); exit bad }' "$2" "$1"
}
# What is chosen for a processor is quoted as it is for one with AVX-512.
wide=
grep -q avx512f /proc/cpuinfo && wide=yes
while read -r block; do
    of=$(sed 's/.* from //' "$block.info")
    case $of in
    dump/* | said.txt)
        if [ -z "$wide" ] || [ -z "$reads" ]; then
            skip "quotation_$(basename "$block")" "made on a processor with AVX-512, with stb"
            continue
        fi
        ;;
    esac
    check "quotation_$(basename "$block")" quoted "$block" "$work/$of"
done <"$tmp/quotations"

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
    sed -n 's/^cc .*libtensor.a //p' "$tmp"/block/?? | sort -u | sed "s/ -lz -lcjson /$there/" | same - "$tmp/private"
}
if command -v pkg-config >/dev/null && [ -n "$reads" ]; then check links_by_hand private; fi

learned() { # the accuracies printed, by the README's program as it is and as it goes on from its checkpoint
    awk '{ print } $3 < 90 { bad = 1 } END { exit bad || NR < 4 }' "$tmp/accuracy"
}
if command -v pkg-config >/dev/null && [ -n "$reads" ]; then check the_program_learns learned; fi

# ---- names ------------------------------------------------------------------------------------------------

# shellcheck disable=SC2086
cat $docs >"$tmp/docs"
grep -o '`make [a-z-]*' "$tmp/docs" | cut -d' ' -f2 | sort -u >"$tmp/named"
"$MAKE" help | sed -n 's/^make \([a-z][a-z-]*\) .*/\1/p' | sort -u >"$tmp/helped"
targets() {
    while read -r target; do grep -q "^$target:" Makefile || { echo "no target $target" && return 1; }; done <"$tmp/named"
    comm -13 "$tmp/named" "$tmp/helped" | sed 's/^/in no document: /' | { ! grep .; }
}
check targets targets

variables() {
    sed -n 's/^| \(`TENSOR_[^|]*\)|.*/\1/p' docs/environment.md | grep -o 'TENSOR_[A-Z_]*' | sort >"$tmp/documented"
    find src nn autograd fuser -name '*.[ch]' -exec grep -oh '"TENSOR_[A-Z_]*"' {} + | tr -d '"' | sort -u >"$tmp/read"
    same "$tmp/documented" "$tmp/read"
}
check environment_variables variables

paths() { # in `backquotes`: whatever looks like a file of the tree; in (links): as it stands from the document
    # shellcheck disable=SC2013
    for path in $(grep -o '`[a-z]*/[a-zA-Z_/.0-9*-]*`' "$tmp/docs" | tr -d '`' | grep -v NAME | sort -u); do
        case $path in build/* | dump/* | /*) continue ;; esac
        # shellcheck disable=SC2086
        ls -d $path >/dev/null || return
    done
    # by its name alone: a file of any room
    find src include autograd fuser nn examples bench tests -type f | sed 's|.*/||' | sort -u >"$tmp/files"
    grep -o '`[a-z_0-9]*\.\(c\|h\|def\|cu\|sh\)`' "$tmp/docs" | tr -d '`' | grep -v -x -e train.c -e mlp.c | sort -u |
        comm -23 - "$tmp/files" | sed 's/^/no file of that name: /' | { ! grep .; } || return
    for doc in $docs; do
        # shellcheck disable=SC2013
        for path in $(grep -o '](\.*[a-zA-Z_/][a-zA-Z_/.0-9-]*)' "$doc" | sed 's/^](//; s/)$//' | sort -u); do
            (cd "$(dirname "$doc")" && ls -d "$path" >/dev/null) || { echo "$doc: $path" && return 1; }
            echo "$path"
        done
    done >"$tmp/paths"
    [ "$(wc -l <"$tmp/paths")" -gt 20 ]
}
check files paths

names() { # in `backquotes`: whatever looks like a name of the library
    grep -o '`[a-zA-Z_0-9]*(\{0,1\})\{0,1\}`' "$tmp/docs" | tr -d '`()' | grep -E '^(tn|fu|nn|TN|FU|NN)_' | grep -v NAME | sort -u >"$tmp/names"
    find include src autograd fuser nn \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' \) -exec \
        grep -o -h -w -E '(tn|fu|nn|TN|FU|NN)_[a-zA-Z_0-9]*' {} + | sort -u >"$tmp/there"
    # what a row of a table, or a macro that declares, makes of the name in it
    find include src nn \( -name '*.[ch]' -o -name '*.def' \) -exec grep -o -h -E '\([a-z_0-9]+[,)]|, [a-z_0-9]+,' {} + |
        sed -n 's/^[(,] *\([a-z_0-9]*\)[,)]$/tn_\1/p' | sort -u - "$tmp/there" -o "$tmp/there"
    [ "$(wc -l <"$tmp/names")" -gt 50 ] && comm -23 "$tmp/names" "$tmp/there" >"$tmp/gone" && cat "$tmp/gone" && [ ! -s "$tmp/gone" ]
}
check names names

gpu() { # what the first screen says of the CUDA device is what tests/gpu/RESULTS.md says
    head -n 30 README.md | grep -q 'ran on an H100 and an H200' && said=yes || said=no
    grep -q '^## .*H100.*H200' tests/gpu/RESULTS.md && so=yes || so=no
    echo "README says on which GPUs it has run: $said; the results are of these: $so" && [ "$said$so" = yesyes ]
}
check what_is_said_of_gpus gpu

length() { [ "$(wc -l <README.md)" -le 200 ]; }
check length length

plan() { # what README shows of a plan is how the committed one begins
    sed -n '/^step: [0-9]* kernels/,/^```/p' README.md | grep -v '^```' >"$tmp/shown"
    [ "$(wc -l <"$tmp/shown")" -ge 3 ] && head -n "$(wc -l <"$tmp/shown")" tests/plans/mlp.txt | same - "$tmp/shown"
}
check the_plan_is_the_committed_one plan

# ---- additions --------------------------------------------------------------------------------------------

# Lines for a header or a table go behind those of a neighbour, neg, cumsum or adamw; those for nn/ at the end of the file.
# Then the test of all operators knows the new ones, the new rule is followed, and the program of docs/pipeline.md trains
# with the new optimizer.
additions() {
    mkdir "$tmp/tree" && cp -r Makefile include src autograd fuser nn bench tests tools data "$tmp/tree" && cd "$tmp/tree" || return
    for info in "$tmp"/block/*.info; do
        file=$(sed 's/^c //' "$info") block=${info%.info}
        case $file in src/* | include/* | tests/* | fuser/* | nn/*)
            grep -qxF "$(head -n 1 "$block")" "$file" && echo "$file has what a page shows as an addition to it: show another" && return 1 ;;
        esac
        case $(cat "$info") in
        'c src/'* | 'c include/'* | 'c tests/'* | 'c fuser/'*)
            line=$(grep -n -E '^(TN_UNARY\(neg,|TN_OP\(neg,|TN_SCAN\(cumsum,|OP\("cumsum/last"| *if \(from .*TN_OP_neg\)|TN_NEW\(tn_optim, adamw,)' "$file" |
                grep -F "$(sed 's/[^a-zA-Z_ ].*//; s/ tn_.*/ tn_/; q' "$block")" | head -n 1 | cut -d: -f1)
            sed -i "${line}r $block" "$file" || return
            ;;
        'c nn/'*) cat "$block" >>"$file" ;;
        esac
    done
    "$MAKE" -j2 BUILD=b OPT=-O0 b/tests/test_ops || return
    for op in gaussian cumprod; do
        b/tests/test_ops $op >"$tmp/ops" 2>&1
        status=$?
        cat "$tmp/ops"
        [ $status -eq 0 ] && grep -q "OK \] $op" "$tmp/ops" || return
    done
    cat >rule.c <<'EOF'
#include <tensor.h>
int main(void)
{
    tn_session *s = tn_open(.device = TN_CPU);
    tn_step_begin(s);
    tn_item(tn_sum(tn_relu(tn_exp(tn_rand(s, TN_F32, TN_SHAPE(64)))), TN_ALL, false));
    tn_step_end(s);
    printf("%s", tn_plan_text(s));
    return tn_close(s);
}
EOF
    # shellcheck disable=SC2086
    $CC -Iinclude rule.c -o rule b/internal.a -pthread $there -ldl -lm && HOME=$home ./rule >"$tmp/rule" && cat "$tmp/rule" || return
    grep -q 'simplified: 1 folded' "$tmp/rule" || return
    [ -n "$reads" ] || return 0
    sed 's/tn_adamw(/tn_signum(/' "$work/mlp.c" >signum.c
    # shellcheck disable=SC2086
    $CC -Iinclude signum.c -o signum b/internal.a -pthread $there -ldl -lm && HOME=$home ./signum >"$tmp/signum" || return
    grep -q 'signum_elements  *signum$' "$tmp/signum"
}
# What is tested here is text, not memory: once is enough.
[ -n "$SAN" ] || check operators_a_rule_and_an_optimizer_are_added additions
