"""Means and deviations over the seeds of a study, and how they are written."""

import csv
import io
import statistics


def spread(name, values):
    """Returns `<name>_mean` and `<name>_std` of a list of numbers.

    Without a number the mean is `None`, with a single one the deviation.
    """
    return {
        f"{name}_mean": statistics.fmean(values) if values else None,
        f"{name}_std": statistics.stdev(values) if len(values) > 1 else None,
    }


def cell(summary, name, digits):
    """Returns the text of a number in a dict with what `spread` returned."""
    mean, deviation = summary[f"{name}_mean"], summary[f"{name}_std"]
    if mean is None:
        return "-"
    text = f"{mean:.{digits}f}"
    return text if deviation is None else f"{text} +- {deviation:.{digits}f}"


def to_csv(rows):
    """Returns a list of dicts with the same keys as CSV text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
