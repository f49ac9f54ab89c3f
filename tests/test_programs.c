/* test_programs.c - training programs as people write them: the loss and the accuracy read in either order,
 * in the middle, before and after what they lead to; steps that are skipped, clipped, accumulated; two
 * optimizers; assignments between forward and backward; modes switched. Each asserts values worked out by
 * hand, on the reference device and the cpu, eager and fused, and that after its first steps no plan is made
 * any more. Start with run_everywhere in programs.h. */
#include "programs.h"

/* ---- loss and accuracy ---- */

/* The mean cross entropy and the accuracy at w; w is moved along the gradient. */
static void classes_by_hand(double *w, double rate, double *loss, double *accuracy)
{
    double gradient[6] = {0};
    *loss = *accuracy = 0;
    for (int i = 0; i < 4; i++) {
        double z[3], total = 0;
        int best = 0;
        for (int c = 0; c < 3; c++) {
            z[c] = Points[i][0] * w[2 * c] + Points[i][1] * w[2 * c + 1];
            total += exp(z[c]);
            if (z[c] > z[best]) best = c;
        }
        *loss += (log(total) - z[Labels[i]]) / 4;
        *accuracy += best == Labels[i] ? 0.25 : 0;
        for (int c = 0; c < 3; c++) {
            double d = (exp(z[c]) / total - (c == Labels[i])) / 4;
            for (int k = 0; k < 2; k++) gradient[2 * c + k] += d * Points[i][k];
        }
    }
    for (int i = 0; i < 6; i++) w[i] -= rate * gradient[i];
}

/* Every other step reads the accuracy first. */
static void classes_step(run *r, bool before_backward)
{
    double wanted[2], got[2];
    uint64_t hits = stats_of(r->s).plan_hits;
    int first = r->step % 2;
    tn_step_begin(r->s);
    tn_tensor *logits = tn_affine(r->held[X], r->held[W], NULL);
    tn_tensor *value[2] = {tn_cross_entropy(logits, r->held[Y]), tn_accuracy(logits, r->held[Y])};
    for (int i = 0; i < 2 && before_backward; i++) got[first ^ i] = tn_item(value[first ^ i]);
    tn_backward(value[0]);
    tn_optim_step(r->opt[0]);
    for (int i = 0; i < 2 && !before_backward; i++) got[first ^ i] = tn_item(value[first ^ i]);
    tn_step_end(r->s);
    classes_by_hand(r->w, 0.5, &wanted[0], &wanted[1]);
    note(r, got[0], wanted[0], 1e-5);
    note(r, got[1], wanted[1], 0);
    note_all(r, r->held[W], 6, r->w, 1e-5);
    /* one plan for the whole step, or, where something is read before it is complete, two */
    if (r->cpu && r->fused && r->step > 1)
        assert_int_equal(stats_of(r->s).plan_hits - hits, before_backward ? 2 : 1);
}

static void read_late(run *r) { classes_step(r, false); }

static void read_early(run *r) { classes_step(r, true); }

TRAINING(loss_and_accuracy_come_from_one_plan_in_either_order, open_classes, read_late, 6, 2, 1e-5)

TRAINING(loss_and_accuracy_may_be_read_before_backward_in_either_order, open_classes, read_early, 6, 2, 1e-5)

/* ---- what the host decides ---- */

/* A batch that is not a number moves nothing. */
static void skip_step(run *r)
{
    bool broken = r->step == 1 || r->step == 4;
    tn_step_begin(r->s);
    tn_tensor *loss = tn_mul_scalar(loss_of(r), broken ? NAN : 1.0);
    double v = tn_item(loss);
    note(r, v, broken ? NAN : loss_wanted(r), 0);
    if (!isnan(v)) {
        tn_backward(loss);
        tn_optim_step(r->opt[0]);
        moved(r, 0.125);
    }
    tn_step_end(r->s);
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(a_step_is_skipped_when_the_loss_is_not_a_number, open_squares, skip_step, 7, 2, 0)

/* ---- two optimizers ---- */

enum { D, G };

static void open_gan(run *r)
{
    r->w[D] = 1, r->w[G] = 2;
    r->held[D] = tn_param(r->s, "d", vector(r->s, 1, &r->w[D]));
    r->held[G] = tn_param(r->s, "g", vector(r->s, 1, &r->w[G]));
    for (int i = 0; i < 2; i++) r->opt[i] = tn_sgd(r->s, TN_PARAMS(r->held[i]), .lr = i == D ? 0.25 : 0.5);
}

/* A generator g z and a critic d x that is to tell it from x = 3. The critic's loss is (d x - 1)^2 + (d g
 * z)^2 with the sample detached, the generator's (d g z - 1)^2 with the critic as it has just become. */
static void gan_step(run *r)
{
    const double z = 0.5, x = 0.25 * 3;
    double d = r->w[D], g = r->w[G];
    tn_step_begin(r->s);
    tn_tensor *sample = tn_mul_scalar(r->held[G], z);
    tn_tensor *real = tn_square(tn_add_scalar(tn_mul_scalar(r->held[D], x), -1.0));
    tn_tensor *made = tn_square(tn_mul(r->held[D], tn_detach(sample)));
    tn_tensor *critic = tn_sum(tn_add(real, made), TN_ALL, false);
    tn_backward(critic);
    note(r, tn_has_gradient(r->held[G]), 0, 0);
    tn_optim_step(r->opt[D]);
    tn_tensor *fool = tn_sum(tn_square(tn_add_scalar(tn_mul(r->held[D], sample), -1.0)), TN_ALL, false);
    tn_backward(fool);
    tn_optim_step(r->opt[G]);
    double before = d, pull = 2 * x * (d * x - 1) + 2 * d * g * g * z * z;
    d -= 0.25 * pull;
    double miss = d * g * z - 1;
    note(r, tn_item(critic), (before * x - 1) * (before * x - 1) + before * g * z * before * g * z, 1e-5);
    note(r, tn_item(fool), miss * miss, 1e-5);
    /* two backwards in a step add up */
    note(r, tn_item(tn_gradient(r->held[D])), pull + 2 * miss * g * z, 1e-5);
    tn_step_end(r->s);
    r->w[D] = d;
    r->w[G] = g - 0.5 * 2 * miss * d * z;
    note_all(r, r->held[D], 1, &r->w[D], 1e-5);
    note_all(r, r->held[G], 1, &r->w[G], 1e-5);
}

TRAINING(two_optimizers_take_turns_in_a_step, open_gan, gan_step, 8, 2, 1e-5)

/* One optimizer, two updates in a step: the second goes along the sum of both gradients. */
static void twice_step(run *r)
{
    double g[2] = {0, 0};
    tn_step_begin(r->s);
    for (int k = 0; k < 2; k++) {
        tn_backward(loss_of(r));
        tn_optim_step(r->opt[0]);
        for (int i = 0; i < 2; i++) {
            g[i] += 4 * error(r, i);
            r->w[i] -= 0.125 * g[i];
        }
    }
    note_all(r, tn_gradient(r->held[W]), 2, g, 0);
    tn_step_end(r->s);
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(one_optimizer_updates_twice_in_a_step, open_squares, twice_step, 6, 2, 0)

/* ---- assignment, reads and backward ---- */

/* The gradient is taken at the values forward saw, wherever w has been moved to by then. */
static void assign_step(run *r)
{
    tn_step_begin(r->s);
    tn_tensor *loss = loss_of(r);
    tn_assign(r->held[W], tn_add_scalar(r->held[W], 1.0));
    tn_tensor *after = loss_of(r); /* sees the new one */
    tn_backward(loss);
    tn_optim_step(r->opt[0]);
    note(r, tn_item(loss), loss_wanted(r), 0);
    double old[2] = {r->w[0], r->w[1]}, g[2];
    for (int i = 0; i < 2; i++) g[i] = 4 * error(r, i), r->w[i] = old[i] + 1;
    note(r, tn_item(after), loss_wanted(r), 0);
    note_all(r, tn_gradient(r->held[W]), 2, g, 0);
    tn_step_end(r->s);
    for (int i = 0; i < 2; i++) r->w[i] -= 0.125 * g[i];
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(an_assignment_between_forward_and_backward_changes_no_gradient, open_squares, assign_step, 6, 2, 0)

static void middle_step(run *r)
{
    tn_step_begin(r->s);
    tn_tensor *miss = tn_sub(tn_matmul(r->held[X], r->held[W]), r->held[Y]);
    const double e[2] = {error(r, 0) - error(r, 1), error(r, 0) + error(r, 1)};
    note_all(r, miss, 2, e, 0); /* cuts the step in two */
    tn_tensor *squares = tn_square(miss), *loss = tn_sum(squares, TN_ALL, false);
    note_all(r, tn_slice(squares, 0, 1, 2, 1), 1, (const double[]){e[1] * e[1]}, 0);
    tn_backward(loss);
    note_all(r, tn_gradient(r->held[W]), 2, (const double[]){4 * error(r, 0), 4 * error(r, 1)}, 0);
    tn_optim_step(r->opt[0]);
    note(r, tn_item(loss), loss_wanted(r), 0);
    moved(r, 0.125);
    note_all(r, r->held[W], 2, r->w, 0); /* the new one, still in the step */
    note_all(r, miss, 2, e, 0);          /* what was read once can be read again */
    tn_step_end(r->s);
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(reads_in_the_middle_of_a_step_change_nothing, open_squares, middle_step, 6, 2, 0)

static void two_backwards_step(run *r)
{
    tn_step_begin(r->s);
    tn_tensor *a = loss_of(r), *b = tn_sum(tn_mul_scalar(r->held[W], 2.0), TN_ALL, false);
    tn_backward(a);
    double g[2] = {4 * error(r, 0), 4 * error(r, 1)};
    note_all(r, tn_gradient(r->held[W]), 2, g, 0);
    tn_backward(b);
    for (int i = 0; i < 2; i++) g[i] += 2;
    note_all(r, tn_gradient(r->held[W]), 2, g, 0);
    tn_optim_step(r->opt[0]);
    tn_step_end(r->s);
    assert_null(tn_gradient(r->held[W]));
    assert_false(tn_has_gradient(r->held[W]));
    for (int i = 0; i < 2; i++) r->w[i] -= 0.125 * g[i];
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(two_backwards_add_up_with_a_read_between, open_squares, two_backwards_step, 6, 2, 0)

/* ---- accumulation ---- */

static void open_accumulate(run *r)
{
    open_squares(r);
    r->opt[0] = tn_sgd(r->s, tn_all_params(r->s), .lr = 0.125, .accumulate = 2);
}

/* Two accumulated in each step, the second on top of the first: (g + 2 g) / 2. The sum that is kept reads the
 * gradient's memory before and after the second backward writes there. */
static void twice_accumulate_step(run *r)
{
    tn_step_begin(r->s);
    for (int k = 0; k < 2; k++) {
        tn_backward(loss_of(r));
        tn_optim_step(r->opt[0]);
    }
    tn_step_end(r->s);
    moved(r, 0.125 * 1.5);
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(one_optimizer_accumulates_twice_in_a_step, open_accumulate, twice_accumulate_step, 6, 2, 0)

/* What is assigned is assigned from in turn: X takes W, W takes Y, Y takes what X holds then. */
static void swap_step(run *r)
{
    tn_tensor **v = r->held;
    tn_step_begin(r->s);
    tn_assign(v[X], v[W]);
    tn_assign(v[W], v[Y]);
    tn_assign(v[Y], v[X]);
    const double w[2] = {r->w[2], r->w[3]}, y[2] = {r->w[0], r->w[1]},
                 both[2] = {w[0] + 100 * y[0], w[1] + 100 * y[1]};
    note_all(r, tn_add(v[W], tn_mul_scalar(v[X], 100)), 2, both, 0);
    tn_step_end(r->s);
    note_all(r, v[W], 2, w, 0);
    note_all(r, v[X], 2, y, 0);
    note_all(r, v[Y], 2, y, 0);
    memcpy(r->w, w, sizeof w);
    memcpy(r->w + 2, y, sizeof y);
}

static void open_swap(run *r)
{
    const double v[4] = {1, 2, 30, 40};
    memcpy(r->w, v, sizeof v);
    for (int i = 0; i < 3; i++) {
        char name[2] = {(char)('a' + i), 0};
        r->held[i] = tn_buffer(r->s, name, vector(r->s, 2, i == Y ? v + 2 : v));
    }
}

TRAINING(tensors_change_places, open_swap, swap_step, 6, 2, 0)

/* ---- modes ---- */

enum { MEAN, VAR, SCALE };

static void open_modes(run *r)
{
    r->held[MEAN] = tn_buffer(r->s, "mean", tn_zeros(r->s, TN_F32, TN_SHAPE(1)));
    r->held[VAR] = tn_buffer(r->s, "var", tn_ones(r->s, TN_F32, TN_SHAPE(1)));
    r->held[SCALE] = tn_param(r->s, "scale", tn_ones(r->s, TN_F32, TN_SHAPE(1)));
    r->w[0] = 0, r->w[1] = 1;
}

/* One step normalises by the batch, then by what that has made of the running statistics, then by the batch
 * again; dropout drops in the first and the last. */
static void modes_step(run *r)
{
    tn_session *s = r->s;
    const double v[2] = {1, 3}; /* mean 2, variance 1, unbiased 2 */
    double kept[3][2], norm[3][2];
    uint64_t draw = tn_rng_draw(s);
    tn_step_begin(s);
    tn_tensor *x = tn_reshape(vector(s, 2, v), TN_SHAPE(2, 1)), *y[3], *z[3];
    for (int i = 0; i < 3; i++) {
        tn_train(s, i != 1);
        y[i] = tn_batch_norm(x, r->held[SCALE], NULL, r->held[MEAN], r->held[VAR]);
        z[i] = tn_dropout(x, 0.5);
    }
    tn_train(s, true);
    for (int i = 2; i >= 0; i--) {
        tn_read(y[i], TN_F64, norm[i], sizeof norm[i]);
        tn_read(z[i], TN_F64, kept[i], sizeof kept[i]);
    }
    tn_step_end(s);
    note(r, (double)(tn_rng_draw(s) - draw), 2, 0);
    for (int i = 0; i < 3; i++) {
        if (i != 1) r->w[0] += 0.1 * (2 - r->w[0]), r->w[1] += 0.1 * (2 - r->w[1]);
        double m = i == 1 ? r->w[0] : 2, d = i == 1 ? sqrt(r->w[1] + 1e-5) : sqrt(1 + 1e-5);
        for (int k = 0; k < 2; k++) {
            note(r, norm[i][k], (v[k] - m) / d, 1e-5);
            bool dropped = i != 1 && kept[i][k] == 0;
            note(r, kept[i][k], dropped ? 0 : i == 1 ? v[k] : 2 * v[k], 0);
        }
    }
    note_all(r, r->held[MEAN], 1, &r->w[0], 1e-5);
    note_all(r, r->held[VAR], 1, &r->w[1], 1e-5);
}

TRAINING(modes_change_within_a_step, open_modes, modes_step, 6, 2, 1e-5)

/* ---- plans ---- */

enum { DOWN, ACROSS, TURNED, SHIFTED, SHIFTED_MORE, MODE_ON, MODE_OFF, N_VARIANTS };

/* Programs of one outline that differ in one thing each; x is 0 .. 15 as [4, 4]. */
static tn_tensor *variant(tn_session *s, int which, tn_tensor *x)
{
    switch (which) {
    case DOWN:
    case ACROSS: return tn_cumsum(x, which == ACROSS);
    case TURNED: return tn_sum(tn_transpose(x, 0, 1), TN_AXES(1), false);
    case SHIFTED:
    case SHIFTED_MORE: return tn_mul_scalar(tn_slice(x, 0, which - SHIFTED, which - SHIFTED + 3, 1), 2.0);
    default: tn_train(s, which == MODE_ON); return tn_mul_scalar(tn_dropout(x, 0.99), 2.0);
    }
}

/* A plan that was made for one of them does not serve another, in whatever order they come. */
TEST(plans_are_told_apart)
{
    /* the last two elements */
    static const double wanted[N_VARIANTS][2] = {{32, 36}, {39, 54}, {32, 36}, {20, 22},
                                                 {28, 30}, {0, 0},   {28, 30}};
    for (int way = 0; way < N_WAYS; way++) {
        run r = open_run(way);
        tn_tensor *x = tn_keep(tn_reshape(tn_arange(r.s, 0, 16, 1, TN_F32), TN_SHAPE(4, 4)));
        for (r.step = 0; r.step < 3; r.step++) {
            for (int k = 0; k < N_VARIANTS; k++) {
                int which = (k * (r.step + 1) + r.step) % N_VARIANTS;
                uint64_t plans = stats_of(r.s).plans;
                tn_step_begin(r.s);
                tn_tensor *y = variant(r.s, which, x);
                double got[16];
                int64_t n = tn_numel(y);
                tn_read(y, TN_F64, got, (size_t)n * sizeof *got);
                tn_train(r.s, true);
                tn_step_end(r.s);
                for (int i = 0; i < 2; i++) note(&r, got[n - 2 + i], wanted[which][i], 0);
                if (r.cpu && r.step) assert_int_equal(stats_of(r.s).plans, plans);
            }
        }
        assert_int_equal(tn_close(r.s), 0);
    }
}

/* Each sum is of what all earlier ones made: kernels that make the same values again, more of them in all
 * than there are. By hand: six times it all, then eight times, in turn. */
static void alternate_step(run *r)
{
    tn_step_begin(r->s);
    tn_tensor *h = r->held[X];
    double all = 35;
    for (int i = 0; i < 12; i++) {
        h = tn_add(h, tn_sum(h, TN_AXES(i & 1), true));
        all *= i & 1 ? 8 : 6;
    }
    note(r, tn_item(tn_sum(h, TN_ALL, false)), all, 0);
    tn_step_end(r->s);
}

static void open_ones(run *r) { r->held[X] = tn_ones(r->s, TN_F32, TN_SHAPE(5, 7)); }

TRAINING(sums_of_sums_along_either_axis, open_ones, alternate_step, 4, 2, 0)

RUN_TESTS(NULL, NULL)
