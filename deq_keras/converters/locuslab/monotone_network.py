"""The monotone operator networks of the reference (locuslab/monotone_op_net)."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    Variables,
    assign,
    check_dtype,
    count,
    layer_variables,
    read_sizes,
    read_state_dict,
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
    state_dict: Mapping[str, Any],
    m: float = 1.0,
    image_size: int | None = None,
    solver: Any = "peaceman_rachford",
    dtype: Any = None,
) -> MonotoneClassifier:
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
    state_dict = read_state_dict(state_dict, lambda name: False)
    state_dict = {
        f"{name}.weight" if _LISTED.fullmatch(name) else name: array
        for name, array in state_dict.items()
    }
    # 1. Build the model.
    entries = "mon.linear_module.U.weight, those of A0 and Wout.weight"
    with read_sizes("a monotone network", entries, state_dict):
        filters, channels, *_ = shape(state_dict, f"{_MODULE}U.weight", 2, 4)
        num_classes, num_features = shape(state_dict, "Wout.weight", 2)
        num_tiers = count(state_dict, _MODULE + "A0.{}.")
        tiers = [
            shape(state_dict, f"{_MODULE}A0.{i}.weight", 4)[0] for i in range(num_tiers)
        ]
    is_dense = state_dict[f"{_MODULE}U.weight"].ndim == 2
    is_negative = bool(np.any(state_dict.get(_G, 0) < 0))
    # Side of the smallest map, which the classifier reads.
    side = round((num_features / (tiers[-1] if tiers else filters)) ** 0.5)
    dtype = keras.dtype_policies.get(dtype)
    size: tuple[int, ...]
    if is_dense:
        cell, size, sides = MonotoneDenseCell(filters, m, dtype=dtype), (channels,), []
    elif tiers:
        cell = MonotoneMultiscaleCell(tuple(tiers), m, dtype=dtype)
        sides = [(side - 2) * 2 ** (num_tiers - 1)]
        size = (*sides, *sides, channels)
    else:
        cell = MonotoneConvCell(filters, m, sign=-1 if is_negative else 1, dtype=dtype)
        # The classifier reads windows of size 4 of an image padded to side + 2 pixels.
        sides = list(range(4 * side - 2, 4 * side + 2))
        size = (image_size or 4 * side,) * 2 + (channels,)
    if image_size is not None and image_size not in sides:
        expected = f"one of {sides}" if sides else "None: a dense network has none"
        raise ValueError(
            f"The weights say that `image_size` is {expected}. Received: "
            f"image_size={image_size}."
        )
    model = MonotoneClassifier(cell, size, num_classes, solver)

    # 2. Assign the weights.
    def as_keras(name: str, array: np.ndarray) -> np.ndarray:
        if name == "Wout.weight" and not is_dense:
            # The reference flattens maps with channels first.
            height, width, channels = model.get_layer("flattening").input.shape[1:]
            if array.shape[1] == height * width * channels:
                maps = array.reshape(-1, channels, height, width)
                return maps.transpose(2, 3, 1, 0).reshape(-1, len(array))
        return _as_keras(name, array)

    assign(_variables(model), state_dict, as_keras)
    # 3. A negative g may remove the strong monotonicity.
    if is_negative and isinstance(cell, MonotoneConvCell):
        bound, g = float(cell.strong_monotonicity()), float(state_dict[_G])
        if bound <= 0:
            raise ValueError(
                "I - W must be strongly monotone, but z^T (I - W) z >= (m + g |A|^2) "
                f"|z|^2 with m + g |A|^2 = {bound:.3g}, which is not positive. Give "
                "the `m` that the network was made with. Received: "
                f"m={cell.m}, {_G}={g}."
            )
        warnings.warn(
            f"{_G}={g} is negative: I - W is strongly monotone with {bound:.3g} in "
            f"place of m={cell.m}. Further training may lose that.",
            stacklevel=2,
        )
    return model


def _variables(model: MonotoneClassifier) -> Variables:
    """Returns all variables by the reference's names."""
    cell = model.deq.cell
    if isinstance(cell, MonotoneDenseCell):
        own = {"A.weight": cell.symmetric, "B.weight": cell.skew}
    elif isinstance(cell, MonotoneConvCell):
        own = _tier_variables(cell.tier, "A", "B", "", "g", "h", "")
    else:
        own = {}
        for i, tier in enumerate(cell.tiers):
            names = (f"{name}.{i}" for name in ("A0", "B0", "A_n0", "g", "h", "gn"))
            own |= _tier_variables(tier, *names)
    return {
        **layer_variables(f"{_MODULE}U", cell.projection),
        **layer_variables("Wout", model.classifier),
        **{_MODULE + name: variable for name, variable in own.items()},
    }


def _tier_variables(tier: Any, *names: str) -> Variables:
    """Returns the variables of a tier by the names of its three convolutions and of
    their scales."""
    variables = {}
    layers = (tier.symmetric, tier.skew, tier.down)
    for layer, weight, scale in zip(layers, names[:3], names[3:], strict=True):
        if layer is not None:
            variables[f"{weight}.weight"] = layer.direction
            variables[scale] = layer.scale
    return variables


def _as_keras(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array in Keras' layout. A and B of a dense network stay unchanged.

    A weight of the reference that scales a convolution is the square of our scale.
    """
    if name == _G:  # The sign is an argument of the cell.
        return np.sqrt(np.abs(array))
    if _SQUARES.fullmatch(name):
        if np.any(array < 0):
            raise ValueError(
                f"{name} must be >= 0: the reference takes its square root in networks "
                f"of several tiers. Received: {name}={array}."
            )
        return np.sqrt(array)
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array if name.startswith((f"{_MODULE}A", f"{_MODULE}B")) else array.T
