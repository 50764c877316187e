"""The tables of a reasoner, level by level. Needs no TensorFlow."""

from ...errors import reading
from ...evaluation.text_table import aligned
from ...files import records

LEVELS = "levels.json"

# Heading, key, format and scale of what is known of a level.
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
    """Returns the tables of what was measured at each level, `None` before it was.

    Args:
        directory: the `WorkDirectory` of the run.

    Raises:
        InputError: if a file is damaged.
    """
    measured = {
        name: _read(directory, name)
        for name in directory.config.variants
        if (directory.folder(name) / LEVELS).exists()
    }
    if not measured:
        return None
    levels = [
        (name, level) for name, found in measured.items() for level in found["levels"]
    ]
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


def _exact(levels):
    budgets = sorted({row["budget"] for _, level in levels for row in level["budgets"]})
    rows = [["exact answers [%] at NFE", "level", "floor", *map(str, budgets)]]
    for name, level in levels:
        shares = {row["budget"]: row["exact_match"] for row in level["budgets"]}
        cells = [_text(shares.get(budget), ".1f", 100) for budget in budgets]
        floor = _text(level["floor"], "d")
        rows.append([name, str(level["level"]), floor, *cells])
    return aligned(rows)


def _settling(level):
    """Returns what is known of a level at the largest budget, by the keys of
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
    """Returns the table of restarts in a list, which is empty if there were none."""
    chosen = [(name, level) for name, level in levels if level["restarts"]]
    if not chosen:
        return []
    heading = "exact answers [%], restarts"
    return [_table(heading, _RESTARTS, chosen, lambda level: level["restarts"])]


def _correlations(measured):
    """Returns a line for each variant whose evaluations vary with the difficulty."""
    return [
        f"{name}: rank correlation of NFE to tol with difficulty, over all levels: "
        f"{found['correlation']:.2f}"
        for name, found in measured.items()
        if found["correlation"] is not None
    ]


def _table(heading, columns, levels, numbers_of):
    rows = [[heading, "level", *(column for column, *_ in columns)]]
    for name, level in levels:
        numbers = numbers_of(level)
        cells = [_text(numbers[key], *form) for _, key, *form in columns]
        rows.append([name, str(level["level"]), *cells])
    return aligned(rows)


def _text(number, form, scale=1):
    return "-" if number is None else f"{scale * number:{form}}"
