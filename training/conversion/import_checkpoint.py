"""Converts a checkpoint of the authors' PyTorch code to a `.keras` file."""

import tempfile
from pathlib import Path

from deq_keras.converters import locuslab

from ..errors import InputError
from ..files.atomic_file import replacing
from ..files.input_file import check_new
from . import checkpoint_file


def import_checkpoint(path, out, architecture):
    """Converts the state dict of a published model and saves it as a Keras model.

    Args:
        path: Path of a `.pth`, `.pth.tar` or `.pkl` file, which requires `torch`, or of
            a `.npz` file with the arrays of the state dict.
        out: Path of the new `.keras` file, in an existing folder.
        architecture: Dict of arguments of the loading function in `locuslab`:
            `load_deq_transformer`, `load_deq_trellisnet`, `load_mdeq` or
            `load_monotone_network`.

    Returns:
        The converted model, a model of `deq_keras.models`.

    Raises:
        InputError: If the file cannot be read or does not match the architecture, or if
            `out` exists or cannot be written.
    """
    out = Path(out)
    _check_new(out)
    state_dict = checkpoint_file.read(path)
    try:
        model = _load(state_dict, dict(architecture))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    try:
        with replacing(out) as temporary:
            model.save(temporary)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror or error}.") from error
    return model


# Substring of the weights' names -> loader. Other names are from a DEQ-Transformer.
_LOADERS = {
    "fullstage.": locuslab.load_mdeq,
    "full_stage.": locuslab.load_mdeq,
    "full_conv.": locuslab.load_deq_trellisnet,
    "mon.linear_module.": locuslab.load_monotone_network,
}


def _load(state_dict, architecture):
    found = [part for part in _LOADERS if any(part in name for name in state_dict)]
    load = _LOADERS[found[0]] if found else locuslab.load_deq_transformer
    if "state_dict" in architecture:
        raise ValueError("Unknown argument `state_dict`: the file is the state dict.")
    return load(state_dict, **architecture)


def _check_new(out):
    """Raises errors early that would otherwise occur after the model is built."""
    if out.suffix != ".keras":
        raise InputError(
            f"--out must be a new file that ends in .keras. Received: {out}."
        )
    check_new(out)
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(
            f"Cannot write --out: the folder {out.parent}: {error.strerror}."
        ) from error
