"""The command `deq-keras audit`: its arguments and its files."""

from pathlib import Path

from .. import registry
from ..errors import InputError
from ..evaluation.verdict import Thresholds, check_thresholds
from ..files import records
from ..files.atomic_file import replacing
from ..files.input_file import check_file, check_new
from .selection import only, selected


def audit(arguments):
    """Audits a run, a saved model or saved components. Prints the verdict, and writes
    `audit.html` and `audit.json` into a new folder."""
    thresholds = _thresholds(arguments)
    out = Path(arguments.out)
    _check_sources(arguments)
    check_new(out, "folder")
    audited, groups, settings, title = _source(arguments)
    settings["budgets"] = sorted(set(settings["budgets"]))
    from ..evaluation import audit as audits

    result = audits.audit(
        audited.model,
        groups,
        solver=_iteration(audited.solver, arguments),
        thresholds=thresholds,
        **settings,
    )
    with replacing(out) as temporary:
        temporary.mkdir()
        audits.write_page(temporary / "audit.html", result, title)
        records.write_json(temporary / "audit.json", result.as_dict())
    print(f"{result.iteration}:")
    for criterion in result.criteria:
        print(f"{'passed' if criterion.passed else 'missed'}: {criterion}")
    print(f"Verdict: {result.verdict}.\nThe page is {out / 'audit.html'}.")


def _thresholds(arguments):
    given = {name: getattr(arguments, name) for name in Thresholds._fields}
    thresholds = Thresholds(
        **{name: value for name, value in given.items() if value is not None}
    )
    check_thresholds(thresholds)
    return thresholds


def _check_sources(arguments):
    if (arguments.model is None) == (arguments.cell is None):
        raise InputError(
            "Name either a run or a .keras file, or the parts of a model by --cell, "
            f"--encoder and --head. Received: {arguments.model or 'neither'}"
            f"{'' if arguments.cell is None else f', --cell {arguments.cell}'}."
        )
    is_run = _is_run(arguments)
    if arguments.model is not None and not is_run:
        check_file(arguments.model, "run or .keras file")
    _refuse(arguments, ("encoder", "head"), arguments.cell is None, "--cell")
    _refuse(arguments, ("variant",), not is_run, "a run")
    _refuse(arguments, ("data", "reach", "import"), is_run, "a model that is no run")
    if not is_run and arguments.data is None:
        raise InputError("Problems are needed, with their answers: give --data FILE.")


def _refuse(arguments, names, is_refused, belongs_to):
    for name in names:
        value = getattr(arguments, name)
        if is_refused and value is not None:
            raise InputError(f"--{name} belongs to {belongs_to}. Received: {value}.")


def _source(arguments):
    """Returns the `Audited`, the groups, other arguments of `audit`, and a title."""
    if _is_run(arguments):
        return _of_run(arguments)
    from ..evaluation import audit as audits

    registry.import_modules(getattr(arguments, "import") or (), "--import")
    if arguments.cell is None:
        audited, title = audits.opened(arguments.model), arguments.model
    else:
        audited = audits.assembled(arguments.cell, arguments.encoder, arguments.head)
        title = arguments.cell
    reach = arguments.reach or audited.reach
    groups = [audits.read_problems(path, reach) for path in arguments.data]
    return audited, groups, {"budgets": arguments.budgets or audits.BUDGETS}, title


def _of_run(arguments):
    directory, names = selected(arguments.model, arguments.variant)
    name = only(names)
    from ..data import corruption
    from ..evaluation import audit as audits
    from ..runs import variants

    ((_, job, model),) = variants.trained(directory, [name])
    if job.equilibrium(model) is None:
        raise InputError(f"{name} of {arguments.model} has no equilibrium to audit.")
    with corruption.reported():
        groups = job.groups(model)
    budgets = arguments.budgets or job.config.evaluation.budgets
    size = max(3, job.config.data.evaluation_batch_size)
    settings = {"budgets": budgets, "batch_size": size, "seed": job.config.seed}
    audited = audits.of_layer(job.split(model))
    return audited, groups, settings, f"{arguments.model}, {name}"


def _iteration(solver, arguments):
    """Returns the solver with the tolerance and the damping of the arguments."""
    given = {"tol": arguments.tol, "damping": arguments.damping}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return type(solver)(**{**solver.get_config(), **given})
    except ValueError as error:
        raise InputError(f"--tol, --damping: {error}") from error


def _is_run(arguments):
    return arguments.model is not None and Path(arguments.model).is_dir()
