"""Makes an image classifier from its config."""

import keras

import deq_keras

from ...errors import InputError
from ...runs.phases import set_strategies
from ...runs.refusals import refusals

_CELLS = {"residualblockcell": deq_keras.layers.ResidualBlockCell}


def build_classifier(config, data, precision):
    """Returns the functional model pixels -> stem -> DEQ(cell) -> head -> logits.

    Pixels are normalised inside, so that a saved model takes raw images. With
    `gradient: unrolled` and a `fixed_point_iteration` of `max_iter: L` and `tol: null`
    it is the explicit weight-tied network of L layers.

    Args:
        config: a `ModelConfig`.
        data: the `ImageData`, for the shapes and the normalisation.
        precision: str. The dtype policy of all layers; logits are float32.

    Raises:
        InputError: if the cell, solver, gradient or regulariser refuses an argument, or
            a step or window is larger than what it goes over.
    """
    policy = keras.DTypePolicy(precision)
    pixels = keras.Input(data.image_shape, name="pixels")
    _check_fits("stem.strides", config.stem.strides, pixels)
    with refusals("model"):
        features = _stem(normalization(data, policy)(pixels), config.stem, policy)
        # The cell keeps the size of the map.
        _check_fits("head.pool_size", config.head.pool_size or 1, features)
        equilibrium = deq_keras.layers.DEQ(
            _cell(config.cell, policy), start=config.start, dtype=policy, name="deq"
        )
        set_strategies(equilibrium, config, "model")
        features = equilibrium(features)
        logits = _head(features, config.head, data.num_classes, policy)
        return keras.Model(pixels, logits, name="classifier")


def normalization(data, policy):
    """Returns the layer that normalises the pixels of an `ImageData`."""
    return keras.layers.Normalization(
        mean=list(data.mean),
        variance=[deviation**2 for deviation in data.standard_deviation],
        dtype=policy,
        name="normalization",
    )


def _check_fits(name, size, features):
    """Larger steps and windows than the map `(batch, height, width, channels)` leave
    one position of it, or none."""
    side = min(features.shape[1:3])
    if size > side:
        raise InputError(
            f"`model.{name}` must be at most {side}, the side of what it goes over. "
            f"Received: {name.rpartition('.')[2]}={size}."
        )


def _stem(features, config, policy):
    features = keras.layers.Conv2D(
        config.filters,
        config.kernel_size,
        strides=config.strides,
        padding="same",
        use_bias=False,
        dtype=policy,
        name="stem_convolution",
    )(features)
    features = keras.layers.BatchNormalization(
        momentum=0.9, dtype=policy, name="stem_normalization"
    )(features)
    return keras.layers.ReLU(dtype=policy, name="stem_activation")(features)


def _head(features, config, num_classes, policy):
    if config.pool_size is None:
        pooling = keras.layers.GlobalAveragePooling2D(dtype=policy, name="head_pooling")
        features = pooling(features)
    else:
        features = keras.layers.AveragePooling2D(
            config.pool_size, dtype=policy, name="head_pooling"
        )(features)
        features = keras.layers.Flatten(dtype=policy, name="head_flattening")(features)
    if config.dropout_rate:
        features = keras.layers.Dropout(
            config.dropout_rate, dtype=policy, name="head_dropout"
        )(features)
    dtype = "float64" if policy.compute_dtype == "float64" else "float32"
    return keras.layers.Dense(num_classes, dtype=dtype, name="logits")(features)


def _cell(config, policy):
    if isinstance(config, str):
        config = {"class_name": config}
    arguments = {key: value for key, value in config.items() if key != "class_name"}
    cls = _CELLS[config["class_name"].replace("_", "").lower()]
    with refusals("model.cell"):
        return cls(**arguments, dtype=policy, name="cell")
