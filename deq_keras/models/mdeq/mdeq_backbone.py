"""The multiscale deep equilibrium model up to its feature maps."""

from typing import Any

import keras
from keras_hub.models import Backbone

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import check_rate, check_sizes
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import DEQ, MultiscaleCell, MultiscaleStem
from deq_keras.models.kerashub import PackagedBackbone
from deq_keras.models.mdeq.mdeq_presets import CLASSIFIERS, SEGMENTERS


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQBackbone(PackagedBackbone, Backbone):
    """Multiscale deep equilibrium model, up to its feature maps.

    A `MultiscaleStem` maps the images to the injection of the finest scale of a
    `MultiscaleCell`. `DEQ` solves for the feature maps of all scales together. Each
    scale has half the height and width of the previous one.

    The presets are architectures of published models, without weights: pass
    `load_weights=False` to `from_preset`. The function
    `deq_keras.converters.locuslab.load_mdeq` loads the authors' checkpoints.

    Args:
        filters: Tuple of positive integers, multiples of `groups`. Number of channels
            of each scale, from the finest on.
        expansion: See `MultiscaleCell`. Defaults to `5`.
        groups: See `MultiscaleCell`. Defaults to `8`, as in the published
            configurations.
        num_downsamplings: Non-negative integer. Number of times the stem halves the
            resolution. Defaults to `2`.
        kernel_size: See `MultiscaleCell`. Defaults to `3`.
        num_blocks: See `MultiscaleCell`. Defaults to `1`.
        dropout: See `dropout_rate` of `MultiscaleCell`. Defaults to `0.0`.
        weight_normalization: See `MultiscaleCell`. Defaults to `True`.
        block_affine: See `MultiscaleCell`. Defaults to `True`.
        fuse_affine: See `MultiscaleCell`. Defaults to `True`.
        post_affine: See `MultiscaleCell`. Defaults to `True`.
        batch_norm_momentum: Float in `[0, 1)`. Weight of the old moving statistics of
            the stem in a step. Defaults to `0.9`.
        solver: See `DEQ`. Defaults to `"anderson"`.
        gradient: See `DEQ`. Defaults to `"neumann"`.
        regularizer: See `DEQ`. Defaults to `"contraction"`.
        image_shape: Tuple `(height, width, channels)`, `None` for sizes that may vary.
            Defaults to `(None, None, 3)`.
        dtype: Dtype or policy of all layers. Defaults to `None`, Keras' own.
        max_iter_jitter: See `DEQ`. Defaults to `0`.
        initial_state: See `DEQ`. Defaults to `"cell"`.
        **kwargs: `name` and `trainable`.

    Call arguments:
        inputs: Floating-point tensor of normalized images.

    Input shape:
        `(batch, height, width, channels)`, sizes divisible by
        `2**(num_downsamplings + len(filters) - 1)`.

    Output shape:
        List of `(batch, height / 2**(n + i), width / 2**(n + i), filters[i])`, n the
        number of downsamplings.

    Raises:
        ValueError: If images have another rank, an integer dtype, other channels or
            sizes that the scales do not divide.

    Example:

    >>> backbone = MDEQBackbone(filters=(8, 16), expansion=2, num_downsamplings=0)
    >>> [tuple(m.shape) for m in backbone(np.ones((1, 16, 16, 3), "float32"))]
    [(1, 16, 16, 8), (1, 8, 8, 16)]

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    presets = CLASSIFIERS | SEGMENTERS
    converter = "deq_keras.converters.locuslab.load_mdeq"

    def __init__(
        self,
        filters: tuple[int, ...],
        expansion: float = 5,
        groups: int = 8,
        num_downsamplings: int = 2,
        kernel_size: int | list[Any] = 3,
        num_blocks: int | list[int] = 1,
        dropout: float = 0.0,
        weight_normalization: bool = True,
        block_affine: bool = True,
        fuse_affine: bool = True,
        post_affine: bool = True,
        batch_norm_momentum: float = 0.9,
        solver: str | Config | solvers.FixedPointSolver = "anderson",
        gradient: str | Config | gradients.EquilibriumGradient = "neumann",
        regularizer: str
        | Config
        | regularizers.EquilibriumRegularizer
        | None = "contraction",
        image_shape: tuple[int | None, ...] = (None, None, 3),
        dtype: str | keras.DTypePolicy | None = None,
        max_iter_jitter: int = 0,
        initial_state: str | Config | initial_states.InitialState = "cell",
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        image_shape = check_sizes("image_shape", image_shape, "height, width, channels")
        dropout = check_rate("dropout", dropout)
        cell = MultiscaleCell(
            filters,
            expansion=expansion,
            groups=groups,
            kernel_size=kernel_size,
            num_blocks=num_blocks,
            dropout_rate=dropout,
            weight_normalization=weight_normalization,
            block_affine=block_affine,
            fuse_affine=fuse_affine,
            post_affine=post_affine,
            dtype=dtype,
            name="cell",
        )
        stem = MultiscaleStem(
            cell.filters[0],
            num_downsamplings,
            # The smallest models of the reference, the authors' PyTorch code
            # (locuslab/mdeq), inject the stem as it is.
            injection_unit=num_downsamplings > 0 or cell.num_scales > 2,
            momentum=batch_norm_momentum,
            dtype=dtype,
            name="stem",
        )
        deq = DEQ(
            cell,
            solver,
            gradient,
            regularizer,
            max_iter_jitter=max_iter_jitter,
            initial_state=initial_state,
            dtype=dtype,
            name="deq",
        )

        # === Functional Model ===
        images = keras.Input(image_shape, name="images")
        super().__init__(
            inputs=images, outputs=deq(stem(images)), dtype=dtype, **kwargs
        )

        # === Config ===
        self.stem = stem
        self.deq = deq
        self.filters = cell.filters
        self.expansion = cell.expansion
        self.groups = cell.groups
        self.kernel_size = cell.kernel_size
        self.num_blocks = cell.num_blocks
        self.weight_normalization = cell.weight_normalization
        self.block_affine = cell.block_affine
        self.fuse_affine = cell.fuse_affine
        self.post_affine = cell.post_affine
        self.num_downsamplings = stem.num_downsamplings
        self.dropout = dropout
        self.batch_norm_momentum = stem.momentum
        self.image_shape = image_shape

    def get_config(self) -> Config:
        arguments = arguments_of(self, MDEQBackbone, self.deq)
        return {**arguments, **super().get_config()}

    @property
    def size_divisor(self) -> int:
        """The number that must divide the height and width of the images."""
        return 2 ** (self.num_downsamplings + len(self.filters) - 1)

    def check_inputs(self, inputs: Any) -> None:
        shape = tuple(inputs.shape)
        channels = self.image_shape[-1]
        is_usable = len(shape) == 4 and shape[-1] == channels
        is_usable = is_usable and not any(
            size and size % self.size_divisor for size in shape[1:3]
        )
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if not is_usable or "float" not in dtype:
            raise ValueError(
                f"'{self.name}' expects images of shape (batch, height, width, "
                f"{channels}), with height and width divisible by {self.size_divisor}, "
                "normalized as its preprocessor does, in floating-point. Received: "
                f"images of shape {shape} and dtype {dtype}."
            )
