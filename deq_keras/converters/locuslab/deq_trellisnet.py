"""The DEQ-TrellisNet of the reference (PyTorch, locuslab/deq, version 1)."""

import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    assign,
    check_dtype,
    cleaned,
    layer_variables,
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
    state_dict,
    dilation=1,
    splits=(),
    solver="anderson",
    gradient="neumann",
    regularizer="contraction",
    dtype=None,
):
    """Returns a `DEQTrellisNetCausalLM` with the weights of a checkpoint.

    The sizes are read from the shapes of the weights. The model has a `memory_length`
    of 1: as in the reference, the next segment sees the last hidden and cell state of a
    segment. The model does not use dropout.

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
    state_dict = cleaned(state_dict, lambda name: name.startswith(_IGNORED))
    # With weight dropout, the reference adds this suffix to the original weights.
    state_dict = {
        name.removesuffix("_raw"): array for name, array in state_dict.items()
    }
    backbone_arguments, task_arguments = _architecture(state_dict)
    backbone = DEQTrellisNetBackbone(
        **backbone_arguments,
        cutoffs=tuple(splits),
        dilation_rate=dilation,
        memory_length=1,
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    model = DEQTrellisNetCausalLM(backbone, **task_arguments)
    assign(_variables(model), state_dict, _as_keras)
    return model


def _architecture(state_dict):
    """Returns arguments of the backbone and of the task."""
    is_normalized = f"{_CONVOLUTION}.weight_g" in state_dict
    weight = "weight_v" if is_normalized else "weight"
    try:
        gates, units, kernel_size = shape(state_dict, f"{_CONVOLUTION}.{weight}", 3)
        vocabulary_size, embedding_dim = shape(state_dict, "encoder.weight", 2)
        num_experts, hidden_dim = _softmax_sizes(state_dict, embedding_dim)
    except ValueError as error:
        raise ValueError(
            "The sizes of a DEQ-TrellisNet are read from encoder.weight, "
            f"{_CONVOLUTION}.{weight}, and decoder.weight or mixsoft.prior.weight. The "
            f"checkpoint lacks one, or it has a wrong rank: {error}. It holds: "
            f"{', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error
    if gates != 4 * units or hidden_dim >= units or kernel_size < 2:
        raise ValueError(
            f"{_CONVOLUTION}.{weight} must have four gates of all channels, more "
            f"channels than the {hidden_dim} of the output, and two taps or more. "
            f"Received: the shape {(gates, units, kernel_size)}."
        )
    backbone = {
        "vocabulary_size": vocabulary_size,
        "hidden_dim": hidden_dim,
        "intermediate_dim": units - hidden_dim,
        "embedding_dim": embedding_dim,
        "kernel_size": kernel_size,
        "weight_normalization": is_normalized,
    }
    is_tied = "decoder.weight" not in state_dict or np.array_equal(
        state_dict["decoder.weight"], state_dict["encoder.weight"]
    )
    return backbone, {"tie_weights": is_tied, "num_experts": num_experts}


def _softmax_sizes(state_dict, embedding_dim):
    """Returns the number of softmaxes and of their input channels."""
    if "mixsoft.prior.weight" in state_dict:
        return shape(state_dict, "mixsoft.prior.weight", 2)
    if "decoder.weight" in state_dict:
        return 1, shape(state_dict, "decoder.weight", 2)[1]
    return 1, embedding_dim


def _variables(model):
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


def _as_keras(name, array):
    """Returns an array in Keras' layout: transposes kernels (out, in) to (in, out), and
    (out, in, taps) to (taps, in, out)."""
    if name.endswith(".weight_g"):
        return without_ones(array, 1)
    is_kernel = name.endswith((".weight", ".weight_v"))
    is_kernel = is_kernel and not name.startswith(("encoder.", "decoder."))
    return array.T if is_kernel else array
