"""Builds multiscale DEQs, and explicit networks as baselines."""

import keras
import keras_hub

from deq_keras import models
from deq_keras.converters import locuslab

from ...errors import InputError, config_errors

_RESNETS = {
    "resnet_18": ("basic_block", (2, 2, 2, 2), (64, 128, 256, 512)),
    "resnet_101": ("bottleneck_block", (3, 4, 23, 3), (64, 128, 256, 512)),
}
_DENSENETS = {"densenet_121": (6, 12, 24, 16)}


def normalization(data, policy):
    """Returns the layer that normalizes the pixels of `ImageData`."""
    return _normalization(data.mean, data.standard_deviation, policy)


def normalization_of(task, precision):
    """Returns the layer that normalizes pixels like the preprocessor of a task."""
    converter = task.preprocessor.image_converter
    deviations = [1 / scale for scale in converter.scale]
    means = [
        -offset * deviation
        for offset, deviation in zip(converter.offset, deviations, strict=True)
    ]
    return _normalization(means, deviations, keras.DTypePolicy(precision))


def _normalization(means, deviations, policy):
    return keras.layers.Normalization(
        mean=list(means),
        variance=[deviation**2 for deviation in deviations],
        dtype=policy,
        name="normalization",
    )


def build_backbone(config, image_shape, precision, **arguments):
    """Builds the `MDEQBackbone` of a config, and loads its initial weights if any.

    Raises:
        InputError: If an argument of the model is invalid, or the weights belong to
            another model.
    """
    with config_errors("model"):
        backbone = models.MDEQBackbone(
            config.filters,
            expansion=config.expansion,
            groups=config.groups,
            num_downsamplings=config.num_downsamplings,
            dropout=config.dropout,
            weight_normalization=config.weight_normalization,
            block_affine=config.block_affine,
            fuse_affine=config.fuse_affine,
            post_affine=config.post_affine,
            solver=config.solver,
            gradient=config.gradient,
            regularizer=config.regularizer,
            initial_state=config.initial_state,
            image_shape=image_shape,
            dtype=keras.DTypePolicy(precision),
            **arguments,
        )
    path = config.initial_weights
    if path is None:
        return backbone
    try:
        weights = keras.models.load_model(path, compile=False).backbone.get_weights()
        backbone.set_weights(weights)
    # A corrupt archive can raise any error of the libraries that read it.
    except Exception as error:
        raise InputError(
            "`model.initial_weights` must be a .keras file of an MDEQ with the same "
            f"backbone. Received: initial_weights={path!r}. ({error})"
        ) from error
    return backbone


def converter(data):
    """Returns the `MDEQImageConverter` that normalizes raw images of `ImageData`."""
    return models.MDEQImageConverter(
        scale=[1 / deviation for deviation in data.standard_deviation],
        offset=[
            -mean / deviation
            for mean, deviation in zip(data.mean, data.standard_deviation, strict=True)
        ],
    )


def convert(state_dict, config, num_classes, preprocessor, precision):
    """Returns the multiscale DEQ of a state dict of the authors' code.

    Args:
        state_dict: Dict from names to arrays.
        config: `MDEQBackboneConfig`, for all that the weights do not determine.
        num_classes: Integer. Number of classes of the data.
        preprocessor: The preprocessor of the model.
        precision: String. Dtype policy.

    Raises:
        ValueError: If the state dict does not match the arguments.
    """
    model = locuslab.load_mdeq(
        state_dict,
        solver=config.solver,
        gradient=config.gradient,
        regularizer=config.regularizer,
        dtype=keras.DTypePolicy(precision),
        num_groups=config.groups,
        downsample_times=config.num_downsamplings,
        num_classes=num_classes,
    )
    model.preprocessor = preprocessor
    return model


def build_mdeq(config, data, precision):
    """Builds the `MDEQImageClassifier` of an `MDEQConfig`, for raw images.

    Raises:
        InputError: If an argument of the model is invalid.
    """
    if not config.head_filters:
        raise InputError(
            "`model.head_filters` must have one entry for each scale. "
            "Received: head_filters=[]."
        )
    backbone = build_backbone(config, data.image_shape, precision)
    with config_errors("model"):
        return models.MDEQImageClassifier(
            backbone,
            data.num_classes,
            config.head_filters,
            config.final_filters,
            preprocessor=models.MDEQImageClassifierPreprocessor(converter(data)),
        )


def build_explicit(config, data, precision):
    """Builds the functional classifier of `MDEQConfig.explicit`, for raw images."""
    policy = keras.DTypePolicy(precision)
    pixels = keras.Input(data.image_shape, name="pixels")
    images = normalization(data, policy)(pixels)
    if config.explicit.upsampling > 1:
        images = keras.layers.UpSampling2D(
            config.explicit.upsampling, interpolation="bilinear", dtype=policy
        )(images)
    network = _network(config.explicit, data.image_shape[-1], policy)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # The published value. 0.99 is too slow here.
    features = network(images)
    features = keras.layers.GlobalAveragePooling2D(dtype=policy)(features)
    logits = keras.layers.Dense(data.num_classes, dtype="float32", name="logits")
    return keras.Model(pixels, logits(features), name="classifier")


def _network(config, num_channels, policy):
    """Builds the backbone of an `ExplicitNetworkConfig`."""
    image_shape = (None, None, num_channels)
    if config.network == "resnet_8":
        return _resnet_8(config.filters or 16, image_shape, policy)
    if config.network in _RESNETS:
        if config.filters is not None:
            raise InputError(
                f"`model.explicit.filters` must be null for {config.network}. "
                f"Received: filters={config.filters}."
            )
        block_type, num_blocks, filters = _RESNETS[config.network]
        return keras_hub.models.ResNetBackbone(
            input_conv_filters=[64],
            input_conv_kernel_sizes=[7],
            stackwise_num_filters=list(filters),
            stackwise_num_blocks=list(num_blocks),
            stackwise_num_strides=[1, 2, 2, 2],
            block_type=block_type,
            image_shape=image_shape,
            dtype=policy,
        )
    # KerasHub's DenseNet reads the dtype of its layers from the global policy.
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return keras_hub.models.DenseNetBackbone(
            stackwise_num_repeats=list(_DENSENETS[config.network]),
            growth_rate=config.filters or 32,
            image_shape=image_shape,
        )
    finally:
        keras.config.set_dtype_policy(previous)


def _resnet_8(filters, image_shape, policy):
    """Builds the ResNet of six convolutions in three stages that He et al. (2016) use
    for CIFAR-10, with one block in a stage."""

    def convolve(features, filters, size, strides):
        features = keras.layers.Conv2D(
            filters, size, strides, padding="same", use_bias=False, dtype=policy
        )(features)
        return keras.layers.BatchNormalization(dtype=policy)(features)

    images = keras.Input(image_shape)
    state = keras.ops.relu(convolve(images, filters, 3, 1))
    for stage in range(3):
        width, strides = 2**stage * filters, min(stage + 1, 2)
        update = keras.ops.relu(convolve(state, width, 3, strides))
        update = convolve(update, width, 3, 1)
        shortcut = state if stage == 0 else convolve(state, width, 1, strides)
        state = keras.ops.relu(shortcut + update)
    return keras.Model(images, state, name="resnet_8")
