#!/bin/sh
# test_rooms.sh - who may know whom. The table below has the rooms of the house in order, lowest first: a folder, or one
# file of it that stands elsewhere, and what its #include lines may name beside its own files: rooms or single headers
# that stand above it in the table. The symbols that object files take from each other run the same way, from a room to
# those above it, and files know each other in no circle. Of nn/ and examples/ test_public.sh asks more. And the files that
# the openings of files speak of exist.
. tests/check.sh

cat >"$tmp/rooms" <<'TABLE'
include
src/core            include src/device/device.h
src/device          src/core
src/comm            src/core src/device/device.h
src/device/ref      src/core src/device
src/device/cpu      include src/core src/device src/device/ref
src/device/cuda     src/core src/device
fuser/plan.h        src/core src/device
fuser/graph         src/core fuser/plan.h
fuser/loops         src/core src/device fuser/plan.h fuser/graph
fuser/text          src/core src/device fuser/plan.h fuser/graph fuser/loops
fuser/group         src/core fuser/plan.h fuser/graph fuser/loops
fuser               src/core src/device fuser/graph fuser/loops fuser/text fuser/group
autograd            src/core
src/runtime         include src/core src/comm/comm.h src/device src/device/ref/ref.h src/device/cpu/builtin.h fuser fuser/plan.h fuser/loops
src/record          include src/core src/device autograd src/runtime
src/check           include src/core src/device src/device/ref/ref.h src/device/cpu/builtin.h src/runtime
src/session         include src/core src/comm src/device src/runtime src/check
src/ops             include src/core src/runtime fuser/text/attention.h
src/session/calibrate.c  src/core src/device src/runtime
src/export          include src/core src/device src/runtime fuser/text/text.h
src/report          include src/core src/device src/runtime fuser/loops
nn                  include
examples            include
tools               include nn/nn.h src/core src/comm src/device src/device/cpu
bench               *
TABLE
# device.h alone is known below its room: a graph holds the device that its values lie on, an operator its epilogue.

# ---- the table itself ----

find include src autograd fuser nn examples tools bench -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' | sort >"$tmp/files"

# Each file on a line with the number of its row: the longest room that its name begins with.
awk 'NR == FNR { row[$1] = NR; next }
    { room = $0; while (room != "" && !(room in row)) if (!sub("/[^/]*$", "", room)) room = ""
      print $0, room == "" ? 0 : row[room], room == "" ? "-" : room }' "$tmp/rooms" "$tmp/files" >"$tmp/placed"

table() { # each file has a room, each room a file, and what a room sees stands above it
    awk '$2 == 0 { print $1 ": in no room of the table"; bad = 1 } END { exit bad }' "$tmp/placed" || return
    awk 'NR == FNR { has[$3]; is[$1]; next }
        !($1 in has) { print $1 ": no file is in it"; bad = 1 }
        { for (i = 2; i <= NF; i++)
              if ($i != "*" && !($i in row) && !($i in is)) { print $1 " sees " $i ", which is not above it"; bad = 1 }
          row[$1] }
        END { exit bad }' "$tmp/placed" "$tmp/rooms"
}
check the_table_is_whole table

# ---- #include lines ----

# "file:line header": relative to the file, to the top of the tree, or to include/.
# shellcheck disable=SC2046
grep -n '^ *# *include *["<]' $(cat "$tmp/files") |
    sed -n 's/^\([^:]*:[0-9]*\): *# *include *["<]\([^">]*\)[">].*/\1 \2/p' >"$tmp/includes"

includes() {
    awk -v rooms="$tmp/rooms" -v placed="$tmp/placed" '
        BEGIN {
            while ((getline line < rooms) > 0) { n = split(line, w, " "); for (i = 2; i <= n; i++) sees[w[1], w[i]] }
            while ((getline line < placed) > 0) { split(line, w, " "); room[w[1]] = w[3] }
        }
        function whole(path) { while (sub("[^/]+/\\.\\./", "", path)); return path }
        { file = $1; sub(":.*", "", file); at = file; sub("[^/]*$", "", at)
          to = whole(at $2); if (!(to in room)) to = $2; if (!(to in room)) to = "include/" $2
          if (!(to in room)) next # of the system
          seen++; a = room[file]; b = room[to]
          if (a != b && !((a, b) in sees) && !((a, to) in sees) && !((a, "*") in sees)) { print $1 ": " a " includes " to ", of " b; bad = 1 } }
        END { if (seen < 300) { print "only " seen " lines found"; bad = 1 }; exit bad }' "$tmp/includes"
}
check rooms_include_what_they_may_see includes

# ---- symbols ----

# Who takes what of whom: "taker symbol giver", by the objects of this build.
# shellcheck disable=SC2038
(cd "$BUILD/obj" && find src autograd fuser nn -name '*.o' | xargs nm -A -P -g) | # OBJECT: SYMBOL KIND
    awk 'NR == FNR { source[$1]; next }
         { file = $1; sub("\\.o:$", ".c", file); if (!(file in source)) next # left behind by a file that is gone
           if ($3 == "U") takes[file " " $2]; else gives[$2] = file }
         END { for (t in takes) { split(t, w, " "); if (w[2] in gives && gives[w[2]] != w[1]) print t, gives[w[2]] } }' "$tmp/files" - | sort >"$tmp/arrows"

upwards() {
    awk 'NR == FNR { row[$1] = $2; next }
         row[$1] < row[$3] { print $1 " takes " $2 " of " $3 ", which stands higher"; bad = 1 }
         END { if (FNR < 1000) { print "only " FNR " arrows found"; bad = 1 }; exit bad }' "$tmp/placed" "$tmp/arrows"
}
check symbols_are_taken_of_lower_rooms upwards

circles() { # tsort names the files of a circle
    awk '{ print $1, $3 }' "$tmp/arrows" | sort -u >"$tmp/edges"
    tsort "$tmp/edges" >"$tmp/order"
}
check no_circle_of_files circles

# ---- what openings speak of ----

# A file is there under the name it is called by, or that is the end of its path: "graph.h", "loops/cost.c".
openings() {
    find tests -name '*.[ch]' | cat - "$tmp/files" >"$tmp/all"
    # shellcheck disable=SC2046
    awk 'FNR == 1 { opening = /^\/\*/ }
         opening { line = $0
                   while (match(line, /[a-z_0-9.\/]*[a-z_0-9]\.(c|h|cu|cuh|def|sh|md)([^a-z_0-9*]|$)/)) {
                       name = substr(line, RSTART, RLENGTH); sub("[^a-z]$", "", name); print FILENAME, name
                       line = substr(line, RSTART + RLENGTH) } }
         /\*\// { opening = 0 }' $(cat "$tmp/all") >"$tmp/spoken"
    find . \( -path './build*' -o -name .git \) -prune -o -type f -print | sed 's|^\./||' | awk -v spoken="$tmp/spoken" '
        { path = $0; there[path]; while (sub("^[^/]*/", "", path)) there[path] }
        END { there["train.c"] # a program of somebody who uses the library
              there["model.c"]; there["model.cu"]; there["model.h"] # what an export writes
              there["llm.c"] # a project that bench/exported stands beside
              while ((getline line < spoken) > 0) {
                  n++; split(line, w, " "); name = w[2]; while (sub("^\\.\\.?/", "", name)) continue
                  if (!(name in there)) { print w[1] " speaks of " w[2] ", which is not there"; bad = 1 } }
              if (n < 300) { print "only " n " names found"; bad = 1 }; exit bad }'
}
check files_that_openings_speak_of openings

# Tests that the Makefile and what it calls name are there; NAME% begins some.
named_tests() {
    grep -o -h -E 'test_[a-z0-9_]+[%*]?' Makefile .ci/run tests/run.sh tests/portable.sh tests/*/*.sh |
        tr '*' '%' | sort -u >"$tmp/tests"
    [ "$(wc -l <"$tmp/tests")" -gt 40 ] || return
    while read -r t; do
        # shellcheck disable=SC2086
        set -- tests/${t%"%"}*.c
        case $t in
        *%) [ -e "$1" ] ;;
        *) [ -e "tests/$t.c" ] || [ -e "tests/$t.sh" ] ;;
        esac || { echo "$t is not there" && bad=1; }
    done <"$tmp/tests"
    [ -z "${bad-}" ]
}
check tests_that_are_named named_tests
