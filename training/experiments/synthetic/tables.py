"""The tables of the scalar models. Does not import TensorFlow."""

from ...config.reading import by_variant
from ...evaluation.report import evaluations
from ...evaluation.summary import align, table

LABELS = {
    "fixed_point_iteration": "fixed-point iteration",
    "anderson": "Anderson",
    "broyden": "Broyden",
}
_FIT = (
    ("RMSE", "rmse", ".4f"),
    ("MSE", "mse", ".5f"),
    ("mean |df/dz|", "mean_slope", ".4f"),
    ("max |df/dz|", "max_slope", ".3f"),
)


def of_variants(directory):
    """Returns the tables of errors and slopes, and of evaluations by solver.

    Args:
        directory: The `WorkDirectory` of the run.
    """
    variants = by_variant(evaluations(directory))
    if not variants:
        return None
    trained = {
        (name,): [run for run in runs if not run["failed"]]
        for name, runs in variants.items()
    }
    failed = [["failed runs", ""]] + [
        [name, f"{sum(run['failed'] for run in runs)}/{len(runs)}"]
        for name, runs in variants.items()
    ]
    config = directory.config
    counts = [
        (label, f"{solver}_{key}", form)
        for solver in config.evaluation.solvers
        for label, key, form in (
            (LABELS[solver], "evaluations", ".2f"),
            ("(not converged)", "not_converged", ".1f"),
        )
    ]
    return "\n\n".join(
        [
            f"On {config.data.validation_examples} validation pairs (noise "
            f"{config.data.noise:g}), without failed runs, which predict worse than a "
            f"constant:\n{table([''], _FIT, trained)}",
            align(failed),
            f"Mean NFE to a relative residual of {config.evaluation.tol:g}, at most "
            f"{config.evaluation.max_iter}:\n{table([''], counts, trained)}",
        ]
    )
