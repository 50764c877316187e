"""All public names are in one file, so that a change of them is seen in a review.

python -m tests.test_public_names > tests/public_names.txt
"""

import importlib
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


if __name__ == "__main__":
    print("\n".join(public_names()))
