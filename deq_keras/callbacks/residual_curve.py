"""The residual over evaluations, for the samples of a batch."""

import numpy as np

_QUANTILES = (0.25, 0.5, 0.75)


class ResidualCurve:
    """Quartiles over samples of the smallest residual after each evaluation.

    Ignores samples without a finite residual.

    Args:
        trace: Float array `(max_iter, batch)`. Trace of a `Solution`.

    Attributes:
        quartiles: Float array `(max_iter, 3)`. Empty if all samples are ignored.
        median: Float array `(max_iter,)`. The second quartile.
    """

    def __init__(self, trace):
        # A trace is NaN after its sample has stopped. `fmin` ignores NaN.
        best = np.fmin.accumulate(trace, axis=0)
        best = best[:, np.isfinite(best).all(axis=0)]
        has_samples = best.shape[1] > 0
        self.quartiles = np.zeros((0, 3))
        if has_samples:
            self.quartiles = np.quantile(best, _QUANTILES, axis=1).T
        self.median = self.quartiles[:, 1]

    def at_powers_of_two(self):
        """Returns pairs of evaluations (1, 2, 4, ..., `max_iter`) and their median."""
        total = len(self.median)
        counts = [2**k for k in range(total.bit_length()) if 2**k < total]
        return [(count, self.median[count - 1]) for count in [*counts, total] if total]
