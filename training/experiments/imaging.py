"""Image restorers: equilibria, unrolled networks and classical methods."""

import math
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import deq_keras
from deq_keras.solvers import FixedPointIteration

from ..config import keys
from ..config.fields import Components, Config, EvaluationConfig, VariantsConfig
from ..config.reading import by_variant
from ..data.images import photographs
from ..errors import InputError, config_errors
from ..evaluation.budgets import measure_at_budgets
from ..evaluation.report import evaluations
from ..evaluation.summary import align, at_budgets, mean_text
from ..registry import Experiment, Score
from ..runs.job import ArrayJob
from ..runs.phases import equilibrium


class DataConfig(Config):
    """Crops of photographs, their operator and its noise.

    Args:
        operator: `blur`, a Gaussian blur of images that continue at their opposite
            side; `inpainting`, missing pixels; `downsampling`, means of blocks of
            pixels; or `radon`, the sums along parallel rays of a CT scanner.
        width: Float. Standard deviation of the `blur` in pixels.
        kept: Float in [0, 1]. Probability of a pixel to be known, for `inpainting`.
        factor: Positive integer. Side of a block in pixels, for `downsampling`.
        num_angles: Positive integer. Number of angles of the rays, for `radon`.
        noise: Float. Standard deviation of the noise of the measurements. Images have
            values in [0, 1].
        noise_range: Pair of floats. Smallest and largest standard deviation of the
            noise in training, drawn for each image; the restorer reads it. Null for
            `noise` in training too, which the restorer does not read.
        size: Positive integer. Height and width of the crops in pixels.
        num_train: Positive integer. Number of training crops, drawn once per seed.
        train_folder: Path of a folder with images for training. Null for five
            photographs of the package.
        test_folder: Path of a folder with other images for testing. Null for two other
            photographs of the package.
        batch_size: Positive integer. Batch size of training.
        seed: Integer. Seed of the missing pixels, and of the noise in testing.
    """

    operator: Literal["blur", "inpainting", "downsampling", "radon"]
    width: keys.number(gt=0, le=100) = 1.5
    kept: keys.number(gt=0, le=1) = 0.3
    factor: keys.integer(le=64) = 2
    num_angles: keys.integer(le=1000) = 12
    noise: keys.NonNegative = 0.02
    noise_range: keys.Range | None = None
    size: keys.integer(ge=8, le=512) = 40
    num_train: keys.Drawn = 1024
    train_folder: keys.Text | None = None
    test_folder: keys.Text | None = None
    batch_size: keys.Batch = 8
    seed: keys.Seed = 0


class ModelConfig(Components):
    """An image restorer.

    Args:
        cell: `proximal_gradient` or `half_quadratic`; the latter is not for `radon`.
        denoiser: `network`, an `ImageDenoiser`; `total_variation`, with a weight that
            is learned; or `zero`, for which a `half_quadratic` cell is Tikhonov's
            method.
        filters: Positive integer. Channels of the network.
        num_layers: Positive integer. Number of convolutions of the network.
        max_norm: Float. See `ImageDenoiser`. Null for no bound.
        num_untied: Positive integer. Applies this many cells once each, with a denoiser
            of its own, in place of an equilibrium. Null for an equilibrium.
        self_supervised: Boolean. Whether training sees measurements only, by an
            `EquivariantImagingModel`.
    """

    gradient: keys.Component = "neumann"
    cell: Literal["proximal_gradient", "half_quadratic"] = "proximal_gradient"
    denoiser: Literal["network", "total_variation", "zero"] = "network"
    filters: keys.Filters = 24
    num_layers: keys.integer(ge=2, le=100) = 4
    max_norm: keys.number(gt=0, le=1) | None = None
    num_untied: keys.integer(le=1000) | None = None
    self_supervised: bool = False


class ImagingEvaluationConfig(EvaluationConfig):
    """The measurements of a trained restorer; see `EvaluationConfig`."""

    budgets: keys.Distinct[keys.Budget] = [1, 2, 4, 8, 16, 30, 60]
    num_samples: keys.Batch = 8
    max_iter: keys.Budget = 60


class ImagingConfig(VariantsConfig):
    """Restorers of blurred, incomplete, small or projected images; see
    `VariantsConfig`."""

    experiment: Literal["imaging"]
    model: ModelConfig
    data: DataConfig
    evaluation: ImagingEvaluationConfig = ImagingEvaluationConfig()


@keras.saving.register_keras_serializable(package="deq_keras_training")
class TotalVariationDenoiser(keras.layers.Layer):
    """Denoises images by the total variation, a classical prior of piecewise constant
    images.

    ```
    D(z) = argmin_x |x - z|^2 / 2 + weight sum_pixels |gradient of x|
    ```

    A fixed number of projected gradient steps on the dual problem computes it
    approximately. The weight is learned.

    Args:
        num_steps: Positive integer. Number of steps.
        **kwargs: Arguments of `keras.layers.Layer`.

    Reference:

    - Chambolle (2004), "An algorithm for total variation minimization and
      applications".
    """

    def __init__(self, num_steps: int = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_steps = num_steps

    def build(self, input_shape: Any) -> None:
        initializer = keras.initializers.Constant(math.log(0.01))
        self.log_weight = self.add_weight((), initializer, name="log_weight")

    def call(self, images: Any) -> Any:
        weight = ops.exp(self.log_weight)
        dual = 0 * _gradient(images)  # (2, B, H, W, C)
        for _ in range(self.num_steps):
            # 8 is the squared norm of the gradient operator.
            step = _gradient(images - weight * _adjoint_gradient(dual))
            dual = dual + step / (8 * weight)
            lengths = ops.sqrt(ops.sum(dual**2, axis=0) + 1e-12)
            dual = dual / ops.maximum(lengths, 1)
        return images - weight * _adjoint_gradient(dual)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_steps": self.num_steps}


def _gradient(images):
    """Returns the differences of neighboring pixels down and right, zero at the end."""
    down = ops.pad(images[:, 1:] - images[:, :-1], _ends(1, 0, 1))
    right = ops.pad(images[:, :, 1:] - images[:, :, :-1], _ends(2, 0, 1))
    return ops.stack([down, right])


def _adjoint_gradient(dual):
    down, right = dual[0][:, :-1], dual[1][:, :, :-1]
    down = ops.pad(down, _ends(1, 1, 0)) - ops.pad(down, _ends(1, 0, 1))
    return down + ops.pad(right, _ends(2, 1, 0)) - ops.pad(right, _ends(2, 0, 1))


def _ends(axis, before, after):
    return [(before, after) if i == axis else (0, 0) for i in range(4)]


def build_operator(config):
    """Returns the `LinearOperator` of a `DataConfig`."""
    shape = (config.size, config.size, 1)
    if config.operator == "blur":
        reach = min(math.ceil(3 * config.width), (config.size - 1) // 2)
        profile = np.exp(-0.5 * (np.arange(-reach, reach + 1) / config.width) ** 2)
        kernel = np.outer(profile, profile)
        return deq_keras.layers.Blur(kernel / kernel.sum(), shape)
    if config.operator == "inpainting":
        random = np.random.default_rng(config.seed)
        mask = random.uniform(size=shape[:2]) < config.kept
        return deq_keras.layers.Inpainting(mask, shape)
    if config.operator == "downsampling":
        return deq_keras.layers.Downsampling(config.factor, shape)
    return deq_keras.layers.RadonTransform(shape, config.num_angles)


def measure(operator, images, noise, random):
    """Returns the noisy measurements of images, a float32 array.

    Args:
        operator: `LinearOperator`.
        images: float32 array `(images, height, width, channels)`.
        noise: Float, or array `(images,)`. Standard deviation of the noise.
        random: `numpy.random.Generator`.
    """
    # In parts: the tables of a Radon transform repeat every pixel.
    parts = np.split(images, range(64, len(images), 64))
    measured = np.concatenate([operator(tf.constant(part)) for part in parts])
    drawn = random.normal(size=measured.shape).astype("float32")
    # Missing measurements have no noise.
    known = getattr(operator, "mask", np.ones(()))
    drawn *= np.float32(known).reshape((*known.shape, 1))
    noise = np.float32(noise).reshape((-1, *[1] * (drawn.ndim - 1)))
    return measured + noise * drawn


def scores(predictions, targets):
    """Returns the PSNR in dB and the SSIM of each image."""
    pair = tf.clip_by_value(predictions, 0, 1), targets
    return {
        "psnr": tf.image.psnr(*pair, 1.0).numpy(),
        "ssim": tf.image.ssim(*pair, 1.0).numpy(),
    }


class ImagingJob(ArrayJob):
    """One restorer; see `Job`. The third array pair of its data has twice the noise."""

    evaluation_batch_size = 32
    steps_per_execution = 1

    @classmethod
    def load_data(cls, config, folder):
        train, test = photographs.load()
        if config.train_folder is not None:
            train = photographs.from_folder(config.train_folder)
        if config.test_folder is not None:
            test = photographs.from_folder(config.test_folder)
        with config_errors("data"):
            operator = build_operator(config)
        tiles = photographs.crop_all(test, config.size) / np.float32(255)
        photographs.check_sizes(train, config.size)

        def pair(images, noise, random):
            measured = measure(operator, images, noise, random)
            if config.noise_range is None:
                return measured, images
            level = np.broadcast_to(np.float32(noise), len(images))[:, np.newaxis]
            return {"measurements": measured, "noise_level": level}, images

        tested = [
            pair(tiles, factor * config.noise, np.random.default_rng(config.seed))
            for factor in (1, 2)
        ]

        def draw(seed):
            random = np.random.default_rng(seed)
            count = config.num_train
            crops = photographs.crop_at_random(train, config.size, count, random)
            noise = config.noise
            if config.noise_range is not None:
                noise = random.uniform(*config.noise_range, size=count)
            return pair(crops / np.float32(255), noise, random), *tested

        return draw

    def build_model(self):
        config, policy = self.config.model, keras.DTypePolicy(self.config.precision)
        data = self.config.data
        if config.self_supervised and config.num_untied is not None:
            raise InputError(
                "`model.self_supervised` needs an equilibrium. Remove "
                f"`model.num_untied`. Received: num_untied={config.num_untied}."
            )
        reads_noise = data.noise_range is not None
        with config_errors("data"):
            operator = build_operator(data)

        def build_cell():
            if config.denoiser == "network":
                denoiser = deq_keras.layers.ImageDenoiser(
                    config.filters,
                    config.num_layers,
                    config.max_norm,
                    channels=1,
                    dtype=policy,
                )
            elif config.denoiser == "total_variation":
                denoiser = TotalVariationDenoiser(dtype=policy)
            else:
                denoiser = keras.layers.Rescaling(0.0, dtype=policy)
            cls = deq_keras.layers.ProximalGradientCell
            if config.cell == "half_quadratic":
                cls = deq_keras.layers.HalfQuadraticCell
            return cls(operator, denoiser, dtype=policy)

        with config_errors("model"):
            if config.num_untied is not None:
                once = {"solver": FixedPointIteration(1, tol=None), "dtype": policy}
                layers = [
                    deq_keras.DEQ(build_cell(), gradient="unrolled", **once)
                    for _ in range(config.num_untied)
                ]
                shape = operator.measurement_shape
                inputs = sources = keras.Input(shape, name="measurements")
                if reads_noise:
                    level = keras.Input((1,), name="noise_level")
                    inputs = {"measurements": inputs, "noise_level": level}
                    sources = list(inputs.values())
                outputs = deq_keras.models.UntiedLayers(layers, dtype=policy)(sources)
                return keras.Model(inputs, outputs)
            deq = equilibrium(build_cell(), config, policy)
            backbone = deq_keras.models.ImageRestorerBackbone(
                deq.cell,
                has_noise_level=reads_noise,
                solver=deq.solver,
                gradient=deq.gradient,
                regularizer=deq.regularizer,
                initial_state=deq.initial_state,
            )
            margin = 1 + 10 * max([data.noise, *(data.noise_range or [])])
            largest = float(np.max(operator(np.ones((1, *operator.image_shape)))))
            preprocessor = deq_keras.models.ImageRestorerPreprocessor.for_operator(
                operator, measurement_range=(-margin, largest + margin)
            )
            return deq_keras.models.ImageRestorer(backbone, preprocessor)

    @property
    def num_layers(self):
        return self.config.model.num_untied

    def wrap_model(self, model):
        """See `Job`. With `self_supervised`, returns an `EquivariantImagingModel`."""
        if not self.config.model.self_supervised:
            return model
        noise, seed = self.config.data.noise, self.config.seed
        with config_errors("model"):
            return deq_keras.models.EquivariantImagingModel(model, noise, seed=seed)

    def loss(self):
        return None if self.config.model.self_supervised else "mse"

    def measure(self, predict, budgets, model=None, data=None):
        batches = tf.data.Dataset.from_tensor_slices(data or self.feed.test)
        batches = batches.batch(self.evaluation_batch_size)
        return measure_at_budgets(predict, batches, scores, budgets)

    def evaluate(self, model, budgets):
        noisy = self.data(self.config.seed)[2]
        noisy = self.measure_model(model, budgets, noisy)
        return {**super().evaluate(model, budgets), "doubled_noise": noisy}


def further_tables(directory):
    """Returns the tables of the SSIM, and of the PSNR with twice the noise."""
    found = by_variant(evaluations(directory))
    if not found:
        return None
    tables = []
    for rows, key, form, label in (
        ("budgets", "ssim", ".3f", "test SSIM"),
        ("doubled_noise", "psnr", ".2f", "PSNR [dB] with twice the noise"),
        ("doubled_noise", "residual", ".2g", "residual with twice the noise"),
    ):
        values = {
            name: at_budgets([run[rows] for run in runs], key)
            for name, runs in found.items()
        }
        budgets = sorted({budget for one in values.values() for budget in one})
        tables.append([f"{label} at NFE", *map(str, budgets)])
        for name, one in values.items():
            tables.append([name, *(mean_text(one.get(b, ()), form) for b in budgets)])
    return align(tables)


EXPERIMENT = Experiment(
    ImagingConfig,
    ImagingJob,
    Score("psnr", "test PSNR [dB]", 1, ".2f"),
    tables=further_tables,
)
