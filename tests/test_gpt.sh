#!/bin/sh
# test_gpt.sh - build/gpt as a user runs it: it learns, a run that is cut in two is the same run, bit for bit,
# what it prints and writes is what it says, and mistakes end it with the right status and one line. Models are
# tiny: what is tested is the program, not how well a GPT can do.
. tests/check.sh

gpt=$PWD/$BUILD/gpt
case $BUILD in /*) gpt=$BUILD/gpt ;; esac
small="--layers 2 --heads 2 --dim 16 --ctx 16 --batch 4 --threads 2"
export TENSOR_CACHE="${TENSOR_CACHE:-$tmp/cache}"

run() { # OUT OPTION...
    out=$1
    shift
    # shellcheck disable=SC2086
    "$gpt" $small "$@" >"$out" 2>"$out.err"
}

tales() { # the text that is shipped is what the program next to it writes
    "$(dirname "$gpt")/make_tales" >"$tmp/tales" && cmp "$tmp/tales" data/tales.txt
}
check the_shipped_tales tales

learns() { # from 3.95 (log 52); the frequencies of letters alone give 3.07, those of pairs 2.23
    run "$tmp/learn" --steps 500 --batch 16 --lr 1e-2 --sample 100 --quiet --log "$tmp/learn.jsonl" || return
    cat "$tmp/learn"
    [ ! -s "$tmp/learn.err" ] || return
    [ "$(wc -l <"$tmp/learn.jsonl")" -eq 500 ] || return
    head -n 1 "$tmp/learn.jsonl" | grep -q -E '^\{"step":1,"loss":3\.9[0-9]*,"ms":[0-9.]*\}$' || return
    tail -n 1 "$tmp/learn" | awk '/^validation loss [0-9]\.[0-9][0-9][0-9][0-9]$/ { ok = $3 > 0.5 && $3 < 2.2 } END { exit !ok }'
}
check it_learns learns

sample() { # so many characters, and a line's end, before the last line
    bytes=$(head -n -1 "$tmp/learn" | wc -c)
    [ "$bytes" -eq 101 ] || { echo "$bytes bytes" && return 1; }
}
check it_writes sample

# The log without times.
losses() {
    sed 's/,"ms".*//' "$@"
}

resumes() { # 30 steps in one run, and 11 and 19
    run "$tmp/whole" --steps 30 --decay 40 --log "$tmp/whole.jsonl" --save "$tmp/whole.safetensors" --sample 20 &&
        run "$tmp/one" --steps 11 --decay 40 --log "$tmp/one.jsonl" --save "$tmp/half.safetensors" --sample 50 &&
        run "$tmp/two" --steps 30 --decay 40 --log "$tmp/two.jsonl" --save "$tmp/two.safetensors" --sample 20 \
            --seed 99 --threads 1 --resume "$tmp/half.safetensors" || { cat "$tmp"/*.err && return 1; }
    [ "$(wc -l <"$tmp/one.jsonl")" -eq 11 ] || return
    losses "$tmp/whole.jsonl" >"$tmp/want"
    losses "$tmp/one.jsonl" "$tmp/two.jsonl" >"$tmp/got"
    same "$tmp/want" "$tmp/got" && same "$tmp/whole" "$tmp/two" && cmp "$tmp/whole.safetensors" "$tmp/two.safetensors"
}
check_with CJSON a_run_in_two_parts_is_the_same resumes

# Wherever it was cut. The norm of the gradients comes into each number: rounded another way in the first step
# after a pause it would show for some of these, the last two in the first place.
anywhere() {
    some="--decay 40 --sample 0 --quiet"
    # shellcheck disable=SC2086
    run "$tmp/far" $some --steps 64 --save "$tmp/far.safetensors" || return
    for n in 1 2 20 60 39 54; do
        # shellcheck disable=SC2086
        run "$tmp/near" $some --steps $n --save "$tmp/near.safetensors" &&
            run "$tmp/near" $some --steps 64 --resume "$tmp/near.safetensors" --save "$tmp/near.safetensors" &&
            cmp "$tmp/far.safetensors" "$tmp/near.safetensors" || { echo "cut after step $n" && return 1; }
    done
}
check_with CJSON so_it_is_wherever_it_was_cut anywhere

longer() { # what was trained to its end goes on when it may have more steps, and does nothing when not
    run "$tmp/end" --steps 30 --resume "$tmp/whole.safetensors" --log "$tmp/end.jsonl" --sample 0 || return
    [ ! -s "$tmp/end.jsonl" ] || return
    run "$tmp/more" --steps 35 --resume "$tmp/whole.safetensors" --log "$tmp/more.jsonl" --sample 0 || return
    grep -q '^{"step":31,' "$tmp/more.jsonl" && [ "$(wc -l <"$tmp/more.jsonl")" -eq 5 ]
}
check_with CJSON a_finished_run_goes_on longer

# started PROGRAM...: its id is in $tmp/pid, and it heeds the signal, which who runs the tests may have ignored.
started() {
    # shellcheck disable=SC2016
    sh -c 'echo $$ >"$1"; shift; exec env --default-signal=INT "$@"' sh "$tmp/pid" "$@"
}

after_five() { # a Ctrl-C once so many steps are in the log
    while [ "$(cat "$tmp/cut.jsonl" 2>/dev/null | wc -l)" -lt 5 ]; do sleep 0.05; done
    kill -INT "$(cat "$tmp/pid")"
}

interrupted() { # it ends after a step, says so, and is the same run when it goes on
    after_five &
    # shellcheck disable=SC2086
    started "$gpt" $small --steps 100000000 --decay 40 --log "$tmp/cut.jsonl" --save "$tmp/cut.safetensors" \
        --quiet >"$tmp/cut" 2>"$tmp/cut.err"
    status=$?
    kill $! 2>/dev/null
    cat "$tmp/cut.err"
    n=$(wc -l <"$tmp/cut.jsonl")
    [ $status -eq 130 ] && [ "$n" -ge 5 ] && [ ! -s "$tmp/cut" ] || return
    echo "gpt: interrupted after step $n, which is saved: go on with --resume $tmp/cut.safetensors" | same - "$tmp/cut.err" || return
    some="--steps $((n + 10)) --decay 40 --sample 20"
    # shellcheck disable=SC2086
    run "$tmp/on" $some --resume "$tmp/cut.safetensors" --save "$tmp/on.safetensors" &&
        run "$tmp/off" $some --save "$tmp/off.safetensors" && same "$tmp/off" "$tmp/on" && cmp "$tmp/off.safetensors" "$tmp/on.safetensors"
}
if env --default-signal=INT true 2>/dev/null; then
    check_with CJSON an_interrupted_run_goes_on interrupted
else
    skip an_interrupted_run_goes_on "env cannot have a program heed a signal"
fi

# Two of them while a step cannot end, as nobody reads the pipe that its log goes into.
work() { cut -d ' ' -f 14,15 "/proc/$(cat "$tmp/pid")/stat" 2>/dev/null; }
when_stuck() {
    while [ ! -s "$tmp/pid" ]; do sleep 0.05; done
    before=
    while now=$(work) && [ "$now" != "$before" ]; do before=$now && sleep 0.5; done
    kill -INT "$(cat "$tmp/pid")"
}
two_when_stuck() {
    when_stuck && sleep 0.5 && kill -INT "$(cat "$tmp/pid")"
}
twice() {
    rm -f "$tmp/pid" && mkfifo "$tmp/full" || return
    sleep 600 <"$tmp/full" &
    reader=$!
    two_when_stuck &
    # shellcheck disable=SC2086
    started "$gpt" $small --steps 100000000 --log "$tmp/full" --save "$tmp/twice.safetensors" --quiet >"$tmp/cut" 2>"$tmp/cut.err"
    status=$?
    kill $reader $! 2>/dev/null
    cat "$tmp/cut.err"
    [ $status -eq 130 ] && [ ! -s "$tmp/cut.err" ] && [ ! -e "$tmp/twice.safetensors" ]
}
if env --default-signal=INT true 2>/dev/null; then
    check a_second_interrupt_ends_it_at_once twice
else
    skip a_second_interrupt_ends_it_at_once "env cannot have a program heed a signal"
fi

# One before the first step: the log is a pipe that nobody reads until then.
early() {
    rm -f "$tmp/pid" && mkfifo "$tmp/early" && echo precious >"$tmp/early.safetensors" || return
    (when_stuck && cat "$tmp/early") &
    # shellcheck disable=SC2086
    started "$gpt" $small --steps 100000000 --log "$tmp/early" --save "$tmp/early.safetensors" --quiet >"$tmp/cut" 2>"$tmp/cut.err"
    status=$?
    kill $! 2>/dev/null
    cat "$tmp/cut.err"
    echo "gpt: interrupted before its first step, nothing is saved" | same - "$tmp/cut.err" || return
    [ $status -eq 130 ] && [ "$(cat "$tmp/early.safetensors")" = precious ]
}
if env --default-signal=INT true 2>/dev/null; then
    check an_interrupt_before_the_first_step_saves_nothing early
else
    skip an_interrupt_before_the_first_step_saves_nothing "env cannot have a program heed a signal"
fi

ignored() { # as nohup has it: the signal is nothing
    # shellcheck disable=SC2016,SC2086
    sh -c 'trap "" INT; shift; (sleep 1; kill -INT $$) & exec "$@"' sh sh "$gpt" $small --steps 2000 --sample 0 --quiet >"$tmp/ignored" &&
        grep -q '^validation loss' "$tmp/ignored"
}
check a_signal_that_is_ignored_stays_so ignored

modes() { # eager and fused agree
    for mode in eager fused; do
        run "$tmp/$mode" --mode $mode --steps 20 --sample 0 --log "$tmp/$mode.jsonl" || return
    done
    losses "$tmp/eager.jsonl" | sed 's/.*://' >"$tmp/eager.losses"
    losses "$tmp/fused.jsonl" | sed 's/.*://' | paste "$tmp/eager.losses" - |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-3) { print; bad = 1 } } END { exit bad || NR != 20 }'
}
check fused_is_eager modes

progress() { # plain lines where there is no terminal
    run "$tmp/progress" --steps 10 --sample 0 || return
    grep -q -E '^epoch 1 10/10  loss [0-9.]*  [0-9.]* [mu]s/step  [0-9.]* s$' "$tmp/progress.err" &&
        [ "$(grep -c ETA "$tmp/progress.err")" -eq 9 ] && ! grep -q "$(printf '\r')" "$tmp/progress.err"
}
check progress progress

refused() { # STATUS TEXT OPTION...
    want=$1 text=$2
    shift 2
    run "$tmp/refused" --sample 0 --quiet "$@"
    status=$?
    cat "$tmp/refused.err"
    [ $status -eq "$want" ] && [ "$(wc -l <"$tmp/refused.err")" -eq 1 ] && grep -q -- "$text" "$tmp/refused.err" &&
        [ ! -s "$tmp/refused" ]
}
check no_such_option refused 2 --nothing --nothing 1
check no_value refused 2 "needs a value" --steps 1 --log
check a_bad_number refused 2 "--layers 0: must be a whole number from 1 to" --layers 0
check a_bad_choice refused 2 "--mode quick: must be fused or eager" --mode quick
check no_such_text refused 1 "no/such/text" --data no/such/text
check heads_that_do_not_divide refused 1 "a multiple of heads" --heads 3
check no_such_checkpoint refused 1 "no/such/file" --resume no/such/file

loud() { # without --quiet, too, the error is the only line
    run "$tmp/loud" --resume no/such/file
    [ $? -eq 1 ] && cat "$tmp/loud.err" && [ "$(wc -l <"$tmp/loud.err")" -eq 1 ]
}
check no_progress_before_an_error loud

variable() { # the device is called what the user called it
    TENSOR_DEVICE=gpu run "$tmp/variable" --quiet
    [ $? -eq 1 ] && cat "$tmp/variable.err" && grep -q "device 'gpu', which TENSOR_DEVICE names" "$tmp/variable.err"
}
check a_device_that_the_environment_names variable
check a_checkpoint_of_another_model refused 1 whole.safetensors --layers 3 --resume "$tmp/whole.safetensors"
check a_log_that_cannot_be_written refused 1 no/such/log --log no/such/log
check a_number_too_large refused 2 "--seed 99999999999999999999" --seed 99999999999999999999
check steps_too_many refused 2 "--steps 1e9" --steps 1e9
check a_batch_of_nothing refused 2 "from 1 to" --batch 0
check a_batch_of_garbage refused 2 "--batch 12x" --batch 12x
check a_seed_below_zero refused 2 "--seed -1" --seed -1
check an_empty_number refused 2 "--threads" --threads ""
check a_rate_that_is_none refused 2 "--lr nan: must be a number above 0" --lr nan
check a_report_of_no_kind refused 2 ".html, .json or .txt" --report "$tmp/step.pdf"

# What could not be written at the end is noticed before the first of these steps, of which there are too many.
early() { # TEXT OPTION...
    text=$1
    shift
    refused 1 "$text" --steps 100000000 --log "$tmp/early.jsonl" "$@" && [ ! -e "$tmp/early.jsonl" ]
}
check no_folder_to_save_in early no/such/run.safetensors --save no/such/run.safetensors
check no_folder_to_report_in early no/such/step.html --report no/such/step.html
check a_folder_in_the_way early "not a regular file" --save "$tmp"
untouched() { # a file that is there is not changed by the look at it, and nothing is left beside it
    echo kept >"$tmp/there.txt"
    refused 1 no/such/text --data no/such/text --report "$tmp/there.txt" --save "$tmp/new.safetensors" || return
    [ "$(cat "$tmp/there.txt")" = kept ] && [ ! -e "$tmp/new.safetensors" ] && ! ls "$tmp"/*.part 2>/dev/null
}
check a_look_changes_nothing untouched
help() {
    run "$tmp/help" --help && grep -q -- '--temperature X' "$tmp/help" && [ ! -s "$tmp/help.err" ]
}
check help help
named() { # each name that --help gives for an option is taken, and each that a variable takes is given
    devices=$("$gpt" --help | sed -n 's/^  --device \([a-z|]*\) .*/\1/p' | tr '|' ' ')
    modes=$("$gpt" --help | sed -n 's/^  --mode \([a-z|]*\) .*/\1/p' | tr '|' ' ')
    [ "$devices" = 'auto cpu cuda ref' ] && [ "$modes" = 'fused eager' ] || return
    for d in $devices; do
        for m in $modes; do
            "$gpt" --data no/such/text --device "$d" --mode "$m" --steps 1 >"$tmp/named" 2>&1
            [ $? -eq 1 ] && ! grep -q -e 'must be' -e '--help' "$tmp/named" || { cat "$tmp/named" && return 1; }
        done
    done
    run "$tmp/ref" --device ref --steps 1 --layers 1 --heads 1 --dim 8 --ctx 4 --batch 1 --sample 0
}
check help_names_all named
