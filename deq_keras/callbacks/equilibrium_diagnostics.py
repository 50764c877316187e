"""Diagnostics of an equilibrium over the epochs of training."""

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count
from deq_keras.core.graphs import compiled
from deq_keras.diagnostics import jacobian_norm, spectral_radius
from deq_keras.diagnostics.subject import (
    encoder,
    linearized_solution,
    single_layer,
)

# Relative error of the spectral radius, which suffices for a curve over epochs.
_TOL = 1e-2


class EquilibriumDiagnostics(keras.callbacks.Callback):
    """Logs the spectral radius and the norm of df/dz during training.

    Solves the same inputs at the end of epochs and measures the Jacobian at their
    equilibria. Adds the means over the samples to the logs, and so to `History`, CSV
    files and TensorBoard if their callbacks follow this one:

    - `{layer}_spectral_radius`, the largest absolute eigenvalue. Above 1, an
      equilibrium repels plain iteration, and the implicit gradient is unreliable. The
      mean covers samples with a converged estimate, and is NaN without any.
    - `{layer}_spectral_radius_converged`, the fraction of these samples.
    - `{layer}_jacobian_norm`, the Frobenius norm over sqrt(dimensions of the state).

    An epoch costs `max_iter` evaluations and at most `num_iterations + 16`
    vector-Jacobian products.

    Args:
        model: The trained model, functional or sequential with one `DEQ` layer, or its
            `DEQ` layer.
        inputs: Inputs of `model`, such as arrays: a few samples to measure. Or a
            function without arguments that returns them, for example encoded by the
            current weights for a `DEQ` layer.
        max_iter: Positive integer. Budget of evaluations of the solve. Defaults to
            `30`.
        num_iterations: Positive integer. Maximum iterations of the estimate of the
            spectral radius, which converges at an error of about 1 %; see
            `deq_keras.diagnostics.spectral_radius`. Defaults to `100`.
        freq: Positive integer. Interval of epochs between measurements, starting with
            the first epoch. Logs of other epochs lack these keys. Defaults to `1`.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4), name="deq")
    >>> inputs = keras.Input((3,))
    >>> model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[
    ...     EquilibriumDiagnostics(model, x[:2])]).history
    >>> 0 < history["deq_spectral_radius"][0] < 1
    True

    Reference:
        [Bai, Koltun and Kolter, 2021](https://arxiv.org/abs/2106.14342), figure 1.
    """

    def __init__(self, model, inputs, max_iter=30, num_iterations=100, freq=1):
        super().__init__()
        if inputs is None:
            raise ValueError(
                "`inputs` must be inputs of `model`, such as arrays, or a function "
                "that returns them. Received: inputs=None."
            )
        self.layer = single_layer(model)
        self.subject = model  # Keras sets `model` to the trained model.
        self.inputs = inputs
        self.max_iter = check_count("max_iter", max_iter)
        self.num_iterations = check_count("num_iterations", num_iterations)
        self.freq = check_count("freq", freq)
        self._measure = None

    def on_train_begin(self, logs=None):
        self._measure = compiled(self._means, reduce_retracing=True)

    def on_epoch_end(self, epoch, logs=None):
        if epoch % self.freq:
            return
        inputs = self.inputs() if callable(self.inputs) else self.inputs
        masks = [getattr(leaf, "_keras_mask", None) for leaf in tree.flatten(inputs)]
        inputs = tree.map_structure(tf.convert_to_tensor, inputs)
        for name, value in self._measure(inputs, masks).items():
            logs[f"{self.layer.name}_{name}"] = float(value)

    def _means(self, inputs, masks):
        # The arguments of a compiled function are other tensors, without their masks.
        for leaf, mask in zip(tree.flatten(inputs), masks, strict=True):
            if mask is not None:
                leaf._keras_mask = mask
        solution, linearization = linearized_solution(
            self.layer, encoder(self.subject)(inputs), self.max_iter
        )
        radius = spectral_radius(linearization, max_iter=self.num_iterations, tol=_TOL)
        norm = jacobian_norm(linearization)
        state_size = tf.add_n(
            [tf.size(leaf) for leaf in tf.nest.flatten(solution.point)]
        ) / tf.size(norm)
        # Samples with non-finite inputs do not count. Without others, a mean is 0 / 0,
        # which is NaN.
        norms, num_norms = nonfinite.finite_total(norm, norm.dtype.name)
        found = tf.cast(radius.converged, norm.dtype)
        total = tf.reduce_sum(tf.where(radius.converged, radius.value, 0.0))
        return {
            "spectral_radius": total / tf.reduce_sum(found),
            "spectral_radius_converged": tf.reduce_mean(found),
            "jacobian_norm": norms
            / num_norms
            / tf.cast(tf.sqrt(state_size), norm.dtype),
        }
