"""Compares a layer's gradient with the exact gradient of its equilibrium."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count, check_positive
from deq_keras.core.internals import keras_masks
from deq_keras.core.random import as_seed, normal_like
from deq_keras.core.structure import Nest
from deq_keras.diagnostics.subject import encoder, single_layer
from deq_keras.gradients import AdjointReport, ImplicitGradient
from deq_keras.solvers import (
    GMRES,
    Anderson,
    FixedPointIteration,
    LoopOptions,
    SolveRequest,
)

Loss = Callable[[Nest], tf.Tensor]


class GradientQuality(NamedTuple):
    """The result of `gradient_quality`. Printed, it is a table.

    Attributes:
        components: Tuple of strings. The paths of the trainable weights, `"weights"`
            for all of them together, and `"inputs"` for the inputs of the layer.
        cosine: Float array `(components,)`. Cosine of the angle between the two
            gradients. 1 is the exact direction; NaN if one gradient is zero.
        norm_ratio: Float array `(components,)`. Norm of the layer's gradient over the
            norm of the exact one.
        residual: Float. Largest relative residual of the reference's equilibria. The
            comparison means little if it is not small.
        adjoint_residual: Float. The same for the adjoint solve of the reference.
    """

    components: tuple[str, ...]
    cosine: np.ndarray
    norm_ratio: np.ndarray
    residual: float
    adjoint_residual: float

    @property
    def relative_error(self) -> np.ndarray:
        """Norm of the difference over the norm of the exact gradient,
        `(components,)`."""
        squares = 1.0 + self.norm_ratio**2 - 2.0 * self.norm_ratio * self.cosine
        return np.sqrt(np.maximum(squares, 0.0))

    def __repr__(self) -> str:
        width = max(len("component"), *map(len, self.components))
        lines = [f"{'component':{width}}  cosine  norm ratio  relative error"]
        lines += [
            f"{name:{width}}  {cosine:6.3f}  {ratio:10.3g}  {error:14.3g}"
            for name, cosine, ratio, error in zip(
                self.components,
                self.cosine,
                self.norm_ratio,
                self.relative_error,
                strict=True,
            )
        ]
        lines.append(
            f"residuals of the reference: {self.residual:.1e} forward, "
            f"{self.adjoint_residual:.1e} adjoint"
        )
        return "\n".join(lines)


def gradient_quality(
    subject: Any,
    inputs: Nest,
    loss: Loss | None = None,
    max_iter: int = 200,
    tol: float = 1e-6,
    seed: int = 0,
) -> GradientQuality:
    """Compares the training gradient of a layer with the exact one.

    The layer's gradient is what its solver and its gradient strategy compute in
    training. The exact gradient is an `ImplicitGradient` with a GMRES adjoint solve.
    Anderson's method computes its equilibrium, starting from the layer's result. A few
    samples suffice. Dropout of the cell is off, and neither weights nor metrics change.
    Runs eagerly.

    Args:
        subject: A `DEQ` layer, or a functional or sequential model with one.
        inputs: Inputs of the layer or model, such as arrays.
        loss: Function from the layer's output to a tensor, whose sum is differentiated.
            Defaults to `None`, a random linear function of the output.
        max_iter: Positive integer. Budget of each solve of the reference. Defaults to
            `200`.
        tol: Positive float. Tolerance of each solve of the reference. Defaults to
            `1e-6`.
        seed: Integer. Seed of the random loss and of a random gradient or initial
            state. Defaults to `0`.

    Returns:
        A `GradientQuality`.

    Raises:
        ValueError: If a model does not have exactly one `DEQ` layer.

    Example:

    >>> cell = deq_keras.layers.DenseCell(4)
    >>> layer = deq_keras.layers.DEQ(cell, gradient="phantom", name="deq")
    >>> x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    >>> quality = deq_keras.diagnostics.gradient_quality(layer, x)
    >>> bool(quality.cosine.min() > 0)
    True
    >>> print(quality)  # doctest: +SKIP
    """
    layer = single_layer(subject)
    max_iter, tol = check_count("max_iter", max_iter), check_positive("tol", tol)
    inputs = encoder(subject)(inputs)
    mask = keras_masks(inputs)
    inputs = tree.map_structure(tf.convert_to_tensor, inputs)
    if not layer.built:
        layer(inputs)

    weights = layer.trainable_variables
    sources = [weight.value for weight in weights] + nonfinite.floating(inputs)
    if not sources:
        raise ValueError(
            "Nothing has a gradient: the layer has no trainable weights, and its "
            f"inputs are integers. Received: {layer.name!r} with "
            f"trainable={layer.trainable}."
        )
    reports: list[AdjointReport] = []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        problem = layer.problem(inputs, mask)
        request = layer.request(problem, SolveRequest(seed=seed))
        value = layer.gradient.solve(problem, request, layer.solver).value
        with tape.stop_recording():
            solution = Anderson(max_iter, tol).solve(
                problem, SolveRequest(value, loop=LoopOptions(records_trace=False))
            )
        # One evaluation at Anderson's equilibrium, which the gradient is attached to.
        equilibrium = ImplicitGradient(GMRES(max_iter, tol)).solve(
            problem,
            SolveRequest(solution.value),
            FixedPointIteration(1, tol=None),
            reports.append,
        )
        if loss is None:
            weights_of_loss = tree.flatten(normal_like(value, as_seed(seed)))

            def loss(value: Nest) -> tf.Tensor:
                pairs = zip(tree.flatten(value), weights_of_loss, strict=True)
                products = (tf.cast(one * other, tf.float32) for one, other in pairs)
                return tf.add_n([tf.reduce_sum(one) for one in products])

        losses = [tf.reduce_sum(loss(one)) for one in (value, equilibrium.value)]
    gradients, exact = (
        [
            tf.convert_to_tensor(leaf).numpy()
            for leaf in tape.gradient(one, sources, unconnected_gradients="zero")
        ]
        for one in losses
    )

    # Compare single weights, all weights and all inputs.
    groups = {weight.path: slice(i, i + 1) for i, weight in enumerate(weights)}
    groups |= {"weights": slice(len(weights)), "inputs": slice(len(weights), None)}
    pairs = {
        name: (_flat(gradients[group]), _flat(exact[group]))
        for name, group in groups.items()
        if gradients[group]
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        norm, exact_norm = np.array(
            [[np.linalg.norm(one) for one in pair] for pair in pairs.values()]
        ).T
        products = np.array([one @ other for one, other in pairs.values()])
        cosine, ratio = products / (norm * exact_norm), norm / exact_norm
    residuals = (solution.residual, reports[0].solution.residual)
    return GradientQuality(
        tuple(pairs), cosine, ratio, *(float(tf.reduce_max(one)) for one in residuals)
    )


def _flat(leaves: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([leaf.ravel().astype("float64") for leaf in leaves])
