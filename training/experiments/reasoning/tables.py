"""Tables of a reasoner's measurements by level. Does not import TensorFlow."""

from ...config.reading import variant_of
from ...errors import reading
from ...evaluation.report import read_runs
from ...evaluation.summary import align, at_budgets, mean_text, table
from ...files import records

LEVELS = "levels.json"

# Heading, key, format and scale of each measurement of a level.
_SETTLING = (
    ("positions [%]", "accuracy", ".2f", 100),
    ("residual", "residual", ".1e", 1),
    ("NFE to tol", "nfe", ".1f", 1),
    ("converged [%]", "converged", ".1f", 100),
    ("NFE ~ difficulty", "correlation", ".2f", 1),
    ("alignment", "alignment", ".4f", 1),
    ("same answer [%]", "agreement", ".1f", 100),
    ("lost at 10 x [%]", "overthinking", ".1f", 100),
)


def _least(values):
    """Returns a list with the smallest value, or an empty list without values."""
    return [min(values)] if values else []


# Heading, key, format and scale of the tables over budgets, and the values they show.
_OVER_BUDGETS = (
    ("exact answers [%] at NFE", "exact_match", ".1f", 100, list),
    ("of the worst seed [%]", "exact_match", ".1f", 100, _least),
    ("mean NFE", "evaluations", ".1f", 1, list),
)
_RESTARTS = (
    ("one start", "first", ".1f", 100),
    ("by residual", "residual", ".1f", 100),
    ("by vote", "vote", ".1f", 100),
)
_NOTE = """\
A line a level; the table of all variants above is of the last one.

Floor: the least evaluations that carry information as far as all examples ask, from a
position to its neighbors. A bound for strings, chains and words; a path may be found
in fewer, by filling dead ends. -: every position sees all others.

At the largest budget, with the median of residuals. NFE to tol: that budget where the
tolerance is not met. Alignment, same answer: of what is found from other starts. Lost:
exact answers at the best budget less those at ten times it."""


def of_levels(directory):
    """Returns the tables of all levels, or `None` before they have been measured.

    Args:
        directory: The `WorkDirectory` of the run.

    Raises:
        InputError: If a file is corrupt.
    """
    measured = read_runs(directory, LEVELS, "evaluate", _read)
    if not measured:
        return None
    levels = _by_variant_and_level(measured)
    return "\n\n".join(
        [
            _over_budgets(levels),
            _NOTE,
            table(["", "level"], _SETTLING, _each(levels, _settling)),
            *_restarts(levels),
            *_correlations(measured),
        ]
    )


def _read(path, remedy):
    found = records.read_json(path, remedy)
    with reading(path, remedy):
        for level in found["levels"]:
            _settling(level)
            level["level"], level["floor"], level["restarts"]
        found["correlation"]
    return found


def _by_variant_and_level(measured):
    """Returns a dict from `(variant, level)` to the measurements of all seeds."""
    levels = {}
    for name, found in measured.items():
        for level in found["levels"]:
            key = variant_of(name), str(level["level"])
            levels.setdefault(key, []).append(level)
    return levels


def _over_budgets(levels):
    """Returns the table of exact answers and evaluations at all budgets."""
    budgets = sorted(
        {row["budget"] for runs in levels.values() for row in runs[0]["budgets"]}
    )
    rows = []
    for heading, key, form, scale, select in _OVER_BUDGETS:
        if select is _least and all(len(runs) == 1 for runs in levels.values()):
            continue
        rows.append([heading, "level", "floor", *map(str, budgets)])
        for place, runs in levels.items():
            values = at_budgets([run["budgets"] for run in runs], key)
            cells = [mean_text(select(values.get(b, ())), form, scale) for b in budgets]
            floor = runs[0]["floor"]  # Depends only on the examples.
            rows.append([*place, "-" if floor is None else f"{floor:d}", *cells])
    return align(rows)


def _settling(level):
    """Returns the measurements of a level at the largest budget, by the keys of
    `_SETTLING`."""
    last = level["budgets"][-1]
    of_last = {name: last[name] for name in ("accuracy", "residual", "converged")}
    of_all = ("correlation", "alignment", "agreement", "overthinking")
    return {
        **of_last,
        "nfe": last["evaluations"],
        **{name: level[name] for name in of_all},
    }


def _restarts(levels):
    """Returns a list with the table of restarts, empty without restarts."""
    chosen = {key: runs for key, runs in levels.items() if runs[0]["restarts"]}
    if not chosen:
        return []
    headings = ["exact answers [%], restarts", "level"]
    return [table(headings, _RESTARTS, _each(chosen, lambda one: one["restarts"]))]


def _each(levels, numbers):
    """Returns a dict from places to the numbers of the measurements of a level."""
    return {place: list(map(numbers, runs)) for place, runs in levels.items()}


def _correlations(measured):
    """Returns one line per run whose correlation is defined."""
    return [
        f"{name}: rank correlation of NFE to tol with difficulty, over all levels: "
        f"{found['correlation']:.2f}"
        for name, found in measured.items()
        if found["correlation"] is not None
    ]
