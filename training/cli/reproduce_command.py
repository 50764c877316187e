"""The command `deq-keras reproduce`: tables and figures of the papers."""

import importlib
import shlex
from pathlib import Path

from .. import machine
from ..errors import InputError
from ..evaluation.summary import aligned
from ..files import records
from ..files.atomic_file import is_partial
from ..reproduce.experiments import EXPERIMENTS, arguments_of

_STATE = "experiment.json"


def reproduce(arguments):
    """Lists the experiments, or runs the experiment that `arguments.name` names."""
    if arguments.name is not None:
        return _run(arguments)
    if arguments.quick or arguments.overrides or arguments.work_dir is not None:
        raise InputError(
            "--quick, --set and --work-dir are options of an experiment. Name one of "
            f"{', '.join(EXPERIMENTS)}. Received: name=None."
        )
    rows = [["name", "minutes", "--quick", "of the papers", "shows"]]
    for name, one in EXPERIMENTS.items():
        times = [f"{one.minutes}", f"{one.quick_minutes}"]
        rows.append([name, *times, one.source, one.shows])
    print(aligned(rows, left=len(rows[0])))
    print("\nTimes are for two cores that do nothing else.")


def _run(arguments):
    from ..reproduce import results, trained

    name, is_quick = arguments.name, arguments.quick
    experiment = EXPERIMENTS[name]
    chosen = _overridden(name, arguments_of(name, is_quick), arguments.overrides)
    folder = Path(
        arguments.work_dir or f"runs/reproduce-{name}{'-quick' if is_quick else ''}"
    )
    if "config" in chosen:  # A mistake in it must not leave a folder.
        keys = {"config", "variants", "overrides"} & set(chosen)
        trained.resolved(**{key: chosen[key] for key in keys})
    facts = _enter(folder, {"name": name, "arguments": chosen})
    minutes = experiment.quick_minutes if is_quick else experiment.minutes
    print(f"{name}: about {minutes} minutes, in {folder}", flush=True)
    module, _, function = experiment.run.partition(":")
    module = importlib.import_module(f"..reproduce.{module}", __package__)
    command = ["deq-keras", "reproduce", name, *(["--quick"] if is_quick else [])]
    command += [word for one in arguments.overrides for word in ("--set", one)]
    found = getattr(module, function)(folder, **chosen)
    facts = {"Command": f"`{shlex.join(command)}`", **_described(facts)}
    table = results.write(folder, f"{name}: {experiment.source}", found, facts)
    print(f"\n{table}\n\nTable, numbers and figure are in {folder}.")


def _overridden(name, chosen, overrides):
    """Returns the arguments of an experiment with the overrides of its config.

    Raises:
        InputError: If the experiment does not train a config.
    """
    if overrides and "config" not in chosen:
        raise InputError(
            f"The experiment {name} has no config that --set could change. Leave it "
            f"out. Received: {', '.join(overrides)}."
        )
    if not overrides:
        return chosen
    return {**chosen, "overrides": [*chosen.get("overrides", ()), *overrides]}


def _enter(folder, state):
    """Starts or continues an experiment; returns the environments of its commands.

    Raises:
        InputError: If the folder holds something else.
    """
    file, environments = folder / _STATE, []
    remedy = f"Remove {folder} and run the command again."
    if file.is_file():
        saved = records.read_json(file, remedy)
        if not isinstance(saved, dict) or saved.get("state") != state:
            raise InputError(
                f"{folder} holds another experiment, or the same one of another "
                "version, with another --set or with the other --quick. Choose "
                "another --work-dir. "
                f"Received: work_dir={folder}."
            )
        environments = saved["environments"]
    elif folder.is_dir() and not all(map(is_partial, folder.iterdir())):
        raise InputError(
            "--work-dir must be a new folder, or the folder of an interrupted "
            f"experiment. Received: work_dir={folder}, which is not empty."
        )
    folder.mkdir(parents=True, exist_ok=True)
    now = machine.environment()
    if now["commit"] not in [one["commit"] for one in environments]:
        environments = [*environments, now]
        records.write_json(file, {"state": state, "environments": environments})
    return environments


def _described(environments):
    """Returns the commits and the machines of an experiment as text."""
    commits = [
        f"{(one['commit'] or 'unknown')[:7]}"
        f"{' with uncommitted changes' if one['uncommitted_changes'] else ''}, "
        f"{one['time'][:10]}"
        for one in environments
    ]
    machines = [
        f"{one['processor']}, processors: {one['processors_usable']}, TensorFlow "
        f"{one['versions']['tensorflow']}"
        for one in environments
    ]
    return {
        "Commit": "; ".join(commits),
        "Machine": "; ".join(dict.fromkeys(machines)),
    }


def add_arguments(parser):
    """Adds the arguments of the command to its parser."""
    parser.add_argument(
        "name", nargs="?", choices=EXPERIMENTS, help="default: list the experiments"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="at a size that takes minutes: shows that it runs",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="A.B=C",
        help="replace a value of the config, such as data.path; may be repeated",
    )
    parser.add_argument(
        "--work-dir",
        metavar="DIR",
        help="a new folder, or the folder of an interrupted command, which is "
        "continued (default: runs/reproduce-NAME)",
    )
