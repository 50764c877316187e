"""Exports a trained model as a file that needs no Python package of ours."""

from pathlib import Path

import deq_keras

from ..errors import InputError


def export(job, model, path, file_format):
    """Exports a model, and checks that the file answers as the model does.

    Budgets are served up to the largest that the model's solver or its evaluation has.

    Args:
        job: its `Job`.
        model: a built `keras.Model`.
        path: what is not there yet.
        file_format: `"saved_model"`, `"litert"` or `"onnx"`.

    Returns:
        The largest difference of an output between model and file.

    Raises:
        FileExistsError: if there is something at `path`.
        InputError: if the model cannot be exported, or the file answers otherwise.
    """
    path = Path(path).absolute()
    write = getattr(deq_keras.serving, f"export_{file_format}")
    served, samples = job.servable(model)
    limit = job.largest_budget(model)
    try:
        return write(served, path, samples=samples, max_iter_limit=limit)
    except (ImportError, deq_keras.serving.ExportError) as error:
        raise InputError(f"{path} was not written. {error}") from error
