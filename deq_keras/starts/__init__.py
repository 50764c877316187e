"""Where a solve begins."""

import keras

from deq_keras import serialization
from deq_keras.serialization import Config
from deq_keras.starts.cell_start import CellStart
from deq_keras.starts.learned_start import LearnedStart
from deq_keras.starts.mixed_start import MixedStart
from deq_keras.starts.names import SHORT_NAMES, UNMIXED
from deq_keras.starts.normal_start import NormalStart
from deq_keras.starts.start import Start
from deq_keras.starts.zero_start import ZeroStart

__all__ = [
    "ALL_OBJECTS",
    "CellStart",
    "LearnedStart",
    "MixedStart",
    "NormalStart",
    "Start",
    "ZeroStart",
    "deserialize",
    "get",
    "serialize",
]

ALL_OBJECTS = (*UNMIXED, MixedStart)


def get(identifier: str | Config | Start) -> Start:
    """Returns a start from a name, a config dict or an instance.

    Args:
        identifier: `"cell"`, `"zeros"`, `"normal"`, `"mixed"`, `"learned"`; a dict like
            `{"class_name": "NormalStart", "stddev": 0.3}` or what `serialize` returns;
            or a `Start`, which is returned as it is.

    Raises:
        ValueError: For an unknown name or argument.
    """
    names = {**SHORT_NAMES, "mixed": MixedStart}
    return serialization.get(identifier, Start, ALL_OBJECTS, "start", names)


def serialize(start: Start) -> Config:
    """Returns the config dict of a start, which `deserialize` turns back."""
    return keras.saving.serialize_keras_object(start)


def deserialize(config: str | Config) -> Start:
    """Returns the start of a config dict."""
    return get(config)
