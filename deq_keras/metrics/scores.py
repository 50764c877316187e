"""Scores of language models, reasoners and image restorers."""

import math
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_positive
from deq_keras.metrics.means import RunningMean


@keras.saving.register_keras_serializable(package="deq_keras")
class ExactMatch(RunningMean):
    """Fraction of samples with all positions correct since the last reset, or NaN.

    A maze with one wrong square counts as wrong. To ignore positions, such as walls or
    padding, set their sample weight to zero and pass the metric to
    `compile(weighted_metrics=...)`.

    Args:
        name: String. Name of the metric. Defaults to `"exact_match"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Example:

    >>> metric = deq_keras.metrics.ExactMatch()
    >>> logits = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> metric.update_state(np.array([[1, 0], [1, 0]]), logits)
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "exact_match", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds samples.

        Args:
            y_true: Integer tensor `(batch, *positions)`. Classes.
            y_pred: Float tensor `(batch, *positions, classes)`. Logits or
                probabilities.
            sample_weight: Optional tensor that broadcasts to `(batch, *positions)`.
                Positions with weight zero are ignored, and so are samples in which all
                weights are zero.
        """
        prediction = ops.argmax(y_pred, axis=-1)
        if len(y_true.shape) != len(prediction.shape):
            raise ValueError(
                "`y_true` must be classes (batch, *positions) for scores (batch, "
                f"*positions, classes). Received: y_true of shape {y_true.shape}, "
                f"y_pred of shape {y_pred.shape}."
            )
        is_right = ops.equal(prediction, ops.cast(y_true, prediction.dtype))
        counts = ops.ones_like(is_right)
        if sample_weight is not None:
            counts = ops.logical_and(
                counts, _with_rank_of(is_right, sample_weight) != 0
            )
        positions = tuple(range(1, len(is_right.shape)))
        is_right = ops.all(ops.logical_or(is_right, ~counts), axis=positions)
        has_any = ops.any(counts, axis=positions)
        both = ops.logical_and(is_right, has_any)
        self.add(
            ops.sum(ops.cast(both, self.dtype)), ops.sum(ops.cast(has_any, self.dtype))
        )


@keras.saving.register_keras_serializable(package="deq_keras")
class Perplexity(RunningMean):
    """Exponential of the mean loss of all tokens since the last reset, or NaN.

    For models whose outputs are the losses of tokens in nats, such as
    `deq_keras.models.NextTokenLossModel`. `keras_hub.metrics.Perplexity` requires
    logits of the whole vocabulary.

    Args:
        name: String. Name of the metric. Defaults to `"perplexity"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Example:

    >>> metric = deq_keras.metrics.Perplexity()
    >>> metric.update_state(None, np.log([2.0, 8.0]))
    >>> round(float(metric.result()), 3)
    4.0
    """

    def __init__(self, name: str = "perplexity", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds losses.

        Args:
            y_true: Ignored.
            y_pred: Float tensor `(batch, length)`. Losses in nats.
            sample_weight: Optional float tensor `(batch,)`, `(batch, 1)` or `(batch,
                length)`.
        """
        del y_true
        losses = ops.cast(y_pred, self.dtype)
        weights = ops.ones_like(losses)
        if sample_weight is not None:
            weights *= ops.cast(_with_rank_of(losses, sample_weight), self.dtype)
        self.add(ops.sum(weights * losses), ops.sum(weights))

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="deq_keras")
class PeakSignalToNoiseRatio(RunningMean):
    """Mean peak signal-to-noise ratio (PSNR) of images since the last reset, or NaN.

    ```
    PSNR = 20 log10(max_value) - 10 log10(mean((y_true - y_pred)^2))   [dB]
    ```

    Each image has its own mean, as in `tf.image.psnr`.

    Args:
        max_value: Positive float. Difference between white and black. Defaults to
            `1.0`.
        name: String. Name of the metric. Defaults to `"psnr"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Example:

    >>> metric = deq_keras.metrics.PeakSignalToNoiseRatio()
    >>> metric.update_state(np.zeros((2, 4, 4, 1)), np.full((2, 4, 4, 1), 0.1))
    >>> round(float(metric.result()), 3)
    20.0
    """

    def __init__(
        self, max_value: float = 1.0, name: str = "psnr", dtype: Any = "float32"
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.max_value = check_positive("max_value", max_value)

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds images.

        Args:
            y_true: Tensor `(batch, height, width, channels)`.
            y_pred: Tensor like `y_true`.
            sample_weight: Optional float tensor `(batch,)`.
        """
        y_true, y_pred = (ops.cast(images, self.dtype) for images in (y_true, y_pred))
        if len(y_true.shape) != 4 or len(y_pred.shape) != 4:
            raise ValueError(
                "Images must have the shape (batch, height, width, channels). Received:"
                f" y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}."
            )
        errors = ops.mean(ops.square(y_true - y_pred), axis=(1, 2, 3))
        ratios = 20 * math.log10(self.max_value) - 10 * ops.log10(errors)
        weights = ops.ones_like(ratios)
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, self.dtype), (-1,))
        # The PSNR of equal images is infinite: without weight, it must not count.
        self.add(ops.sum(ops.where(weights > 0, weights * ratios, 0)), ops.sum(weights))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_value": self.max_value}


def _with_rank_of(tensor: Any, weight: Any) -> Any:
    """Returns weights with trailing axes, so that a weight of a sample never meets the
    positions."""
    weight = ops.convert_to_tensor(weight)
    missing = len(tensor.shape) - len(weight.shape)
    return ops.reshape(weight, (*ops.shape(weight), *[1] * missing))
