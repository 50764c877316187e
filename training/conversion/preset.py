"""Exports a trained model as a preset of KerasHub, with a model card."""

from pathlib import Path

import tensorflow as tf

from .. import machine
from ..config.reading import to_yaml
from ..errors import InputError
from ..evaluation.report import report
from ..files.atomic_file import replacing

CARD = "README.md"


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
    if path.exists():
        raise InputError(f"--out must be a new folder. Received: {path}, which exists.")
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
    config = to_yaml(directory.config).strip()
    facts = machine.environment()
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v)
    return f"""# {type(model).__name__}, {model.count_params():,} parameters

Exported on {facts["time"][:10]} at commit {facts["commit"] or "unknown"}, on one
{facts["processor"]}: {versions}.

## Config

One run, `{name}`.

```yaml
{config}
```

## Scores

```text
{report(directory)}
```
"""
