"""Means and standard deviations over seeds, and tables of them as text and CSV."""

import csv
import io
import itertools
import statistics


def spread(name, values):
    """Returns a dict with `<name>_mean` and `<name>_std` of a list of numbers.

    The mean is `None` for an empty list, the deviation also for a single number.
    """
    return {
        f"{name}_mean": statistics.fmean(values) if values else None,
        f"{name}_std": statistics.stdev(values) if len(values) > 1 else None,
    }


def cell(summary, name, digits):
    """Returns the text of a number in a dict that contains the result of `spread`."""
    return _text(summary[f"{name}_mean"], summary[f"{name}_std"], f".{digits}f")


def mean_text(values, form, scale=1):
    """Returns the mean of numbers as text, with the deviation for several numbers.

    Args:
        values: List of numbers, with `None` for missing ones.
        form: String. Format of the numbers.
        scale: Number. Factor of the values. Defaults to `1`.
    """
    numbers = [scale * value for value in values if value is not None]
    return _text(*spread("number", numbers).values(), form)


def _text(mean, deviation, form):
    if mean is None:
        return "-"
    text = f"{mean:{form}}"
    return text if deviation is None else f"{text} +- {deviation:{form}}"


def at_budgets(runs, key):
    """Returns a dict from ascending budgets to the values of several runs.

    Args:
        runs: List of the rows of each run, dicts of `budget` and numbers or `None`.
        key: String. Key of the number.
    """
    values = {}
    for row in itertools.chain(*runs):
        values.setdefault(row["budget"], []).append(row[key])
    return dict(sorted(values.items()))


def aligned(rows, left=1):
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


def to_csv(rows):
    """Returns a list of dicts with the same keys as CSV text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
