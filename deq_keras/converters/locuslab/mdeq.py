"""The multiscale DEQ of the reference (PyTorch, locuslab/deq and locuslab/mdeq)."""

from deq_keras.converters.locuslab.arguments import check_dtype
from deq_keras.converters.locuslab.checkpoint import (
    assign,
    cleaned,
    layer_variables,
    shape,
    without_ones,
)
from deq_keras.converters.locuslab.mdeq_architecture import normalized, read
from deq_keras.core.checks import check_boolean
from deq_keras.models import MDEQBackbone, MDEQImageClassifier, MDEQImageSegmenter

# Entries that copy other entries or belong to a loss.
_NOT_OF_THE_MODEL = ("fullstage_copy.", "deq.", "loss.")


def load_mdeq(
    state_dict,
    solver="anderson",
    gradient="neumann",
    regularizer="contraction",
    drop_head=False,
    dtype=None,
    **architecture,
):
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
            the reference. Wrapper prefixes, such as `module.`, are removed.
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
    architecture = normalized(architecture)
    state_dict = cleaned(state_dict, _is_ignored)
    num_classes = _num_classes(state_dict, architecture, drop_head)
    if drop_head:
        architecture.pop("num_classes", None)
    chosen = read(state_dict, architecture)
    backbone = MDEQBackbone(
        chosen["num_channels"],
        expansion=chosen["expansion_factor"],
        groups=chosen["num_groups"],
        num_downsamplings=chosen["downsample_times"],
        kernel_size=[_kernel_sizes(number) for number in chosen["big_kernels"]],
        num_blocks=chosen["num_blocks"],
        dropout=chosen["dropout"],
        weight_normalization=chosen["wnorm"],
        block_affine=chosen["block_gn_affine"],
        fuse_affine=chosen["fuse_gn_affine"],
        post_affine=chosen["post_gn_affine"],
        batch_norm_momentum=0.99 if _is_segmenter(state_dict) else 0.9,
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    model = _model(backbone, state_dict, chosen, num_classes)
    variables = _variables(model)
    if drop_head:
        last = "last_layer.3." if _is_segmenter(state_dict) else "classifier."
        variables = _without(variables, last)
        state_dict = _without(state_dict, last)
    assign(variables, state_dict, _as_keras, _as_reference)
    return model


def _is_ignored(name):
    return name.startswith(_NOT_OF_THE_MODEL) or name.endswith("num_batches_tracked")


def _is_segmenter(state_dict):
    return "last_layer.3.weight" in state_dict


def _without(mapping, prefix):
    return {name: mapping[name] for name in mapping if not name.startswith(prefix)}


def _num_classes(state_dict, architecture, drop_head):
    is_segmenter = _is_segmenter(state_dict)
    last, rank = ("last_layer.3", 4) if is_segmenter else ("classifier", 2)
    last = f"{last}.weight"
    present = shape(state_dict, last, rank)[0] if last in state_dict else 0
    wanted = architecture.get("num_classes", present)
    if wanted != present and present and not drop_head:
        raise ValueError(
            f"The checkpoint classifies into {present} classes. Received: "
            f"num_classes={wanted}. Pass drop_head=True for a new, untrained "
            "classifier of so many classes on the other weights."
        )
    return wanted


def _kernel_sizes(num_big):
    return [5 if num_big > 0 else 3, 5 if num_big > 1 else 3]


def _model(backbone, state_dict, chosen, num_classes):
    if _is_segmenter(state_dict):
        kernel_size = state_dict["last_layer.3.weight"].shape[-1]
        return MDEQImageSegmenter(backbone, num_classes, kernel_size=kernel_size)
    return MDEQImageClassifier(
        backbone, num_classes, chosen["head_channels"], chosen["final_chansize"]
    )


def _variables(model):
    """Returns all variables by the reference's names."""
    backbone, head = model.backbone, model.head
    variables = {**_stem(backbone.stem), **_cell(backbone.deq.cell)}
    if isinstance(model, MDEQImageSegmenter):
        variables.update(_unit("last_layer.0", "last_layer.1", head.unit))
        variables.update(layer_variables("last_layer.3", head.classifier))
        return variables
    for scale, block in enumerate(head.blocks):
        name = f"incre_modules.{scale}.0"
        for index, unit in enumerate(block.units, start=1):
            variables.update(_unit(f"{name}.conv{index}", f"{name}.bn{index}", unit))
        if block.shortcut is not None:
            shortcut = f"{name}.downsample"
            variables.update(_unit(f"{shortcut}.0", f"{shortcut}.1", block.shortcut))
    for scale, unit in enumerate(head.downsamplings):
        name = f"downsamp_modules.{scale}"
        variables.update(_unit(f"{name}.0", f"{name}.1", unit))
    variables.update(_unit("final_layer.0", "final_layer.1", head.final_unit))
    variables["classifier.weight"] = head.classifier.kernel
    variables["classifier.bias"] = head.classifier.bias
    return variables


def _stem(stem):
    units = list(stem.units)
    variables = {}
    if stem.injection_unit:
        variables.update(_unit("stage0.0", "stage0.1", units.pop()))
    for index, unit in enumerate(units):
        # The first two units are flat in a Sequential; further units have names.
        names = (f"{3 * index}", f"{3 * index + 1}")
        if index >= 2:
            names = (f"DS{index + 1}", f"DS{index + 1}-BN")
        variables.update(_unit(*(f"downsample.{name}" for name in names), unit))
    return variables


def _cell(cell):
    variables = {}
    for scale, branch in enumerate(cell.branches):
        for index, block in enumerate(branch):
            name = f"fullstage.branches.{scale}.blocks.{index}"
            variables.update(layer_variables(f"{name}.conv1", block.conv1))
            variables.update(layer_variables(f"{name}.conv2", block.conv2))
            for number, norm in enumerate((block.norm1, block.norm2, block.norm3), 1):
                variables.update(_group_norm(f"{name}.gn{number}", norm))
    fusion = cell.fusion
    for path, stages in fusion.paths.items():
        source, target = map(int, path.split("_to_"))
        name = f"fullstage.fuse_layers.{target}.{source}.net"
        for index, (convolution, norm) in enumerate(stages):
            stage = name if source > target else f"{name}.{index}"
            variables.update(layer_variables(f"{stage}.conv", convolution))
            variables.update(_group_norm(f"{stage}.gnorm", norm))
    for scale in range(cell.num_scales):
        name = f"fullstage.post_fuse_layers.{scale}"
        variables.update(layer_variables(f"{name}.conv", fusion.convolutions[scale]))
        variables.update(_group_norm(f"{name}.gnorm", fusion.norms[scale]))
    return variables


def _group_norm(name, layer):
    if not layer.scale:
        return {}
    return {f"{name}.weight": layer.gamma, f"{name}.bias": layer.beta}


def _unit(convolution_name, normalization_name, unit):
    normalization = unit.normalization
    variables = layer_variables(convolution_name, unit.convolution)
    if unit.affine:
        variables[f"{normalization_name}.weight"] = normalization.gamma
        variables[f"{normalization_name}.bias"] = normalization.beta
    variables[f"{normalization_name}.running_mean"] = normalization.moving_mean
    variables[f"{normalization_name}.running_var"] = normalization.moving_variance
    return variables


def _as_keras(name, array):
    """Returns an array in Keras' layout: transposes kernels (out, in, height, width) to
    (height, width, in, out), and (out, in) to (in, out)."""
    if name.endswith("weight_g"):
        return without_ones(array, 1)
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T


def _as_reference(name, shape):
    if name.endswith("weight_g"):
        return (*shape, 1, 1, 1)
    if len(shape) == 4:
        return (shape[3], shape[2], shape[0], shape[1])
    return tuple(reversed(shape))
