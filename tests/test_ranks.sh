#!/bin/sh
# test_ranks.sh - programs that run as several ranks by MPI: means, training as by one process, and drills in which one
# rank goes astray. What each drill does is in ranks/drill.c.
# shellcheck disable=SC2086
. tests/check.sh

drill=$BUILD/tests/ranks_drill
if [ ! -x "$drill" ] || ! command -v mpirun >/dev/null; then
    for name in means draws training messages sharded random passes host drills kill no_plugin examples; do skip $name "no MPI here (make deps)"; done
    exit 0
fi
# mpirun asks root for leave, and whether there are as many processors
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # MPI keeps memory of its own to the end
export TENSOR_MPI="$PWD/$BUILD/libtensor_mpi.so" TENSOR_COMM_TIMEOUT=60
case $BUILD in /*) export TENSOR_MPI="$BUILD/libtensor_mpi.so" ;; esac

run() { # RANKS [OPTION] PROGRAM..
    ranks=$1
    shift
    timeout 120 mpirun -np "$ranks" "$@"
}

messages() { # COMMAND..: as ranks of several hosts: Open MPI, MPICH find no memory for them to share
    OMPI_MCA_osc=^sm MPIR_CVAR_NOLOCAL=1 "$@"
}

check means_are_right_and_draws_differ_in_steps_alone run 3 "$drill" means draws
check means_of_messages_are_right messages run 3 "$drill" means
check the_program_has_initialised_mpi run 2 "$drill" host
check mpi_of_one_thread_is_refused run 2 "$drill" host_single

# ---- training: the losses, parameters and running statistics of one process with the whole batch ----

trains() { # RANKS OPTIONS..: with a last batch that ranks cannot share evenly, and one that some have nothing of
    n=$1
    shift
    "$drill" train 12 18 "$tmp/one" "$@" && run "$n" "$drill" train $((12 / n)) 18 "$tmp/all" "$@" &&
        "$drill" same "$tmp/one" "$tmp/all" 1e-5
}
check trains_as_one messages trains 2
check trains_as_one_clipped_accumulated_and_sharded trains 4 accumulate 3 clip 0.1 shard 1

both() { # the same bits by messages and by memory
    run 2 "$drill" gpt "$tmp/cpu" >"$tmp/said" && messages run 2 "$drill" gpt "$tmp/far" >"$tmp/said.far" || { cat "$tmp/said" && return 1; }
    grep -q '^ranks: 2 by .*, shared memory$' "$tmp/said" && grep '^ranks: 2 by ' "$tmp/said.far" && ! grep 'shared memory' "$tmp/said.far" &&
        same "$tmp/cpu" "$tmp/far"
}
check messages_and_memory_come_to_the_same_bits both

random() { # SEEDS: as one process has trained them, 2 ranks begin and 3 go on
    mkdir -p "$tmp/alone" "$tmp/ranks" && "$BUILD/tests/ranks_random" "$tmp/alone" "$1" 0 9 "$tmp/one" &&
        run 2 "$BUILD/tests/ranks_random" "$tmp/ranks" "$1" 0 5 &&
        messages run 3 "$BUILD/tests/ranks_random" "$tmp/ranks" "$1" 5 9 "$tmp/all" && "$drill" same "$tmp/one" "$tmp/all" 1e-5
}
check random_models_train_as_one random "${RANDOM_MODELS:-2}"

passes() { # SEED..: uneven last batches and refused steps; by 3 ranks, and by 2 whom 4 go on for
    p=$BUILD/tests/ranks_passes
    mkdir -p "$tmp/p1" "$tmp/p3" "$tmp/pm" && "$p" "$tmp/p1" 0 11 "$tmp/one.p" "$@" &&
        run 3 "$p" "$tmp/p3" 0 11 "$tmp/three.p" "$@" && "$drill" same "$tmp/one.p" "$tmp/three.p" 1e-5 &&
        run 2 "$p" "$tmp/pm" 0 5 "$tmp/begun.p" "$@" && run 4 "$p" "$tmp/pm" 5 11 "$tmp/mixed.p" "$@" &&
        "$drill" same "$tmp/one.p" "$tmp/mixed.p" 1e-5
}
check random_passes_train_as_one passes ${PASSES:-2 15}

# ---- state that ranks share: weights, norms and checkpoints to the bit those without, for half of the memory ----

check sharded_is_not_sharded run 2 "$drill" sharded "$tmp"
table() {
    "$drill" table "$tmp/one" && run 3 "$drill" table "$tmp/three" && "$drill" same "$tmp/one" "$tmp/three" 1e-5
}
check sparse_tables_learn_of_all_ranks table

# ---- a rank that is killed, of those that share state; who starts again may do without ----

killed() {
    run 3 "$drill" train 4 18 "$tmp/whole" dropout 1 || return
    run 3 "$drill" train 4 18 "$tmp/never" dropout 1 shard 1 save "$tmp/k.safetensors" kill 6 && return 1
    [ ! -s "$tmp/never" ] && run 3 "$drill" train 4 13 "$tmp/resumed" shard 1 dropout 1 resume "$tmp/k.safetensors" &&
        "$drill" same "$tmp/whole" "$tmp/resumed" 0 && "$drill" train 12 3 "$tmp/alone" resume "$tmp/k.safetensors"
}
check killed_resumed_and_the_same_bits killed

mourned() { # the launcher lets the others live, who tell within the time that they have
    for way in "" messages; do
        TENSOR_COMM_TIMEOUT=2 $way run 3 --enable-recovery "$drill" train 4 18 "$tmp/never" dropout 1 kill 6 >"$tmp/said" 2>&1
        cat "$tmp/said"
        for rank in 0 2; do grep -q "^train $rank: .*rank $rank, step 6: rank 1 has said nothing for 2 s" "$tmp/said" || return; done
    done
}
case $(mpirun --version) in
*"Open MPI"*) check a_killed_rank_is_named_by_the_others mourned ;;
*) skip a_killed_rank_is_named_by_the_others "this mpirun ends all ranks with one" ;;
esac

# ---- a rank that goes astray: each of three ranks, by its number, says the error ----

astray() { # DRILL WHO PATTERN..: those who say it, and what
    grep "^$1 " "$tmp/drills"
    for rank in $2; do grep -q "^$1 $rank: .*$3" "$tmp/drills" || return 1; done
}
all="label label_first label_eager infinite call shape full gone skipped seed data"
check each_drill_ends run 3 "$drill" $all
cp "$tmp/check.log" "$tmp/drills"
TENSOR_COMM_TIMEOUT=2 run 3 "$drill" silent >>"$tmp/drills" 2>"$tmp/noise"
TENSOR_COMM_TIMEOUT=2 messages run 3 "$drill" silent 2>"$tmp/noise" | sed 's/^silent/far/' >>"$tmp/drills"
for mode in label label_first label_eager; do
    check ${mode}_is_refused_on_all astray $mode "0 1 2" "cross_entropy at .*drill.c:[0-9]*: labels.5. is 77"
done
check infinite_is_refused_on_all_in_checked_mode astray infinite "0 2" "rank 1: cross_entropy at .*drill.c:[0-9]*: the loss is -*nan; .* came out of mul at drill.c"
check goes_on_after_a_refused_step astray label "0 1 2" "goes on"
check goes_on_after_an_infinite_one astray infinite "0 1 2" "goes on"
check another_call_is_named astray call "0 1 2" "rank 1 has recorded another step than rank 0: call 1 is relu at drill.c:[0-9]*, on rank 0 abs at drill.c:[0-9]*"
check other_parameters_are_named astray shape "0 1 2" "rank 1 has other parameters than rank 0: number 1 is in.weight f32 .15, 12., on rank 0 in.weight f32 .16, 12."
check another_seed_is_named astray seed "0 1 2" "rank 1 has another loader_open than rank 0: line 1 is .*shuffled, seed 4, on rank 0 .*shuffled, seed 3"
check other_data_are_named astray data "0 1 2" "rank 1 has another loader_open than rank 0: line 1 is .* of 100, .* on rank 0 .* of 101,"
check silence_is_an_error astray silent "0 2" "step 3: rank 1 has said nothing for 2 s"
check silence_of_messages_is_an_error astray far "0 2" "step 3: rank 1 has said nothing for 2 s"
check a_rank_that_has_gone_is_named astray gone "0 2" "rank 1 has closed its session, rank . is in step 3"
check a_step_left_out_is_an_error astray skipped "0 2" "rank 1 has closed its session, rank . is in step 5"
check a_full_disk_is_told astray full "1 2" "rank 0: save at .*drill.c.*such.safetensors"

without() {
    TENSOR_MPI=$tmp/none.so run 2 "$drill" means >"$tmp/said" 2>&1 && return 1
    cat "$tmp/said"
    grep -q 'no session: [A-Z_]* says that this is one of several processes.*none.so' "$tmp/said"
}
check without_the_plugin_there_is_no_session without

# ---- an example, as it is ----

gpt() {
    set -- --threads 1 --steps 50 --layers 2 --dim 64 --ctx 16 --quiet --sample 0
    "$BUILD/gpt" "$@" --batch 8 --log "$tmp/1.jsonl" && run 2 "$BUILD/gpt" "$@" --batch 4 --log "$tmp/2.jsonl" >"$tmp/said" &&
        run 4 "$BUILD/gpt" "$@" --batch 2 --log "$tmp/4.jsonl" && [ "$(grep -c '^validation loss' "$tmp/said")" -eq 1 ] && losses 1 2 && losses 1 4
}
losses() { # RANKS RANKS: of 50 steps, which are as one process has them
    for n in "$@"; do sed 's/.*"loss":\([0-9.]*\).*/\1/' "$tmp/$n.jsonl" >"$tmp/$n.loss"; done
    paste "$tmp/$1.loss" "$tmp/$2.loss" | awk '{ print; d = $1 / $2 - 1; if (!(d < 1e-5 && d > -1e-5)) bad = 1 } END { exit bad || NR != 50 }'
}
check gpt_runs_as_it_is gpt

cnn() { # by the example's rate it agrees for 30 steps: docs/distributed.md
    set -- --threads 1 --steps 50 --quiet --lr 1e-4
    "$BUILD/mnist_cnn" "$@" --batch 16 --log "$tmp/1.jsonl" && run 2 "$BUILD/mnist_cnn" "$@" --batch 8 --log "$tmp/2.jsonl" && losses 1 2
}
check mnist_cnn_runs_as_it_is cnn

explained() { # by the tool, for which the first rank tells
    run 2 "$BUILD/tensor" explain "$BUILD/gpt" --threads 1 --steps 2 --layers 2 --dim 64 --ctx 16 --batch 4 --quiet --sample 0 >"$tmp/said" &&
        grep -c '^ranks: 2 by ' "$tmp/said" | grep -qx 1
}
check ranks_are_explained explained

forecast() { # of the process that was alone: for 1 to 1,024 ranks, each number of which is no faster than the one before
    TENSOR_NETWORK=20,1.25 "$drill" gpt "$tmp/one" >"$tmp/one.txt" || return
    sed -n '/^ranks: 1$/,$p' "$tmp/one.txt" | tee "$tmp/forecast"
    awk 'NF == 7 && ($1 == n * 2 || ($1 == 1 && !n)) { bad = bad || $2 < ms || (!n && $3 != "100.0"); n = $1; ms = $2 }
        END { exit bad || n != 1024 }' "$tmp/forecast" || return
    TENSOR_NETWORK=20,1.25 "$BUILD/tensor" report "$tmp/ranks.html" "$drill" gpt "$tmp/one" >/dev/null &&
        [ "$(sed -n '/<h2>Ranks/,$p' "$tmp/ranks.html" | grep -c ' %<td.* %</tr>$')" -eq 11 ]
}
check other_numbers_of_ranks_are_forecast forecast

# ---- on GPUs: simulated ones, and a libnccl that stands in (ranks/nccl.c) ----

gpus() { # OPTION..: losses and weights of the CPU's ranks; a label out of range is refused on both; runs as one launch
    TENSOR_DEVICE=cuda TENSOR_CUDA_DRIVER=$sim TENSOR_CUDA_NVRTC=$sim TENSOR_CUDA_BLASLT=$sim \
        TENSOR_NCCL=$tmp/nccl.so run 2 "$drill" gpt "$tmp/gpu" "$@" >"$tmp/said" || { cat "$tmp/said" && return 1; }
    cat "$tmp/said"
    "$drill" same "$tmp/cpu" "$tmp/gpu" 1e-4 && [ "$(grep -c '^gpt [01]: cross_entropy at .*index -77 is out of range: labels' "$tmp/said")" -eq 2 ] &&
        grep -q 'recordings of a plan as one launch, run [1-9]' "$tmp/said" && ! grep 'not run as one launch' "$tmp/said"
}
case $BUILD in /*) sim=$BUILD/cusim/libcusim.so ;; *) sim=$PWD/$BUILD/cusim/libcusim.so ;; esac
if [ -e "$sim" ] && [ -z "$SAN" ]; then
    check libnccl_stands_in $CC -std=c11 -D_GNU_SOURCE -fPIC -shared -o "$tmp/nccl.so" tests/ranks/nccl.c
    check gpus_train_as_processors gpus
    check gpus_share_state gpus shard
else
    skip gpus "the simulated GPU is not built, or the sanitizers watch"
fi

# ---- beside backward: a network that takes about as long ----

hidden() { # by the second time kernels are there; without any optimising they say nothing of a step
    $CC -std=c11 -O2 -D_GNU_SOURCE -fPIC -shared -o "$tmp/slow.so" tests/ranks/slow.c || return
    for time in first second; do
        TENSOR_KERNEL_OPT=1 PMI_SIZE=2 TENSOR_MPI=$tmp/slow.so "$BUILD/gpt" --batch 6 --threads 1 --steps 6 --quiet --sample 0 2>"$tmp/said" || return
    done
    cat "$tmp/said"
    awk '/^slow:/ { n++; bad = !($6 > 0 && $16 < 0.15 * $6) } END { exit bad || n != 1 }' "$tmp/said"
}
check means_are_hidden_behind_backward hidden

large() { # that is made before the small ones ahead of it does not wait for them
    PMI_SIZE=2 TENSOR_MPI=$tmp/slow.so "$BUILD/tensor" explain "$BUILD/mnist_cnn" --batch 8 --threads 1 --steps 2 --quiet \
        --log "$tmp/log" >"$tmp/explained" || return
    sed -n '/^ranks: 2/,$p' "$tmp/explained"
    awk '/ behind launch / { at = $10 + 0; if ($1 > most) { most = $1; of = at } if (at > last) last = at } END { exit !(most > 6 && of < last) }' "$tmp/explained"
}
check a_large_gradient_does_not_wait_for_small_ones large

meets() { # four times for the two sums of two batch norms there and back, and once for the loss: 9 means, some with work beside them
    sed -n '/^ranks: 2/,$p' "$tmp/explained"
    awk '/ behind launch / && $1 < 0.005 { n++; if (!seen[$10]++) { places++; beside += $13 > $10 + 1 } }
        END { exit !(n == 9 && places == 5 && beside >= 3) }' "$tmp/explained"
}
check two_sums_of_a_batch_norm_are_one_meeting meets

ahead() { # of the update, as else all weights and moments would have to be saved, shared or not
    for shard in "" shard; do
        PMI_SIZE=2 TENSOR_MPI=$tmp/slow.so "$BUILD/tensor" plan "$drill" gpt "$tmp/slow" $shard >"$tmp/plan" 2>&1 || return
        sed -n '/^step: /,$p' "$tmp/plan" | tee "$tmp/steps"
        awk '/ ranks_mean .* mean_over_ranks$/ { mean = NR } / adamw_elements .* adamw/ && !update { update = NR }
            END { exit !(mean && mean < update) }' "$tmp/steps" || return
    done
}
check a_logged_mean_is_ahead_of_the_update ahead

sent() { # as predicted for a network that takes 10 us for 4 bytes, in each of 7 steps
    SLOW_NS=10000 PMI_SIZE=2 TENSOR_MPI=$tmp/slow.so TENSOR_NETWORK=0,0.0004 "$drill" gpt "$tmp/slow" >"$tmp/explained" 2>"$tmp/said" || return
    cat "$tmp/explained" "$tmp/said" | awk '/ms of sending/ { ms = $1 } /^slow:/ { s = $4 } { print } END { off = 0.007 * ms / s; exit !(off > 0.99 && off < 1.01) }'
}
check what_is_sent_is_predicted sent
