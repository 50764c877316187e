"""Config fields that several experiments share, with all defaults."""

from typing import Any, Literal

from ..errors import InputError
from . import keys
from .model import Config

# Words of a component: the model's, and the one that `DEQ` selects for its cell.
INHERIT, AUTO = "inherit", "auto"


class Components(Config):
    """The components of an equilibrium layer; a phase can replace them.

    Each is a name in `deq_keras`, alone or with arguments: `{class_name: anderson,
    max_iter: 12}`. `package>Class` names a class that a module in `imports` registers.

    Args:
        solver: The solver of the layer.
        gradient: The gradient of the layer.
        regularizer: The regularizer of the layer. Null for none.
        initial_state: The initial state of the solves.
    """

    solver: keys.Component = "anderson"
    gradient: keys.Component = "implicit"
    regularizer: keys.Component | None = None
    initial_state: keys.Component = "cell"


class OptimizerConfig(Config):
    """The optimizer and its learning rate.

    Args:
        name: `adagrad`, `adam`, `radam` (Adam with a rectified rate; Liu et al., 2020),
            `rmsprop` or `sgd` (with momentum 0.9).
        nesterov: Boolean. Whether the momentum of `sgd` is Nesterov's.
        learning_rate: Float. The highest learning rate.
        schedule: `cosine` falls to `final_learning_rate` in the last step of the last
            phase; so does `poly`, with the power 0.9 of the remaining steps. `constant`
            does not fall. `inverse_square_root` falls with the root of the step after
            the warm-up. `step` multiplies by `decay_factor` after each epoch in
            `decay_epochs`. `plateau` multiplies by it if the monitored score has not
            improved for `patience` epochs, down to `final_learning_rate`.
        final_learning_rate: Float. The lowest learning rate.
        warmup_epochs: Float. Epochs in which the learning rate rises linearly from 0,
            for `cosine`, `constant` and `inverse_square_root`, which requires them.
        decay_epochs: List of ascending floats. Epochs after which `step` decays. Only
            for `step`.
        decay_factor: Float in (0, 1). Factor of `step` and `plateau`.
        patience: Positive integer. Epochs that `plateau` waits.
        weight_decay: Float. Decoupled weight decay. Null for none.
        clip_norm: Float. Bound of the global gradient norm. Null for none.
        accumulation_steps: Positive integer. Training steps per update of the weights,
            which uses the mean of their gradients, as if of one larger batch. All other
            keys count training steps. For one device.
        ema_momentum: Float. Momentum of a moving average of the weights. Validation and
            saved models use the average. Training continues from the weights, and from
            the average at the start of a phase. Null for no average.
    """

    name: Literal["adagrad", "adam", "radam", "rmsprop", "sgd"] = "adam"
    nesterov: bool = True
    learning_rate: keys.number(ge=1e-12, le=1e38) = 1e-3  # Divided by in float32.
    schedule: Literal[
        "constant", "cosine", "inverse_square_root", "plateau", "poly", "step"
    ] = "cosine"
    final_learning_rate: keys.number(ge=0, le=1_000_000) = 1e-6
    warmup_epochs: keys.number(ge=0, le=1_000_000) = 0.0
    decay_epochs: keys.Some[keys.number(gt=0, le=1_000_000)] | None = None
    decay_factor: keys.number(gt=0, le=0.99999) = 0.1
    patience: keys.Epochs = 5
    weight_decay: keys.NonNegative | None = None
    clip_norm: keys.Positive | None = None
    accumulation_steps: keys.Count = 1
    ema_momentum: keys.number(ge=0, le=0.99999) | None = None

    def model_post_init(self, context):
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


class WeightIncrementConfig(Config):
    """Raises the weight of a regularizer step by step.

    Args:
        every_epochs: Positive integer. The weight rises each time after this number of
            epochs. Epochs count from the start of the run, but the weight does not rise
            before the phase or at its start.
        amount: Float. Increment of the weight.
    """

    every_epochs: keys.Epochs
    amount: keys.Number


class RegularizerRampConfig(Config):
    """Changes a regularizer with every step of a phase, linearly.

    Args:
        factor: List of two floats >= 0, at the start and at the end of the phase. The
            factor multiplies the penalty: for a regularizer of weight 1, it is the
            weight. Null for no factor.
        probability: List of two floats in [0, 1], the fraction of steps that add the
            penalty. Null for the regularizer's own.
    """

    factor: keys.Pair[keys.NonNegative] | None = None
    probability: keys.Pair[keys.Fraction] | None = None


class PhaseConfig(Components):
    """Some epochs with one solver, gradient, regularizer and initial state.

    `inherit` selects the model's component. A phase has either `epochs` or `steps`.

    Args:
        epochs: Positive integer or null. Number of epochs.
        steps: Positive integer or null. Number of training steps. The phase consists of
            whole epochs and, for the remaining steps, of a shorter last epoch. The next
            phase continues the pass over the data.
        name: String. Name of the phase in logs.
        max_iter_jitter: Non-negative integer. Largest random reduction of a training
            step's budget below the solver's `max_iter`.
        regularizer_weight_increment: Increments of the regularizer's weight during the
            phase. Null for none.
        regularizer_ramp: Change of the regularizer's weight and probability with every
            step of the phase. Null for none. Cannot be combined with an increment.
    """

    solver: keys.Component = INHERIT
    gradient: keys.Component = INHERIT
    regularizer: keys.Component | None = INHERIT
    initial_state: keys.Component = INHERIT
    epochs: keys.Epochs | None = None
    steps: keys.Count | None = None
    name: keys.Label = "equilibrium"
    max_iter_jitter: keys.integer(ge=0, le=keys.MAX_BUDGET) = 0
    regularizer_weight_increment: WeightIncrementConfig | None = None
    regularizer_ramp: RegularizerRampConfig | None = None

    def model_post_init(self, context):
        if (self.epochs is None) == (self.steps is None):
            raise InputError(
                "Each of the `phases` must have either `epochs` or `steps`. Set the "
                f"other one to null. Received: name={self.name}, epochs={self.epochs}, "
                f"steps={self.steps}."
            )


class SegmentsConfig(Config):
    """Training in segments of solves; see `deq_keras.models.ContinuousBatchingModel`.

    A training step is a segment of all samples in progress, and admits one batch of
    fresh samples.

    Args:
        in_progress: Positive integer. Number of samples in progress, more than a batch.
        max_segments: Positive integer. Maximum segments of a sample. Null for no limit.
        finished: With `converged`, samples have also finished when they meet the
            solver's tolerance. Null for only `max_segments`.
        inherited: Float in [0, 1]. Fraction of the fresh samples that start at the
            state of the sample that they replace.
    """

    in_progress: keys.integer(ge=2, le=2**20)
    max_segments: keys.Budget | None = 16
    finished: Literal["converged"] | None = "converged"
    inherited: keys.Fraction = 0.0


class EvaluationConfig(Config):
    """The measurements of a trained model.

    Args:
        budgets: List of numbers of function evaluations (NFE) at which to measure.
        num_samples: Number of test images for residual curves and spectral radius.
        max_iter: Number of evaluations in the residual curves, and the budget of the
            solve to tolerance whose mean NFE is reported.
    """

    # Equal budgets would count as runs with different seeds in tables.
    budgets: keys.Distinct[keys.Budget] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 20, 30]
    num_samples: keys.Batch = 128
    max_iter: keys.Budget = 30


class DistributionConfig(Config):
    """The devices of the training. All other commands use one device.

    Args:
        strategy: `single`, one device; or `mirrored`, several devices of this machine.
        devices: For `mirrored`, a list such as `[GPU:0, GPU:1]`. Null uses all GPUs or,
            without GPUs, the logical CPUs.
        logical_cpus: For `mirrored`, the number of logical devices of the CPU. Null for
            one.
    """

    strategy: Literal["single", "mirrored"] = "single"
    devices: keys.Distinct[keys.Text] | None = None
    logical_cpus: keys.integer(le=1024) | None = None

    def model_post_init(self, context):
        if self.strategy == "mirrored":
            return
        for name in ("devices", "logical_cpus"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"`distribution.{name}` is for the strategy `mirrored`. Set it to "
                    f"null, or distribution.strategy to mirrored. Received: "
                    f"{name}={getattr(self, name)}, strategy={self.strategy}."
                )


class VariantsConfig(Config):
    """One or several variants of a model that is trained in phases.

    Args:
        experiment: Name of the experiment.
        model: The model.
        phases: List of phases, which train the model one after the other.
        seed: Integer. Seed of initialization, shuffling, augmentation and dropout.
        seeds: List of integers. Trains every variant once per seed, instead of `seed`,
            and reports means and standard deviations. Null for one run with `seed`.
        precision: Keras dtype policy of the model. Logits are float32.
        jit_compile: Whether XLA compiles training and evaluation steps. With `auto`,
            it compiles on a GPU if it can compile all layers; on a CPU also only
            phases of at least 5,000 steps, and models without convolutions.
        tensorboard: Boolean. Whether to write event files.
        imports: List of strings. Modules that are imported first, from the current
            folder or from installed packages. They register classes of solvers,
            gradients, regularizers, initial states or cells in Keras, which the config
            then names as `package>Class`.
        optimizer: The optimizer of all phases.
        distribution: The devices of the training, for all variants.
        variants: Mapping of names to {dotted path: value}. Each variant is the config
            with these values replaced. It trains in a separate folder, and is compared
            with the others.
        tasks: Mapping of names to {dotted path: value}, or null. Every variant trains
            on every task: the values of the task are replaced first. The variants then
            have the names `TASK.VARIANT`.
        published: Mapping of headings to {variant: number or text}: the numbers of a
            paper, which the report shows beside ours.
    """

    experiment: keys.Text
    model: Components
    phases: keys.Some[PhaseConfig]
    seed: keys.Seed = 0
    seeds: keys.Distinct[keys.Seed] | None = None
    precision: Literal["float32", "float64", "mixed_bfloat16", "mixed_float16"] = (
        "float32"
    )
    jit_compile: keys.Switch = "auto"
    tensorboard: bool = True
    imports: keys.Several[keys.Text] = []
    optimizer: OptimizerConfig = OptimizerConfig()
    distribution: DistributionConfig = DistributionConfig()
    variants: keys.Changes[dict[str, Any]] = {"model": {}}
    tasks: keys.Changes[keys.NonEmpty] | None = None
    published: dict[str, dict[str, keys.Result]] = {}
