"""Types of config keys that several sections share, with their ranges.

The ranges allow every known use, but no number that would make tensors, graphs or files
too large.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from .errors import fail, join

# Integers become int32 tensors, and numbers become float32 tensors that are squared.
_LARGEST = {int: 2**31 - 1, float: 1e18}
_MAX_LENGTH = 256  # Each element of a list costs a model, a graph or a file.

# Every evaluation needs an entry in the trace, and a state in Broyden's graph.
MAX_BUDGET = 10_000


def integer(ge=1, le=_LARGEST[int]):
    """Returns the type of an integer in a range."""
    return Annotated[int, Field(ge=ge, le=le)]


def number(le=_LARGEST[float], **least):
    """Returns the type of a number in a range, from `ge` or above `gt`."""
    return Annotated[float, Field(le=le, **least)]


Count = integer()
Natural = integer(ge=0)
Seed = integer(ge=0, le=2**31 - 1)  # Limit of NumPy and TensorFlow.
Epochs = integer(le=1_000_000)
Batch = integer(le=2**20)  # Examples that are solved at once.
Drawn = integer(le=10_000_000)  # Examples that are drawn and held in memory.
Budget = integer(le=MAX_BUDGET)
Width = integer(le=2**17)  # A square matrix of this width fills a machine's memory.
Filters = integer(le=2**14)
Layers = integer(le=1000)  # Each adds nodes to a graph.
Window = integer(le=255)  # Side of a convolution's window.
Side = integer(le=2**14)  # Side of an image in pixels.
Vocabulary = integer(le=10_000_000)

Number = number(ge=-_LARGEST[float])
Positive = number(gt=0)
NonNegative = number(ge=0)
Fraction = number(ge=0, le=1)
HeldOut = number(gt=0, le=0.9)  # Fraction that is held out from training.
Rate = number(ge=0, le=0.99)  # Rate of dropout.

Text = Annotated[str, Field(min_length=1, max_length=4096)]
Label = Annotated[Text, Field(max_length=64)]


def _check(is_valid, expected=""):
    """Returns a validator that raises what was expected of an invalid value."""

    def check(value):
        if not is_valid(value):
            raise ValueError(expected)
        return value

    return check


T = TypeVar("T")
Several = Annotated[list[T], Field(max_length=_MAX_LENGTH)]
Some = Annotated[Several[T], Field(min_length=1)]
Pair = Annotated[list[T], Field(min_length=2, max_length=2)]


Range = Annotated[
    Pair[NonNegative],
    AfterValidator(
        _check(lambda pair: pair[0] <= pair[1], "two numbers in ascending order")
    ),
]
Distinct = Annotated[
    Some[T],
    AfterValidator(
        _check(
            lambda values: (
                not any(value in values[:i] for i, value in enumerate(values))
            ),
            "a list without repetitions",
        )
    ),
]


def _check_names(mapping):
    """Requires keys that name folders on all file systems, except `seed_0`, ..."""
    for name in mapping:
        if not re.fullmatch(r"(?!seed_\d+$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
            raise ValueError(
                "a mapping whose keys are names of at most 64 letters, digits, - and "
                "_, but not seed_0"
            )
    if len({name.lower() for name in mapping}) < len(mapping):
        raise ValueError("a mapping whose keys differ in more than their case")
    return mapping


# Mapping of names to dicts of dotted paths and values.
Changes = Annotated[
    dict[str, T], Field(min_length=1, max_length=100), AfterValidator(_check_names)
]


NonEmpty = Annotated[dict[str, Any], Field(min_length=1, max_length=100)]


# A number of a paper, or its text.
Result = Annotated[
    Any,
    AfterValidator(_check(lambda value: type(value) in (str, int, float))),
    WithJsonSchema({"type": "result"}),
]

# The integers 0 and 1 equal false and true.
Switch = Annotated[
    Literal[True, False, "auto"],
    BeforeValidator(_check(lambda value: type(value) is not int)),
]


def _names_class(value):
    name = value.get("class_name") if isinstance(value, dict) else value
    return isinstance(name, str) and bool(name.strip())


# A solver, gradient, regularizer, initial state or cell: `anderson`, or `{class_name:
# anderson, max_iter: 12}`. The library checks names and arguments, see
# `training.runs.components`, and `check_sizes` the numbers.
Component = Annotated[
    Any,
    AfterValidator(_check(_names_class)),
    WithJsonSchema({"type": "component"}),
]

# Largest numbers of arguments of components.
_MAXIMA = {
    name: maximum
    for maximum, names in (
        (100, "history restart num_steps num_probes num_blocks"),
        (255, "kernel_size"),
        (1000, "expansion"),
        (MAX_BUDGET, "max_iter max_steps num_terms num_free_steps num_iterations"),
        (MAX_BUDGET, "checkpoints checkpoint_every"),
        (2**14, "filters groups"),
        (2**17, "units num_heads"),
    )
    for name in names.split()
}


def check_sizes(tree, path="", is_component=False, maximum=None):
    """Raises `InputError` if a number in the arguments of a component is too large.

    It would make tensors, graphs or files too large while the component is built.
    """
    if isinstance(tree, dict):
        is_component = is_component or "class_name" in tree
        for name, part in tree.items():
            check_sizes(part, join(path, name), is_component, _MAXIMA.get(name))
    elif isinstance(tree, list):
        for index, part in enumerate(tree):
            check_sizes(part, join(path, index), is_component, maximum)
    elif is_component and type(tree) in _LARGEST:
        maximum = maximum or _LARGEST[type(tree)]
        if abs(tree) > maximum:
            fail(path, f"a number <= {maximum}", tree)
