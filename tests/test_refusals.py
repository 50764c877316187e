"""Bad arguments raise a `ValueError` that names the argument and what was received.

Layers have a table of their own.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import (
    callbacks,
    diagnostics,
    gradients,
    initial_states,
    layers,
    losses,
    models,
    multistart,
    regularizers,
    serving,
    solvers,
    testing,
    tokenizers,
    tuning,
)
from deq_keras.converters import locuslab
from tests.golden import arrays

NAN, INFINITY = float("nan"), float("inf")
X = np.ones((4, 3), "float32")
SPECS = [tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))]


def _deq(regularizer=None):
    return layers.DEQ(layers.DenseCell(3), regularizer=regularizer, name="deq")


def _model(batch_size=None):
    inputs = keras.Input((3,), batch_size=batch_size)
    return keras.Model(inputs, keras.layers.Dense(1)(_deq()(inputs)))


def _linearization():
    return diagnostics.linearize(lambda z: 0.5 * z, tf.ones((2, 3)))


def _of_layer(function, regularizer=None):
    """Returns a function whose first argument is a layer that is built when called."""
    return lambda **arguments: function(_deq(regularizer), **arguments)


def _solve(**request):
    request = solvers.SolveRequest([[1.0]], **request)
    return solvers.Anderson(max_iter=8).solve(lambda z: 0.5 * z, request)


def _within_scope(mode):
    with keras.RematScope(mode=mode, output_size_threshold=1):
        return _deq()(X)


def _loop(**options):
    return _solve(loop=solvers.LoopOptions(**options))


def _compare(inputs=X, **arguments):
    return diagnostics.compare_initial_states(_deq(), inputs, **arguments)


def _predict(**budget):
    return diagnostics.Predictor(_deq())(X, **budget)


def _watch(cls, **arguments):
    inputs = arguments.pop("inputs", lambda: X)
    return cls(_deq(), inputs, **arguments)


def _continuous(**arguments):
    arguments = {"examples": SPECS, "batch_size": 4, **arguments}
    return models.ContinuousBatchingModel(_model(), **arguments)


def _transformer(cls=models.DEQTransformerBackbone, **arguments):
    sizes = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    return cls(**{"vocabulary_size": 20, **sizes, **arguments})


def _trellisnet(**arguments):
    sizes = {"hidden_dim": 8, "intermediate_dim": 8}
    return models.DEQTrellisNetBackbone(**{"vocabulary_size": 20, **sizes, **arguments})


_cached_trellisnet = functools.cache(_trellisnet)


def _trellisnet_task(embedding_dim=None, cutoffs=(), **arguments):
    backbone = _cached_trellisnet(embedding_dim=embedding_dim, cutoffs=cutoffs)
    return models.DEQTrellisNetCausalLM(backbone, **arguments)


def _auxiliary(**arguments):
    backbone = models.TrellisNetBackbone(20, 8, 8, num_layers=2)
    return models.TrellisNetCausalLM(backbone, **arguments)


def _export(**arguments):
    return serving.export_saved_model(_model(), "never-written", **arguments)


def _load_transformer(**arguments):
    weights = arrays.part("language_model", "plain/param/")
    return locuslab.load_deq_transformer(weights, **arguments)


def _load_trellisnet(**arguments):
    weights = arrays.part("trellis", "k2_d1/param/")
    return locuslab.load_deq_trellisnet(weights, **arguments)


def _load_mdeq(**arguments):
    arguments = {"num_groups": 4, "downsample_times": 1, **arguments}
    return locuslab.load_mdeq(arrays.part("mdeq", "param/"), **arguments)


def _load_monotone(**arguments):
    weights = arrays.part("monotone", "fc/param/")
    return locuslab.load_monotone_network(weights, **arguments)


# A function, one of its arguments, and bad values of the argument.
ROWS = [
    (_within_scope, "mode", "full", "larger_than"),
    (keras.layers.Bidirectional, "layer", _deq()),
    (functools.partial(layers.DEQ, layers.DenseCell(3)), "max_iter", 5),
    (solvers.FixedPointIteration, "max_iter", 0, 2.5, True, tf.constant(3), 2**31),
    (solvers.FixedPointIteration, "tol", -1e-3, "small", NAN, tf.constant(-1.0)),
    (solvers.FixedPointIteration, "stop_mode", "relative"),
    (solvers.FixedPointIteration, "damping", 0.0, 1.5),
    (solvers.FixedPointIteration, "patience", 0),
    (solvers.FixedPointIteration, "factor", 0.0, 1.5),
    (solvers.FixedPointIteration, "noise", -0.1, "loud"),
    (functools.partial(solvers.FixedPointIteration, tol=0.1), "noise", 0.1),
    (solvers.FixedPointIteration, "compact", 1),
    (solvers.Aitken, "limit", 1.0, "large"),
    (solvers.Anderson, "history", 0),
    (solvers.Anderson, "ridge", -1.0, INFINITY, 10**400),
    (solvers.Anderson, "ridge_mode", "auto"),
    (solvers.Anderson, "mixing", 0),
    (solvers.Broyden, "history", 0, "all"),
    (solvers.GMRES, "max_iter", 0, tf.constant(3)),
    (solvers.GMRES, "restart", 0, 2.5),
    (functools.partial(solvers.GMRES, 5), "restart", 6),
    (solvers.BiCGStab, "tol", "small"),
    (solvers.PeacemanRachford, "alpha", 0, INFINITY, "auto"),
    (solvers.ForwardBackward, "alpha", -1.0),
    (_solve, "max_iter", 0, 2**31, tf.constant([3, 4])),
    (_solve, "tol", -1),
    (_solve, "loop", {"records_trace": False}),
    (_loop, "limit", 0, 2.5),
    (_loop, "checkpoints", 0, -1),
    (gradients.PhantomGradient, "num_steps", 0, 1.5),
    (gradients.PhantomGradient, "damping", 0, 2),
    (gradients.ReversibleGradient, "beta", 0.0, 1, "half"),
    (gradients.ReversibleGradient, "checkpoint_every", 0),
    (gradients.TruncatedGradient, "num_steps", 0, 2.5, "some", [], [0.0, 0.0]),
    (gradients.TruncatedGradient, "num_steps", [1.0, -1.0], [1.0, NAN], [1.0, "2"]),
    (gradients.TruncatedGradient, "num_free_steps", -1, True, None),
    (gradients.TruncatedGradient, "max_steps", 0),
    (gradients.TruncatedGradient, "free_fraction", 1.5, "half"),
    (gradients.TruncatedGradient, "free_noise", -0.1),
    (gradients.TruncatedGradient, "tol", -0.1, NAN),
    (gradients.TruncatedGradient, "checkpoints", 0),
    (regularizers.ContractionRegularizer, "weight", -1),
    (regularizers.ContractionRegularizer, "residual_weight", -1),
    (regularizers.ContractionRegularizer, "residual_margin", -1),
    (regularizers.ContractionRegularizer, "num_iterations", 0),
    (regularizers.JacobianRegularizer, "num_probes", 0),
    (regularizers.JacobianRegularizer, "probability", 0.0, 1.5),
    (regularizers.ResidualRegularizer, "margin", "0.1"),
    (initial_states.Normal, "stddev", 0.0, "1"),
    (initial_states.Mixed, "initial_states", [], "cell"),
    (initial_states.Mixed, "fractions", [0.5], [0.5, 0.6], [1.5, -0.5], [1, "0"]),
    (multistart.Selection, "select", "votes", 3),
    (functools.partial(multistart.Selection, "vote"), "predict", None, 3),
    (functools.partial(losses.correction_weights, 2), "schedule", "exp"),
    (functools.partial(losses.correction_weights, 2), "gamma", 0.0),
    (
        functools.partial(losses.correction_weights, 2, schedule="constant"),
        "gamma",
        0.5,
    ),
    (
        functools.partial(losses.fixed_point_correction, loss_fn=tf.reduce_sum),
        "states",
        [],
        tf.zeros((3, 2)),
    ),
    (lambda max_iter: diagnostics.spectral_radius(_deq(), X, max_iter), "max_iter", 0),
    (lambda tol: diagnostics.spectral_radius(_linearization(), tol=tol), "tol", -1.0),
    (_of_layer(diagnostics.spectral_radius), "inputs", None),
    (
        lambda num_probes: diagnostics.jacobian_norm(_linearization(), num_probes),
        "num_probes",
        0,
    ),
    (_compare, "inputs", X[:1]),
    (_compare, "others", (), "other"),
    (_compare, "seed", None),
    (_predict, "max_iter", 0, 1.5),
    (_predict, "tol", -1.0),
    (
        functools.partial(diagnostics.overthinking, accuracy=[1, 1, 1]),
        "budgets",
        [1, 2, 5],
        [0, 10, 20],
    ),
    (functools.partial(_of_layer(diagnostics.gradient_quality), inputs=X), "tol", 0.0),
    (_of_layer(diagnostics.certify), "inputs", None),
    (functools.partial(_of_layer(diagnostics.certify), inputs=X), "seed", 0.5),
    (functools.partial(_watch, callbacks.EquilibriumDiagnostics), "inputs", None),
    (functools.partial(_watch, callbacks.EquilibriumDiagnostics), "max_iter", 0),
    (functools.partial(_watch, callbacks.EquilibriumDiagnostics), "freq", 0),
    (
        functools.partial(_watch, callbacks.EquilibriumSummaries, log_dir="logs"),
        "inputs",
        X,
    ),
    (_of_layer(callbacks.EquilibriumWarnings), "largest_error", 0),
    (_of_layer(callbacks.PenaltyTarget, "jacobian"), "target", 0.0),
    (
        functools.partial(_of_layer(callbacks.PenaltyTarget, "jacobian"), target=1.0),
        "rate",
        -1,
    ),
    (_of_layer(callbacks.RegularizerSchedule, "jacobian"), "factor", None),
    (_of_layer(callbacks.RegularizerSchedule, "jacobian"), "probability", 0.5),
    (functools.partial(testing.check_solver, solvers.Anderson), "zoo", ["contracton"]),
    (tokenizers.CharacterTokenizer, "vocabulary", ["a", "b", "a"], []),
    (
        functools.partial(tokenizers.CharacterTokenizer.learn, ["a"]),
        "minimum_count",
        0,
        1.5,
    ),
    (functools.partial(tuning.upper_bound, num_samples=1), "num_changed", 2),
    (functools.partial(tuning.upper_bound, 0, 9), "confidence", 1.0),
    (tuning.Tuning.from_dict, "record", "tune.json"),
    (_continuous, "batch_size", 1),
    (_continuous, "max_segments", 0),
    (_continuous, "inherited", 1.5),
    (_continuous, "finished", "convergd", 3),
    (_continuous, "examples", X),
    (_transformer, "vocabulary_size", 0),
    (_transformer, "num_heads", 2.0),
    (_transformer, "intermediate_dim", -1),
    (_transformer, "embedding_dim", 0),
    (_transformer, "memory_length", -1),
    (_transformer, "local_size", 0),
    (_transformer, "dropout", 1),
    (functools.partial(_transformer, models.TransformerXLBackbone), "num_layers", 0),
    (
        functools.partial(_transformer, models.ExplicitTransformerBackbone),
        "num_layers",
        0,
    ),
    (
        functools.partial(_transformer, models.TransformerXLBackbone, num_layers=1),
        "num_heads",
        3,
    ),
    (_trellisnet, "kernel_size", 1),
    (_trellisnet, "dilation_rate", 0),
    (_trellisnet, "cell_shift", 0),
    (_trellisnet, "memory_length", -1),
    (_trellisnet, "token_dropout", 1),
    (_trellisnet, "weight_dropout", "no"),
    (_trellisnet_task, "embedding_dim", 6),
    (_trellisnet_task, "num_experts", 0),
    (_trellisnet_task, "tie_weights", 1),
    (_trellisnet_task, "expert_dropout", 0.5),
    (functools.partial(_trellisnet_task, num_experts=2), "tie_projections", (True,)),
    (functools.partial(_trellisnet_task, num_experts=2), "cutoffs", (5,)),
    (_auxiliary, "auxiliary_weight", -1),
    (functools.partial(models.MDEQBackbone, (8,)), "dropout", 1),
    (functools.partial(models.MDEQBackbone, (8,)), "image_shape", (8, 8), (8, 8, 0)),
    (models.MDEQImageConverter.for_dataset, "name", "mnist"),
    (
        functools.partial(models.ReasonerBackbone, layers.RecallCell(4, rank=1)),
        "input_size",
        3,
        (0, 1),
    ),
    (models.MonotoneClassifier.from_preset, "preset", "digits"),
    (_export, "samples", X[:, :2], [X, X]),
    (_export, "max_iter_limit", 0),
    (_export, "tolerance", -1),
    (_export, "metadata", "text", [1], {"a": object()}, {1: 2}),
    (_load_transformer, "n_head", 0, 8),
    (_load_transformer, "cutoffs", 60, [60.0], [50]),
    (_load_transformer, "dropout", 1, NAN),
    (_load_transformer, "dtype", "int32", 5),
    (_load_trellisnet, "dilation", 0),
    (_load_trellisnet, "splits", 5),
    (_load_mdeq, "num_blocks", [2]),
    (_load_mdeq, "wnorm", True),
    (_load_mdeq, "num_classes", 11, 10**12),
    (_load_mdeq, "num_channels", 8),
    (_load_mdeq, "big_kernels", [3]),
    (_load_mdeq, "expansion_factor", INFINITY),
    (_load_mdeq, "drop_head", "maybe"),
    (_load_monotone, "m", 0),
    (_load_monotone, "image_size", 4),
    (_load_monotone, "solver", "peaceman"),
]


@pytest.mark.parametrize(
    "function, name, value",
    [(function, name, value) for function, name, *values in ROWS for value in values],
    # Without addresses, which differ between the processes of pytest-xdist.
    ids=[name for _, name, *values in ROWS for _ in values],
)
def test_bad_value_raises(function, name, value):
    with pytest.raises(ValueError) as error:
        function(**{name: value})
    assert name in str(error.value)
    assert "Received" in str(error.value)
