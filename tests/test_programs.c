/* test_programs.c - training programs as people write them: the loss and the accuracy read in either order,
 * before and after what they lead to; modes switched; and how plans are told apart. Each asserts values worked
 * out by hand, on the reference device and the cpu, eager and fused, and that after its first steps no plan is
 * made any more. Programs that are drawn are in test_random_programs.c, test_refused.c and test_held.c. Start
 * with run_everywhere in programs.h. */
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
