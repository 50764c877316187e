"""The table of all test sets. Does not import TensorFlow."""

from ...config.reading import variant_of
from ...evaluation.report import evaluations
from ...evaluation.summary import mean_text

_HEADER = "| network | weights | test set | error | residual | NFE |\n"


def of_test_sets(directory):
    """Returns the Markdown table of all test sets, or `None` without measurements.

    Args:
        directory: The `WorkDirectory` of the run.
    """
    groups = {}
    for name, evaluation in evaluations(directory).items():
        for test_set, row in evaluation["test_sets"].items():
            key = variant_of(name), f"{evaluation['parameters']:,}", test_set
            groups.setdefault(key, []).append(row)
    lines = []
    for key, rows in groups.items():
        numbers = (("error", ".3f"), ("residual", ".1e"), ("evaluations", ".1f"))
        cells = [mean_text([row[name] for row in rows], f) for name, f in numbers]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    return _HEADER + "|---|---|---|---|---|---|\n" + "\n".join(lines) if lines else None
