"""What the shapes of an MDEQ's weights say about its architecture."""

from deq_keras.converters.locuslab.checkpoint import check_known

# The reference's names, in lower case, of what is passed on.
_DEFAULTS = {"num_groups": 8, "dropout": 0.0}
_READ = {
    "num_channels",
    "num_branches",
    "num_blocks",
    "big_kernels",
    "expansion_factor",
    "wnorm",
    "block_gn_affine",
    "fuse_gn_affine",
    "post_gn_affine",
    "head_channels",
    "final_chansize",
    "num_classes",
    "downsample_times",
}
# What says nothing about the function.
_MEANINGLESS = {"num_layers", "num_modules", "block", "fuse_method", "pretrained"}

_BLOCK = "fullstage.branches.{}.blocks.{}.{}"


def normalized(architecture):
    """Returns arguments of an architecture under the reference's names in lower case.

    Raises:
        ValueError: if an argument is unknown.
    """
    architecture = {name.lower(): value for name, value in architecture.items()}
    check_known(architecture, {*_DEFAULTS, *_READ, *_MEANINGLESS})
    return architecture


def read(state_dict, architecture):
    """Returns the whole architecture, under the reference's names in lower case.

    Args:
        state_dict: dict of names to arrays.
        architecture: what `normalized` returned.

    Raises:
        ValueError: if an argument contradicts the weights, weights are missing from
            which sizes are read, or what the weights do not tell is not given.
    """
    try:
        found = {**_read_cell(state_dict), **_read_head(state_dict)}
    except (KeyError, IndexError, ValueError) as error:
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
    names = list(state_dict)
    num_branches = _count(names, "fullstage.branches.{}.")
    first = [
        state_dict[_BLOCK.format(branch, 0, f"conv1.{suffix}")].shape
        for branch in range(num_branches)
    ]
    second = [
        state_dict[_BLOCK.format(branch, 0, f"conv2.{suffix}")].shape
        for branch in range(num_branches)
    ]
    return {
        "num_branches": num_branches,
        "num_channels": [shape[1] for shape in first],
        "expansion_factor": first[0][0] / first[0][1],
        "num_blocks": [
            _count(names, f"fullstage.branches.{branch}.blocks.{{}}.")
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
        return {"num_classes": state_dict["last_layer.3.weight"].shape[0]}
    num_heads = _count(list(state_dict), "incre_modules.{}.")
    return {
        "num_classes": state_dict["classifier.weight"].shape[0],
        "final_chansize": state_dict["classifier.weight"].shape[1],
        "head_channels": [
            state_dict[f"incre_modules.{scale}.0.conv1.weight"].shape[0]
            for scale in range(num_heads)
        ],
    }


def _read_downsamplings(state_dict, architecture):
    """Strides leave no trace in the weights, but for a third halving."""
    if "stage0.0.weight" not in state_dict:
        return {"downsample_times": 0}
    further = _count(list(state_dict), "downsample.DS{}.", start=3)
    if further:
        return {"downsample_times": 2 + further}
    if "downsample_times" not in architecture:
        raise ValueError(
            "The weights do not tell how often the stem halves the resolution. Give "
            "`downsample_times`: 0 for the published models of CIFAR-10, 2 for those "
            "of ImageNet and Cityscapes."
        )
    return {}


def _count(names, pattern, start=0):
    count = 0
    while any(name.startswith(pattern.format(start + count)) for name in names):
        count += 1
    return count
