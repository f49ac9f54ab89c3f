#!/bin/sh
# test_python.sh - the Python binding, on the shared library of this build: arrays in and out, operators by their names and
# options, training beside what numpy says, files, and what is wrong with a call.
. tests/check.sh
python=${PYTHON:-python3}

cat >"$tmp/use.py" <<'END'
import numpy as np, libtensor as lt, sys
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
if sys.argv[1:]:
    s.save(sys.argv[1])
    t = lt.open(device="cpu"); v = t.param("w", np.ones((4, 1), "f4")); t.param("c", np.ones(1, "f4"))
    t.load(sys.argv[1]); assert (v.numpy() == w.numpy()).all(); t.close()
    try:
        s.load(sys.argv[1] + ".none"); assert False
    except lt.Error as e:
        assert "none" in str(e)
for bad in (lambda: lt.conv2d(img, k, None, padd=1), lambda: lt.relu(), lambda: lt.relu(x, 1), lambda: s.tensor(np.zeros(2, "c8"))):
    try:
        bad(); assert False
    except TypeError: pass
s.close(); print("fine")
END
binding() { LIBTENSOR=$BUILD/libtensor.so PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 "$python" "$tmp/use.py" $1; }
if ! "$python" -c 'import numpy' 2>/dev/null; then
    skip binding "no python3 with numpy (PYTHON names one)"
elif built_with CJSON; then
    check binding binding "$tmp/w.safetensors"
else
    check binding binding
fi
