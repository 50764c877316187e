"""What the configs of several experiments may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import InputError
from .bounds import BATCH, BUDGET, DEVICES, EPOCHS, NAME, SEED, SHARE, WAIT
from .component_fields import components

INHERIT = "inherit"

# A mapping of names to dicts of dotted paths and values.
_CHANGES = {"non_empty": True, "max_items": 100, **NAME}

# Schedules divide by it, in float32.
_LEARNING_RATE = {"minimum": 1e-12, "maximum": 1e38}


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate.

    Args:
        name: `adam` or `sgd` (with momentum 0.9).
        nesterov: whether the momentum of `sgd` is Nesterov's.
        learning_rate: the highest one.
        schedule: `cosine` falls to `final_learning_rate` in the last step of the last
            phase, `poly` does with the power 0.9 of the steps that are left; `constant`
            does not. `inverse_square_root` falls with the root of the step after the
            warm-up. `step` multiplies by `decay_factor` after each of `decay_epochs`;
            `plateau` does when the score that selects the best epoch has not improved
            for `patience` epochs, down to `final_learning_rate`.
        warmup_epochs: epochs in which the learning rate rises linearly from 0; only
            with `cosine`, `constant` and `inverse_square_root`, which needs them.
        decay_epochs: List of ascending floats. Epochs after which `step` decays. Only
            for `step`.
        decay_factor: Float in (0, 1). Factor of `step` and `plateau`.
        patience: Positive integer. Epochs that `plateau` waits.
        weight_decay: decoupled; null for none.
        clip_norm: bound of the global gradient norm; null for none.
        ema_momentum: of an exponential moving average of the weights, which validation
            and the kept models have; null for none. Training goes on from the weights
            themselves, and from their averages where a phase begins.
    """

    name: Literal["adam", "sgd"] = "adam"
    nesterov: bool = True
    learning_rate: float = field(default=1e-3, metadata=_LEARNING_RATE)
    schedule: Literal[
        "constant", "cosine", "inverse_square_root", "plateau", "poly", "step"
    ] = "cosine"
    final_learning_rate: float = field(
        default=1e-6, metadata={"minimum": 0, "maximum": 1e6}
    )
    warmup_epochs: float = field(
        default=0.0, metadata={"minimum": 0, "maximum": EPOCHS["maximum"]}
    )
    decay_epochs: list[float] | None = field(
        default=None,
        metadata={"non_empty": True, "above": 0, "maximum": EPOCHS["maximum"]},
    )
    decay_factor: float = field(default=0.1, metadata={"above": 0, "maximum": 0.99999})
    patience: int = field(default=5, metadata=EPOCHS)
    weight_decay: float | None = field(default=None, metadata={"minimum": 0})
    clip_norm: float | None = field(default=None, metadata={"above": 0})
    ema_momentum: float | None = field(
        default=None, metadata={"minimum": 0, "maximum": 0.99999}
    )

    def __post_init__(self):
        if (self.schedule == "step") != (self.decay_epochs is not None):
            raise InputError(
                "`optimizer.decay_epochs` is for the schedule `step`, which needs it. "
                f"Received: decay_epochs={self.decay_epochs}, schedule={self.schedule}."
            )
        epochs = self.decay_epochs or []
        if epochs != sorted(set(epochs)):
            raise InputError(
                "`optimizer.decay_epochs` must ascend. Received: "
                f"decay_epochs={epochs}."
            )


@dataclass(frozen=True)
class WeightIncrementConfig:
    """Raises the weight of a regularizer step by step.

    Args:
        every_epochs: the weight rises when so many epochs of the run are done, and
            again after every so many more. They count from the start of the run, but
            those before the phase and at its start change nothing.
        amount: by which it rises.
    """

    every_epochs: int = field(metadata=EPOCHS)
    amount: float


@dataclass(frozen=True)
class RegularizerRampConfig:
    """Changes a regularizer with every step of a phase, linearly.

    Args:
        factor: List of two floats >= 0, at the start and at the end of the phase. The
            factor multiplies the penalty: for a regularizer of weight 1, it is the
            weight. Null for no factor.
        probability: List of two floats in [0, 1], the fraction of steps that have the
            penalty. Null for the regularizer's own.
    """

    factor: list[float] | None = field(
        default=None, metadata={"num_items": 2, "minimum": 0}
    )
    probability: list[float] | None = field(
        default=None, metadata={"num_items": 2, "minimum": 0, "maximum": 1}
    )


@dataclass(frozen=True)
class PhaseConfig(components(*4 * [INHERIT], alone=(INHERIT,))):
    """Some epochs with one solver, gradient, regularizer and initial state.

    `inherit` takes the model's.

    Args:
        max_iter_jitter: by how much the budget of a training step, which is drawn, may
            be lower than the solver's `max_iter`.
        regularizer_weight_increment: how the weight of the regularizer rises in the
            phase; null for not at all.
        regularizer_ramp: how its weight and probability change with every step of the
            phase; null for not at all. Not together with an increment.
    """

    epochs: int = field(metadata=EPOCHS)
    name: str = field(default="equilibrium", metadata={"max_length": 64})
    max_iter_jitter: int = field(default=0, metadata={**BUDGET, "minimum": 0})
    regularizer_weight_increment: WeightIncrementConfig | None = None
    regularizer_ramp: RegularizerRampConfig | None = None


@dataclass(frozen=True)
class SegmentsConfig:
    """Training in segments of solves; see `deq_keras.models.ContinuousBatchingModel`.

    A training step is a segment of all samples in search, and admits one batch of fresh
    ones.

    Args:
        in_search: Positive integer. Number of samples in progress, more than a batch.
        max_segments: after which a sample has finished; null for no limit.
        finished: `converged`, samples that met the tolerance of the solver have too;
            null, they have not.
        inherited: share of the fresh samples that begin at the state of the one in
            whose place they come.
    """

    in_search: int = field(metadata={**BATCH, "minimum": 2})
    max_segments: int | None = field(default=16, metadata=BUDGET)
    finished: Literal["converged"] | None = "converged"
    inherited: float = field(default=0.0, metadata=SHARE)


@dataclass(frozen=True)
class EvaluationConfig:
    """What is measured of a trained model.

    Args:
        budgets: numbers of function evaluations (NFE) at which accuracy is measured.
        num_samples: test images for the residual curves and the spectral radius.
        max_iter: evaluations that the residual curves show, and the budget of the
            solve to tolerance whose mean NFE is reported.
    """

    budgets: list[int] = field(
        default_factory=lambda: [1, 2, 3, 4, 5, 6, 7, 8, 12, 20, 30],
        metadata={"non_empty": True, **BUDGET},
    )
    num_samples: int = field(default=128, metadata=BATCH)
    max_iter: int = field(default=30, metadata=BUDGET)


@dataclass(frozen=True)
class DistributionConfig:
    """The devices that a model is trained on. All else takes one.

    Args:
        strategy: `single`, one device; `mirrored`, several of this machine; or
            `multi_worker`, those of all processes that `TF_CONFIG` names.
        devices: of `mirrored`, such as `[GPU:0, GPU:1]`; null takes all GPUs, and the
            logical CPUs where there are none.
        logical_cpus: of `mirrored`, as how many devices the CPU counts; null for one.
        start_timeout: of `multi_worker`, seconds in which all workers must have
            started.
    """

    strategy: Literal["single", "mirrored", "multi_worker"] = "single"
    devices: list[str] | None = field(
        default=None, metadata={"non_empty": True, "distinct": True}
    )
    logical_cpus: int | None = field(default=None, metadata=DEVICES)
    start_timeout: int = field(default=300, metadata=WAIT)

    def __post_init__(self):
        if self.strategy == "mirrored":
            return
        for name in ("devices", "logical_cpus"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"`distribution.{name}` is for the strategy `mirrored`. Set it to "
                    f"null, or distribution.strategy to mirrored. Received: "
                    f"{name}={getattr(self, name)}, strategy={self.strategy}."
                )


@dataclass(frozen=True)
class VariantsConfig:
    """One or several variants of a model that is trained in phases.

    Args:
        experiment: the experiment this config is for.
        seed: of all that is random: initialization, shuffling, augmentation, dropout.
        seeds: trains every variant once per seed, in place of `seed`, and reports means
            and standard deviations; null for one run with `seed`.
        precision: the Keras dtype policy of the model; its logits are float32.
        jit_compile: whether training and evaluation steps are compiled by XLA; `auto`
            leaves it to Keras: on a GPU, where all layers can be compiled.
        tensorboard: whether event files are written.
        imports: List of strings. Modules that are imported first, from the current
            folder or from installed packages. They register classes of solvers,
            gradients, regularizers, initial states or cells in Keras, which the config
            then names as `package>Class`.
        distribution: the devices of the training, of all variants alike.
        variants: name -> {dotted path: value}. Each variant is the config with these
            values replaced, trained in a folder of its own and compared with the
            others.
        tasks: name -> {dotted path: value}, or null. Every variant is trained on every
            task: the values of the task are replaced first. The variants are then
            named `TASK.VARIANT`.
    """

    experiment: str
    model: Any
    phases: list[PhaseConfig] = field(metadata={"non_empty": True})
    seed: int = field(default=0, metadata=SEED)
    seeds: list[int] | None = field(
        default=None, metadata={"non_empty": True, "distinct": True, **SEED}
    )
    precision: Literal["float32", "float64", "mixed_bfloat16", "mixed_float16"] = (
        "float32"
    )
    jit_compile: Literal[True, False, "auto"] = False
    tensorboard: bool = True
    imports: list[str] = field(
        default_factory=list, metadata={"max_items": 100, "max_length": 200}
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    distribution: DistributionConfig = DistributionConfig()
    variants: dict[str, Any] = field(
        default_factory=lambda: {"model": {}}, metadata=_CHANGES
    )
    tasks: dict[str, Any] | None = field(default=None, metadata=_CHANGES)
