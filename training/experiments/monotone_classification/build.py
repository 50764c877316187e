"""Makes a monotone classifier from its config."""

import keras

import deq_keras

from ...runs.phases import set_strategies
from ...runs.refusals import refusals
from ..classification.build import normalization

_CELLS = {
    cls.__name__.lower(): cls
    for cls in (
        deq_keras.layers.MonotoneDenseCell,
        deq_keras.layers.MonotoneConvCell,
        deq_keras.layers.MonotoneMultiscaleCell,
    )
}


def build_monotone(config, data, precision):
    """Returns the `MonotoneClassifier` of raw pixels.

    Args:
        config: a `MonotoneConfig`.
        data: the `ImageData`, for the shapes and the normalisation.
        precision: str. The dtype policy of all layers; logits are float32.

    Raises:
        InputError: if the cell, solver, gradient or regulariser refuses an argument, or
            the cell the size of the images.
    """
    policy = keras.DTypePolicy(precision)
    with refusals("model"):
        model = deq_keras.models.MonotoneClassifier(
            _cell(config.cell, policy),
            data.image_shape,
            data.num_classes,
            start=config.start,
            preprocessing=normalization(data, policy),
            name="classifier",
        )
        set_strategies(model.deq, config, "model")
        return model


def _cell(config, policy):
    if isinstance(config, str):
        config = {"class_name": config}
    arguments = {key: value for key, value in config.items() if key != "class_name"}
    cls = _CELLS[config["class_name"].replace("_", "").lower()]
    with refusals("model.cell"):
        return cls(**arguments, dtype=policy, name="cell")
