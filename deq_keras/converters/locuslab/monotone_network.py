"""The monotone operator networks of the reference (locuslab/monotone_op_net)."""

import re
import warnings

import keras
import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    assign,
    check_dtype,
    cleaned,
    count,
    layer_variables,
    shape,
)
from deq_keras.core.checks import check_optional_count
from deq_keras.layers import (
    MonotoneConvCell,
    MonotoneDenseCell,
    MonotoneMultiscaleCell,
)
from deq_keras.models import MonotoneClassifier

_MODULE = "mon.linear_module."
_G = f"{_MODULE}g"
# Names of convolutions in a list, or of their weights.
_LISTED = re.compile(r"(.*\.(A0|B0|A_n0)\.\d+)")
_SQUARES = re.compile(r".*\.(g|g\.\d+|gn\.\d+)")


def load_monotone_network(
    state_dict, m=1.0, image_size=None, solver="peaceman_rachford", dtype=None
):
    """Returns a `MonotoneClassifier` with the weights of a checkpoint.

    The type of network (dense, a single convolution or several tiers) and its widths
    are read from the weights. The model expects normalized vectors `(batch, features)`
    or images `(batch, height, width, channels)` without a border, which the reference
    adds before its convolutions. Each sample stops individually.

    Args:
        state_dict: Mapping from parameter names to floating-point arrays, as saved by
            the reference. Wrapper prefixes, such as `module.`, are removed.
        m: Positive float. Strong monotonicity of the network, which the weights do not
            determine. Defaults to `1.0`, the value of the published runs.
        image_size: Positive integer. Side of the images of a convolutional network.
            Defaults to `None`, which reads it from the classifier. For a single
            convolution, this is the multiple of 4.
        solver: See `DEQ`. Defaults to `"peaceman_rachford"`.
        dtype: Dtype or policy of the model. Defaults to `None`, Keras' default.

    Raises:
        ValueError: If an argument is invalid or contradicts the weights, if I - W is
            not strongly monotone, or if entries of the checkpoint are missing,
            unexpected, not arrays, non-finite or of a wrong shape. The message names
            all of them.

    For a single convolution with negative g, warns about the reduced strong
    monotonicity: W = (1 - m) I - g A^T A + B - B^T, with an A of norm 1, reduces it to
    m + g |A|^2, where |A| is the largest singular value.
    """
    check_dtype(dtype)
    check_optional_count("image_size", image_size)
    state_dict = cleaned(state_dict, lambda name: False)
    state_dict = {
        f"{name}.weight" if _LISTED.fullmatch(name) else name: array
        for name, array in state_dict.items()
    }
    model = _model(state_dict, image_size, m, solver, dtype)
    read_shape = _read_shape(model)

    def as_keras(name, array):
        if name == "Wout.weight" and read_shape is not None:
            return _channels_last(array, read_shape)
        return _as_keras(name, array)

    assign(_variables(model), state_dict, as_keras)
    _check_monotone(model.deq.cell, state_dict)
    return model


def _model(state_dict, image_size, m, solver, dtype):
    try:
        filters, channels, *_ = shape(state_dict, f"{_MODULE}U.weight", 2, 4)
        num_classes, num_features = shape(state_dict, "Wout.weight", 2)
        num_tiers = count(state_dict, _MODULE + "A0.{}.")
        tiers = [
            shape(state_dict, f"{_MODULE}A0.{i}.weight", 4)[0] for i in range(num_tiers)
        ]
    except ValueError as error:
        raise ValueError(
            "The sizes of a monotone network are read from mon.linear_module.U.weight, "
            "those of A0 and Wout.weight. The checkpoint lacks one, or it has a wrong "
            f"rank: {error}. It holds: {', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error
    dtype = keras.dtype_policies.get(dtype)
    if state_dict[f"{_MODULE}U.weight"].ndim == 2:
        _check_image_size(image_size, None)
        cell, size = MonotoneDenseCell(filters, m, dtype=dtype), (channels,)
    elif tiers:
        cell = MonotoneMultiscaleCell(tiers, m, dtype=dtype)
        side = (_side(num_features, tiers[-1]) - 2) * 2 ** (num_tiers - 1)
        _check_image_size(image_size, range(side, side + 1))
        size = (side, side, channels)
    else:
        sign = -1 if np.any(state_dict.get(_G, 0) < 0) else 1
        cell = MonotoneConvCell(filters, m, sign=sign, dtype=dtype)
        # The classifier reads windows of size 4 of an image padded to side + 2 pixels.
        side = 4 * _side(num_features, filters)
        _check_image_size(image_size, range(side - 2, side + 2))
        size = (image_size or side, image_size or side, channels)
    return MonotoneClassifier(cell, size, num_classes, solver)


def _check_monotone(cell, state_dict):
    """Raises `ValueError` if a negative g removes the strong monotonicity."""
    if getattr(cell, "sign", 1) == 1:
        return
    bound, g = float(cell.strong_monotonicity()), float(state_dict[_G])
    if bound <= 0:
        raise ValueError(
            "I - W must be strongly monotone, but z^T (I - W) z >= (m + g |A|^2) |z|^2 "
            f"with m + g |A|^2 = {bound:.3g}, which is not positive. Give the `m` that "
            f"the network was made with. Received: m={cell.m}, {_G}={g}."
        )
    warnings.warn(
        f"{_G}={g} is negative: I - W is strongly monotone with {bound:.3g} in place "
        f"of m={cell.m}. Further training may lose that.",
        stacklevel=3,
    )


def _side(num_features, filters):
    return round((num_features / filters) ** 0.5)


def _check_image_size(image_size, sides):
    if image_size is None or (sides is not None and image_size in sides):
        return
    expected = (
        "None: a dense network has none" if sides is None else f"one of {list(sides)}"
    )
    raise ValueError(
        f"The weights say that `image_size` is {expected}. Received: "
        f"image_size={image_size}."
    )


def _read_shape(model):
    """Returns `(height, width, channels)` of the maps that the classifier reads."""
    if len(model.input_size) == 1:
        return None
    return tuple(model.get_layer("flattening").input.shape[1:])


def _variables(model):
    """Returns all variables by the reference's names."""
    cell = model.deq.cell
    variables = {
        **layer_variables(f"{_MODULE}U", cell.projection),
        **layer_variables("Wout", model.classifier),
    }
    if isinstance(cell, MonotoneDenseCell):
        own = {"A.weight": cell.symmetric, "B.weight": cell.skew}
    elif isinstance(cell, MonotoneConvCell):
        own = _of_tier(cell.tier, "A", "B", "", "g", "h", "")
    else:
        own = {}
        for i, tier in enumerate(cell.tiers):
            names = (f"{name}.{i}" for name in ("A0", "B0", "A_n0", "g", "h", "gn"))
            own |= _of_tier(tier, *names)
    return {**variables, **{_MODULE + name: own[name] for name in own}}


def _of_tier(tier, symmetric, skew, down, symmetric_scale, skew_scale, down_scale):
    variables = {
        f"{symmetric}.weight": tier.symmetric.direction,
        symmetric_scale: tier.symmetric.scale,
        f"{skew}.weight": tier.skew.direction,
        skew_scale: tier.skew.scale,
    }
    if tier.down is not None:
        variables[f"{down}.weight"] = tier.down.direction
        variables[down_scale] = tier.down.scale
    return variables


def _as_keras(name, array):
    """Returns an array in Keras' layout. A and B of a dense network stay unchanged."""
    if _SQUARES.fullmatch(name):
        return _root(name, array)
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array if name.startswith((f"{_MODULE}A", f"{_MODULE}B")) else array.T


def _root(name, array):
    """Returns the scale, whose square is a weight of the reference."""
    if name == _G:  # The sign is an argument of the cell.
        return np.sqrt(np.abs(array))
    if np.any(array < 0):
        raise ValueError(
            f"{name} must be >= 0: the reference takes its square root in networks of "
            f"several tiers. Received: {name}={array}."
        )
    return np.sqrt(array)


def _channels_last(array, read_shape):
    """Reorders weights for maps that the reference flattens with channels first."""
    height, width, channels = read_shape
    if array.shape[1] != height * width * channels:
        return array.T
    maps = array.reshape(-1, channels, height, width)
    return maps.transpose(2, 3, 1, 0).reshape(-1, len(array))
