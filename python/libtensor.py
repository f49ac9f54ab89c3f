"""libtensor for Python: numpy arrays in and out, by ctypes alone.

    import libtensor as lt, numpy as np
    s = lt.open(device="cpu", seed=1)
    fc = s.linear_new("fc", 3, 1)
    x, opt = s.tensor(np.ones((8, 3), "f4")), s.adamw(lr=1e-2)
    for i in range(100):
        with s.step():
            loss = lt.mean(lt.square(fc(x) - 1.0))
            s.backward(loss)
            opt.step()
            print(loss.item())
    print(s.find("fc.weight").numpy())
    s.save("fc.safetensors")

Operators, layers, optimizers and their options are those of the headers, which are read when this is imported: lt.NAME(..)
is tn_NAME of tensor_ops.h and x.NAME(..) the same with x first; s.NAME(..) is a layer or an optimizer of tensor_nn.h, and
the layer called with x its forward. Options are named (lt.conv2d(x, w, None, pad=1)), arguments may be; a list stands for a
count and a pointer (lt.sum(x, [0, 1])) and an int for a list of one (lt.sum(x, 0)), an array of numpy for a tensor, a dtype
of numpy for a tn_dtype. Pointers that are left out are NULL, flags false, axes all, parameters all. What a function gives by
several pointers is a tuple (lt.topk(x, 5, -1)). x == y, x < 1 and their like compare elements. What goes wrong is an Error
with the library's text. Tensors live as the library says: those of a step until it ends; others until free() or close().

LIBTENSOR names the shared library, else it is looked for beside this file (../../lib of an installed one, ../build of the
tree), else by the system's loader. Start reading with Library.
"""
import contextlib, ctypes as c, numbers, os, pathlib, re

import numpy as np

try:
    import ml_dtypes  # bf16, where that is there
    BF16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BF16 = None


class Error(Exception):
    pass


class Number(c.Structure):  # tn_number
    _fields_ = [("f", c.c_double), ("i", c.c_int64), ("is_int", c.c_bool)]


class Rename(c.Structure):
    _fields_ = [("from", c.c_char_p), ("to", c.c_char_p)]


class Params(c.Structure):
    _fields_ = [("n", c.c_int), ("list", c.c_void_p)]


class Library:
    """The shared library, and what the headers say of it."""

    PLAIN = {"int": c.c_int, "int64_t": c.c_int64, "uint64_t": c.c_uint64, "size_t": c.c_size_t, "double": c.c_double,
             "float": c.c_float, "bool": c.c_bool, "tn_number": Number, "tn_params": Params, "tn_rename": Rename, "void": None}

    def __init__(self):
        here = pathlib.Path(__file__).resolve().parent
        places = [(here / "../build/libtensor.so", here / "../include"), (here / "../../lib/libtensor.so", here / "../../include")]
        if os.environ.get("LIBTENSOR"):
            named = pathlib.Path(os.environ["LIBTENSOR"]).resolve()
            places = [(named, p) for p in (here / "../include", here / "../../include", named.parent / "../include")]
        for so, include in places:
            if so.exists() and (include / "tensor_ops.h").exists():
                break
        else:
            raise ImportError("libtensor.so and its headers are not found: set LIBTENSOR to the library's path")
        self.so = c.CDLL(str(so))
        text = "".join((include / h).read_text() for h in ("tensor.h", "tensor_ops.h", "tensor_nn.h"))
        self.enums = {name: i for i, name in enumerate(re.findall(r'X\((TN_\w+), "\w+", \d\)', text))}
        self.text = re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", "", text, flags=re.S | re.M)
        for body, name in re.findall(r"typedef enum \w+ \{([^{}]*)\} (\w+);", self.text):
            for i, item in enumerate(x.strip() for x in body.split(",") if x.strip()):
                self.enums[item.split("=")[0].strip()] = i
            self.PLAIN[name] = c.c_int
        self.PLAIN["tn_dtype"] = c.c_int
        self.structs = {name: self.struct(body) for name, body in
                        re.findall(r"typedef struct (tn_\w+_options|tn_options) \{([^{}]*)\}", self.text)}
        self.ops = {name: self.parameters(rest) for name, rest in re.findall(r"TN_OP\((\w+),([^;(]*)\);", self.text)}
        self.ops.update((name, self.parameters(rest)) for name, rest in  # which give several tensors
                        re.findall(r"TN_FUNCTION\(int, (\w+),(\s*tn_tensor \*x,[^;(]*tn_tensor \*\*\w+)\);", self.text))
        self.news = {name: (kind, self.parameters(rest)) for kind, name, rest in
                     re.findall(r"TN_NEW\((\w+), (\w+),\s*tn_session \*s,([^;(]*)\);", self.text)}

    def forward(self, name, kind):
        """The operator that a layer made by tn_NAME is called with: its namesake, or the one of its type."""
        own = name.replace("_new", "_forward")
        return own if own in self.ops else next((n for n, p in self.ops.items() if n.endswith("_forward") and p[0][0] == kind + " *"), None)

    def ctype(self, declared):
        declared = declared.replace("const", "").strip()
        if "*" in declared or "(" in declared:
            return c.c_char_p if declared.replace(" ", "") == "char*" else c.c_void_p
        return self.PLAIN.get(declared, c.c_int)

    def struct(self, body):
        fields = []
        for line in (x.strip() for x in body.split(";") if x.strip()):
            if "(" in line:  # a function to call
                fields.append((re.search(r"\(\*(\w+)\)", line).group(1), c.c_void_p))
                continue
            first, *more = (x.strip() for x in line.split(","))
            kind, star, name, extent = re.match(r"(.*?)\s*(\**)\s*(\w+)((?:\[\w+\])?)$", first).groups()
            for one in [star + name + extent] + more:
                star, name, extent = re.match(r"(\**)(\w+)((?:\[\w+\])?)$", one).groups()
                t = self.ctype(kind + star)
                fields.append((name, t * self.number(extent[1:-1]) if extent else t))
        return type("Options", (c.Structure,), {"_fields_": fields})

    def number(self, text):
        return int(text) if text.isdigit() else int(re.search(r"enum \{[^}]*\b%s = (\d+)" % text, self.text).group(1))

    def parameters(self, rest):
        """[(declared type, name)], without what stands at the end of each list: the options' pointer stays."""
        return [re.match(r"\s*(.*?)\s*(\w+)$", re.sub(r"\s+", " ", p)).groups() for p in rest.rstrip().split(",")]

    def options(self, declared, given):
        kind = self.structs[re.search(r"tn_\w+", declared).group(0)]
        known = {name: t for name, t in kind._fields_}
        o = kind()
        for name, value in given.items():
            if name not in known:
                raise TypeError("no option %s; there are %s" % (name, ", ".join(n for n in known if n != "size")))
            if isinstance(value, Handle):
                value = value.p
            elif isinstance(value, (list, tuple)):
                value = known[name](*value)
            setattr(o, name, value)
        o.size = c.sizeof(o)
        return o

    def value(self, symbol, declared, name, x):
        """What stands for x in a call, and its type."""
        if declared == "tn_number" and not isinstance(x, Number):
            whole = isinstance(x, numbers.Integral)
            x = Number(float(x), int(x) if whole else 0, whole)
        elif declared == "tn_dtype" and not isinstance(x, int):
            x = DTYPES[np.dtype(x)]
        elif x is None and "*" not in declared:
            if declared != "bool":
                raise TypeError("%s: %s is missing" % (symbol, name))
            x = False
        kind = re.match(r"tn_\w+(?= \*)", declared)
        if kind and x is not None and getattr(x, "kind", None) != kind[0]:
            raise TypeError("%s: %s is to be a %s" % (symbol, name, kind[0]))
        return x.p if isinstance(x, Handle) else x.encode() if isinstance(x, str) else x, self.ctype(declared)

    def call(self, name, parameters, args, given, result):
        """Calls tn_NAME: lists become a count and an array, options are named, pointers to tensors are given back."""
        args, given, out, types, keep, made, at = list(args), dict(given), [], [], [], [], 0
        names = {n for _, n in parameters}
        named = {n: given.pop(n) for n in list(given) if n in names}
        if given and "_options" not in parameters[-1][0]:
            raise TypeError("%s: no argument %s" % (name, ", ".join(given)))
        while at < len(parameters):
            declared, this = parameters[at]
            if "_options" in declared:
                keep.append(self.options(declared, given))
                out.append(c.byref(keep[-1]))
                types.append(c.c_void_p)
            elif "**" in declared:
                made.append((c.c_void_p * (out[1] if this == "out" else 1))())
                out.append(made[-1])
                types.append(c.c_void_p)
            elif declared == "int" and re.match(r"n(dim|axes)?$", this) and "*" in parameters[at + 1][0]:
                at += 1
                element, this = parameters[at][0].rsplit("*", 1)[0].strip(), parameters[at][1]
                items = named.pop(this) if this in named else args.pop(0) if args else None
                one = isinstance(items, numbers.Integral) and not isinstance(items, bool)  # lt.sum(x, 0)
                items = [self.value(name, element, this, x)[0] for x in ([items] if one else () if items is None else items)]
                keep.append((self.ctype(element) * max(1, len(items)))(*items))
                out += [len(items), keep[-1]]
                types += [c.c_int, c.c_void_p]
            else:
                x, t = self.value(name, declared, this, named.pop(this) if this in named else args.pop(0) if args else None)
                out.append(x)
                types.append(t)
            at += 1
        if args or named:
            raise TypeError("%s: too many arguments" % name)
        f = self.so["tn_" + name]  # an own object each time, and so an own signature
        f.argtypes, f.restype = types, c.c_int if made else result
        got = f(*out)
        return [p for m in made for p in m] if made else got


lib = Library()
DTYPES = dict(zip([np.dtype(t) if t else BF16 for t in ("f4", "f2", None, "f8", "i4", "i8", "u1", "?")], range(8)))
DTYPES.pop(None, None)


def function(name, result, *types):
    f = lib.so["tn_" + name]
    f.argtypes, f.restype = types, result
    return f


P, I = c.c_void_p, c.c_int
F = {n: function(n, r, *t) for n, r, t in (
    ("open_with", P, [P]), ("close", I, [P]), ("error", I, [P]), ("error_text", c.c_char_p, [P]), ("clear_error", None, [P]),
    ("step_begin", I, [P]), ("step_end", I, [P]), ("backward", I, [P]), ("gradient", P, [P]), ("ndim", I, [P]), ("plan_text", c.c_char_p, [P]),
    ("no_grad_begin", I, [P]), ("no_grad_end", I, [P]), ("scope_begin", I, [P]), ("scope_end", I, [P]),
    ("dim", c.c_int64, [P, I]), ("numel", c.c_int64, [P]), ("dtype_of", I, [P]), ("dtype_name", c.c_char_p, [I]), ("item", c.c_double, [P]), ("free", None, [P]),
    ("read", I, [P, I, P, c.c_size_t]), ("from", P, [P, P, I, I, P]), ("param", P, [P, c.c_char_p, P]), ("session_of", P, [P]),
    ("optim_step", I, [P]), ("optim_set_lr", I, [P, c.c_double]), ("save_with", I, [P, c.c_char_p, P]),
    ("load_with", I, [P, c.c_char_p, P]), ("train", I, [P, c.c_bool]), ("find", P, [P, c.c_char_p]))}


class Handle:
    """What belongs to a session and ends with it; kind is its type in C."""

    def __init__(self, session, p):
        self.session, self.handle = session, p

    @property
    def p(self):
        return self.session.p and self.handle


class Tensor(Handle):
    kind = "tn_tensor"
    __array_ufunc__ = None  # array + x is x's

    def __getattr__(self, name):  # x.relu() is relu(x)
        if name not in lib.ops:
            raise AttributeError("a tensor has no %s, and there is no operator of that name" % name)
        return lambda *args, **given: op(name, self, *args, **given)

    def __repr__(self):
        return "<tensor %s %s>" % (F["dtype_name"](F["dtype_of"](self.p)).decode(), list(self.shape))

    @property
    def shape(self):
        return tuple(F["dim"](self.p, i) for i in range(max(0, F["ndim"](self.p))))

    @property
    def dtype(self):
        return next((d for d, i in DTYPES.items() if i == F["dtype_of"](self.p)), None)

    def numpy(self):
        out = np.empty(self.shape, np.float32 if self.dtype is None else self.dtype)
        self.session.check(F["read"](self.p, DTYPES[out.dtype], out.ctypes.data, out.nbytes))
        return out

    def item(self):
        x = F["item"](self.p)
        self.session.check()
        return x

    def gradient(self):
        return self.session.tensor_of(F["gradient"](self.p))

    def free(self):
        F["free"](self.p)

    def binary(name, scalar=None, turned=False):
        def f(self, other):
            if isinstance(other, (Tensor, np.ndarray)):
                return op(name, other, self) if turned else op(name, self, other)
            return op((scalar or name) + "_scalar", self, other)
        return f
    __add__ = __radd__ = binary("add")
    __mul__ = __rmul__ = binary("mul")
    __sub__, __rsub__ = binary("sub"), binary("sub", "rsub", True)
    __truediv__, __rtruediv__, __pow__ = binary("div"), binary("div", "rdiv", True), binary("pow")

    def compared(name, scalar):
        def f(self, other):
            if isinstance(other, (Tensor, np.ndarray)):
                return op(name, self, other)
            return scalar(self, other) if isinstance(other, (numbers.Real, np.bool_)) else NotImplemented
        return f
    __eq__ = compared("eq", lambda x, v: op("eq_scalar", x, v))
    __ne__ = compared("ne", lambda x, v: op("logical_not", op("eq_scalar", x, v)))
    __lt__ = compared("lt", lambda x, v: op("lt_scalar", x, v))
    __gt__ = compared("gt", lambda x, v: op("gt_scalar", x, v))
    __le__ = compared("le", lambda x, v: op("logical_or", op("lt_scalar", x, v), op("eq_scalar", x, v)))
    __ge__ = compared("ge", lambda x, v: op("logical_or", op("gt_scalar", x, v), op("eq_scalar", x, v)))
    __hash__ = object.__hash__  # which tensor it is, whatever its values

    def __bool__(self):
        if F["numel"](self.p) != 1:
            raise ValueError("%r is neither true nor false: lt.all and lt.any say so of its elements" % self)
        return self.item() != 0

    def __matmul__(self, other):
        return op("matmul", self, other)

    def __rmatmul__(self, other):
        return op("matmul", other, self)

    def __neg__(self):
        return op("neg", self)


class Layer(Handle):
    def __init__(self, session, p, kind, forward):
        Handle.__init__(self, session, p)
        self.kind, self.forward = kind, forward

    def __call__(self, x, *args, **given):
        return op(self.forward, self, x, *args, **given)


class Optimizer(Handle):
    kind = "tn_optim"

    def step(self):
        self.session.check(F["optim_step"](self.p))

    def set_lr(self, lr):
        self.session.check(F["optim_set_lr"](self.p, lr))


class Session(Handle):
    kind = "tn_session"

    def __init__(self, device="auto", mode=None, **given):
        given["device"] = lib.enums["TN_" + device.upper()]
        given["mode"] = lib.enums["TN_" + mode.upper() if mode else "TN_MODE_AUTO"]
        Handle.__init__(self, self, F["open_with"](c.byref(lib.options("tn_options", given))))
        if not self.handle:
            raise Error("no session; stderr says why")

    @property
    def p(self):
        if not self.handle:
            raise Error("the session is closed")
        return self.handle

    def __getattr__(self, name):  # layers and optimizers
        if name not in lib.news:
            raise AttributeError("a session has no %s, and there is no layer or optimizer of that name" % name)
        kind, parameters = lib.news[name]

        def make(*args, **given):
            if ("tn_params", "params") in parameters:
                some, *args = [given.pop("params")] + list(args) if "params" in given else args or [None]
                listed = [] if some is None else [x.p for x in some]
                handles = (c.c_void_p * max(1, len(listed)))(*listed)
                args = [Params(-1 if some is None else len(listed), c.cast(handles, c.c_void_p)), *args]
            p = lib.call(name, [("tn_session *", "s")] + parameters, [self, *args], given, c.c_void_p)
            self.check()
            return Optimizer(self, p) if kind == "tn_optim" else Layer(self, p, kind, lib.forward(name, kind))
        return make

    def check(self, status=0):
        if status or F["error"](self.p):
            text = F["error_text"](self.p).decode() or "status %d" % status
            F["clear_error"](self.p)
            raise Error(text)

    def tensor_of(self, p):
        self.check()
        return Tensor(self, p) if p else None

    def tensor(self, array):
        a = np.asarray(array)
        if a.dtype not in DTYPES:
            raise TypeError("no dtype for %s" % a.dtype)
        n, shape, a = a.ndim, (c.c_int64 * max(1, a.ndim))(*a.shape), np.ascontiguousarray(a)
        return self.tensor_of(F["from"](self.p, a.ctypes.data, DTYPES[a.dtype], n, shape))

    def param(self, name, array):
        return self.tensor_of(F["param"](self.p, name.encode(), self.tensor(array).p))

    def find(self, name):
        return self.tensor_of(F["find"](self.p, name.encode()))

    @contextlib.contextmanager
    def step(self):
        self.check(F["step_begin"](self.p))
        try:
            yield self
        finally:
            status = F["step_end"](self.p)
        self.check(status)

    def backward(self, loss):
        self.check(F["backward"](loss.p))

    @contextlib.contextmanager
    def no_grad(self):
        self.check(F["no_grad_begin"](self.p))
        try:
            yield self
        finally:
            F["no_grad_end"](self.p)

    @contextlib.contextmanager
    def scope(self):
        self.check(F["scope_begin"](self.p))
        try:
            yield self
        finally:
            F["scope_end"](self.p)

    def train(self, on=True):
        self.check(F["train"](self.p, on))

    def save(self, path, **given):
        self.check(F["save_with"](self.p, os.fsencode(path), c.byref(lib.options("tn_save_options", given))))

    def load(self, path, **given):
        self.check(F["load_with"](self.p, os.fsencode(path), c.byref(lib.options("tn_load_options", given))))

    def plan(self):
        return (F["plan_text"](self.p) or b"").decode()

    def close(self):
        p, self.handle = self.handle, None
        return F["close"](p)


open = Session


def op(name, *args, **given):
    flat = [y for x in (*args, *given.values()) for y in (x if isinstance(x, (list, tuple)) else [x])]
    s = next((x.session for x in flat if isinstance(x, Handle)), None)
    if s is None:
        raise TypeError("%s: no tensor among its arguments" % name)

    def tensors(x):
        return [tensors(y) for y in x] if isinstance(x, (list, tuple)) else s.tensor(x) if isinstance(x, np.ndarray) else x
    p = lib.call(name, lib.ops[name], tensors(args), {n: tensors(x) for n, x in given.items()}, c.c_void_p)
    s.check()
    return tuple(Tensor(s, x) for x in p) if isinstance(p, list) else Tensor(s, p)


def __getattr__(name):
    if name in lib.ops:
        return lambda *args, **given: op(name, *args, **given)
    if name in lib.enums:
        return lib.enums[name]
    raise AttributeError("libtensor has no operator and no constant %s" % name)
