"""Reads the state dict of a checkpoint as arrays, without executing code from it."""

import warnings
import zipfile
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..files.input_file import check_file

# The largest published checkpoint holds 1.2 GB.
_MAXIMUM_BYTES = 8 * 2**30
# Common PyTorch keys of the weights in checkpoints with further content.
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def read(path):
    """Returns the state dict of a checkpoint.

    Args:
        path: Path of a `.npz` file of arrays or of a file from `torch.save`, which
            requires `torch`.

    Returns:
        A dict from names to arrays.

    Raises:
        InputError: If the file cannot be read, is corrupt or too large, or is not a
            state dict of arrays.
    """
    path = Path(path)
    check_file(path, "checkpoint")
    _check_size(path, path.stat().st_size)
    if path.suffix.lower() == ".npz":
        return _read_arrays(path)
    return _read_tensors(path)


def _check_archive(path):
    """Verifies the checksums of an archive, which PyTorch itself ignores."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            damaged = archive.testzip() if size <= _MAXIMUM_BYTES else None
    except Exception as error:  # Corrupt bytes cause a dozen kinds of errors.
        raise InputError(
            f"{path} is truncated or damaged ({type(error).__name__}). Download it "
            "again."
        ) from error
    _check_size(path, size)
    if damaged:
        raise InputError(
            f"{path} is damaged: the checksum of its entry `{damaged}` is wrong. "
            "Download it again."
        )


def _read_arrays(path):
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"{path} is not a .npz file, or is truncated. Write it again with "
            "`numpy.savez`."
        )
    _check_archive(path)
    with path.open("rb") as stream:
        # `np.load` would guess the format from the first bytes and suggest unpickling.
        with np.lib.npyio.NpzFile(stream, allow_pickle=False) as arrays:
            return {name: _array(path, arrays, name) for name in arrays.files}


def _array(path, arrays, name):
    # NumPy's messages suggest unsafe ways to load objects and long headers.
    try:
        array = arrays[name]
    except Exception as error:
        raise InputError(
            f"{path}: the entry `{name}` is damaged, or not an array of numbers "
            f"({type(error).__name__}). Write the file again with `numpy.savez`."
        ) from error
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"{path}: the entry `{name}` is not an array. Write it with `numpy.savez`."
        )
    return array


def _read_tensors(path):
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"Reading {path} needs PyTorch: `pip install torch`. Or save the state "
            "dict as arrays with `numpy.savez`, and give that .npz file."
        ) from error
    if zipfile.is_zipfile(path):  # Before 2020, PyTorch used another format.
        _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Loads only tensors: unpickling other objects would run code from the file.
            content = torch.load(path, map_location="cpu", weights_only=True)
    # Does not quote PyTorch's message, which suggests an unsafe way to load objects.
    except Exception as error:
        raise InputError(
            f"{path} is damaged, or holds more than tensors: other objects are not "
            "loaded, since that can run code from the file. Of the reference's files "
            "take model_state_dict.pth, not model.pt; of your own models save "
            "`model.state_dict()`."
        ) from error
    state_dict = _unwrapped(content)
    if not isinstance(state_dict, dict) or not state_dict:
        raise InputError(
            f"{path} holds no state dict, a dict of names to tensors, but "
            f"{_described(state_dict)}."
        )
    return {name: _from_tensor(path, name, state_dict[name]) for name in state_dict}


def _unwrapped(content):
    """Returns the weights of a checkpoint that may have further content."""
    if isinstance(content, dict):
        for name in _WRAPPERS:
            if isinstance(content.get(name), dict):
                return content[name]
    return content


def _from_tensor(path, name, tensor):
    import torch

    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise InputError(
            f"{path} holds no state dict of tensors: {name!r} is {_described(tensor)}."
        )
    try:
        tensor = tensor.detach()
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            tensor = tensor.to(torch.float32)  # NumPy does not support bfloat16.
        return tensor.numpy()
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: `{name}` is not a dense tensor of numbers. Received: layout "
            f"{tensor.layout}, {tensor.dtype}, device {tensor.device}. Before saving, "
            "make a sparse tensor dense with `.to_dense()`, and a quantized one a "
            "tensor of floats with `.dequantize()`; a tensor of the device `meta` has "
            "no numbers."
        ) from error


def _described(value):
    is_empty = isinstance(value, dict) and not value
    return f"an {'empty ' * is_empty}object of type {type(value).__name__}"


def _check_size(path, size):
    if size > _MAXIMUM_BYTES:
        raise InputError(
            f"The checkpoint {path} holds {size / 2**30:.0f} GiB, more than "
            f"{_MAXIMUM_BYTES // 2**30}. Published ones hold at most 1.2 GB: take the "
            "weights alone, without the state of an optimizer."
        )
