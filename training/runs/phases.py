"""Phases of a run: epochs with their own strategies."""

import itertools
import math
from typing import NamedTuple

import keras

import deq_keras

from ..config.fields import INHERIT, PhaseConfig
from ..errors import InputError, config_errors
from .components import STRATEGIES

# Limit for weight increments, each of which recompiles the model.
_MOST_RISES = 1000


class PhaseSpan(NamedTuple):
    """A phase, or a section of a phase, with its epochs.

    Attributes:
        phase: `PhaseConfig` with all inherited values resolved.
        path: String. Path of the config key, for messages.
        epochs: `range` of epochs, counted from the start of the run.
        steps: `range` of training steps, counted from the start of the run. Only the
            last epoch can have fewer steps than the others.
    """

    phase: PhaseConfig
    path: str
    epochs: range
    steps: range


def num_epochs(phases, steps_per_epoch):
    """Returns the number of epochs of phases; the last one of a phase may be short.

    Args:
        phases: List of `PhaseConfig`.
        steps_per_epoch: Function that returns the number of training steps of a whole
            epoch. It is called only for a phase in steps: it may load the data.
    """
    return sum(
        phase.epochs or math.ceil(phase.steps / steps_per_epoch()) for phase in phases
    )


def phase_spans(config, steps_per_epoch):
    """Returns the list of `PhaseSpan`s of a config.

    A phase whose regularizer's weight rises has one span per weight.

    Args:
        config: A `VariantsConfig`.
        steps_per_epoch: Positive integer. Training steps of a whole epoch.

    Raises:
        InputError: If a weight increment or a ramp does not fit the phase.
    """
    spans, start, first_step = [], 0, 0
    for index, phase in enumerate(config.phases):
        inherited = {
            name: getattr(config.model, name)
            for name in STRATEGIES
            if getattr(phase, name) == INHERIT
        }
        stop = start + num_epochs([phase], lambda: steps_per_epoch)
        last_step = first_step + (phase.steps or phase.epochs * steps_per_epoch)
        phase = phase.model_copy(update=inherited)
        epochs, steps = range(start, stop), range(first_step, last_step)
        span = PhaseSpan(phase, f"phases.{index}", epochs, steps)
        if phase.regularizer_ramp and phase.regularizer_weight_increment:
            raise InputError(
                f"`{span.path}.regularizer_ramp` and `{span.path}."
                "regularizer_weight_increment` both change the weight. Set one of them "
                "to null. Received: both."
            )
        spans += _spans_of_weights(span, steps_per_epoch)
        start, first_step = stop, last_step
    return spans


def regularizer_schedule(layer, span, accumulation_steps=1):
    """Returns the callback of a phase's `regularizer_ramp`.

    Args:
        layer: `DEQ` layer.
        span: `PhaseSpan` with a ramp.
        accumulation_steps: Positive integer. Training steps per update of the
            optimizer. Defaults to 1.

    Raises:
        InputError: If the regularizer of the layer is `None`.
    """
    ramp = span.phase.regularizer_ramp
    start, total = span.steps.start, len(span.steps)

    def linear(ends):
        if ends is None:
            return None
        first, last = ends

        def value(update):
            step = int(update) * accumulation_steps
            # The last update of the previous phase may still be incomplete.
            return first + (last - first) * max(step - start, 0) / total

        return value

    with config_errors(f"{span.path}.regularizer_ramp"):
        return deq_keras.callbacks.RegularizerSchedule(
            layer, linear(ramp.factor), linear(ramp.probability)
        )


def _spans_of_weights(span, steps_per_epoch):
    """Splits a span where the weight of its regularizer rises."""
    increment = span.phase.regularizer_weight_increment
    if increment is None:
        return [span]
    first, every = span.epochs.start, increment.every_epochs
    rises = range((first // every + 1) * every, span.epochs.stop, every)
    if len(rises) > _MOST_RISES:
        raise InputError(
            f"`{span.path}.regularizer_weight_increment.every_epochs` must be larger, "
            f"so that the weight rises at most {_MOST_RISES} times. Received: "
            f"every_epochs={every}, and {len(span.epochs)} epochs."
        )
    bounds = [first, *rises, span.epochs.stop]
    spans = []
    for i, epochs in enumerate(itertools.pairwise(bounds)):
        # A slice that exceeds the span ends with it, in the last, short epoch.
        steps = slice(*((epoch - first) * steps_per_epoch for epoch in epochs))
        phase = _heavier(span, i * increment.amount)
        spans.append(PhaseSpan(phase, span.path, range(*epochs), span.steps[steps]))
    return spans


def _heavier(span, amount):
    """Returns the phase of a span with an increased weight of its regularizer."""
    config = span.phase.regularizer
    with config_errors(f"{span.path}.regularizer"):
        regularizer = deq_keras.regularizers.get(config)
    if not hasattr(regularizer, "weight"):
        raise InputError(
            f"`{span.path}.regularizer_weight_increment` needs a regularizer whose "
            "weight rises. Set the phase's regularizer, or the increment to null. "
            f"Received: regularizer={config}."
        )
    config = {
        "class_name": keras.saving.get_registered_name(type(regularizer)),
        **regularizer.get_config(),
        "weight": regularizer.weight + amount,
    }
    return span.phase.model_copy(update={"regularizer": config})


def equilibrium(cell, config, dtype=None):
    """Returns the `DEQ` layer `deq` of a cell with the strategies of a config.

    Args:
        cell: `EquilibriumCell`.
        config: The `model` of a config, with all strategies.
        dtype: Dtype policy of the layer. Defaults to `None`, the policy of Keras.

    Raises:
        InputError: If an argument of a strategy is invalid.
    """
    layer = deq_keras.layers.DEQ(
        cell, initial_state=config.initial_state, dtype=dtype, name="deq"
    )
    set_strategies(layer, config, "model")
    return layer


def set_strategies(layer, config, path):
    """Sets the strategies of a DEQ layer, such as its solver, from a config.

    Raises:
        InputError: If an argument of a strategy is invalid. The message names `path`.
    """
    for name in STRATEGIES:
        with config_errors(f"{path}.{name}"):
            setattr(layer, name, getattr(config, name))
