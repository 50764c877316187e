"""The command `deq-keras audit`: its arguments and its files."""

from pathlib import Path

from .. import registry
from ..errors import InputError
from ..files import records
from ..files.input_file import check_file, check_new
from .selection import only, selected


def audit(arguments):
    """Audits a run or a saved model. Prints the verdict, and writes all numbers into a
    new JSON file."""
    out, is_run = Path(arguments.out), Path(arguments.model).is_dir()
    if not is_run:
        check_file(arguments.model, "run or .keras file")
    _refuse(arguments, ("variant",), not is_run, "a run")
    _refuse(arguments, ("data", "reach", "import"), is_run, "a model that is no run")
    if not is_run and arguments.data is None:
        raise InputError("Problems are needed, with their answers: give --data FILE.")
    check_new(out)
    audited, groups, settings = (_of_run if is_run else _of_file)(arguments)
    settings["budgets"] = sorted(set(settings["budgets"]))
    from ..evaluation import audit as audits

    result = audits.audit(
        audited.model,
        groups,
        solver=_iteration(audited.solver, arguments),
        **settings,
    )
    records.write_json(out, result.as_dict())
    print(f"{result.iteration}:")
    for criterion in result.criteria:
        print(f"{'passed' if criterion.passed else 'missed'}: {criterion}")
    print(f"Verdict: {result.verdict}.\nThe numbers are in {out}.")


def _refuse(arguments, names, is_refused, belongs_to):
    for name in names:
        value = getattr(arguments, name)
        if is_refused and value is not None:
            raise InputError(f"--{name} belongs to {belongs_to}. Received: {value}.")


def _of_file(arguments):
    """Returns the `Audited`, the groups, and other arguments of `audit`."""
    from ..evaluation import audit as audits

    registry.import_modules(getattr(arguments, "import") or (), "--import")
    audited = audits.opened(arguments.model)
    reach = arguments.reach or audited.reach
    groups = [audits.read_problems(path, reach) for path in arguments.data]
    return audited, groups, {"budgets": arguments.budgets or audits.BUDGETS}


def _of_run(arguments):
    """Like `_of_file`, with the test data of the run."""
    directory, names = selected(arguments.model, arguments.variant)
    name = only(names)
    from ..data import corruption
    from ..evaluation import audit as audits
    from ..runs import variants

    ((_, job, model),) = variants.trained(directory, [name])
    if job.equilibrium(model) is None:
        raise InputError(f"{name} of {arguments.model} has no equilibrium to audit.")
    with corruption.reported():
        groups = job.group_problems(model)
    budgets = arguments.budgets or job.config.evaluation.budgets
    size = max(3, job.config.data.evaluation_batch_size)
    settings = {"budgets": budgets, "batch_size": size, "seed": job.config.seed}
    return audits.of_layer(job.split(model)), groups, settings


def _iteration(solver, arguments):
    """Returns the solver with the tolerance and the damping of the arguments."""
    given = {"tol": arguments.tol, "damping": arguments.damping}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return type(solver)(**{**solver.get_config(), **given})
    except ValueError as error:
        raise InputError(f"--tol, --damping: {error}") from error
