"""Tables in plain text."""


def aligned(rows, left=1):
    """Returns rows of text as lines with aligned columns.

    Args:
        rows: list of lists of strings, of equal length.
        left: int. How many columns, the first ones, are aligned to the left. Defaults
            to `1`. The others are aligned to the right, as numbers are.
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
