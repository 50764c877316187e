"""The residual against evaluations, over the samples of a batch."""

import numpy as np

_QUANTILES = (0.25, 0.5, 0.75)


class ResidualCurve:
    """Quartiles over samples of the smallest residual within so many evaluations.

    Samples without a finite residual are left out.

    Args:
        trace: Float array `(max_iter, batch)`, of a `Solution`.

    Attributes:
        quartiles: Float array `(max_iter, 3)`; empty if no sample is left.
        median: Float array `(max_iter,)`, the middle one.
    """

    def __init__(self, trace):
        # A trace ends in NaN where its sample was done. `fmin` passes over NaN.
        best = np.fmin.accumulate(trace, axis=0)
        best = best[:, np.isfinite(best).all(axis=0)]
        has_samples = best.shape[1] > 0
        self.quartiles = np.zeros((0, 3))
        if has_samples:
            self.quartiles = np.quantile(best, _QUANTILES, axis=1).T
        self.median = self.quartiles[:, 1]

    def at_powers_of_two(self):
        """Returns pairs of 1, 2, 4, ... evaluations, and of all, and the median."""
        total = len(self.median)
        counts = [2**k for k in range(total.bit_length()) if 2**k < total]
        return [(count, self.median[count - 1]) for count in [*counts, total] if total]
