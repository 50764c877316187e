"""The config of the scalar models, with all defaults."""

from typing import Literal

from ...config import keys
from ...config.fields import Components, Config, EvaluationConfig, VariantsConfig

_SOLVERS = Literal["fixed_point_iteration", "anderson", "broyden"]


class TargetConfig(Config):
    """Pairs (x, h(x) + noise), with x uniform.

    Args:
        train_examples: Positive integer. Number of training pairs.
        validation_examples: Positive integer. Number of validation pairs.
        limit: Float. x is drawn from [-limit, limit]. The paper does not state its
            range; the slices of its figure are within 2.
        noise: Float. Standard deviation of the noise. We interpret the paper's
            N(0, 0.05) as a standard deviation, not as a variance.
        batch_size: Positive integer. Batch size of training.
    """

    train_examples: keys.Drawn = 4096
    validation_examples: keys.Drawn = 1000
    limit: keys.number(gt=0, le=1_000_000) = 2.0
    noise: keys.number(ge=0, le=1_000_000) = 0.05
    batch_size: keys.Batch = 256


class ScalarModelConfig(Components):
    """The scalar cell in an equilibrium layer.

    Args:
        units: Positive integer. Hidden units. The model has 4 * units parameters.
    """

    units: keys.Width = 50


class SyntheticEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    The error and df/dz are measured with the model's own solver.

    Args:
        solvers: Names of the solvers whose evaluations are counted, up to `max_iter`.
        tol: Float. Relative residual at which a sample has converged.
    """

    max_iter: keys.Budget = 100
    solvers: keys.Distinct[_SOLVERS] = ["fixed_point_iteration", "anderson", "broyden"]
    tol: keys.NonNegative = 1e-3


class FigureConfig(Config):
    """The figure of each model.

    Args:
        slices: List of floats. Inputs x at which f(z; x) is drawn with the trajectory
            of a solver.
        solver: Name of the solver of the trajectories.
        evaluations: Positive integer. Length of a trajectory.
    """

    slices: keys.Some[keys.Number] = [1.0, 0.5, -1.9]
    solver: _SOLVERS = "fixed_point_iteration"
    evaluations: keys.integer(le=1000) = 12


class SyntheticConfig(VariantsConfig):
    """A scalar equilibrium model of a curve; see `VariantsConfig`."""

    experiment: Literal["synthetic"]
    model: ScalarModelConfig
    data: TargetConfig = TargetConfig()
    evaluation: SyntheticEvaluationConfig = SyntheticEvaluationConfig()
    figure: FigureConfig = FigureConfig()
