"""Build image classifiers from their configs; `model.name` chooses the kind."""

import keras

import deq_keras

from ...errors import InputError, config_errors
from ...runs.components import find_class
from ...runs.phases import equilibrium, set_strategies
from .mdeq import build_explicit, build_mdeq, normalization

_CELLS = {"residual_block_cell": deq_keras.layers.ResidualBlockCell}
_MONOTONE_CELLS = {
    "monotone_dense_cell": deq_keras.layers.MonotoneDenseCell,
    "monotone_conv_cell": deq_keras.layers.MonotoneConvCell,
    "monotone_multiscale_cell": deq_keras.layers.MonotoneMultiscaleCell,
}


def build_model(config, data, precision):
    """Builds the classifier of a config, for raw pixels.

    Args:
        config: `SingleScaleConfig`, `MDEQConfig` or `MonotoneConfig`.
        data: `ImageData`. Defines the shapes and the normalization.
        precision: String. Dtype policy of all layers. Logits are float32.

    Raises:
        InputError: If an argument of the model is invalid.
    """
    if config.name == "single_scale":
        return build_single_scale(config, data, precision)
    if config.name == "monotone":
        return build_monotone(config, data, precision)
    build = build_mdeq if config.explicit is None else build_explicit
    return build(config, data, precision)


def build_single_scale(config, data, precision):
    """Builds the functional model pixels -> stem -> DEQ(cell) -> head -> logits.

    The model normalizes pixels, so a saved model accepts raw images. With `gradient:
    unrolled` and a `fixed_point_iteration` with `max_iter: L` and `tol: null`, it is an
    explicit weight-tied network of L layers.

    Args:
        config: `SingleScaleConfig`.
        data: `ImageData`. Defines the shapes and the normalization.
        precision: String. Dtype policy of all layers. Logits are float32.

    Raises:
        InputError: If an argument of the cell, solver, gradient or regularizer is
            invalid, or a stride or window is larger than its input.
    """
    policy = keras.DTypePolicy(precision)
    pixels = keras.Input(data.image_shape, name="pixels")
    _check_fits("stem.strides", config.stem.strides, pixels)
    with config_errors("model"):
        features = stem(normalization(data, policy)(pixels), config.stem, policy)
        # The cell does not change the size of the map.
        _check_fits("head.pool_size", config.head.pool_size or 1, features)
        base = deq_keras.layers.EquilibriumCell
        cell = _cell(config.cell, policy, _CELLS, base)
        features = equilibrium(cell, config, policy)(features)
        logits = head(features, config.head, data.num_classes, policy)
        return keras.Model(pixels, logits, name="classifier")


def build_monotone(config, data, precision):
    """Builds the `MonotoneClassifier` for raw pixels.

    Args:
        config: `MonotoneConfig`.
        data: `ImageData`. Defines the shapes and the normalization.
        precision: String. Dtype policy of all layers. Logits are float32.

    Raises:
        InputError: If an argument of the cell, solver, gradient or regularizer, or the
            size of the images, is invalid.
    """
    policy = keras.DTypePolicy(precision)
    with config_errors("model"):
        model = deq_keras.models.MonotoneClassifier(
            _cell(config.cell, policy, _MONOTONE_CELLS),
            data.image_shape,
            data.num_classes,
            initial_state=config.initial_state,
            preprocessing=normalization(data, policy),
            name="classifier",
        )
        set_strategies(model.deq, config, "model")
        return model


def _check_fits(name, size, features):
    """Raises `InputError` if strides or windows exceed the sides of the features."""
    side = min(features.shape[1:3])
    if size > side:
        raise InputError(
            f"`model.{name}` must be at most {side}, the side of what it goes over. "
            f"Received: {name.rpartition('.')[2]}={size}."
        )


def stem(features, config, policy=None):
    """Applies the layers of a `StemConfig`, by default in the policy of Keras."""
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


def head(features, config, num_classes, policy=None):
    """Returns logits by the layers of a `HeadConfig`; see `stem`."""
    policy = policy or keras.config.dtype_policy()
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


def _cell(config, policy, classes, base=None):
    with config_errors("model.cell"):
        cls, arguments = find_class("model.cell", config, classes, base)
        return cls(**arguments, dtype=policy, name="cell")
