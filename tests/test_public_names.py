"""All public names are in one file, so that a change of them is seen in a review.

python -m tests.test_public_names > tests/public_names.txt
"""

import importlib
import inspect
import pathlib

import deq_keras

FILE = pathlib.Path(__file__).with_name("public_names.txt")


def public_names():
    """Returns the sorted full names in `__all__` of every public package."""
    packages = ["deq_keras", "deq_keras.converters.locuslab"]
    packages += [f"deq_keras.{name}" for name in deq_keras.__all__ if name.islower()]
    return sorted(
        f"{package}.{name}"
        for package in packages
        for name in importlib.import_module(package).__all__
    )


def test_public_names_are_listed():
    """A name that leaves needs a line in the changelog with its successor."""
    assert FILE.read_text(encoding="utf-8").splitlines() == public_names()


def _public_functions():
    """Yields the functions, constructors and methods that public names make public."""
    for name in public_names():
        package, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(package), attribute)
        if inspect.isfunction(value):
            yield value
        for cls in inspect.getmro(value) if inspect.isclass(value) else ():
            for key, member in vars(cls).items():
                is_public = key == "__init__" or not key.startswith("_")
                if is_public and cls.__module__.startswith("deq_keras"):
                    function = getattr(member, "fset", None)
                    function = function or getattr(member, "__func__", member)
                    if inspect.isfunction(function):
                        yield function


def test_public_functions_are_annotated():
    functions = list(_public_functions())
    assert len(functions) > 300
    for function in functions:
        for one in inspect.signature(function).parameters.values():
            is_free = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            if not is_free and one.name not in ("self", "cls"):
                assert one.annotation is not one.empty, (function, one.name)


if __name__ == "__main__":
    print("\n".join(public_names()))
