"""A linear classifier on a monotone equilibrium."""

import pathlib
from typing import Any

import keras

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import check_count, check_counts
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers import DEQ
from deq_keras.models.kerashub import FOLDER, head_dtype_config, trained_preset

# The only file of a preset.
_FILE = "model.keras"


@keras.saving.register_keras_serializable(package="deq_keras")
class MonotoneClassifier(keras.Model):
    """Computes logits of vectors or images by `DEQ(cell)` and a dense layer.

    The inputs of the dense layer are the units of a dense cell, the maps of a
    convolutional cell averaged over windows of 4 x 4, or a multiscale cell's last tier.

    Args:
        cell: A `deq_keras.layers.MonotoneCell`.
        input_size: Tuple of positive integers: `(features,)`, or `(height, width,
            channels)`.
        num_classes: Positive integer.
        solver: See `DEQ`. Defaults to `"peaceman_rachford"`.
        gradient: See `DEQ`. Defaults to `"implicit"`.
        regularizer: See `DEQ`. Defaults to `None`.
        initial_state: See `DEQ`. Defaults to `"cell"`.
        preprocessing: Optional layer for the inputs, such as
            `keras.layers.Normalization`. Defaults to `None`.
        dtype: Dtype or policy of the equilibrium. Defaults to `None`, the cell's.
        head_dtype: Dtype or policy of the dense layer. Defaults to `None`, float32 or,
            for a float64 equilibrium, float64.
        **kwargs: Arguments of `keras.Model`.

    Input shape:
        `(batch, *input_size)`.

    Output shape:
        `(batch, num_classes)`.

    Example:

    >>> cell = deq_keras.layers.MonotoneConvCell(8)
    >>> model = deq_keras.models.MonotoneClassifier(cell, (8, 8, 1), num_classes=10)
    >>> model(np.ones((2, 8, 8, 1), "float32")).shape
    TensorShape([2, 10])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 6.
    """

    presets = {
        "monotone_digits": trained_preset(
            "A dense cell of 87 units, for digits of 8 x 8 pixels."
        )
    }

    def __init__(
        self,
        cell: keras.layers.Layer,
        input_size: tuple[int, ...],
        num_classes: int,
        solver: str | Config | solvers.FixedPointSolver = "peaceman_rachford",
        gradient: str | Config | gradients.EquilibriumGradient = "implicit",
        regularizer: str | Config | regularizers.EquilibriumRegularizer | None = None,
        initial_state: str | Config | initial_states.InitialState = "cell",
        preprocessing: keras.layers.Layer | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        head_dtype: str | Config | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        policy = cell.dtype_policy if dtype is None else keras.dtype_policies.get(dtype)
        input_size = check_counts("input_size", input_size)
        num_classes = check_count("num_classes", num_classes)
        deq = DEQ(
            cell,
            solver,
            gradient,
            regularizer,
            initial_state=initial_state,
            dtype=policy,
            name="deq",
        )
        classifier = keras.layers.Dense(
            num_classes,
            dtype=head_dtype or wide_dtype(policy.compute_dtype),
            name="logits",
        )

        # === Functional Model ===
        inputs = keras.Input(input_size, name="inputs")
        features = inputs if preprocessing is None else preprocessing(inputs)
        logits = classifier(_read(deq(features), policy))
        super().__init__(inputs=inputs, outputs=logits, **kwargs)

        # === Config ===
        self.deq = deq
        self.classifier = classifier
        self.input_size = input_size
        self.num_classes = num_classes
        self.preprocessing = preprocessing
        self.head_dtype = head_dtype and classifier.dtype_policy

    def get_config(self) -> Config:
        return {
            **arguments_of(self, MonotoneClassifier, self.deq),
            "dtype": keras.dtype_policies.serialize(self.deq.dtype_policy),
            "head_dtype": head_dtype_config(self.classifier, self.head_dtype),
            "name": self.name,
            "trainable": self.trainable,
        }

    def save_to_preset(self, preset_dir: str | pathlib.Path) -> None:
        """Writes a folder that `from_preset` loads.

        Args:
            preset_dir: Path of the folder.
        """
        folder = pathlib.Path(preset_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.save(folder / _FILE)

    @classmethod
    def from_preset(cls, preset: str | pathlib.Path) -> "MonotoneClassifier":
        """Returns a trained model.

        Args:
            preset: Name of a preset of this package: `"monotone_digits"`, for digits of
                8 x 8 pixels with values from 0 to 16. Or a folder that `save_to_preset`
                wrote.

        Raises:
            ValueError: If neither exists.
        """
        folder = FOLDER if str(preset) in cls.presets else pathlib.Path()
        path = folder / preset / _FILE
        if not path.is_file():
            raise ValueError(
                f"`preset` must be one of {sorted(cls.presets)}, or a folder that "
                f"`save_to_preset` wrote. Received: preset={str(preset)!r}."
            )
        return keras.saving.load_model(path, compile=False)

    @classmethod
    def from_config(cls, config: Config) -> Any:
        config = dict(config)
        for name in ("cell", "preprocessing", "dtype"):
            config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)


def _read(state: Any, policy: Any) -> Any:
    """Returns the inputs of the dense layer, `(batch, features)`."""
    if isinstance(state, list):
        return keras.layers.Flatten(dtype=policy, name="flattening")(state[-1])
    if len(state.shape) == 2:
        return state
    pooling = keras.layers.AveragePooling2D(4, dtype=policy, name="pooling")
    return keras.layers.Flatten(dtype=policy, name="flattening")(pooling(state))
