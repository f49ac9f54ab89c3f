#!/bin/sh
# test_locale.sh - a host whose decimal point is a comma: kernels, checkpoints, reports and profiles have points all the
# same. The locale is made on the spot; programs of the suite, and a training run that saves, are run in it again.
# TEST_LOCALE_PROGRAMS="test_ops ..." names other programs.
. tests/check.sh

# No text with a number that has a fraction, and no such number out of a text, but by src/core/print.h.
by_the_locale() {
    find src fuser autograd nn -name '*.[ch]' ! -path src/core/print.c ! -path '*/kernels/*' ! -path '*/prelude/*' |
        while read -r file; do
            awk -v file="$file" '
                { text = text $0 "\n" }
                END {
                    while (match(text, /(^|[^_A-Za-z0-9])(v?s?n?printf|v?fprintf|v?f?s?scanf|strto[dfl]d?|atof)\(/)) {
                        text = substr(text, RSTART + RLENGTH - 1)
                        end = match(text, /\);/) ? RSTART : length(text)
                        call = substr(text, 1, end)
                        gsub(/%%/, "", call)
                        head = substr(call, 1, 60)
                        gsub(/\n */, " ", head)
                        if (call ~ /%[-+ #0-9.*]*[lL]?[aefgAEFG]/ && call ~ /"/) print file ": " head
                    }
                }' "$file"
            grep -nE '(^|[^_A-Za-z0-9])(strto(d|f|ld)|atof|vs?n?printf|vfprintf)\(' "$file" | sed "s|^|$file:|"
        done >"$tmp/found"
    cat "$tmp/found"
    [ ! -s "$tmp/found" ]
}
check no_number_by_the_locale by_the_locale

mkdir "$tmp/locale"
printf 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n' >"$tmp/comma.locale"
localedef -c -i "$tmp/comma.locale" -f ANSI_X3.4-1968 "$tmp/locale/comma" >/dev/null 2>&1
$CC -shared -fPIC -o "$tmp/comma.so" tests/comma.c

in_comma() {
    env LOCPATH="$tmp/locale" LD_PRELOAD="$tmp/comma.so" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" "$@"
}

printf '#include <stdio.h>\nint main(void) { return printf("%%.1f", 0.5) != 3; }\n' >"$tmp/half.c"
$CC -o "$tmp/half" "$tmp/half.c"
if [ "$(in_comma "$tmp/half" 2>/dev/null)" != "0,5" ]; then
    skip programs_in_a_comma_locale "localedef made no locale with a comma"
    skip one_checkpoint_in_any_locale "localedef made no locale with a comma"
    exit 0
fi

head -c 3000 data/tales.txt >"$tmp/text"
train() { # FILE STEPS [OPTION...]: in "$run", if that is set
    file=$1 steps=$2
    shift 2
    ${run:-} "$BUILD/gpt" --data "$tmp/text" --steps "$steps" --layers 1 --dim 32 --ctx 16 --batch 4 --sample 0 --save "$file" "$@"
}
# What one of them writes the other reads: the same bytes.
crossing() {
    run='' train "$tmp/point" 2 && run=in_comma train "$tmp/comma" 2 && cmp "$tmp/point" "$tmp/comma" &&
        run='' train "$tmp/point3" 3 --resume "$tmp/comma" && run=in_comma train "$tmp/comma3" 3 --resume "$tmp/point" &&
        cmp "$tmp/point3" "$tmp/comma3"
}
check one_checkpoint_in_any_locale crossing

for name in ${TEST_LOCALE_PROGRAMS:-test_profile test_kcache}; do
    check "$name" in_comma "$BUILD/tests/$name"
done
