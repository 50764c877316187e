"""Samples that an export is checked with."""

import numpy as np
from keras import tree

from deq_keras.serving.signature import named

_NUM_DRAWN = 3


def checked_samples(signature, samples):
    """Returns samples as a dict of arrays.

    Args:
        signature: Nest of `tf.TensorSpec`s of what is sent.
        samples: Nest of arrays like it, `(samples, ...)`. `None`: drawn.

    Raises:
        ValueError: If they do not fit, or nothing can be drawn.
    """
    specs = named(signature)
    if samples is None:
        return _drawn(specs)
    try:
        tree.assert_same_structure(signature, samples)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`samples` must have the structure of what is sent to the model. Expected: "
            f"{signature}. Received: {type(samples).__name__} ({error})."
        ) from error
    arrays = dict(zip(specs, map(np.asarray, tree.flatten(samples)), strict=True))
    for name, array in arrays.items():
        if not len(array) or not specs[name].shape.is_compatible_with(
            (specs[name].shape[0], *array.shape[1:])
        ):
            raise ValueError(
                "`samples` must have the shapes of what is sent to the model, and at "
                f"least one sample. Expected: {name} of shape {specs[name].shape}. "
                f"Received: shape {array.shape}."
            )
    return {name: _as(array, specs[name].dtype) for name, array in arrays.items()}


def _drawn(specs):
    generator = np.random.default_rng(0)
    return {name: _draw(name, spec, generator) for name, spec in specs.items()}


def _draw(name, spec, generator):
    shape = (_NUM_DRAWN, *spec.shape[1:])
    if None in shape or not (spec.dtype.is_floating or spec.dtype.is_integer):
        raise ValueError(
            "Give `samples`, with which the exported file is checked: nothing can be "
            f"drawn for an input like this. Received: samples=None, {name} of shape "
            f"{spec.shape} and dtype {spec.dtype.name}."
        )
    if spec.dtype.is_floating:
        return _as(generator.normal(size=shape), spec.dtype)
    # Ids and pixels are not negative, and small ones are known everywhere.
    return _as(generator.integers(0, 2, size=shape), spec.dtype)


def _as(array, dtype):
    return array.astype(dtype.as_numpy_dtype)
