"""The table of a run."""


def report(results):
    """Returns the text that compares variants.

    Args:
        results: dict of names to what `evaluation.json` holds.
    """
    lines = ["variant: epochs, training time [s], parameters, validation loss [nats]"]
    lines += [
        f"{name}: {result['epochs']}, {result['seconds']:.0f}, "
        f"{result['parameters']:,}, {result['validation_loss']:.4f}"
        for name, result in results.items()
    ]
    for quantity, digits in (("loss", ".4f"), ("residual", ".2g")):
        lines += ["", f"validation {quantity} at NFE"]
        for name, result in results.items():
            cells = [
                f"{row['budget']}: {row[quantity]:{digits}}"
                for row in result["budgets"]
            ]
            lines.append(f"{name}: {', '.join(cells)}")
    return "\n".join(lines)
