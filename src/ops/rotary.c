/* rotary.c - rotary positions (Su et al. 2021): pairs of a row's elements are turned by an angle that grows
 * with the row's place. The angles are made within the kernel; where the first row stands is a run-time
 * number. */
#include "ops.h"

/* Turns x by the angles of its places from `start` on, or back. */
static tn_tensor *turned(tn_tensor *x, tn_tensor *start, double base, bool interleaved, bool back)
{
    const int t = x->ndim - 2, pair = x->ndim - 1 + interleaved, of = x->ndim - interleaved, n = x->ndim + 1;
    const int64_t d = x->shape[x->ndim - 1];
    int64_t shape[TN_MAX_DIMS], one[TN_MAX_DIMS];
    const tn_dtype angles = x->dtype == TN_F64 ? TN_F64 : TN_F32;
    tn_graph *g = x->graph;
    for (int i = 0; i < n; i++) {
        shape[i] = i <= t ? x->shape[i] : i == pair ? 2 : d / 2;
        one[i] = i < t ? 1 : shape[i];
    }
    int64_t place[TN_MAX_DIMS], turn[TN_MAX_DIMS], side[TN_MAX_DIMS];
    for (int i = 0; i < n; i++) {
        place[i] = i == t ? one[i] : 1;
        turn[i] = i == of ? one[i] : 1;
        side[i] = i == pair ? one[i] : 1;
    }
    tn_tensor *y = tn_mk_reshape(x, n, shape);
    tn_tensor *rate = tn_mk_iota(g, of, n, turn, angles);
    rate = tn_mk1(TN_OP_exp, mul(rate, constant(x, -2 * log(base) / (double)d)));
    tn_tensor *angle = mul(tn_mk_cast(add(tn_mk_iota(g, t, n, place, TN_I64), start), angles), rate);
    tn_tensor *sign = sub(mul(tn_mk_iota(g, pair, n, side, angles), constant(x, 2)), constant(x, 1));
    if (back) sign = neg(sign);
    tn_tensor *other = y ? tn_mk_slice1(y, pair, 1, -1, 2) : NULL;
    tn_tensor *c = tn_mk1(TN_OP_cos, angle), *s = mul(tn_mk1(TN_OP_sin, angle), sign);
    tn_tensor *out = narrow(add(mul(wide(y), c), mul(wide(other), s)), x->dtype);
    return out ? tn_mk_reshape(out, x->ndim, x->shape) : NULL;
}

static bool rotary_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    return (gin[0] = turned(g, r->saved[0], r->num[0], r->whole[0], true)) != NULL;
}

TN_AT(tn_tensor *, rotary, (x, start, options), tn_tensor *x, int64_t start, const tn_rotary_options *options)
{
    tn_rotary_options o = {0};
    if (options) o = *options;
    const tn_number first = tn_number_i(start);
    const int64_t part[] = {tn_bits(o.base), o.interleaved};
    const tn_op_key key = {.part = {part}, .bytes = {sizeof part}, .number = &first};
    tn_scope sc = tn_enter_as(&key, "rotary", file, line, 1, 0, &x);
    const double base = o.base != 0 ? o.base : 10000;
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (x->ndim < 2 || x->ndim == TN_MAX_DIMS || x->shape[x->ndim - 1] % 2 || !tn_dtype_is_float(x->dtype)) {
        return tn_leave_error(&sc, TN_E_SHAPE, "x %s, %s: wanted floating [.., t, d], d even",
                              TN_TENSOR_TEXT(x), tn_dtype_name(x->dtype));
    }
    if (!(base > 0)) return tn_leave_error(&sc, TN_E_ARG, "base is %g, must be above 0", base);
    tn_tensor *at = tn_mk_scalar(sc.g, first);
    tn_tensor *out = turned(x, at, base, o.interleaved, false);
    tn_rule *r = tn_rule_set(out, sc.first, rotary_rule, 1, &x);
    if (!r) return tn_leave(&sc, NULL);
    tn_rule_save(r, 0, at);
    r->num[0] = base;
    r->whole[0] = o.interleaved;
    return tn_leave(&sc, out);
}
