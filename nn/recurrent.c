/* recurrent.c - LSTM and GRU: layers of recurrences, in one direction or both.
 *
 * Names, initial values and arithmetic are those of torch.nn.LSTM and GRU (torch/nn/modules/rnn.py), so that
 * their weights can be loaded as they are. Read tn_recurrent_forward first. */
#include "layers.h"

#include <math.h>

static tn_recurrent *recurrent_new(tn_session *s, const char *op, const char *name, int64_t in,
                                   int64_t hidden, const tn_recurrent_options *options, bool lstm)
{
    NN_OPTIONS(tn_recurrent_options, o, options);
    const int layers = o->layers ? o->layers : 1, directions = o->bidirectional ? 2 : 1;
    if (!tn_nn_check(
            s, op, name, in > 0 && hidden > 0 && layers > 0 && o->dropout >= 0 && o->dropout <= 1,
            "in, hidden and layers > 0 and dropout in [0, 1]; in is %lld, hidden %lld, layers %d, dropout %g",
            (long long)in, (long long)hidden, layers, o->dropout))
        return NULL;
    tn_recurrent *r = tn_nn_own(s, sizeof(*r), NULL, op);
    tn_recurrent_cell *cell = tn_nn_own(s, (size_t)(layers * directions) * sizeof(*cell), NULL, op);
    if (!r || !cell) return NULL;
    *r = (tn_recurrent){in, hidden, layers, o->bidirectional, lstm, o->dropout, cell};
    const int params = tn_param_count(s), buffers = tn_buffer_count(s);
    const int64_t rows = (lstm ? 4 : 3) * hidden;
    const double bound = 1 / sqrt((double)hidden);
    for (int i = 0; i < layers * directions; i++) {
        const int64_t width = i < directions ? in : directions * hidden;
        char text[4][48];
        static const char *const form[4] = {"weight_ih_l%d%s", "weight_hh_l%d%s", "bias_ih_l%d%s",
                                            "bias_hh_l%d%s"};
        for (int k = 0; k < 4; k++)
            snprintf(text[k], sizeof(text[k]), form[k], i / directions, i % directions ? "_reverse" : "");
        const nn_part parts[] = {
            NN_PART(text[0], cell[i].weight_ih, NN_UNIFORM, bound, {rows, width}),
            NN_PART(text[1], cell[i].weight_hh, NN_UNIFORM, bound, {rows, hidden}),
            NN_PART(o->no_bias ? NULL : text[2], cell[i].bias_ih, NN_UNIFORM, bound, {rows}),
            NN_PART(o->no_bias ? NULL : text[3], cell[i].bias_hh, NN_UNIFORM, bound, {rows}),
        };
        if (NN_MAKE(s, op, name, parts)) continue;
        tn_take_back(s, params, buffers);
        return NULL;
    }
    return r;
}

TN_DEFINE(tn_recurrent *, lstm_new, s, (s, name, in, hidden, o), tn_session *s, const char *name, int64_t in,
          int64_t hidden, const tn_recurrent_options *o)
{
    return recurrent_new(s, "lstm_new", name, in, hidden, o, true);
}

TN_DEFINE(tn_recurrent *, gru_new, s, (s, name, in, hidden, o), tn_session *s, const char *name, int64_t in,
          int64_t hidden, const tn_recurrent_options *o)
{
    return recurrent_new(s, "gru_new", name, in, hidden, o, false);
}

/* One direction of one layer: x [t, n, in] -> [t, n, hidden], and the last states. */
static tn_tensor *run_cell(const tn_recurrent *r, const tn_recurrent_cell *c, tn_tensor *x, bool backwards,
                           tn_tensor *h, tn_tensor *cell, tn_recurrent_state *last)
{
    static const int time[] = {0};
    const int64_t t = tn_dim(x, 0);
    tn_tensor *gates = tn_affine(x, c->weight_ih, c->bias_ih);
    if (backwards) gates = tn_flip(gates, 1, time);
    tn_tensor *all = r->lstm ? tn_lstm(gates, c->weight_hh, c->bias_hh, h, cell)
                             : tn_gru(gates, c->weight_hh, c->bias_hh, h);
    last->h = tn_select(all, 0, t);
    last->c = r->lstm ? tn_select(all, 0, t + 1) : NULL;
    tn_tensor *y = tn_slice(all, 0, 1, t + 1, 1);
    return backwards ? tn_flip(y, 1, time) : y;
}

/* x after the states before it, along a new first axis. */
static tn_tensor *and_then(tn_tensor *before, tn_tensor *x)
{
    if (!x) return NULL;
    x = tn_unsqueeze(x, 0);
    return before ? tn_concat(2, (tn_tensor *[]){before, x}, 0) : x;
}

static bool state_fits(const tn_recurrent *r, const tn_tensor *x, const tn_tensor *state, int cells)
{
    return !state || (tn_ndim(state) == 3 && tn_dim(state, 0) == cells && tn_dim(state, 1) == tn_dim(x, 0) &&
                      tn_dim(state, 2) == r->hidden);
}

TN_DEFINE(tn_tensor *, recurrent_forward, tn_nn_session(r ? r->cell->weight_ih : NULL, x), (r, x, state),
          tn_recurrent *r, tn_tensor *x, tn_recurrent_state *state)
{
    if (!r || !x) return NULL;
    const int directions = r->bidirectional ? 2 : 1, cells = r->layers * directions;
    const tn_recurrent_state first = state ? *state : (tn_recurrent_state){NULL, NULL};
    tn_recurrent_state last[2];
    tn_tensor *h = NULL, *c = NULL;
    if (tn_ndim(x) != 3 || tn_dim(x, 2) != r->in || !state_fits(r, x, first.h, cells) ||
        !state_fits(r, x, first.c, cells)) {
        char layer[256];
        tn_fail(tn_session_of(x), TN_E_SHAPE, "recurrent_forward",
                "x has %d axes, the last of %lld; %s expects [n, t, %lld], and states [%d, n, %lld]",
                tn_ndim(x), (long long)tn_dim(x, -1), tn_nn_layer(r->cell->weight_ih, layer, sizeof(layer)),
                (long long)r->in, cells, (long long)r->hidden);
        return NULL;
    }
    tn_tensor *y = tn_transpose(x, 0, 1);
    for (int i = 0; i < cells; i += directions) {
        tn_tensor *side[2] = {NULL};
        if (i && r->dropout > 0) y = tn_dropout(y, r->dropout);
        for (int k = 0; k < directions; k++) {
            side[k] = run_cell(r, &r->cell[i + k], y, k, first.h ? tn_select(first.h, 0, i + k) : NULL,
                               first.c ? tn_select(first.c, 0, i + k) : NULL, &last[k]);
            if (state) h = and_then(h, last[k].h);
            if (state) c = and_then(c, last[k].c);
        }
        y = directions > 1 ? tn_concat(2, side, 2) : side[0];
    }
    if (state) *state = (tn_recurrent_state){h, c};
    return tn_transpose(y, 0, 1);
}
