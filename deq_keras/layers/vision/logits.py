"""The precision of logits."""


def logits_dtype(compute_dtype):
    """Returns the dtype of logits: a loss of half-precision logits has few digits."""
    return "float64" if compute_dtype == "float64" else "float32"
