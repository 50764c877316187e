"""The multiscale DEQ of the reference (PyTorch, locuslab/deq and locuslab/mdeq)."""

import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    StateDict,
    Variables,
    assign,
    check_agreement,
    check_dtype,
    count,
    known_arguments,
    layer_variables,
    read_sizes,
    read_state_dict,
    shape,
    without_ones,
)
from deq_keras.core.checks import check_boolean
from deq_keras.models import MDEQBackbone, MDEQImageClassifier, MDEQImageSegmenter

# Entries that copy other entries or belong to a loss.
_NOT_OF_THE_MODEL = ("fullstage_copy.", "deq.", "loss.")
# Defaults by the names of the reference (PyTorch, locuslab/deq), in lower case.
_DEFAULTS = {"num_groups": 8, "dropout": 0.0}
_NAMES = (
    *_DEFAULTS,
    *("num_branches", "num_channels", "num_blocks", "big_kernels", "expansion_factor"),
    *("downsample_times", "wnorm", "block_gn_affine", "fuse_gn_affine"),
    *("post_gn_affine", "head_channels", "final_chansize", "num_classes"),
    # These entries of the reference's configuration do not affect the function.
    *("num_layers", "num_modules", "block", "fuse_method", "pretrained"),
)

# TorchDEQ's name of the cell, and its layers that are weight-normalized there but not
# in the reference, and the reverse.
_TORCHDEQ = "full_stage."
_PATH = re.compile(r"fullstage\.fuse_layers\..*\.weight_v")
_LAST = re.compile(r"fullstage\.post_fuse_layers\.\d+\.conv\.weight")
_BLOCK = "fullstage.branches.{}.blocks.{}.{}"


def load_mdeq(
    state_dict: Mapping[str, Any],
    solver: Any = "anderson",
    gradient: Any = "neumann",
    regularizer: Any = "contraction",
    drop_head: bool = False,
    dtype: Any = None,
    **architecture: Any,
) -> MDEQImageClassifier | MDEQImageSegmenter:
    """Returns an `MDEQImageClassifier` with the weights of a checkpoint.

    For checkpoints of segmentation models, returns an `MDEQImageSegmenter`. The sizes
    are read from the shapes of the weights. Pass arguments that the shapes do not
    determine: `downsample_times` (0 for the published CIFAR-10 models, 2 for the
    others; fixed for the smallest model), `num_groups` if it is not 8, and `dropout`
    for further training. All other arguments are checked against the weights.

    The model expects normalized images `(batch, height, width, channels)`; see
    `MDEQImageConverter.for_dataset`. It deliberately differs from the reference in two
    points: the head also sees f(z*) in evaluation (reference: z*), and each sample
    stops individually.

    Args:
        state_dict: Mapping from parameter names to floating-point arrays, as saved by
            the reference or by the MDEQs of TorchDEQ's zoo, whose `norm_type` must be
            `weight_norm` with its defaults, or `none`. Wrapper prefixes, such as
            `module.`, are removed.
        solver: See `DEQ`. Defaults to `"anderson"`.
        gradient: See `DEQ`. Defaults to `"neumann"`.
        regularizer: See `DEQ`. Defaults to `"contraction"`.
        drop_head: Boolean. Whether to create a new classifier for `num_classes` classes
            and ignore the last weights of the checkpoint. Defaults to `False`.
        dtype: Dtype or policy of the model. Defaults to `None`, Keras' default.
        **architecture: Entries of the reference's configuration under their names, in
            upper or lower case: `num_channels`, `num_blocks`, `big_kernels`,
            `expansion_factor`, `num_groups`, `downsample_times`, `dropout`, `wnorm`,
            `block_gn_affine`, `fuse_gn_affine`, `post_gn_affine`, `head_channels`,
            `final_chansize`, `num_classes`. Its `num_modules`, `num_layers`, `block`,
            `fuse_method` and `pretrained` are ignored.

    Raises:
        ValueError: If an argument is unknown, missing, invalid or contradicts the
            weights, or if entries of the checkpoint are missing, unexpected, not
            arrays, non-finite or of a wrong shape. The message names all of them.
    """
    check_boolean("drop_head", drop_head)
    check_dtype(dtype)
    names = [name.lower() for name in architecture]
    if twice := [name for name in architecture if names.count(name.lower()) > 1]:
        raise ValueError(
            f"The argument `{twice[0].lower()}` must be given once, in upper or lower "
            "case. Received: "
            f"{', '.join(f'{name}={architecture[name]!r}' for name in twice)}."
        )
    architecture = dict(zip(names, architecture.values(), strict=True))
    architecture = known_arguments(architecture, _NAMES, ["drop_head"])
    state_dict = read_state_dict(
        state_dict,
        lambda name: (
            name.startswith(_NOT_OF_THE_MODEL) or name.endswith("num_batches_tracked")
        ),
    )
    state_dict = _from_torchdeq(state_dict)
    is_segmenter = "last_layer.3.weight" in state_dict
    head, rank = ("last_layer.3", 4) if is_segmenter else ("classifier", 2)
    weight = f"{head}.weight"
    present = shape(state_dict, weight, rank)[0] if weight in state_dict else 0
    num_classes = architecture.get("num_classes", present)
    if num_classes != present and present and not drop_head:
        raise ValueError(
            f"The checkpoint classifies into {present} classes. Received: "
            f"num_classes={num_classes}. Pass drop_head=True for a new, untrained "
            "classifier of so many classes on the other weights."
        )
    if drop_head:
        architecture.pop("num_classes", None)
    chosen = _read(state_dict, architecture)
    backbone = MDEQBackbone(
        chosen["num_channels"],
        expansion=chosen["expansion_factor"],
        groups=chosen["num_groups"],
        num_downsamplings=chosen["downsample_times"],
        kernel_size=[
            [5 if num_big > 0 else 3, 5 if num_big > 1 else 3]
            for num_big in chosen["big_kernels"]
        ],
        num_blocks=chosen["num_blocks"],
        dropout=chosen["dropout"],
        weight_normalization=chosen["wnorm"],
        block_affine=chosen["block_gn_affine"],
        fuse_affine=chosen["fuse_gn_affine"],
        post_affine=chosen["post_gn_affine"],
        batch_norm_momentum=0.99 if is_segmenter else 0.9,
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    if is_segmenter:
        kernel_size = state_dict[weight].shape[-1]
        model = MDEQImageSegmenter(backbone, num_classes, kernel_size=kernel_size)
    else:
        model = MDEQImageClassifier(
            backbone, num_classes, chosen["head_channels"], chosen["final_chansize"]
        )
    variables = _variables(model)
    if drop_head:
        variables, state_dict = (
            {name: value for name, value in one.items() if not name.startswith(head)}
            for one in (variables, state_dict)
        )
    assign(variables, state_dict, _as_keras)
    return model


def _from_torchdeq(state_dict: StateDict) -> StateDict:
    """Returns the state dict of a model of TorchDEQ's zoo by the reference's names.

    The zoo normalizes the weights of all convolutions of the cell, or of the blocks
    alone; the reference, of the blocks and of the last convolution of each scale.
    """
    if not any(name.startswith(_TORCHDEQ) for name in state_dict):
        return state_dict
    renamed = {
        f"fullstage.{name.removeprefix(_TORCHDEQ)}"
        if name.startswith(_TORCHDEQ)
        else name: array
        for name, array in state_dict.items()
    }
    is_normalized = _BLOCK.format(0, 0, "conv1.weight_v") in renamed
    for name in list(renamed):
        if _PATH.fullmatch(name) and f"{name[:-1]}g" in renamed:
            direction, gain = renamed.pop(name), renamed.pop(f"{name[:-1]}g")
            kernel = direction * (gain / _norm(direction))
            renamed[name.removesuffix("_v")] = kernel
        elif _LAST.fullmatch(name) and is_normalized:
            kernel = renamed.pop(name)
            renamed[f"{name}_v"], renamed[f"{name}_g"] = kernel, _norm(kernel)
    return renamed


def _norm(kernel: np.ndarray) -> np.ndarray:
    """Returns the norm of each filter of a kernel (out, in, height, width)."""
    return np.sqrt(np.square(kernel).sum(axis=(1, 2, 3), keepdims=True))


def _variables(model: MDEQImageClassifier | MDEQImageSegmenter) -> Variables:
    """Returns all variables by the reference's names."""
    variables = _cell_variables(model.backbone.deq.cell)
    # Units of a convolution and a batch normalization, by the names of both.
    units = {}
    stem, head = model.backbone.stem, model.head
    stem_units = list(stem.units)
    if stem.injection_unit:
        units["stage0.0", "stage0.1"] = stem_units.pop()
    for index, unit in enumerate(stem_units):
        # The first two units are flat in a Sequential; further units have names.
        names = (f"{3 * index}", f"{3 * index + 1}")
        if index >= 2:
            names = (f"DS{index + 1}", f"DS{index + 1}-BN")
        units[f"downsample.{names[0]}", f"downsample.{names[1]}"] = unit
    if isinstance(model, MDEQImageSegmenter):
        units["last_layer.0", "last_layer.1"] = head.unit
        variables |= layer_variables("last_layer.3", head.classifier)
    else:
        for scale, block in enumerate(head.blocks):
            name = f"incre_modules.{scale}.0"
            for index, unit in enumerate(block.units, start=1):
                units[f"{name}.conv{index}", f"{name}.bn{index}"] = unit
            if block.shortcut is not None:
                shortcut = f"{name}.downsample"
                units[f"{shortcut}.0", f"{shortcut}.1"] = block.shortcut
        for scale, unit in enumerate(head.downsamplings):
            name = f"downsamp_modules.{scale}"
            units[f"{name}.0", f"{name}.1"] = unit
        units["final_layer.0", "final_layer.1"] = head.final_unit
        variables |= layer_variables("classifier", head.classifier)
    for (convolution, normalization), unit in units.items():
        variables |= layer_variables(convolution, unit.convolution)
        variables |= _norm_variables(normalization, unit.normalization)
        moving = unit.normalization.moving_mean, unit.normalization.moving_variance
        variables[f"{normalization}.running_mean"] = moving[0]
        variables[f"{normalization}.running_var"] = moving[1]
    return variables


def _cell_variables(cell: keras.layers.Layer) -> Variables:
    variables: Variables = {}
    for scale, branch in enumerate(cell.branches):
        for index, block in enumerate(branch):
            name = f"fullstage.branches.{scale}.blocks.{index}"
            variables |= layer_variables(f"{name}.conv1", block.conv1)
            variables |= layer_variables(f"{name}.conv2", block.conv2)
            for number, norm in enumerate((block.norm1, block.norm2, block.norm3), 1):
                variables |= _norm_variables(f"{name}.gn{number}", norm)
    fusion = cell.fusion
    for path, stages in fusion.paths.items():
        source, target = map(int, path.split("_to_"))
        name = f"fullstage.fuse_layers.{target}.{source}.net"
        for index, (convolution, norm) in enumerate(stages):
            stage = name if source > target else f"{name}.{index}"
            variables |= layer_variables(f"{stage}.conv", convolution)
            variables |= _norm_variables(f"{stage}.gnorm", norm)
    for scale in range(cell.num_scales):
        name = f"fullstage.post_fuse_layers.{scale}"
        variables |= layer_variables(f"{name}.conv", fusion.convolutions[scale])
        variables |= _norm_variables(f"{name}.gnorm", fusion.norms[scale])
    return variables


def _norm_variables(name: str, layer: keras.layers.Layer) -> Variables:
    if not layer.scale:
        return {}
    return {f"{name}.weight": layer.gamma, f"{name}.bias": layer.beta}


def _as_keras(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array in Keras' layout: transposes kernels (out, in, height, width) to
    (height, width, in, out), and (out, in) to (in, out)."""
    if name.endswith("weight_g"):
        return without_ones(array, 1)
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T


def _expansion(hidden: int, filters: int) -> float:
    """Returns the ratio from which `int(ratio * filters)` makes `hidden` again."""
    ratio = hidden / filters
    if int(ratio * filters) < hidden:
        ratio = float(np.nextafter(ratio, np.inf))
    return ratio


def _read(state_dict: StateDict, architecture: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the complete architecture by the reference's lower-case names."""
    is_normalized = _BLOCK.format(0, 0, "conv1.weight_v") in state_dict
    suffix = "weight_v" if is_normalized else "weight"
    num_branches = max(count(state_dict, "fullstage.branches.{}."), 1)
    entries = (
        "fullstage.branches.*.blocks.*, and from classifier and incre_modules.*, or "
        "last_layer.3"
    )
    with read_sizes("an MDEQ", entries, state_dict):
        first, second = (
            [
                shape(state_dict, _BLOCK.format(branch, 0, f"{layer}.{suffix}"), 4)
                for branch in range(num_branches)
            ]
            for layer in ("conv1", "conv2")
        )
        if "last_layer.3.weight" in state_dict:
            head: dict[str, Any] = {
                "num_classes": shape(state_dict, "last_layer.3.weight", 4)[0]
            }
        else:
            num_classes, final_size = shape(state_dict, "classifier.weight", 2)
            head = {
                "num_classes": num_classes,
                "final_chansize": final_size,
                "head_channels": [
                    shape(state_dict, f"incre_modules.{scale}.0.conv1.weight", 4)[0]
                    for scale in range(count(state_dict, "incre_modules.{}."))
                ],
            }
    found = {
        "num_branches": num_branches,
        "num_channels": [one[1] for one in first],
        "expansion_factor": _expansion(*first[0][:2]),
        "num_blocks": [
            count(state_dict, f"fullstage.branches.{branch}.blocks.{{}}.")
            for branch in range(num_branches)
        ],
        "big_kernels": [(one[2] > 3) + (two[2] > 3) for one, two in zip(first, second)],
        "wnorm": is_normalized,
        "block_gn_affine": _BLOCK.format(0, 0, "gn1.weight") in state_dict,
        "fuse_gn_affine": "fullstage.fuse_layers.0.1.net.gnorm.weight" in state_dict,
        "post_gn_affine": "fullstage.post_fuse_layers.0.gnorm.weight" in state_dict,
        **head,
    }
    # The strides of a stem of two units are not visible.
    further = count(state_dict, "downsample.DS{}.", start=3)
    if "stage0.0.weight" not in state_dict:
        found["downsample_times"] = 0
    elif further:
        found["downsample_times"] = 2 + further
    elif "downsample_times" not in architecture:
        raise ValueError(
            "The weights do not tell how often the stem halves the resolution. Give "
            "`downsample_times`: 0 for the published models of CIFAR-10, 2 for those "
            "of ImageNet and Cityscapes. Received: downsample_times=None."
        )
    check_agreement(found, architecture)
    return {**_DEFAULTS, **architecture, **found}
