"""Reads the state dict of a checkpoint as arrays, without executing code from it."""

import zipfile
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..files.input_file import check_file

# Common PyTorch keys of the weights in checkpoints with further content.
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def read(path):
    """Returns the state dict of a checkpoint, a dict from names to arrays.

    Args:
        path: Path of a `.npz` file of arrays or of a file from `torch.save`, which
            requires `torch`.

    Raises:
        InputError: If the file is damaged, or is not a state dict of arrays.
    """
    path = Path(path)
    check_file(path, "checkpoint")
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    if archive.testzip():  # PyTorch does not compare all checksums.
                        raise zipfile.BadZipFile
            file.seek(0)
            if path.suffix.lower() == ".npz":
                state_dict = dict(np.load(file, allow_pickle=False))
            else:
                state_dict = _tensors(file)
        if not state_dict:
            raise KeyError
        return {name: np.asarray(array) for name, array in state_dict.items()}
    except ImportError as error:
        raise InputError(
            f"Reading {path} needs PyTorch: `pip install torch`. Or save the state "
            "dict as arrays with `numpy.savez`, and give that .npz file."
        ) from error
    except Exception as error:  # Corrupt bytes cause a dozen kinds of errors.
        # Messages of PyTorch and NumPy suggest unsafe ways to load objects.
        raise InputError(
            f"{path} is damaged, or is not a state dict of dense tensors of numbers "
            f"({type(error).__name__}). Download it again; of the reference's files "
            "take model_state_dict.pth, not model.pt; of your own models save "
            "`model.state_dict()`."
        ) from error


def _tensors(file):
    import torch

    # Loads only tensors: unpickling other objects would run code from the file.
    content = torch.load(file, map_location="cpu", weights_only=True)
    found = [content[name] for name in _WRAPPERS if name in content]
    state_dict = next((one for one in found if isinstance(one, dict)), content)
    # NumPy does not support bfloat16.
    return {
        name: tensor.detach().to(torch.float32)
        if tensor.is_floating_point() and tensor.dtype != torch.float64
        else tensor.detach()
        for name, tensor in state_dict.items()
    }
