"""Turns a checkpoint of the authors' PyTorch code into a `.keras` file."""

from pathlib import Path

import numpy as np

from deq_keras.converters import locuslab
from training.atomic_file import replacing
from training.errors import InputError


def import_checkpoint(path, out, architecture):
    """Reads the state dict of a DEQ-Transformer or an MDEQ, saves it as a Keras model.

    Args:
        path: a `.pth`, `.pth.tar` or `.pkl` file, which needs `torch`, or the same
            state dict as a `.npz` of arrays, which does not.
        out: the new `.keras` file.
        architecture: dict of arguments of `locuslab.load_deq_transformer` or
            `locuslab.load_mdeq`.

    Returns:
        The `deq_keras.models.DEQTransformerCausalLM`, `MDEQImageClassifier` or
        `MDEQImageSegmenter`.

    Raises:
        InputError: if the file cannot be read, does not fit the architecture, or there
            is something at `out`.
    """
    out = Path(out)
    if out.suffix != ".keras" or out.exists():
        raise InputError(
            f"--out must be a new file that ends in .keras. Received: {out}"
            f"{', which exists' if out.exists() else ''}."
        )
    state_dict = _read(Path(path))
    try:
        model = _loader(state_dict)(state_dict, **architecture)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    with replacing(out) as temporary:
        model.save(temporary)
    return model


def _loader(state_dict):
    is_multiscale = any("fullstage." in name for name in state_dict)
    return locuslab.load_mdeq if is_multiscale else locuslab.load_deq_transformer


def _read(path):
    if not path.is_file():
        raise InputError(f"The checkpoint {path} does not exist.")
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    return {name: tensor.numpy() for name, tensor in _read_torch(path).items()}


def _read_torch(path):
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"Reading {path} needs PyTorch: `pip install torch`. Or save the state "
            "dict as arrays with `numpy.savez`, and give that .npz file."
        ) from error
    try:
        # Tensors only: unpickling more would run code from the file.
        state_dict = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path} is no state dict that PyTorch reads safely. Of the reference's "
            f"files take model_state_dict.pth, not model.pt. ({error})"
        ) from error
    if isinstance(state_dict, dict):
        # What the vision code saves after an epoch holds more than the weights.
        state_dict = state_dict.get("state_dict", state_dict)
    if not isinstance(state_dict, dict) or not all(
        isinstance(value, torch.Tensor) for value in state_dict.values()
    ):
        raise InputError(f"{path} holds something else than a state dict of tensors.")
    return state_dict
