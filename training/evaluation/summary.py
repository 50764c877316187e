"""Means and standard deviations over seeds, and tables of them."""

import itertools
import math
import statistics


def spread(values):
    """Returns mean and standard deviation of numbers. Ignores `None`.

    The mean of an empty list is `None`, and so is the deviation of a single number.
    """
    numbers = [value for value in values if value is not None]
    if len(numbers) < 2:
        return numbers[0] if numbers else None, None
    # `stdev` fails for numbers that are not finite.
    is_finite = all(map(math.isfinite, numbers))
    deviation = statistics.stdev(numbers) if is_finite else math.nan
    return statistics.fmean(numbers), deviation


def mean_text(values, form, scale=1):
    """Returns the mean of numbers as text, with the deviation for several numbers.

    Args:
        values: List of numbers, with `None` for missing ones.
        form: String. Format of the numbers.
        scale: Number. Factor of the values. Defaults to `1`.
    """
    mean, deviation = spread([scale * value for value in values if value is not None])
    if mean is None:
        return "-"
    text = f"{mean:{form}}"
    return text if deviation is None else f"{text} +- {deviation:{form}}"


def at_budgets(runs, key, at="budget"):
    """Returns a dict from ascending budgets to the values of several runs.

    Args:
        runs: List of the rows of each run, dicts of `budget` and numbers or `None`.
        key: String. Key of the number.
        at: String. Key of the budget. Defaults to `"budget"`.
    """
    values = {}
    for row in itertools.chain(*runs):
        values.setdefault(row[at], []).append(row[key])
    return dict(sorted(values.items()))


def align(rows, left=1):
    """Returns rows of text as lines with aligned columns.

    Args:
        rows: List of lists of strings, all of the same length.
        left: Integer. Number of leading columns that are aligned to the left. Other
            columns are aligned to the right. Defaults to `1`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def table(headings, columns, groups):
    """Returns a table of means and deviations as text, with one line per group.

    Args:
        headings: List of strings. Headings of the names of a group.
        columns: Tuples of a heading, a key, a format and optionally a scale; see
            `mean_text`.
        groups: Dict from tuples of names to lists of dicts of numbers.
    """
    rows = [[*headings, *(heading for heading, *_ in columns)]]
    for names, runs in groups.items():
        cells = [
            mean_text([run[key] for run in runs], *form) for _, key, *form in columns
        ]
        rows.append([*names, *cells])
    return align(rows, left=len(headings))
