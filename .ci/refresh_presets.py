"""Trains the presets of this package with the configs in their model cards.

    python .ci/refresh_presets.py [NAME ...]
    python .ci/refresh_presets.py [NAME ...] --spread 0 1 2

Runs are in runs/presets; an interrupted run continues. A preset whose score would get
worse remains, unless --accept-worse is passed. With --spread, presets also remain:
models of these seeds are trained, and their mean scores added to the model cards.
`characters` needs tinyshakespeare.txt in the current folder.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from deq_keras.models.kerashub import FOLDER
from training import machine
from training.config import reading as configs
from training.conversion.export import CARD, export_preset
from training.errors import InputError
from training.evaluation.report import report
from training.files.atomic_file import replacing, write_text
from training.runs import variants
from training.runs.work_directory import WorkDirectory, is_run

_PATTERNS = {
    "config": r"^```yaml\n(.*?)^```",
    "run": r"^One run, `([^`]+)`",
    "commit": r"(?:trained|Exported on \S+) at commit (\w+)",
}

_SCORES, _SPREAD, _TRAINING = "## Scores", "## Spread", "## Training"


class ModelCard(NamedTuple):
    """What a model card says about its preset.

    Attributes:
        config: Dict. The config of the run.
        run: String. Name of the run.
        commit: String. Commit at which it was trained.
        scores: Dict from budgets to scores, in the unit of the table.
    """

    config: dict[str, Any]
    run: str
    commit: str
    scores: dict[int, float]


def read_card(folder):
    """Returns the `ModelCard` in the folder of a preset.

    Raises:
        InputError: If the card lacks a part.
    """
    path = Path(folder) / CARD
    text = path.read_text(encoding="utf-8")
    found = {}
    for name, pattern in _PATTERNS.items():
        matches = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
        # A card that names both commits names the commit of the training last.
        found[name] = matches[-1] if matches else None
    run = re.escape(found["run"] or "")
    table = re.search(rf"^.* at NFE +([\d ]+)\n{run} +([\d. ]+)$", text, re.MULTILINE)
    missing = [name for name, value in found.items() if value is None]
    if missing or table is None:
        raise InputError(
            f"{path} must contain a config, its run, its commit and a table of scores, "
            "as `deq-keras export --format preset` writes them. Missing: "
            f"{', '.join(missing or ['scores'])}."
        )
    budgets, scores = (line.split() for line in table.groups())
    return ModelCard(
        yaml.safe_load(found["config"]),
        found["run"],
        found["commit"],
        {int(k): float(score) for k, score in zip(budgets, scores, strict=True)},
    )


def refresh(name, runs, changes=(), accepts_worse=False, presets=FOLDER):
    """Trains a preset, and replaces it unless its score becomes worse.

    Compares the scores at the largest budget that both model cards have.

    Args:
        name: String. Name of the preset.
        runs: `pathlib.Path` of the folder for runs.
        changes: Strings `a.b=c`. Changes of the config, as of `deq-keras train --set`.
        accepts_worse: Boolean. Whether to replace a preset by a worse one. Defaults to
            `False`.
        presets: `pathlib.Path` of the folder of presets.

    Returns:
        Whether the preset was replaced.
    """
    old = read_card(presets / name)
    print(f"{name}: was trained at commit {old.commit}", flush=True)
    directory = _trained(runs / name, old.config, changes)
    ((_, job, model),) = variants.load_models(directory, [old.run])
    exported = runs / f"{name}.preset"
    shutil.rmtree(exported, ignore_errors=True)
    # The model of a language run is a task with its loss.
    export_preset(directory, old.run, getattr(model, "causal_lm", model), exported)
    new = read_card(exported)
    budget = max(old.scores.keys() & new.scores.keys())
    before, after = old.scores[budget], new.scores[budget]
    change = f"{before:g} before, {after:g} now, at NFE {budget}"
    # A score that is not a number is as good as none.
    is_as_good = after >= before if job.mode == "max" else after <= before
    if not is_as_good and not accepts_worse:
        print(
            f"{name}: WORSE, {change}; not replaced. The new preset is {exported}. "
            "Pass --accept-worse to replace the old one."
        )
        return False
    _keep_introduction(presets / name / CARD, exported / CARD)
    _replace(presets / name, exported)
    print(f"{name}: replaced; {change}")
    return True


def add_spread(name, runs, seeds, changes=(), presets=FOLDER):
    """Trains models like a preset, and adds their mean scores to its model card.

    Args:
        name: String. Name of the preset.
        runs: `pathlib.Path` of the folder for runs.
        seeds: List of integers. The seeds of the models.
        changes: See `refresh`.
        presets: See `refresh`.
    """
    config = read_card(presets / name).config
    changes = [*changes, f"seeds={list(seeds)}"]
    directory = _trained(runs / f"{name}.spread", config, changes)
    facts = machine.environment()
    listed, date = ", ".join(map(str, seeds)), facts["time"][:10]
    path = presets / name / CARD
    scores, _, training = path.read_text(encoding="utf-8").partition(_TRAINING)
    text = f"""{scores.partition(_SPREAD)[0].rstrip()}

{_SPREAD}

Other models with this config, with the seeds {listed}, trained on {date} by commit
{facts["commit"] or "unknown"} on one
{facts["processor"]}. The numbers are means +- standard deviations.

```text
{report(directory)}
```

{_TRAINING}{training}"""
    write_text(path, text)


def _trained(folder, config, changes):
    """Starts or continues a run, and returns its `WorkDirectory` after the last epoch.

    Args:
        folder: `pathlib.Path` of the run.
        config: Dict. The config of a model card.
        changes: See `refresh`.
    """
    config = configs.resolve(config, [configs.parse_override(one) for one in changes])
    enter = WorkDirectory.resume if is_run(folder) else WorkDirectory.start
    directory = enter(folder, config)
    variants.run(variants.make_jobs(directory), directory)
    return directory


def _keep_introduction(old, new):
    """Copies the text above the scores, which a person wrote, into a new model card."""
    introduction = old.read_text(encoding="utf-8").partition(_SCORES)[0]
    _, heading, rest = new.read_text(encoding="utf-8").partition(_SCORES)
    write_text(new, introduction + heading + rest)


def _replace(folder, exported):
    """Replaces a folder by a copy of another."""
    with replacing(folder) as temporary:
        shutil.copytree(exported, temporary)
        # The new folder is complete before the old one is removed.
        shutil.rmtree(folder)


def main(argv=None):
    """Refreshes the named presets, or all, or their spread. Returns the exit status."""
    names = sorted(path.parent.name for path in FOLDER.glob(f"*/{CARD}"))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--set", dest="changes", action="append", default=[])
    parser.add_argument("--accept-worse", action="store_true")
    parser.add_argument("--spread", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--runs", type=Path, default=Path("runs/presets"))
    arguments = parser.parse_args(argv)
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"NAME must be one of {names}. Received: {sorted(unknown)}.")
    names, runs, changes = arguments.names or names, arguments.runs, arguments.changes
    try:
        if arguments.spread:
            for name in names:
                add_spread(name, runs, arguments.spread, changes)
            return 0
        is_replaced = [
            refresh(name, runs, changes, arguments.accept_worse) for name in names
        ]
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(is_replaced) else 1


if __name__ == "__main__":
    sys.exit(main())
