"""Training of image restorers without images."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_non_negative
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import at_least_float32
from deq_keras.models.image_restorer.image_restorer_backbone import (
    ImageRestorerBackbone,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class EquivariantImagingModel(keras.Model):
    """Trains an image restorer f on measurements y alone, by equivariant imaging.

    Images that are shifted, turned or mirrored are images, too. The restorer must find
    them again in measurements of its own:

    ```
    x = f(y)    x' = T x    y' = A x' + noise
    loss = |A x - y|^2 / |A|^2 + weight |f(y') - x'|^2    over the number of pixels
    ```

    A is the operator of the restorer and |A| its norm. T is drawn for each image:
    a circular shift by whole pixels, mirror images and, if it is square, the transpose.
    A measurement alone says nothing about what A loses, such as missing pixels. These
    transforms show it, unless they commute with A, as shifts and a circular `Blur` do.

    `fit` takes measurements as `ImageRestorerBackbone` does, in floating-point, and
    logs the two terms as `measurement_loss` and `equivariance_loss`. If it also
    receives images, they are for the metrics of `compile` only. A step solves two
    equilibria. Penalties of the `DEQ` layer count with the mean of both. The model
    shares the weights of the restorer and returns its images: afterwards, use the
    restorer.

    Args:
        restorer: `ImageRestorer` or `ImageRestorerBackbone`, which is trained in place.
        noise: Float >= 0. Standard deviation of the noise of y', which should be that
            of the measurements. A restorer that reads the noise level uses its level.
            Defaults to `0.0`.
        weight: Float >= 0. Weight of the second term. Defaults to `1.0`.
        seed: Integer. Seed of the transforms and of the noise. Defaults to `None`, a
            random seed.
        **kwargs: `name`.

    Call arguments:
        inputs: Measurements, as `ImageRestorerBackbone` takes them.

    Output shape:
        `(batch, height, width, channels)`.

    Raises:
        ValueError: If an argument is invalid, or `compile` receives a loss.

    Example:

    >>> mask = np.random.default_rng(0).uniform(size=(8, 8)) < 0.5
    >>> operator = deq_keras.layers.Inpainting(mask, (8, 8, 1))
    >>> cell = deq_keras.layers.ProximalGradientCell(
    ...     operator, deq_keras.layers.ImageDenoiser(filters=8, num_layers=3))
    >>> restorer = deq_keras.models.ImageRestorer(
    ...     deq_keras.models.ImageRestorerBackbone(cell))
    >>> model = EquivariantImagingModel(restorer)
    >>> model.compile("adam")
    >>> measurements = mask[..., None] * np.ones((4, 8, 8, 1), "float32")
    >>> sorted(model.fit(measurements, verbose=0).history)[-3:]
    ['equivariance_loss', 'loss', 'measurement_loss']

    Reference:

    - Chen, Tachella and Davies (2021), "Equivariant imaging: learning beyond the range
      space".
    """

    def __init__(
        self,
        restorer: keras.Model,
        noise: float = 0.0,
        weight: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        backbone = getattr(restorer, "backbone", restorer)
        if not isinstance(backbone, ImageRestorerBackbone):
            raise ValueError(
                "`restorer` must be an ImageRestorer or an ImageRestorerBackbone. "
                f"Received: restorer={restorer!r} (of type {type(restorer).__name__})."
            )
        self.restorer = restorer
        self.cell = backbone.deq.cell
        self.noise = check_non_negative("noise", noise)
        self.weight = check_non_negative("weight", weight)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.seed = seed
        self.distance = keras.losses.MeanSquaredError()
        self.measurement_loss = keras.metrics.Mean("measurement_loss")
        self.equivariance_loss = keras.metrics.Mean("equivariance_loss")

    def compile(self, optimizer: Any = "auto", loss: Any = None, **kwargs: Any) -> None:
        """See `keras.Model.compile`. The model has a loss of its own. Optimizer
        `"auto"` is Adam with a rate of 1e-3 and gradients clipped to a norm of one."""
        if loss is not None:
            raise ValueError(
                "EquivariantImagingModel has its own loss. Train the restorer itself "
                f"if you have images. Received: loss={loss!r}."
            )
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
        super().compile(optimizer=optimizer, **kwargs)

    def compile_from_config(self, config: Config) -> None:
        # Keras does not compile models whose `compile` has other arguments.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.restorer(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        del y
        if sample_weight is not None:
            raise ValueError(
                "The losses of EquivariantImagingModel are means over all samples. "
                "Repeat or leave out samples instead of weighting them. Expected: "
                f"sample_weight=None. Received: sample_weight={sample_weight!r}."
            )
        penalty = self._penalty()  # The next call removes it.
        operator, reads_level = self.cell.operator, isinstance(x, dict)
        measured = x["measurements"] if reads_level else x
        images = at_least_float32(y_pred)

        shapes = operator.measurement_shape, operator.image_shape
        num_measured, num_pixels = map(math.prod, shapes)
        norm = ops.cast(operator.norm, keras.config.floatx())
        # A trained operator must not lower the loss by its norm.
        scale = num_measured / num_pixels / ops.stop_gradient(norm) ** 2
        first = scale * self.distance(measured, operator(images))

        moved = self.transform(images)
        again = operator(moved)
        level = x["noise_level"] if reads_level else self.noise
        level = ops.reshape(level, (-1, *[1] * len(operator.measurement_shape)))
        again += ops.cast(level, again.dtype) * keras.random.normal(
            ops.shape(again), dtype=again.dtype, seed=self.seed_generator
        )
        inputs = {**x, "measurements": again} if reads_level else again
        second = self.distance(moved, self.restorer(inputs, training=training))

        num_samples = ops.shape(images)[0]
        # Keras divides a loss by the number of replicas, which sum their gradients.
        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self.measurement_loss.update_state(num_replicas * first, num_samples)
        self.equivariance_loss.update_state(num_replicas * second, num_samples)
        return first + self.weight * second + (penalty + self._penalty()) / 2

    def _penalty(self) -> Any:
        """Returns what `add_loss` has added since the restorer was called."""
        return super().compute_loss() if self.losses else 0.0

    def transform(self, images: Any) -> Any:
        """Returns T x: images that are shifted, mirrored and, if square, transposed.

        Args:
            images: Tensor `(batch, height, width, channels)`.
        """
        batch, (height, width) = ops.shape(images)[0], images.shape[1:3]
        shape = batch, 1
        for axis, size in ((1, height), (2, width)):
            shift = keras.random.randint(shape, 0, size, seed=self.seed_generator)
            step = 2 * keras.random.randint(shape, 0, 2, seed=self.seed_generator) - 1
            pixels = (step * np.arange(size) + shift) % size  # (batch, size)
            images = tf.gather(images, pixels, axis=axis, batch_dims=1)
        if height == width:
            coin = keras.random.uniform((batch, 1, 1, 1), seed=self.seed_generator)
            images = ops.where(coin < 0.5, images, ops.transpose(images, (0, 2, 1, 3)))
        return images

    def get_config(self) -> Config:
        restorer = keras.saving.serialize_keras_object(self.restorer)
        restorer.pop("compile_config", None)  # Only this model is trained.
        arguments = arguments_of(self, EquivariantImagingModel)
        return {"name": self.name, **arguments, "restorer": restorer}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        restorer = keras.saving.deserialize_keras_object(config["restorer"])
        return cls(**{**config, "restorer": restorer})
