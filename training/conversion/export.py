"""Exports a trained model to a format of a server, or as a preset of KerasHub."""

from pathlib import Path

import tensorflow as tf

import deq_keras

from .. import machine
from ..config.reading import to_yaml
from ..errors import InputError
from ..evaluation.budgets import equilibrium
from ..evaluation.report import report
from ..files.atomic_file import replacing
from ..files.input_file import check_new

CARD = "README.md"


def export(model, samples, path, file_format, budgets=(), metadata=None):
    """Exports a model, and checks that the exported file has the same outputs.

    Args:
        model: A built `keras.Model`.
        samples: Inputs of the model, to check the file.
        path: Path of the new file or folder.
        file_format: String. `"saved_model"`, `"litert"` or `"onnx"`.
        budgets: Budgets that the file must serve besides the solver's. Defaults to
            none.
        metadata: Dict of plain data, which the file stores. Defaults to `None`.

    Returns:
        The largest difference between outputs of the model and of the file.

    Raises:
        FileExistsError: If `path` exists.
        InputError: If the model cannot be exported, or the outputs differ.
    """
    path = Path(path).absolute()
    write = getattr(deq_keras.serving, f"export_{file_format}")
    layer = equilibrium(model)
    limit = None if layer is None else max(layer.solver.max_iter, *budgets, 1)
    try:
        return write(
            model,
            path,
            samples=samples,
            max_iter_limit=limit,
            metadata=metadata,
        )
    except (ImportError, ValueError, deq_keras.serving.ExportError) as error:
        raise InputError(f"{path} was not written. {error}") from error


def export_preset(directory, name, model, path):
    """Writes a folder that `from_preset` loads, and checks that it loads.

    Args:
        directory: `WorkDirectory` of the run.
        name: String. Name of the run in it.
        model: The trained model.
        path: Path of the new folder.

    Returns:
        The number of bytes of the folder.

    Raises:
        InputError: If `path` exists, or if the class of the model lacks presets.
    """
    path = Path(path).absolute()
    check_new(path, "folder")
    if not hasattr(model, "save_to_preset"):
        raise InputError(
            "Only models whose class has `from_preset` are exported as presets. "
            f"Received: {type(model).__name__}. Use another --format."
        )
    with replacing(path) as temporary:
        model.save_to_preset(str(temporary))
        (temporary / CARD).write_text(_card(directory, name, model), encoding="utf-8")
        copy = type(model).from_preset(str(temporary))
        for saved, loaded in zip(model.weights, copy.weights, strict=True):
            if not tf.reduce_all(saved.value == loaded.value):
                raise InputError(
                    f"{path} was not written: the weight {saved.path} changed."
                )
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _card(directory, name, model):
    """Returns a model card. A person adds the task, the limits and the inputs."""
    config = to_yaml(directory.config).strip()
    facts = machine.environment()
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v)
    kind = type(model).__name__
    return f"""# {kind}, {model.count_params():,} weights

`deq_keras.models.{kind}.from_preset(FOLDER)` loads the model. Inputs have the shape
`{model.input_shape}`, outputs `{model.output_shape}`.

## Scores

```text
{report(directory)}
```

## Training

One run, `{name}`.

Exported on {facts["time"][:10]} at commit {facts["commit"] or "unknown"}, on one
{facts["processor"]}: {versions}.

```yaml
{config}
```
"""
