"""Exports a trained model as a SavedModel that needs no Python package of ours."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from ..errors import InputError
from ..files.atomic_file import replacing
from ..files.tensorflow_files import writing


def export(model, inputs, path):
    """Exports a model and checks that the export gives the same outputs.

    Args:
        model: a built `keras.Model`.
        inputs: tensor of at least two samples, for the check.
        path: a folder that does not exist or is empty.

    Returns:
        The largest absolute difference of an output between model and export.

    Raises:
        InputError: if there is something at `path`.
        RuntimeError: if the exported model gives other outputs.
    """
    path = Path(path).absolute()
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"There is something at {path} already. Choose another --out.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.mkdir()
        with writing(temporary):
            model.export(temporary, format="tf_saved_model", verbose=False)
        return _difference(model, inputs, temporary, path)


def _difference(model, inputs, exported_path, path):
    exported = tf.saved_model.load(exported_path)
    largest = 0.0
    for batch in (inputs, inputs[:1]):  # Any batch size must do.
        expected = np.asarray(model(batch, training=False))
        received = np.asarray(exported.serve(batch))
        largest = max(largest, float(np.abs(received - expected).max()))
    if not largest <= 1e-3 * max(1.0, float(np.abs(expected).max())):
        raise RuntimeError(
            f"The model exported to {path} gives other outputs than the model itself: "
            f"they differ by up to {largest}."
        )
    return largest
