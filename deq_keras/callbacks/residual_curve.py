"""The residual against evaluations, over the samples of a batch."""

import numpy as np

_QUANTILES = (0.25, 0.5, 0.75)


class ResidualCurve:
    """Quartiles over samples of the smallest residual within so many evaluations.

    Samples without a finite residual are left out.

    Args:
        trace: Float array `(max_iter, batch)`, of a `Solution`.

    Attributes:
        median: Float array `(max_iter,)`; empty if no sample is left.
    """

    def __init__(self, trace):
        # A trace ends in NaN where its sample was done. `fmin` passes over NaN.
        best = np.fmin.accumulate(trace, axis=0)
        best = best[:, np.isfinite(best).all(axis=0)]
        num_evaluations = len(trace) if best.size else 0
        self._quartiles = np.quantile(best, _QUANTILES, axis=1) if best.size else None
        self.median = self._quartiles[1] if num_evaluations else np.zeros(0)

    def at_powers_of_two(self):
        """Returns pairs of 1, 2, 4, ... evaluations, and of all, and the median."""
        total = len(self.median)
        counts = [2**k for k in range(total.bit_length()) if 2**k < total]
        return [(count, self.median[count - 1]) for count in [*counts, total] if total]

    def drawn(self):
        """Returns the median and the quartiles as an image, uint8 `(height, width, 4)`.

        Needs Matplotlib.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.5), dpi=100, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot(
            xlabel="function evaluations (NFE)", ylabel="smallest residual so far"
        )
        if len(self.median):
            counts = np.arange(1, len(self.median) + 1)
            low, _, high = self._quartiles
            axes.semilogy(counts, self.median)
            axes.fill_between(counts, low, high, alpha=0.25)
        axes.grid(alpha=0.3)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())
