#!/bin/sh
# test_drills.sh - faults planted on purpose: one line of a copy of the tree is changed, what depends on it is
# built again, and a test that should notice must fail. Two caches are checked the other way round as well:
# with a hash that is the same for everything nothing may change.
. tests/check.sh

# What is built already is taken along with its dates, so that little is compiled for each fault.
mkdir -p "$tmp/tree/b" || exit 1
cp -a Makefile include src autograd fuser nn tests tools "$tmp/tree"
cp -a "$BUILD/obj" "$BUILD/internal.a" "$BUILD/flags" "$BUILD/sources" "$tmp/tree/b"
find "$tmp/tree/b/obj" -name '*.d' -exec sed -i "s|$BUILD/obj/|b/obj/|g" {} +
cp -a "$tmp/tree/b/obj" "$tmp/obj"
cd "$tmp/tree" || exit 1

# build TEST FILE SED: the test with the line changed. The file and the objects are as they were afterwards. A table that
# others include is compiled into those that name it: who knows it by a header knows its names alone, which stay.
build() {
    cp -p "$2" "$tmp/before"
    sed -i "$3" "$2"
    if cmp -s "$2" "$tmp/before"; then
        echo "the line to be changed is not in $2 any more" && return 1
    fi
    touch "$tmp/mark"
    case $2 in
    *.c) touch "$2" ;;
    *) touch -r "$tmp/before" "$2" && find src autograd fuser -name '*.c' -exec grep -l "include.*$(basename "$2")" {} + | xargs touch ;;
    esac
    "$MAKE" --no-print-directory -j2 BUILD=b "b/tests/$1" >"$tmp/make.log" 2>&1
    status=$?
    [ $status -eq 0 ] || cat "$tmp/make.log"
    cp -p "$tmp/before" "$2"
    find src autograd fuser -name '*.c' -newer "$tmp/mark" -exec touch -r "$tmp/before" {} +
    find b/obj -name '*.o' -newer "$tmp/mark" | while read -r object; do cp -p "$tmp/${object#b/}" "$object"; done
    rm -f b/internal.a
    return $status
}

caught() { # FILE SED TEST [ARGUMENT...]
    file=$1 change=$2 name=$3
    shift 3
    build "$name" "$file" "$change" || return 1
    if "b/tests/$name" "$@" >"$tmp/run.log" 2>&1; then
        echo "$name passes" && return 1
    fi
    grep -q FAILED "$tmp/run.log" || { cat "$tmp/run.log" && return 1; }
}

harmless() { # FILE SED TEST [ARGUMENT...]
    file=$1 change=$2 name=$3
    shift 3
    build "$name" "$file" "$change" && "b/tests/$name" "$@"
}

export TENSOR_KERNEL_OPT=0
programs='test_random_programs --programs 20 --shrink 0'

# The gradient of tanh is g (1 - tanh^2).
check wrong_derivative caught src/core/ops.def 's/mul(g, sub(num(1), square(out)))/mul(g, sub(num(1), out))/' \
    test_ops tanh
# A kernel takes a step that is one element too short from line to line.
# shellcheck disable=SC2086
check index_map_off_by_one caught fuser/loops/program.c \
    's/\(spread(b->d, &axis\[i\], t->stride\[i\]\), at.stride,/\1 - (t->stride[i] > 1), at.stride,/' \
    $programs
# A value's memory is given away in the step that reads it last.
# shellcheck disable=SC2086
check too_early_reuse caught src/runtime/memory.c \
    's/+= lowest_free(m, part.first, part.last/+= lowest_free(m, part.first + 1, part.last/' $programs
# A result is written over an operand that other items still read.
check written_over_too_early caught fuser/text/kernel.c \
    's/memcmp(v->stride, s->stride, sizeof v->stride)/false/' test_fuser_plans
# A plan's record leaves out the attributes of operators.
check stale_plan caught src/runtime/segment.c 's/ || !put_attr(f, n))$/)/' test_programs
# The kernel cache takes an entry for another text.
check stale_kernel caught src/device/kcache.c \
    's/!memcmp(e.source + c->common_bytes, src->text, text_bytes)/true/' test_kcache
# All records of plans have one hash: all is well, unless the records are not compared.
check plan_hash_collides harmless src/runtime/plan_cache.c 's/= tn_hash_bytes(key, bytes)/= 7 + 0 * bytes/' \
    test_programs
check plan_hash_is_trusted caught src/runtime/plan_cache.c \
    's/= tn_hash_bytes(key, bytes)/= 7 + 0 * bytes/; s/ && e->bytes == bytes && !memcmp(e->key, key, bytes)//' \
    test_programs
# The record does not say which operands are one.
check twins_forgotten caught src/runtime/segment.c 's/!put(f, &f->twin\[i\], sizeof \*f->twin))/false)/' test_simplify
# Whatever leaf an operator reads, it reads the same.
check leaves_confused caught fuser/graph/common.c 's/return c->n_node + (c->seg->twin.*/return c->n_node;/' test_simplify
# A plan that was made for one number serves any other.
check guard_ignored caught fuser/plan.c 's/i < p->n_guard; i++/i < 0 * p->n_guard; i++/' test_simplify
# What reads the old version of a tensor is not put before the assignment to it.
check readers_after_the_writer caught fuser/graph/hazard.c 's/if (after >= 0 && /if (false \&\& after >= 0 \&\& /' test_fuser_plans
# Many more, which take long: make test ONLY=test_drills DRILLS=1 TEST_TIMEOUT=3600
[ -z "${DRILLS:-}" ] || . tests/long/drills.sh
