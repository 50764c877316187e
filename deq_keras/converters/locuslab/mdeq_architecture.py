"""Reads the architecture of an MDEQ from the shapes of its weights."""

from deq_keras.converters.locuslab.arguments import (
    check_count,
    check_factor,
    check_text,
    checked,
    integer,
    list_of,
)
from deq_keras.converters.locuslab.checkpoint import count, shape
from deq_keras.core.checks import check_boolean, check_rate

# Defaults by the names of the reference (PyTorch, locuslab/deq), in lower case.
_DEFAULTS = {"num_groups": 8, "dropout": 0.0}
_CHECKS = {
    "num_branches": check_count,
    "num_channels": list_of(check_count),
    "num_blocks": list_of(check_count),
    "big_kernels": list_of(integer(0, 2)),
    "expansion_factor": check_factor,
    "num_groups": check_count,
    "downsample_times": integer(0, 16),
    "dropout": check_rate,
    "wnorm": check_boolean,
    "block_gn_affine": check_boolean,
    "fuse_gn_affine": check_boolean,
    "post_gn_affine": check_boolean,
    "head_channels": list_of(check_count),
    "final_chansize": check_count,
    "num_classes": check_count,
    # Entries of the reference's configuration that do not affect the function.
    "num_layers": integer(0),
    "num_modules": integer(0),
    "block": check_text,
    "fuse_method": check_text,
    "pretrained": check_text,
}

_BLOCK = "fullstage.branches.{}.blocks.{}.{}"


def normalized(architecture):
    """Returns the arguments of an architecture by the reference's lower-case names.

    Raises:
        ValueError: If an argument is unknown, invalid or passed twice.
    """
    names = [name.lower() for name in architecture]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"The argument `{name}` is given twice, in two spellings.")
    architecture = dict(zip(names, architecture.values(), strict=True))
    return checked(architecture, _CHECKS, others=["drop_head"])


def read(state_dict, architecture):
    """Returns the complete architecture by the reference's lower-case names.

    Args:
        state_dict: Dict from names to arrays.
        architecture: Dict. Result of `normalized`.

    Raises:
        ValueError: If an argument contradicts the weights, or if weights that determine
            the sizes, or arguments that the weights do not determine, are missing.
    """
    try:
        found = {**_read_cell(state_dict), **_read_head(state_dict)}
    except ValueError as error:
        raise ValueError(
            "The sizes of an MDEQ are read from fullstage.branches.*.blocks.*, and "
            "from classifier and incre_modules.*, or last_layer.3. The checkpoint "
            f"lacks one of them, or it has a wrong rank: {error}. It holds: "
            f"{', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error
    found.update(_read_downsamplings(state_dict, architecture))
    for name, value in found.items():
        given = architecture.get(name, value)
        given = list(given) if isinstance(given, (list, tuple)) else given
        if given != value:
            raise ValueError(
                f"The weights say {name}={value}. Received: {name}={given}."
            )
    return {**_DEFAULTS, **architecture, **found}


def _read_cell(state_dict):
    is_normalized = _BLOCK.format(0, 0, "conv1.weight_v") in state_dict
    suffix = "weight_v" if is_normalized else "weight"
    num_branches = max(count(state_dict, "fullstage.branches.{}."), 1)
    first, second = (
        [
            shape(state_dict, _BLOCK.format(branch, 0, f"{layer}.{suffix}"), 4)
            for branch in range(num_branches)
        ]
        for layer in ("conv1", "conv2")
    )
    return {
        "num_branches": num_branches,
        "num_channels": [one[1] for one in first],
        "expansion_factor": first[0][0] / first[0][1],
        "num_blocks": [
            count(state_dict, f"fullstage.branches.{branch}.blocks.{{}}.")
            for branch in range(num_branches)
        ],
        "big_kernels": [(one[2] > 3) + (two[2] > 3) for one, two in zip(first, second)],
        "wnorm": is_normalized,
        "block_gn_affine": _BLOCK.format(0, 0, "gn1.weight") in state_dict,
        "fuse_gn_affine": "fullstage.fuse_layers.0.1.net.gnorm.weight" in state_dict,
        "post_gn_affine": "fullstage.post_fuse_layers.0.gnorm.weight" in state_dict,
    }


def _read_head(state_dict):
    if "last_layer.3.weight" in state_dict:
        return {"num_classes": shape(state_dict, "last_layer.3.weight", 4)[0]}
    num_heads = count(state_dict, "incre_modules.{}.")
    num_classes, final_size = shape(state_dict, "classifier.weight", 2)
    return {
        "num_classes": num_classes,
        "final_chansize": final_size,
        "head_channels": [
            shape(state_dict, f"incre_modules.{scale}.0.conv1.weight", 4)[0]
            for scale in range(num_heads)
        ],
    }


def _read_downsamplings(state_dict, architecture):
    """Returns `downsample_times` if the weights show it; strides are not visible."""
    if "stage0.0.weight" not in state_dict:
        return {"downsample_times": 0}
    further = count(state_dict, "downsample.DS{}.", start=3)
    if further:
        return {"downsample_times": 2 + further}
    if "downsample_times" not in architecture:
        raise ValueError(
            "The weights do not tell how often the stem halves the resolution. Give "
            "`downsample_times`: 0 for the published models of CIFAR-10, 2 for those "
            "of ImageNet and Cityscapes."
        )
    return {}
