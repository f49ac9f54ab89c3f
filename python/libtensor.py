"""libtensor for Python: numpy arrays in and out, by ctypes alone.

    import libtensor as lt
    s = lt.open(device="cpu", seed=1)
    w, x = s.param("w", numpy.zeros((3, 1), "f4")), s.tensor(numpy.ones((8, 3), "f4"))
    opt = s.adamw(lr=1e-2)
    with s.step():
        loss = lt.mean(lt.square(x @ w - 1.0))
        s.backward(loss)
        opt.step()
        print(loss.item())
    s.save("w.safetensors")

Operators, layers' options and optimizers are those of the headers, which are read when this is imported: lt.NAME(..) is
tn_NAME of tensor_ops.h, whose options are named (lt.conv2d(x, w, None, pad=1)), a list stands for a count and a pointer
(lt.sum(x, [0], False)), and s.NAME(..) is an optimizer of tensor_nn.h. What goes wrong is an Error with the library's text.
Tensors live as the library says: those of a step until it ends; others until free() or close().

LIBTENSOR names the shared library, else it is looked for beside this file (../../lib of an installed one, ../build of the
tree), else by the system's loader. Start reading with Library.
"""
import contextlib, ctypes as c, os, pathlib, re

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
        self.text = re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", "", text, flags=re.S | re.M)
        self.enums = {}
        for body, name in re.findall(r"typedef enum \w+ \{([^{}]*)\} (\w+);", self.text):
            for i, item in enumerate(x.strip() for x in body.split(",") if x.strip()):
                self.enums[item.split("=")[0].strip()] = i
            self.PLAIN[name] = c.c_int
        self.PLAIN["tn_dtype"] = c.c_int
        self.structs = {name: self.struct(body) for name, body in
                        re.findall(r"typedef struct (tn_\w+_options|tn_options) \{([^{}]*)\}", self.text)}
        self.ops = {name: self.parameters(rest) for name, rest in re.findall(r"TN_OP\((\w+),([^;(]*)\);", self.text)}
        self.optims = {name: self.parameters(rest) for name, rest in re.findall(r"TN_NEW\(tn_optim, (\w+),([^;(]*)\);", self.text)}

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
                raise TypeError("no option " + name)
            if isinstance(value, Tensor):
                value = value.p
            elif isinstance(value, (list, tuple)):
                value = known[name](*value)
            setattr(o, name, value)
        o.size = c.sizeof(o)
        return o

    def call(self, symbol, parameters, args, given, result):
        """Calls a function of the headers: lists become a count and an array, options are named."""
        args, out, types, keep, at = list(args), [], [], [], 0
        while at < len(parameters):
            declared, name = parameters[at]
            listed = at + 1 < len(parameters) and declared == "int" and re.match(r"n(dim|axes)?$", name)
            if "_options" in declared:
                keep.append(self.options(declared, given))
                given = {}
                out.append(c.byref(keep[-1]))
                types.append(c.c_void_p)
            elif not args:
                raise TypeError("%s: %s is missing" % (symbol, name))
            elif listed:
                items = [x.p if isinstance(x, Tensor) else x for x in (args.pop(0) or ())]
                element = self.ctype(parameters[at + 1][0].rsplit("*", 1)[0])
                keep.append((element * max(1, len(items)))(*items))
                out += [len(items), keep[-1]]
                types += [c.c_int, c.c_void_p]
                at += 1
            else:
                x = args.pop(0)
                if declared == "tn_number" and not isinstance(x, Number):
                    x = Number(float(x), int(x) if isinstance(x, int) else 0, isinstance(x, int))
                out.append(x.p if isinstance(x, (Tensor, Session)) else x.encode() if isinstance(x, str) else x)
                types.append(self.ctype(declared))
            at += 1
        if args or given:
            raise TypeError("%s: too many arguments" % symbol)
        f = self.so[symbol]  # an own object each time, and so an own signature
        f.argtypes, f.restype = types, result
        return f(*out)


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
    ("dim", c.c_int64, [P, I]), ("numel", c.c_int64, [P]), ("dtype_of", I, [P]), ("item", c.c_double, [P]), ("free", None, [P]),
    ("read", I, [P, I, P, c.c_size_t]), ("from", P, [P, P, I, I, P]), ("param", P, [P, c.c_char_p, P]), ("session_of", P, [P]),
    ("optim_step", I, [P]), ("optim_set_lr", I, [P, c.c_double]), ("save_with", I, [P, c.c_char_p, P]),
    ("load_with", I, [P, c.c_char_p, P]), ("train", I, [P, c.c_bool]), ("find", P, [P, c.c_char_p]))}


class Tensor:
    def __init__(self, session, p):
        self.session, self.p = session, p

    def __getattr__(self, name):  # x.relu() is relu(x)
        if name not in lib.ops:
            raise AttributeError(name)
        return lambda *args, **given: op(name, self, *args, **given)

    @property
    def shape(self):
        return tuple(F["dim"](self.p, i) for i in range(max(0, F["ndim"](self.p))))

    @property
    def dtype(self):
        return next((d for d, i in DTYPES.items() if i == F["dtype_of"](self.p)), None)

    def numpy(self):
        out = np.empty(self.shape, self.dtype or np.float32)
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

    def binary(name, swapped=None):
        def f(self, other):
            if isinstance(other, Tensor):
                return op(name, self, other)
            return op((swapped or name) + "_scalar", self, other)
        return f
    __add__ = __radd__ = binary("add")
    __mul__ = __rmul__ = binary("mul")
    __sub__, __rsub__ = binary("sub"), binary("sub", "rsub")
    __truediv__, __rtruediv__, __pow__ = binary("div"), binary("div", "rdiv"), binary("pow")

    def __matmul__(self, other):
        return op("matmul", self, other)

    def __neg__(self):
        return op("neg", self)


class Optimizer:
    def __init__(self, session, p):
        self.session, self.p = session, p

    def step(self):
        self.session.check(F["optim_step"](self.p))

    def set_lr(self, lr):
        self.session.check(F["optim_set_lr"](self.p, lr))


class Session:
    def __init__(self, device="auto", mode=None, **given):
        given["device"] = lib.enums["TN_" + device.upper()]
        given["mode"] = lib.enums["TN_" + mode.upper() if mode else "TN_MODE_AUTO"]
        self.p = F["open_with"](c.byref(lib.options("tn_options", given)))
        if not self.p:
            raise Error("no session; stderr says why")

    def __getattr__(self, name):  # optimizers
        if name not in lib.optims:
            raise AttributeError(name)
        parameters = lib.optims[name]

        def make(params=None, **given):
            handles = (c.c_void_p * max(1, len(params or ())))(*(x.p for x in params or ()))
            of = Params(-1 if params is None else len(params), c.cast(handles, c.c_void_p))
            p = lib.call("tn_" + name, parameters, [self, of], given, c.c_void_p)
            self.check()
            return Optimizer(self, p)
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

    def train(self, on=True):
        self.check(F["train"](self.p, on))

    def save(self, path, **given):
        self.check(F["save_with"](self.p, os.fsencode(path), c.byref(lib.options("tn_save_options", given))))

    def load(self, path, **given):
        self.check(F["load_with"](self.p, os.fsencode(path), c.byref(lib.options("tn_load_options", given))))

    def plan(self):
        return (F["plan_text"](self.p) or b"").decode()

    def close(self):
        p, self.p = self.p, None
        return F["close"](p)


open = Session


def op(name, *args, **given):
    flat = [y for x in args for y in (x if isinstance(x, (list, tuple)) else [x])]
    s = next((x.session for x in flat if isinstance(x, Tensor)), None) or next((x for x in args if isinstance(x, Session)), None)
    if s is None:
        raise TypeError("%s: no tensor among its arguments" % name)
    p = lib.call("tn_" + name, lib.ops[name], args, given, c.c_void_p)
    s.check()
    return Tensor(s, p)


def __getattr__(name):
    if name in lib.ops:
        return lambda *args, **given: op(name, *args, **given)
    if name in lib.enums:
        return lib.enums[name]
    raise AttributeError(name)
