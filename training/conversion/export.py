"""Exports a trained model to a format that does not require this package."""

from pathlib import Path

import deq_keras

from ..errors import InputError


def export(job, model, path, file_format):
    """Exports a model, and checks that the exported file has the same outputs.

    It serves budgets up to the largest one of the model's solver and its evaluation.

    Args:
        job: `Job` of the model.
        model: A built `keras.Model`.
        path: Path of the new file or folder.
        file_format: String. `"saved_model"`, `"litert"` or `"onnx"`.

    Returns:
        The largest difference between outputs of the model and of the file.

    Raises:
        FileExistsError: If `path` exists.
        InputError: If the model cannot be exported, or the outputs differ.
    """
    path = Path(path).absolute()
    write = getattr(deq_keras.serving, f"export_{file_format}")
    served, samples = job.servable(model)
    limit = job.largest_budget(model)
    try:
        return write(served, path, samples=samples, max_iter_limit=limit)
    except (ImportError, deq_keras.serving.ExportError) as error:
        raise InputError(f"{path} was not written. {error}") from error
