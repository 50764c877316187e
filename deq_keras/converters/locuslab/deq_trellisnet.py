"""The DEQ-TrellisNet of the reference (PyTorch, locuslab/deq, version 1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    Variables,
    assign,
    check_dtype,
    layer_variables,
    read_sizes,
    read_state_dict,
    shape,
    without_ones,
)
from deq_keras.core.checks import check_count, check_counts
from deq_keras.models import DEQTrellisNetBackbone, DEQTrellisNetCausalLM

_CONVOLUTION = "trellisnet.func.full_conv"
_INJECTION = "trellisnet.inject_conv"
# Entries that copy other entries.
_IGNORED = ("trellisnet.func_copy.", "trellisnet.deq.")


def load_deq_trellisnet(
    state_dict: Mapping[str, Any],
    dilation: int = 1,
    splits: Sequence[int] = (),
    solver: Any = "anderson",
    gradient: Any = "neumann",
    regularizer: Any = "contraction",
    dtype: Any = None,
) -> DEQTrellisNetCausalLM:
    """Returns a `DEQTrellisNetCausalLM` with the weights of a checkpoint.

    The sizes are read from the shapes of the weights. The model has a `memory_length`
    of 1: as in the reference, the next window of a text sees the last hidden and cell
    state of a window. The model does not use dropout.

    Args:
        state_dict: Mapping from parameter names to floating-point arrays, with or
            without weight normalization and tied weights, with one softmax or a
            mixture. Wrapper prefixes, such as `module.`, are removed.
        dilation: Positive integer. The reference's `dilation`. Defaults to `1`.
        splits: List of integers. The `splits` of the reference's separate module
            `SplitCrossEntropyLoss`. If passed, `state_dict` must contain its
            `tail_vectors` and `tail_bias`. Defaults to `()`, a full softmax.
        solver: See `DEQ`. Defaults to `"anderson"`.
        gradient: See `DEQ`. Defaults to `"neumann"`.
        regularizer: See `DEQ`. Defaults to `"contraction"`.
        dtype: Dtype or policy of the model. Defaults to `None`, Keras' default.

    Raises:
        ValueError: If an argument is invalid, or if entries of the checkpoint are
            missing, unexpected, not arrays, non-finite or of a wrong shape. The message
            names all of them.
    """
    check_count("dilation", dilation)
    check_counts("splits", splits, allow_empty=True)
    check_dtype(dtype)
    state_dict = read_state_dict(state_dict, lambda name: name.startswith(_IGNORED))
    # With weight dropout, the reference adds this suffix to the original weights.
    state_dict = {
        name.removesuffix("_raw"): array for name, array in state_dict.items()
    }
    is_normalized = f"{_CONVOLUTION}.weight_g" in state_dict
    weight = f"{_CONVOLUTION}.{'weight_v' if is_normalized else 'weight'}"
    entries = f"encoder.weight, {weight}, and decoder.weight or mixsoft.prior.weight"
    with read_sizes("a DEQ-TrellisNet", entries, state_dict):
        gates, units, kernel_size = shape(state_dict, weight, 3)
        vocabulary_size, embedding_dim = shape(state_dict, "encoder.weight", 2)
        num_experts, hidden_dim = 1, embedding_dim
        if "mixsoft.prior.weight" in state_dict:
            num_experts, hidden_dim = shape(state_dict, "mixsoft.prior.weight", 2)
        elif "decoder.weight" in state_dict:
            hidden_dim = shape(state_dict, "decoder.weight", 2)[1]
    if gates != 4 * units or hidden_dim >= units or kernel_size < 2:
        raise ValueError(
            f"{weight} must have four gates of all channels, more channels than the "
            f"{hidden_dim} of the output, and two taps or more. "
            f"Received: the shape {(gates, units, kernel_size)}."
        )
    backbone = DEQTrellisNetBackbone(
        vocabulary_size=vocabulary_size,
        hidden_dim=hidden_dim,
        intermediate_dim=units - hidden_dim,
        embedding_dim=embedding_dim,
        kernel_size=kernel_size,
        weight_normalization=is_normalized,
        cutoffs=tuple(splits),
        dilation_rate=dilation,
        memory_length=1,
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    is_tied = "decoder.weight" not in state_dict or np.array_equal(
        state_dict["decoder.weight"], state_dict["encoder.weight"]
    )
    model = DEQTrellisNetCausalLM(
        backbone, tie_weights=is_tied, num_experts=num_experts
    )
    assign(_variables(model), state_dict, _as_keras)
    return model


def _variables(model: DEQTrellisNetCausalLM) -> Variables:
    """Returns all variables by the reference's names. Tied variables have several."""
    cell, softmax = model.backbone.deq.cell, model.softmax
    variables = {
        **layer_variables(_CONVOLUTION, cell.convolution),
        **layer_variables(_INJECTION, cell.injection_convolution),
        "encoder.weight": model.backbone.token_embedding.tables[0],
    }
    if model.num_experts > 1:
        return {
            **variables,
            **layer_variables("mixsoft.prior", softmax.prior),
            **layer_variables("mixsoft.latent", softmax.latent),
            "decoder.weight": softmax.table,
            "decoder.bias": softmax.bias,
        }
    variables["decoder.weight"] = softmax.tables[0]
    variables["decoder.bias"] = softmax.biases[0]
    if softmax.num_clusters:
        variables["tail_vectors"] = softmax.cluster_weight
        variables["tail_bias"] = softmax.cluster_bias
    return variables


def _as_keras(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array in Keras' layout: transposes kernels (out, in) to (in, out), and
    (out, in, taps) to (taps, in, out)."""
    if name.endswith(".weight_g"):
        return without_ones(array, 1)
    is_kernel = name.endswith((".weight", ".weight_v"))
    is_kernel = is_kernel and not name.startswith(("encoder.", "decoder."))
    return array.T if is_kernel else array
