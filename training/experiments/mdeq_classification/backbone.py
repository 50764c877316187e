"""Makes what the experiments on a multiscale DEQ have in common."""

import keras

from deq_keras import models

from ...errors import InputError
from ...runs.refusals import refusals


def build_backbone(config, image_shape, precision, **arguments):
    """Returns the `MDEQBackbone` of a config, with its initial weights if it has any.

    Raises:
        InputError: if the model refuses an argument, or the weights are not those of
            such a model.
    """
    with refusals("model"):
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
            start=config.start,
            image_shape=image_shape,
            dtype=keras.DTypePolicy(precision),
            **arguments,
        )
    if config.initial_weights is not None:
        _start_from(backbone, config.initial_weights)
    return backbone


def converter(data):
    """Returns what normalises the raw images of a data set."""
    return models.MDEQImageConverter(
        scale=[1 / deviation for deviation in data.standard_deviation],
        offset=[
            -mean / deviation
            for mean, deviation in zip(data.mean, data.standard_deviation, strict=True)
        ],
    )


def _start_from(backbone, path):
    try:
        weights = keras.models.load_model(path, compile=False).backbone.get_weights()
        backbone.set_weights(weights)
    # A damaged archive raises whatever the library raises that reads the damage.
    except Exception as error:
        raise InputError(
            "`model.initial_weights` must be a .keras file of an MDEQ with the same "
            f"backbone. Received: initial_weights={path!r}. ({error})"
        ) from error
