"""The table of the study of prefixes."""

from ...evaluation.summary import cell, spread
from ...evaluation.text_table import aligned

_HEADING = ["bits", "budget", "runs", "right", "smallest", "NFE", "residual"]


def flatten(results):
    """Returns one dict for each run, length and budget."""
    return [
        {"seed": result["seed"], **row}
        for result in results
        for row in result["solves"]
    ]


def summarize(results):
    """Returns one dict for each length and budget: mean and deviation over the seeds.

    Args:
        results: list of one dict for each run, with `seed` and `solves`, what `measure`
            returned.
    """
    groups = {}
    for row in flatten(results):
        groups.setdefault((row["length"], row["budget"]), []).append(row)
    return [
        {
            "length": length,
            "budget": budget,
            "runs": len(rows),
            "smallest": min(row["right"] for row in rows),
            **spread("right", [row["right"] for row in rows]),
            **spread("evaluations", [row["evaluations"] for row in rows]),
            **spread(
                "residual",
                [row["residual"] for row in rows if row["residual"] is not None],
            ),
        }
        for (length, budget), rows in groups.items()
    ]


def render(summaries):
    """Returns the summaries as text, a line for each length and budget."""
    rows = [_HEADING]
    for summary in summaries:
        rows.append(
            [
                *(str(summary[name]) for name in ("length", "budget", "runs")),
                cell(summary, "right", 2),
                f"{summary['smallest']:.1f}",
                cell(summary, "evaluations", 1),
                cell(summary, "residual", 4),
            ]
        )
    return aligned(rows, left=0)
