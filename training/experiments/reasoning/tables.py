"""Tables of a reasoner's measurements by level. Does not import TensorFlow."""

from ...config.reading import run_names, variant_of
from ...errors import reading
from ...evaluation.summary import aligned, at_budgets, mean_text
from ...files import records

LEVELS = "levels.json"

# Heading, key, format and scale of each measurement of a level.
_SETTLING = (
    ("positions [%]", "accuracy", ".2f", 100),
    ("residual", "residual", ".1e", 1),
    ("NFE to tol", "nfe", ".1f", 1),
    ("settled [%]", "converged", ".1f", 100),
    ("NFE ~ difficulty", "correlation", ".2f", 1),
    ("alignment", "alignment", ".4f", 1),
    ("same answer [%]", "agreement", ".1f", 100),
    ("lost at 10 x [%]", "overthinking", ".1f", 100),
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
    measured = {
        name: _read(directory, name)
        for name in run_names(directory.config)
        if (directory.folder(name) / LEVELS).exists()
    }
    if not measured:
        return None
    levels = _by_variant_and_level(measured)
    return "\n\n".join(
        [
            _exact(levels),
            _NOTE,
            _table("", _SETTLING, levels, _settling),
            *_restarts(levels),
            *_correlations(measured),
        ]
    )


def _read(directory, name):
    remedy = (
        f"It is measured again by deq-keras evaluate {directory.path} --variant {name}."
    )
    path = directory.folder(name) / LEVELS
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


def _exact(levels):
    exact = {
        key: at_budgets([level["budgets"] for level in runs], "exact_match")
        for key, runs in levels.items()
    }
    budgets = sorted(set().union(*exact.values()))
    rows = [["exact answers [%] at NFE", "level", "floor", *map(str, budgets)]]
    for key, values in exact.items():
        cells = [mean_text(values.get(b, ()), ".1f", 100) for b in budgets]
        floor = levels[key][0]["floor"]  # Depends only on the examples.
        rows.append([*key, "-" if floor is None else f"{floor:d}", *cells])
    return aligned(rows)


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
    heading = "exact answers [%], restarts"
    return [_table(heading, _RESTARTS, chosen, lambda level: level["restarts"])]


def _correlations(measured):
    """Returns one line per run whose correlation is defined."""
    return [
        f"{name}: rank correlation of NFE to tol with difficulty, over all levels: "
        f"{found['correlation']:.2f}"
        for name, found in measured.items()
        if found["correlation"] is not None
    ]


def _table(heading, columns, levels, numbers_of):
    rows = [[heading, "level", *(column for column, *_ in columns)]]
    for place, runs in levels.items():
        numbers = [numbers_of(level) for level in runs]
        cells = [
            mean_text([n[key] for n in numbers], *form) for _, key, *form in columns
        ]
        rows.append([*place, *cells])
    return aligned(rows)
