"""The precision of logits."""


def logits_dtype(compute_dtype):
    """Returns the dtype of logits, at least float32, for an accurate loss."""
    return "float64" if compute_dtype == "float64" else "float32"
