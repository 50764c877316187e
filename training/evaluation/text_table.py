"""Tables in plain text."""


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
