"""HTML page of an audit with its verdict, numbers and figures."""

import base64
import html
import io

from ...files.atomic_file import write_text
from . import pictures

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ border-bottom: 1px solid #ccc; padding: 0.3em 0.8em; text-align: left; }}
.passed {{ color: #060; }}
.missed {{ color: #a00; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="{outcome}"><strong>Verdict: {verdict}.</strong></p>
{sections}
</body>
</html>
"""


def write_page(path, result, title):
    """Writes a self-contained HTML page of an `Audit`.

    Args:
        path: Path of the HTML file, in an existing folder.
        result: The `Audit`.
        title: String. Name of the audited model.
    """
    page = _PAGE.format(
        title=html.escape(title),
        outcome=_outcome(result.is_passed),
        verdict=html.escape(result.verdict),
        sections="\n".join(_sections(result)),
    )
    write_text(path, page)


def _sections(result):
    yield f"<p>{html.escape(result.iteration)}.</p>"
    yield _criteria(result.criteria)
    yield _groups(result.groups)
    groups = result.groups
    yield _picture("Answers and residuals", pictures.draw_curves(groups))
    if any(group.difficulty is not None for group in groups):
        figure = pictures.draw_difficulty(groups, result.correlation)
        yield _picture("Evaluations and difficulty", figure)
    thresholds = {
        criterion.name: criterion.threshold
        for criterion in result.criteria
        if criterion.name in ("alignment", "agreement")
    }
    yield _picture("From other starts", pictures.draw_starts(groups, thresholds))
    yield _picture("Overthinking", pictures.draw_lost(groups))


def _criteria(criteria):
    rows = [
        (
            criterion.name,
            _text(criterion.value, ".4f"),
            criterion.bound,
            _outcome(criterion.passed),
            criterion.where,
        )
        for criterion in criteria
    ]
    return _table(("criterion", "worst", "threshold", "", "where"), rows)


def _groups(groups):
    heading = ("group", "problems", "floor", "NFE to tol", "converged", "same answer")
    rows = [
        (
            group.label,
            str(group.examples),
            _text(group.floor, "d"),
            f"{sum(group.evaluations) / group.examples:.1f}",
            f"{group.converged:.1%}",
            f"{group.agreement:.1%}",
            _text(group.correlation, ".2f"),
            _text(group.overthinking, ".1%"),
        )
        for group in groups
    ]
    return _table((*heading, "NFE ~ difficulty", "lost at 10 x"), rows)


def _table(heading, rows):
    lines = [_row("th", heading), *(_row("td", row) for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _row(tag, cells):
    parts = (f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{''.join(parts)}</tr>"


def _picture(heading, figure):
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    data = base64.b64encode(image.getvalue()).decode("ascii")
    return (
        f'<h2>{heading}</h2>\n<img alt="{heading}" src="data:image/png;base64,{data}">'
    )


def _outcome(passed):
    return "passed" if passed else "missed"


def _text(number, form):
    return "-" if number is None else f"{number:{form}}"
