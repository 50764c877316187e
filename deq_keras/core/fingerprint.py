"""What a Python object computes with, so that a function traced from it is never stale.

A function that TensorFlow traced keeps the Python values that it read. It computes the
same as the Python code only while all of them are as they were, and if the code does
nothing but compute.

1. `fingerprint` visits an object as its functions would: attributes, the elements of
   containers, and the globals, closures and defaults of functions. Plain values count
   by value. Tensors, objects of libraries and variables count by identity: a traced
   function reads the values of variables when it runs.
2. Code of TensorFlow, Keras, NumPy and this library is trusted. Other code is read: it
   may name trusted modules, plain values, and functions to which the same applies.
3. For code that names anything else, such as `print`, a generator or most of the
   standard library, the result is `None`.
"""

import builtins
import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

_TRUSTED = frozenset(
    "deq_keras enum functools keras keras_hub math ml_dtypes numpy operator tensorflow "
    "typing".split()
)

# Builtin types whose objects never change.
_CONSTANT = (object, range, slice, type(...), type(NotImplemented))

# Builtins that do more than they return, or read more than their arguments.
_EFFECTS = frozenset(
    "__import__ breakpoint compile delattr eval exec globals id input locals next open "
    "print setattr vars".split()
)

# Larger arrays would take longer to read than a solve.
_LARGEST_ARRAY = 2**16
_MOST_PARTS = 20_000

# Attributes that Keras itself needs for every layer, and changes in calls.
_BOOKKEEPING = frozenset(vars(keras.layers.Layer())) - {
    "_dtype_policy",
    "_layers",
    "_trainable",
    "autocast",
}


class Fingerprint(NamedTuple):
    """Values that a traced function depends on.

    Attributes:
        parts: Tuple of hashable values. Equal if the object computes the same.
        objects: Objects whose identity is among the parts, so that none of them is
            freed and its identity given to another.
    """

    parts: tuple
    objects: tuple


class _Unknown(Exception):
    """What an object computes with cannot be known."""


def fingerprint(*roots: Any) -> Fingerprint | None:
    """Returns the fingerprint of objects, or `None` if it cannot be known."""
    reader = _Reader()
    try:
        for root in roots:
            reader.visit(root)
    except Exception:  # Objects of others may raise anything when they are read.
        return None
    return Fingerprint(tuple(reader.parts), tuple(reader.objects))


class _Reader:
    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.objects: list[Any] = []
        self._seen: set[int] = set()
        self._open: set[int] = set()

    def visit(self, value: Any, names: frozenset[str] = frozenset()) -> None:
        """Adds a value, of which a function reads the attributes `names`."""
        kind: Any = type(value)
        visit = _visitor(kind)
        if len(self.parts) > _MOST_PARTS:
            raise _Unknown  # Reading it would take longer than a solve.
        if visit is _Reader._visit_plain:
            is_exact = kind in (bool, int, str, bytes)
            self.parts.append((kind, value if is_exact else repr(value)))
        elif visit is _Reader._visit_container:
            self._visit_container(value)
        elif visit is _Reader._visit_module:
            self._visit_module(value, names)
        else:
            is_known = id(value) in self._seen
            self._add(value)
            if not is_known:
                visit(self, value)

    def _visit_plain(self, value: Any) -> None:
        """Nothing: `visit` adds plain values."""

    def _visit_set(self, value: Any) -> None:
        self.parts.append(frozenset(value))

    def _visit_variable(self, value: Any) -> None:
        self.parts.append(value.trainable)

    def _visit_array(self, value: np.ndarray) -> None:
        if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
            raise _Unknown
        self.parts.append((value.shape, value.dtype.str, value.tobytes()))

    def _visit_method(self, value: Any) -> None:
        self.visit((value.__self__, value.__func__))

    def _visit_partial(self, value: Any) -> None:
        self.visit((value.func, value.args, value.keywords))

    def _visit_descriptor(self, value: Any) -> None:
        self.visit(value.fget if isinstance(value, property) else value.__func__)

    def _visit_class(self, value: type) -> None:
        if not _is_trusted(value):
            self.visit([one for one in vars(value).values() if _function(one)])

    def _visit_builtin(self, value: Any) -> None:
        if value.__name__ in _EFFECTS or not _is_trusted(value):
            raise _Unknown

    def _visit_namespace(self, value: Any) -> None:
        self.visit(vars(value))

    def _visit_object(self, value: Any) -> None:
        kind = type(value)
        if hasattr(value, "__wrapped__"):
            self.visit(value.__wrapped__)
        elif kind.__module__ == "builtins":
            if kind not in _CONSTANT:
                raise _Unknown
        elif not _is_trusted(kind):
            self.visit(kind)
            self.visit(getattr(value, "__dict__", {}))

    def _add(self, value: Any) -> None:
        self._seen.add(id(value))
        self.objects.append(value)
        self.parts.append(id(value))

    def _visit_container(self, value: Any) -> None:
        """Adds the elements, not the container, which may be new for each call."""
        is_dict = not isinstance(value, list | tuple)
        self.parts.append((type(value), len(value)))
        if id(value) in self._open:
            return  # It contains itself.
        self._open.add(id(value))
        for item in value:
            self.visit(item)
            if is_dict:
                self.visit(value[item])
        self._open.remove(id(value))

    def _visit_layer(self, layer: Any) -> None:
        kind = type(layer)
        self.parts.append(kind)
        trusted = _is_trusted(kind)
        for name, value in vars(layer).items():
            if name in _BOOKKEEPING or name.startswith("_self_"):
                continue
            self.parts.append(name)
            if trusted and isinstance(value, np.ndarray):
                self._add(value)  # Nobody changes these tables in place.
            else:
                self.visit(value)
        if not trusted:
            for name in ("call", "inject", "initial_state"):
                self._visit_member(kind, name)

    def _visit_member(self, kind: type, name: str) -> None:
        """Visits attributes of a name in a class and its bases, which `super` finds."""
        for base in kind.__mro__:
            member = vars(base).get(name)
            if member is None or id(member) in self._seen or _is_trusted(base):
                continue
            self.visit(member)
            function = _function(member)
            if function is not None:
                for other in _names(function.__code__)[1] - {"build"}:  # It runs once.
                    self._visit_member(kind, other)

    def _visit_function(self, function: Any) -> None:
        for cell in function.__closure__ or ():
            self.visit(cell.cell_contents)
        if _is_trusted(function):
            return
        self.visit((function.__defaults__, function.__kwdefaults__))
        found, attributes = _names(function.__code__)
        if any("random" in name for name in attributes):
            raise _Unknown
        self.parts.append(function.__code__)
        for name in found:
            if name in function.__globals__:
                self.visit(function.__globals__[name], attributes)
            elif name in _EFFECTS or not hasattr(builtins, name):
                raise _Unknown

    def _visit_module(self, module: types.ModuleType, names: frozenset[str]) -> None:
        if _is_trusted(module):
            return
        if not names & set(vars(module)):
            raise _Unknown
        for name in names & set(vars(module)):
            self.visit(vars(module)[name], names)


_VISITORS: Any = (
    ((type(None), bool, int, float, complex, str, bytes, np.generic), "plain"),
    (tf.DType, "plain"),
    ((list, tuple, dict, types.MappingProxyType), "container"),
    ((set, frozenset), "set"),
    ((keras.Variable, tf.Variable), "variable"),
    (keras.layers.Layer, "layer"),
    (np.ndarray, "array"),
    (types.ModuleType, "module"),
    (types.SimpleNamespace, "namespace"),
    (types.FunctionType, "function"),
    (types.MethodType, "method"),
    (functools.partial, "partial"),
    ((property, staticmethod, classmethod), "descriptor"),
    (types.BuiltinFunctionType, "builtin"),
    (type, "class"),
    (object, "object"),
)


@functools.lru_cache(512)
def _visitor(kind: type) -> Any:
    """Returns the method of `_Reader` for values of a type."""
    name = next(name for types_, name in _VISITORS if issubclass(kind, types_))
    return getattr(_Reader, f"_visit_{name}")


def _is_trusted(value: Any) -> bool:
    """Returns whether code of a module, class or function only computes."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    top = (name or "").partition(".")[0]
    if top in _TRUSTED or top == "builtins":
        return True
    if top in sys.stdlib_module_names and top != "__main__":
        raise _Unknown
    return False


def _function(member: Any) -> types.FunctionType | None:
    """Returns the function of a method, a property or a static method."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return function if isinstance(function, types.FunctionType) else None


@functools.lru_cache(512)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the globals that code reads, and its other names, such as attributes."""
    found, others = set(), set()
    for instruction in _instructions(code):
        if "GLOBAL" in instruction.opname or "LOAD_NAME" in instruction.opname:
            found.add(instruction.argval)
        elif "ATTR" in instruction.opname or "METHOD" in instruction.opname:
            others.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            found.add("__import__")
    return frozenset(found), frozenset(others)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)
