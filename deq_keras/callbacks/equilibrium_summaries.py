"""TensorBoard summaries of equilibria, beyond the logs of the layer."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from deq_keras.core.checks import check_count
from deq_keras.core.graphs import compile_function
from deq_keras.core.internals import attach_masks, keras_masks
from deq_keras.core.structure import Nest
from deq_keras.diagnostics import StepTimer
from deq_keras.diagnostics.subject import single_layer
from deq_keras.layers import DEQ
from deq_keras.solvers import Solution

# Lower bound of residuals, below the rounding error. The logarithm of 0 is infinite.
_SMALLEST = 1e-30


class EquilibriumSummaries(keras.callbacks.Callback):
    """Writes the convergence of a batch of samples for TensorBoard.

    `keras.callbacks.TensorBoard` writes the means that a `DEQ` layer logs. This
    callback solves the same inputs at the end of epochs and writes further summaries by
    epoch to `log_dir/equilibrium`:

    - `{layer}/evaluations` and `{layer}/log10_residual`, histograms over samples for a
      solve with the layer's own settings. Non-finite residuals are ignored.
    - `{layer}/residual_at/NFE`, the median over samples of the smallest residual within
      1, 2, 4, ... evaluations.
    - `{layer}/time_share/f`, `solver` and `gradient`, fractions of the time of a
      training step of the layer; see below.
    - `{layer}/phase`, a text with the layer's strategies, at the start of `fit`.

    In the 1st, 2nd, 4th, 8th, ... and last of these epochs, the callback also writes a
    curve of the medians over evaluations 1 ... `max_iter`, as
    `{layer}/residual_over_evaluations/epoch_NUMBER`. The steps of these curves are
    evaluations. Images from `draw` are written as `{layer}/residual_curve`.

    Time fractions are estimates: `deq_keras.diagnostics.StepTimer` times only the
    layer, on `inputs` instead of training batches, compiled like the model. They sum to
    1 and exclude the rest of the model and waiting for data.

    The callback does not change training: it updates neither metrics nor seeds. An
    epoch costs about 6 training steps of the layer on `inputs` and two solves. The
    first epoch of `fit` compiles.

    Args:
        layer: `DEQ` layer of the trained model, or a model with one such layer.
        inputs: Function without arguments that returns inputs of `layer`: a few
            samples, encoded by the current weights.
        log_dir: Path of TensorBoard's log folder, or a `tf.summary.SummaryWriter` that
            the caller closes. With a writer, the summaries are part of its run instead
            of a run named `equilibrium`.
        max_iter: Positive integer. Evaluations of the curves. Defaults to `30`.
        freq: Positive integer. Interval of epochs between summaries, starting with the
            first epoch. Defaults to `1`.
        draw: Optional function that draws a curve. Its argument is a float array
            `(max_iter, 3)`, the quartiles over samples after 1, 2, ... evaluations. It
            returns an image, uint8 `(height, width, channels)`. Defaults to `None`, no
            images.
        phase: Optional string. Name of the training phase.

    Raises:
        ImportError: If TensorBoard is not installed.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4), name="deq")
    >>> inputs = keras.Input((3,))
    >>> model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    >>> x = np.ones((8, 3), "float32")
    >>> summaries = EquilibriumSummaries(layer, lambda: x[:2], "logs")
    >>> callbacks = [keras.callbacks.TensorBoard("logs"), summaries]
    >>> # model.fit(x, x[:, :1], callbacks=callbacks), then: tensorboard --logdir logs
    """

    def __init__(
        self,
        layer: DEQ,
        inputs: Callable[[], Nest],
        log_dir: str | os.PathLike | tf.summary.SummaryWriter,
        max_iter: int = 30,
        freq: int = 1,
        draw: Callable[[np.ndarray], np.ndarray] | None = None,
        phase: str | None = None,
    ) -> None:
        super().__init__()
        if not callable(inputs):
            raise ValueError(
                "`inputs` must be a function that returns the inputs of the layer. "
                f"Received: inputs={inputs!r}."
            )
        self.layer = single_layer(layer)
        self.inputs = inputs
        is_writer = isinstance(log_dir, tf.summary.SummaryWriter)
        self.log_dir = log_dir if is_writer else os.fspath(log_dir)
        self.max_iter = check_count("max_iter", max_iter)
        self.freq = check_count("freq", freq)
        self.draw = draw
        self.phase = phase
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError(
                "`EquilibriumSummaries` needs a package: pip install tensorboard"
            )
        self._solve: Any = None
        self._solver: Any = None
        self._timer: Any = None
        self._writer: Any = None
        self._phase_is_new = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._solver = None
        self._writer = self.log_dir
        if isinstance(self.log_dir, str):
            folder = os.path.join(self.log_dir, "equilibrium")
            self._writer = tf.summary.create_file_writer(folder)
        self._phase_is_new = True

    def on_train_end(self, logs: Any = None) -> None:
        self._writer.flush()
        if self._writer is not self.log_dir:
            self._writer.close()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._phase_is_new:
            self._phase_is_new = False
            # The phase and the layer's strategies as Markdown.
            names = ("solver", "gradient", "regularizer", "initial_state")
            lines = [f"    {name}: {getattr(self.layer, name)!r}" for name in names]
            with self._writer.as_default(epoch):
                text = "\n".join([self.phase or "fit", "", *lines])
                prefix = self.layer._metrics_of_solves.prefix
                tf.summary.text(f"{prefix}/phase", text)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch % self.freq == 0:
            with self._writer.as_default(epoch):
                self._write(epoch)
            self._writer.flush()

    def _write(self, epoch: int) -> None:
        prefix, inputs = self.layer._metrics_of_solves.prefix, self.inputs()
        if self._solver is not self.layer.solver:  # Replaced, as by StepSizeTuning.
            self._solver = self.layer.solver
            self._solve = compile_function(self._solve_twice)
            self._timer = StepTimer(self.layer, self.model.jit_compile)
        # 1. Histograms over samples. Non-finite residuals are ignored.
        solution, trace = self._solve(inputs, keras_masks(inputs))
        tf.summary.histogram(f"{prefix}/evaluations", solution.num_evaluations)
        residual = np.asarray(solution.residual, "float64")
        residual = np.maximum(residual[np.isfinite(residual)], _SMALLEST)
        tf.summary.histogram(f"{prefix}/log10_residual", np.log10(residual))
        # 2. Quartiles over samples of the smallest residual after each evaluation.
        #    A trace is NaN after its sample has stopped. `fmin` ignores NaN.
        best = np.fmin.accumulate(np.asarray(trace), axis=0)
        best = best[:, np.isfinite(best).all(axis=0)]
        quartiles = np.zeros((0, 3))
        if best.shape[1]:
            quartiles = np.quantile(best, (0.25, 0.5, 0.75), axis=1).T
        total = len(quartiles)
        for budget in range(1, total + 1):
            if budget.bit_count() == 1 or budget == total:  # A power of two, or last.
                tag = f"{prefix}/residual_at/{budget:03d}"
                tf.summary.scalar(tag, quartiles[budget - 1, 1])
        if (epoch + 1).bit_count() == 1 or epoch + 1 == self.params["epochs"]:
            tag = f"{prefix}/residual_over_evaluations/epoch_{epoch:04d}"
            for count, (_, median, _) in enumerate(quartiles, start=1):
                tf.summary.scalar(tag, median, step=count)
            if self.draw is not None and total:
                image = self.draw(quartiles)
                tf.summary.image(f"{prefix}/residual_curve", image[None])
        # 3. Times.
        times = self._timer.measure(inputs)
        for part, seconds in times._asdict().items():
            tf.summary.scalar(f"{prefix}/time_share/{part}", seconds / sum(times))

    def _solve_twice(self, inputs: Nest, masks: Nest) -> tuple[Solution, tf.Tensor]:
        """Returns a solution with the layer's own settings, and a trace of all
        evaluations. A tolerance would end it early, and curves of all epochs must have
        the same length."""
        attach_masks(inputs, masks)
        full = self.layer.solve(inputs, max_iter=self.max_iter, tol=0.0)
        # Unusable samples have a trace of zeros.
        trace = tf.where(tf.math.is_finite(full.residual), full.trace, float("nan"))
        return self.layer.solve(inputs), trace
