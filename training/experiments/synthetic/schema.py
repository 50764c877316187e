"""The config of the scalar models, with all defaults."""

from dataclasses import dataclass, field
from typing import Literal

from ...config.bounds import BATCH, DRAWN, WIDTH
from ...config.component_fields import components
from ...config.fields import EvaluationConfig, VariantsConfig

_SOLVERS = Literal["fixed_point_iteration", "anderson", "broyden"]


@dataclass(frozen=True)
class TargetConfig:
    """Pairs (x, h(x) + noise), with x uniform.

    Args:
        train_examples: number of training pairs.
        validation_examples: number of validation pairs.
        limit: Float. x is drawn from [-limit, limit]. The paper does not state its
            range; the slices of its figure are within 2.
        noise: Float. Standard deviation of the noise. We interpret the paper's
            N(0, 0.05) as a standard deviation, not as a variance.
        batch_size: Positive integer. Batch size of training.
    """

    train_examples: int = field(default=4096, metadata=DRAWN)
    validation_examples: int = field(default=1000, metadata=DRAWN)
    limit: float = field(default=2.0, metadata={"above": 0, "maximum": 1e6})
    noise: float = field(default=0.05, metadata={"minimum": 0, "maximum": 1e6})
    batch_size: int = field(default=256, metadata=BATCH)


@dataclass(frozen=True)
class ScalarModelConfig(components()):
    """The scalar cell in an equilibrium layer.

    Args:
        units: Positive integer. Hidden units. The model has 4 * units parameters.
    """

    units: int = field(default=50, metadata=WIDTH)


@dataclass(frozen=True)
class SyntheticEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    The error and df/dz are measured with the model's own solver.

    Args:
        solvers: Names of the solvers whose evaluations are counted, up to `max_iter`.
        tol: Float. Relative residual at which a sample has converged.
    """

    solvers: list[_SOLVERS] = field(
        default_factory=lambda: ["fixed_point_iteration", "anderson", "broyden"],
        metadata={"non_empty": True, "distinct": True},
    )
    tol: float = field(default=1e-3, metadata={"minimum": 0})


@dataclass(frozen=True)
class FigureConfig:
    """The figure of each model.

    Args:
        slices: List of floats. Inputs x at which f(z; x) is drawn with the trajectory
            of a solver.
        solver: Name of the solver of the trajectories.
        evaluations: Positive integer. Length of a trajectory.
    """

    slices: list[float] = field(
        default_factory=lambda: [1.0, 0.5, -1.9], metadata={"non_empty": True}
    )
    solver: _SOLVERS = "fixed_point_iteration"
    evaluations: int = field(default=12, metadata={"minimum": 1, "maximum": 1000})


@dataclass(frozen=True)
class SyntheticConfig(VariantsConfig):
    """A scalar equilibrium model of a curve; see `VariantsConfig`."""

    experiment: Literal["synthetic"]
    model: ScalarModelConfig
    data: TargetConfig = TargetConfig()
    evaluation: SyntheticEvaluationConfig = SyntheticEvaluationConfig(max_iter=100)
    figure: FigureConfig = FigureConfig()
