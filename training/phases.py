"""Phases of a run: epochs with a solver, a gradient and a regulariser of their own."""

import dataclasses
from typing import NamedTuple

import deq_keras
from training.errors import InputError
from training.schema import INHERIT, PhaseConfig

PARTS = ("solver", "gradient", "jacobian_regularizer")


class PhaseSpan(NamedTuple):
    """A phase and the epochs that it lasts.

    Attributes:
        phase: the `PhaseConfig`, nothing inherited any more.
        path: str. Where it stands in the config, for messages.
        epochs: `range` of epochs, counted from the start of the run.
    """

    phase: PhaseConfig
    path: str
    epochs: range


def phase_spans(config):
    """Returns the `PhaseSpan`s of a config, one after the other."""
    spans, start = [], 0
    for index, phase in enumerate(config.phases):
        inherited = {
            part: getattr(config.model, part)
            for part in PARTS
            if getattr(phase, part) == INHERIT
        }
        stop = start + phase.epochs
        phase = dataclasses.replace(phase, **inherited)
        spans.append(PhaseSpan(phase, f"phases.{index}", range(start, stop)))
        start = stop
    return spans


def set_parts(layer, config, path):
    """Sets solver, gradient and regulariser of a DEQ layer from a config that has them.

    Raises:
        InputError: if one of them refuses its arguments. The message names `path`.
    """
    for part in PARTS:
        try:
            setattr(layer, part, getattr(config, part))
        except ValueError as error:
            raise InputError(f"`{path}.{part}`: {error}") from error


def equilibrium_layer(model):
    """Returns the one `DEQ` layer of a model."""
    layers = [
        layer for layer in model.layers if isinstance(layer, deq_keras.layers.DEQ)
    ]
    if len(layers) != 1:
        raise InputError(
            f"The model must have exactly one DEQ layer. Received: {len(layers)}."
        )
    return layers[0]
