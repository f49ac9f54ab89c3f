#!/bin/sh
# test_python.sh - the Python binding, on the shared library of this build: arrays in and out, operators by their names and
# options, training beside what numpy says, files, and what is wrong with a call.
. tests/check.sh
python=${PYTHON:-python3}

cat >"$tmp/use.py" <<'END'
import numpy as np, libtensor as lt, contextlib, io, os, sys, textwrap
s = lt.open(device="cpu", seed=1)
x = s.tensor(np.arange(6, dtype="f4").reshape(2, 3))
assert x.shape == (2, 3) and (x.numpy() == np.arange(6).reshape(2, 3)).all()
assert np.allclose((x * 2 + 1).numpy(), np.arange(6).reshape(2, 3) * 2 + 1)
assert np.allclose(lt.sum(x, [1], False).numpy(), [3, 12]) and lt.sum(x, (), False).item() == 15
assert np.allclose(lt.concat([x, x], 0).numpy(), np.concatenate([x.numpy()] * 2))
assert np.allclose(x.softmax(-1).numpy().sum(-1), 1)
assert (s.tensor(np.int64(2 ** 60)) + 1).numpy() == 2 ** 60 + 1
img = s.tensor(np.random.RandomState(0).rand(1, 5, 5, 2).astype("f4"))
k = s.tensor(np.ones((3, 3, 3, 2), "f4"))
y = lt.conv2d(img, k, None, pad=1, stride=2)
assert y.shape == (1, 3, 3, 3) and np.allclose(y.numpy()[0, 1, 1], img.numpy()[0, 1:4, 1:4].sum(), rtol=1e-5)
# Several results, arguments by name and left out, arrays and dtypes of numpy, operators of each kind.
u = np.array([[3., 1, 2], [9, 7, 8]], "f4"); U = s.tensor(u)
v, i = lt.sort(U, -1); assert (v.numpy() == np.sort(u)).all() and (i.numpy() == np.argsort(u)).all()
v, i = U.topk(2, axis=-1); assert (v.numpy() == [[3, 2], [9, 8]]).all() and i.dtype == np.dtype("i8")
assert [p.shape for p in lt.split(U, 3, 1)] == [(2, 1)] * 3 and repr(U) == "<tensor f32 [2, 3]>"
assert np.allclose(lt.einsum("ij,kj->ik", [U, U]).numpy(), u @ u.T) and np.allclose(lt.mean(U).item(), u.mean())
assert np.allclose((u - U * 2).numpy(), -u) and np.allclose((u.T @ U).numpy(), u.T @ u) and np.allclose((U / u).numpy(), 1)
assert (lt.zeros(s, "f8", (2, 2)).numpy() == 0).all() and U.cast(lt.TN_I64).dtype == np.dtype("i8")
q = np.random.RandomState(2).randn(1, 4, 3, 8).astype("f4"); kv = q[:, 1:3].copy()
many = lt.scaled_dot_product_attention(q, s.tensor(kv), np.flip(kv, 3), causal=True)
assert np.allclose(many.numpy(), lt.scaled_dot_product_attention(
    s.tensor(q), kv.repeat(2, 1), np.flip(kv, 3).repeat(2, 1), causal=True).numpy(), atol=1e-6)
turned = s.tensor(q).rotary(5).numpy(); assert np.allclose((turned ** 2).sum(), (q ** 2).sum(), rtol=1e-5) and not np.allclose(turned, q)
# An axis alone is that axis, 0 too; none is all of them.
for name, of in (("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("flip", np.flip)):
    for i in (0, 1, -1, np.int64(0)):
        assert np.allclose(getattr(lt, name)(U, i).numpy(), of(u, axis=i)) and np.allclose(getattr(U, name)(axes=i).numpy(), of(u, axis=i))
for none in ((U,), (U, None), (U, ()), (U, [])):
    assert lt.sum(*none).item() == u.sum()
assert np.allclose(lt.var(U, 0, True, 0).numpy(), u.var(0, keepdims=True)) and U.reshape(6).shape == (6,)
# Comparisons are of elements, those with NaN too; which tensor one is, is `is`, and its hash.
h = np.array([[np.nan, 1, 2], [3, np.inf, 0]], "f4"); H = s.tensor(h)
for f in (lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b):
    for a, A, b, B in ((h, H, u, U), (u, U, h, h), (h, h, u, U), (h, H, 1, 1), (h, H, np.nan, np.nan), (2., 2., h, H), (np.float32(2), np.float32(2), h, H),
                       (u.astype("i4"), U.cast("i4"), 2.5, 2.5), (u.astype("i4"), U.cast("i4"), 2, 2), (h > 1, H > 1, True, True)):
        got = f(A, B).numpy()
        assert got.dtype == bool and (got == f(a, b)).all(), (a, b, got)
assert not H == None and H != None and not H == "1" and H in [H] and {H: 1}[H] == 1 and len({H, U, H}) == 2
assert lt.sum(U) == 30 and not lt.sum(U) == 31
for unclear in (lambda: bool(U == u), lambda: U in [H]):
    try:
        unclear(); assert False
    except ValueError as e: assert "lt.any" in str(e)
# Layers: a forward by the layer's own name, or by its type.
n = lt.open(device="cpu")
fc, bn, gru, tb = n.linear_new("fc", 3, 4), n.batch_norm_new("bn", 4), n.gru_new("g", 4, 5), n.transformer_block_new("tb", 8, 2)
assert np.allclose(fc(u).numpy(), u @ n.find("fc.weight").numpy().T + n.find("fc.bias").numpy(), atol=1e-6)
assert gru(bn(fc(np.ones((2, 6, 3), "f4")))).shape == (2, 6, 5) and n.conv2d_new("k", 2, 3, kernel=3)(img.numpy()).shape == (1, 3, 3, 3)
with n.no_grad():
    whole, cache = tb(np.ones((1, 3, 8), "f4")), n.cache_new(1, 2, 3, 4, "f4")
    assert tb(np.ones((1, 1, 8), "f4")).shape == lt.transformer_block_cached(tb, np.ones((1, 1, 8), "f4"), cache, 0).shape
with n.scope():
    gone = fc(u)
    assert gone.shape == (2, 4)
try:
    gone.numpy()
    assert False
except lt.Error as e:
    assert "tn_scope_begin" in str(e)
try:
    lt.matmul(x, x)
    assert False
except lt.Error as e:
    assert "matmul" in str(e), e
rng = np.random.RandomState(1)
a = rng.randn(64, 4).astype("f4"); b = a @ [[1.], [2.], [-1.], [0.5]] + 3
w, c = s.param("w", np.zeros((4, 1), "f4")), s.param("c", np.zeros(1, "f4"))
opt = s.adamw(lr=0.05)
A, B = s.tensor(a), s.tensor(b.astype("f4"))
for i in range(400):
    with s.step():
        loss = lt.mean(lt.square(A @ w + c - B), (), False)
        s.backward(loss)
        if i == 0:
            g = w.gradient().numpy()
            assert np.allclose(g, a.T @ (0 - b) * 2 / 64, rtol=1e-4), g
        opt.step()
assert np.allclose(w.numpy().ravel(), [1, 2, -1, .5], atol=1e-2) and np.allclose(c.numpy(), 3, atol=1e-2)
assert "adamw" in s.plan()
kept = c.numpy() # only what is named is trained, and a list of nothing is an error
for some in (lambda: s.sgd([w], lr=0.5), lambda: s.sgd(params=(w,), lr=0.5)):
    only, old = some(), w.numpy()
    with s.step():
        s.backward(lt.mean(lt.square(A @ w + c - B - 1.0)))
        only.step()
    assert (c.numpy() == kept).all() and not (w.numpy() == old).all()
for empty in (lambda: s.sgd([], lr=0.5), lambda: s.adam(params=(), lr=0.5)):
    try:
        empty(); assert False
    except lt.Error as e: assert "the list is empty" in str(e)
if sys.argv[1:]:
    s.save(sys.argv[1])
    t = lt.open(device="cpu"); v = t.param("w", np.ones((4, 1), "f4")); t.param("c", np.ones(1, "f4"))
    t.load(sys.argv[1]); assert (v.numpy() == w.numpy()).all(); t.close()
    try:
        s.load(sys.argv[1] + ".none"); assert False
    except lt.Error as e:
        assert "none" in str(e)
for bad in (lambda: lt.conv2d(img, k, None, padd=1), lambda: lt.relu(), lambda: lt.relu(x, 1), lambda: lt.relu(x, why=1),
            lambda: lt.relu(fc), lambda: lt.concat([x, 1], 0), lambda: lt.softmax(x), lambda: lt.sum(x, True), lambda: lt.concat(1, 0),
            lambda: x < None, lambda: x < "1", lambda: s.sgd(w), lambda: s.sgd([w], 0.5), lambda: s.sgd([w], params=[w]), lambda: s.tensor(np.zeros(2, "c8"))):
    try:
        bad(); assert False
    except TypeError: pass
for missing in (lambda: s.no_layer(), lambda: lt.no_operator(x), lambda: x.no_operator()):
    try:
        missing(); assert False
    except AttributeError as e: assert "no_" in str(e)
assert s.close() == 0 and s.close() == 0 and n.close() == 0
for late in (lambda: x.numpy(), lambda: x + 1, lambda: opt.step(), lambda: fc(u), lambda: s.tensor(u)):
    try:
        late(); assert False
    except lt.Error as e: assert "closed" in str(e)
os.chdir(os.path.dirname(os.path.abspath(__file__)))
with contextlib.redirect_stdout(io.StringIO()) as said: # its own example
    exec(textwrap.dedent(lt.__doc__.split("\n\n")[1]))
losses = [float(l) for l in said.getvalue().splitlines()[:100]]
assert losses[-1] < losses[0] / 2, losses
print("fine")
END
binding() { LIBTENSOR=$BUILD/libtensor.so PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 "$python" "$tmp/use.py" $1; }
if ! "$python" -c 'import numpy' 2>/dev/null; then
    skip binding "no python3 with numpy (PYTHON names one)"
elif built_with CJSON; then
    check binding binding "$tmp/w.safetensors"
else
    check binding binding
fi
