"""What the config of the synthetic study may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, DRAWN, EPOCHS, SEED, WIDTH
from ...config.component_fields import gradient_field, solver_field
from ...config.fields import OptimizerConfig


@dataclass(frozen=True)
class TargetConfig:
    """Pairs (x, h(x) + noise), with x uniform.

    Args:
        train_examples: number of training pairs.
        validation_examples: number of validation pairs.
        limit: x is drawn from [-limit, limit]. The paper does not give its range; the
            slices of its figure lie within 2.
        noise: standard deviation of the noise. The paper's N(0, 0.05) is read so, not
            as a variance.
        batch_size: of a training step.
    """

    train_examples: int = field(default=4096, metadata=DRAWN)
    validation_examples: int = field(default=1000, metadata=DRAWN)
    limit: float = field(default=2.0, metadata={"above": 0, "maximum": 1e6})
    noise: float = field(default=0.05, metadata={"minimum": 0, "maximum": 1e6})
    batch_size: int = field(default=256, metadata=BATCH)


@dataclass(frozen=True)
class ScalarModelConfig:
    """The scalar cell and how it is solved and differentiated in training.

    Args:
        units: hidden units; the model has 4 * units parameters.
        solver: name of a solver, alone or with arguments.
        gradient: name of a gradient, alone or with arguments.
    """

    units: int = field(default=50, metadata=WIDTH)
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("implicit")


@dataclass(frozen=True)
class MeasurementConfig:
    """How often the trained models are evaluated in a solve.

    The error and df/dz are measured with the model's own solver.

    Args:
        solvers: names of the solvers whose evaluations are counted.
        max_iter: budget of evaluations of a solve.
        tol: relative residual at which a sample has converged.
    """

    solvers: list[Literal["fixed_point_iteration", "anderson", "broyden"]] = field(
        default_factory=lambda: ["fixed_point_iteration", "anderson", "broyden"],
        metadata={"non_empty": True, "distinct": True},
    )
    max_iter: int = field(default=100, metadata=BUDGET)
    tol: float = field(default=1e-3, metadata={"minimum": 0})


@dataclass(frozen=True)
class FigureConfig:
    """The figure of one seed.

    Args:
        seed: which seed's models are drawn; one of `seeds`.
        slices: inputs x at which f(z; x) is drawn with a solver's trajectory.
        solver: name of the solver of the trajectories.
        evaluations: length of a trajectory.
    """

    seed: int = field(default=0, metadata=SEED)
    slices: list[float] = field(
        default_factory=lambda: [1.0, 0.5, -1.9], metadata={"non_empty": True}
    )
    solver: Literal["fixed_point_iteration", "anderson", "broyden"] = (
        "fixed_point_iteration"
    )
    evaluations: int = field(default=12, metadata={"minimum": 1, "maximum": 1000})


@dataclass(frozen=True)
class SyntheticConfig:
    """The study: one model for each Jacobian weight and seed.

    Args:
        experiment: the experiment this config is for.
        epochs: of every run.
        weights: Weights gamma of the Jacobian regularizer; 0 disables it.
        seeds: of data, initialization, shuffling and probes.
    """

    experiment: Literal["synthetic"]
    epochs: int = field(metadata=EPOCHS)
    weights: list[float] = field(
        default_factory=lambda: [0.0, 2.0, 4.0],
        metadata={"non_empty": True, "distinct": True, "minimum": 0},
    )
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2, 3, 4],
        metadata={"non_empty": True, "distinct": True, **SEED},
    )
    data: TargetConfig = TargetConfig()
    model: ScalarModelConfig = ScalarModelConfig()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    measurement: MeasurementConfig = MeasurementConfig()
    figure: FigureConfig = FigureConfig()
