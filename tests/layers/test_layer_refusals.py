"""Bad arguments of layers raise errors that name the argument and what was received."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import initial_states, layers, multistart, solvers
from tests.layers.cells import FunctionCell, HidingCell, TanhCell
from tests.test_arguments import BY_CLASS

INPUTS = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
SEQUENCES = np.ones((4, 5, 8), "float32")
IMAGES = np.ones((4, 6, 6, 3), "float32")
IDS = np.zeros((4, 3), "int32")
MEMORY = {name: np.ones((3, 1, 8), "float32") for name in ("hidden", "cell")}

NEEDED = {
    **BY_CLASS,
    layers.SpectrallyNormalizedDense: {"units": 4},
    layers.SymmetricConv2D: {"filters": 4, "kernel_size": 3},
}
# Class, argument, bad value.
BAD_VALUES = [
    (layers.AdaptiveEmbedding, "vocabulary_size", 0),
    (layers.AdaptiveEmbedding, "div_val", 0),
    (layers.AdaptiveEmbedding, "cutoffs", (0, 5)),
    (layers.AdaptiveEmbedding, "cutoffs", (5, 20)),
    (layers.AttentionCell, "num_heads", 3),
    (layers.AttentionCell, "expansion", 0.5),
    (layers.AutomatonCell, "filters", 0),
    (layers.AutomatonCell, "rank", 3),
    (layers.BoardCell, "box_shape", (2,)),
    (layers.BoardCell, "step", 0),
    (layers.BoardEmbedding, "board_shape", (4, 0)),
    (layers.BoardEmbedding, "box_shape", (3, 2)),
    (layers.ConvolutionUnit, "kernel_size", 4),
    (layers.DenseCell, "units", 0),
    (layers.GraphCell, "contraction", 0.0),
    (layers.GroupNormalization, "groups", 0),
    (layers.GroupNormalization, "epsilon", 0.0),
    (layers.MonotoneConvCell, "sign", 2),
    (layers.MonotoneDenseCell, "m", float("nan")),
    (layers.MultiscaleCell, "filters", ()),
    (layers.MultiscaleCell, "filters", (8, 9)),
    (layers.MultiscaleCell, "groups", 3),
    (layers.MultiscaleCell, "num_blocks", [1]),
    (layers.MultiscaleCell, "kernel_size", [3, 3, 3]),
    (layers.MultiscaleCell, "dropout_rate", 1.0),
    (layers.MultiscaleSegmentationHead, "kernel_size", 4),
    (layers.MultiscaleStem, "num_downsamplings", -1),
    (layers.RecallCell, "activation", "tan"),
    (layers.ResidualBlockCell, "groups", 3),
    (layers.ResidualBlockCell, "expansion", -1),
    (layers.SpectrallyNormalizedDense, "max_norm", 0),
    (layers.SymmetricConv2D, "kernel_size", 4),
    (layers.SymmetricConv2D, "padding", "valid"),
    (layers.SymmetricConv2D, "data_format", "channels_first"),
    (layers.TransformerCell, "units", 0),
    (layers.TransformerCell, "intermediate_dim", 1.5),
    (layers.TransformerCell, "local_size", 0),
    (layers.TransformerCell, "dropout_rate", 1),
    (layers.TrellisCell, "output_dim", 9),
    (layers.TrellisCell, "kernel_size", 1),
    (layers.TrellisCell, "dilation_rate", 0),
    (layers.TrellisCell, "cell_shift", 0),
    (layers.VariationalDropout, "rate", 1),
    (layers.VariationalDropout, "noise_shape", (0, 1)),
]


def _deq(cell=None, **arguments):
    return layers.DEQ(TanhCell(3) if cell is None else cell, **arguments)


def _call(inputs=INPUTS, cell=None, **arguments):
    return _deq(cell)(inputs, **arguments)


def _call_functions(function, initial_state=None, inject=None, inputs=INPUTS):
    return _deq(FunctionCell(function, initial_state, inject))(inputs)


def _solve(**request):
    return _deq().solve(INPUTS, solvers.SolveRequest(**request))


def _set(is_built=False, **component):
    deq = _deq()
    if is_built:
        deq(INPUTS)
    for name, value in component.items():
        setattr(deq, name, value)


def _cell_from(layer, injection="add", inputs=INPUTS):
    return _deq(layers.cell_from(layer, injection))(inputs)


def _scope(model, **arguments):
    with layers.SolveScope(model, **arguments):
        model(INPUTS)


def _call_traced(call):
    """Traces a function of sequences of unknown number and length."""
    spec = tf.TensorSpec((None, None, 4))
    tf.function(call, autograph=False).get_concrete_function(spec)


def _embedding(**arguments):
    sizes = {"embedding_dim": 8, "cutoffs": (4, 10)}
    return layers.AdaptiveEmbedding(20, **{**sizes, **arguments})


def _softmax_loss(targets):
    layer = layers.AdaptiveSoftmax(_embedding())
    layer.build((None, None, 8))
    return layer.loss(SEQUENCES[:, :3], targets)


def _segment_memory(length):
    return layers.SegmentMemory(_deq(layers.TransformerCell(8, 2, 16)), length)


def _trellis_stack(**arguments):
    return layers.TrellisStack(layers.TrellisCell(8), **{"num_layers": 3, **arguments})


def _weight_normalized(kernel):
    layer = layers.WeightNormalizedDense(3)
    layer.build((None, 4))
    return layer(np.ones((2, 4), "float32"), kernel=kernel)


class NestedCell(layers.EquilibriumCell):
    """Solves an inner equilibrium at each evaluation."""

    def build(self, state_shape, injection_shape):
        self.inner = layers.DEQ(TanhCell(3), name="inner")

    def call(self, state, injection):
        return 0.5 * self.inner(state) + injection


class WideCell(layers.EquilibriumCell):
    """Adds inputs of one width to states of another."""

    def build(self, *shapes):
        self.recurrent = keras.layers.Dense(8)

    def call(self, state, injection):
        return self.recurrent(state) + injection


class MixedCell(WideCell):
    """Has a sublayer of another precision."""

    def build(self, *shapes):
        self.recurrent = keras.layers.Dense(3, dtype="float32")


class LateCell(layers.EquilibriumCell):
    """Assigns to a weight outside of `build`."""

    matrix = None

    def inject(self, inputs):
        if self.matrix is None:
            self.matrix = self.add_weight(shape=(3, 3), name="late")
            self.matrix.assign(np.eye(3))
        return inputs

    def call(self, state, injection):
        return ops.matmul(state, self.matrix) + injection


class _ReshapedState(initial_states.InitialState):
    def __call__(self, state, seed=None):
        return state[:, :2]


def _linear(state, injection):
    return 0.5 * state + injection


def _sequential(*others):
    return keras.Sequential([keras.layers.Dense(3), *others])


def _two_inputs():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    return keras.Model(inputs, inputs[0] + inputs[1])


def _named_inputs():
    inputs = {name: keras.Input((3,), name=name) for name in ("state", "x")}
    return keras.Model(inputs, inputs["state"] + inputs["x"])


def _nested_functional():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    inner = layers.DEQ(TanhCell(3), name="inner")
    return keras.Model(inputs, inner(inputs[0]) + inputs[1])


def _two_masks():
    class PairCell(TanhCell):
        def inject(self, inputs, training=False):
            return self.projection(inputs["x"] + inputs["y"])

    embed = keras.layers.Embedding(7, 8, mask_zero=True)
    ids = np.array([[1, 0]])
    return _call({"x": embed(ids), "y": embed(ids)}, PairCell(4))


def _noise_and_padding():
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    mask = np.ones((4, 5), bool)
    return _deq(solver=solver)(SEQUENCES, mask=mask, training=True)


# A call, and the argument or the input that its message names.
CALLS = [
    # The constructor of DEQ, and its components.
    (lambda: _deq("tanh"), "cell"),
    (lambda: _deq(keras.layers.Dense(4)), "cell"),
    (lambda: _deq(keras.layers.GRUCell(3)), "cell"),
    (lambda: _deq(_named_inputs()), "cell"),
    (lambda: _deq(_nested_functional()), "inner"),
    (lambda: _deq(solver=solvers.GMRES()), "solver"),
    (lambda: _deq(regularizer="nonsense"), "regularizer"),
    (lambda: _deq(initial_state="somewhere"), "initial state"),
    (lambda: _deq(max_iter=3), "max_iter"),
    (lambda: _deq(max_iter_jitter=30), "max_iter_jitter"),
    (lambda: _set(max_iter_jitter=1.5), "max_iter_jitter"),
    # Inputs, states, masks and budgets of a call.
    (lambda: _call(None), "inputs"),
    (lambda: _call({"a": None, "b": None}), "inputs"),
    (lambda: _call(tf.sparse.from_dense(INPUTS)), "inputs"),
    (lambda: _call([INPUTS, tf.ragged.constant([[1.0], []])]), "inputs"),
    (lambda: _call(keras.Input((3,), ragged=True)), "inputs"),
    (lambda: _call([INPUTS, INPUTS], layers.DenseCell(3)), "inputs"),
    (lambda: _call({"a": INPUTS}, layers.TransformerCell(3, 1, 3)), "inputs"),
    (
        lambda: _call_functions(
            lambda z, u: z + u[0], lambda u: u[0], inputs=[INPUTS, INPUTS[:2]]
        ),
        "inputs",
    ),
    (lambda: _call(initial_state=INPUTS[:, :1]), "initial_state"),
    (lambda: _call(initial_state="normal"), "initial_state"),
    (lambda: _call(SEQUENCES, mask=np.ones((4, 1), bool)), "mask"),
    (lambda: _call(SEQUENCES, mask=np.ones((1, 5), bool)), "mask"),
    (lambda: _call(max_iter=0), "max_iter"),
    (lambda: _call(max_iter=tf.constant(0)), "max_iter"),
    (lambda: _call(max_iter=tf.constant(1.5)), "max_iter"),
    (lambda: _call(tol=-0.1), "tol"),
    (lambda: _call(tol=float("nan")), "tol"),
    (lambda: _call(tol=tf.constant([0.1])), "tol"),
    (lambda: _call_traced(lambda x: _call(x, max_iter=x[0, 0, 0])), "max_iter"),
    (lambda: _call_traced(lambda x: _call(x, tol=x[0, 0])), "tol"),
    (_two_masks, "mask"),
    (_noise_and_padding, "noise"),
    (lambda: _scope(3), "model"),
    (lambda: _scope(_deq(), max_iter="3"), "max_iter"),
    (lambda: _scope(_deq(), tol="small"), "tol"),
    (lambda: _scope(_deq(), initial_states={"dqe": INPUTS}), "dqe"),
    (lambda: multistart.solve(_deq(), INPUTS, 2.0), "restarts"),
    (lambda: multistart.solve(_deq(), INPUTS, 2, request=INPUTS), "request"),
    (lambda: _deq().solve(INPUTS, INPUTS, max_iter=3), "request"),
    (lambda: _solve(seed=tf.constant(3)), "seed"),
    (lambda: _solve(seed=2**63), "seed"),
    (lambda: _deq(seed=2**63), "seed"),
    (lambda: multistart.solve(_deq(), INPUTS, 2, select="residuals"), "residual"),
    (
        lambda: _call_traced(lambda x: multistart.solve(_deq(HidingCell(4)), x, 2)),
        "injection",
    ),
    (
        lambda: _call_traced(
            _deq(HidingCell(4), solver=solvers.Anderson(compact=True))
        ),
        "injection",
    ),
    (
        lambda: _deq(
            FunctionCell(
                lambda z, u: 0.5 * z + ops.reshape(u["rows"], (-1, 3)),
                lambda u: ops.zeros_like(u["inputs"]),
                lambda x: {"inputs": x, "rows": ops.reshape(x, (-1, 1))},
            ),
            solver=solvers.Anderson(compact=True),
        )(INPUTS),
        "rows",
    ),
    # Initial states.
    (lambda: _solve(initial_state=INPUTS[:, :1]), "initial_state"),
    (lambda: _solve(initial_state="nromal", seed=1), "nromal"),
    (lambda: _solve(initial_state=initial_states.Mixed()), "seed"),
    (lambda: _deq(initial_state=_ReshapedState())(INPUTS), "ReshapedState"),
    (lambda: initial_states.get(3), "The initial state must be"),
    # Cells that break the contract.
    (lambda: _call(cell=NestedCell()), "inner"),
    (lambda: _call(cell=WideCell()), "inject"),
    (lambda: _call(cell=MixedCell(dtype="float64")), "dtype"),
    (lambda: _call_functions(_linear, None, lambda x: {"x": x, "y": "relu"}), "inject"),
    (lambda: _call(cell=LateCell()), "weight"),
    (lambda: _call_functions(_linear, lambda u: {"a": None}), "initial_state"),
    (lambda: _call_functions(lambda z, u: z[:, :2]), "FunctionCell.call"),
    (lambda: _call_functions(lambda z, u: ops.cast(z, "float16")), "FunctionCell.call"),
    (lambda: _call_functions(lambda z, u: None), "FunctionCell.call"),
    # Layers that `cell_from` cannot use.
    (lambda: _cell_from(_sequential(keras.layers.BatchNormalization())), "layer"),
    (lambda: _cell_from(_sequential(keras.layers.Dropout(0.1))), "VariationalDropout"),
    (lambda: _cell_from(layers.VariationalDropout(0.1)), "layer"),
    (
        lambda: _cell_from(keras.layers.SpectralNormalization(keras.layers.Dense(3))),
        "layer",
    ),
    (lambda: _cell_from(keras.layers.GRU(3, stateful=True)), "stateful"),
    (lambda: _cell_from(keras.layers.GRU(3, return_state=True)), "return_state"),
    (lambda: _cell_from(keras.layers.GRUCell(3, dropout=0.5)), "dropout"),
    (lambda: _cell_from(keras.layers.GRUCell(3, recurrent_dropout=0.5)), "recurrent_d"),
    (lambda: _cell_from(keras.layers.GRUCell(3), "concat"), "injection"),
    (lambda: _cell_from(keras.layers.GRUCell(3), inputs=SEQUENCES), "inputs"),
    (lambda: _cell_from(keras.layers.MultiHeadAttention(2, 4)), "layer"),
    (lambda: _cell_from(_two_inputs()), "layer"),
    (lambda: _cell_from(layers.DenseCell(4)), "layer"),
    (lambda: _cell_from(ops.tanh), "layer"),
    (lambda: _cell_from(keras.layers.Add()), "layer"),
    (lambda: _cell_from(keras.layers.Dense(3), "multiply"), "injection"),
    (lambda: _cell_from(keras.layers.Dense(3), inputs=[INPUTS, INPUTS]), "inputs"),
    (lambda: _cell_from(keras.layers.Dense(3), inputs=INPUTS[:, 0]), "inputs"),
    (lambda: _cell_from(keras.layers.Lambda(lambda x: (x, x))), "layer"),
    (lambda: _cell_from(keras.layers.Conv2D(3, 3), inputs=IMAGES), "layer"),
    (lambda: _cell_from(keras.layers.Flatten(), "concat", IMAGES), "layer"),
    (lambda: _cell_from(keras.layers.GRU(8), inputs=SEQUENCES), "layer"),
    # Shapes of inputs.
    (lambda: layers.DenseCell(4).build((4,)), "shape"),
    (lambda: layers.MixerCell(8).build((None, 4, 4, 7)), "shape"),
    (lambda: layers.MixerCell(8).build((None, None, 4, 8)), "inputs"),
    (lambda: layers.ResidualBlockCell(4).build((2, 6, 8)), "shape"),
    (lambda: layers.LayerNormalization().build((None, None)), "shape"),
    (lambda: layers.GroupNormalization(4).build((2, 4, 6)), "shape"),
    (lambda: layers.SpectrallyNormalizedConv2D(3, 2).build((1, None, 4, 2)), "shape"),
    (lambda: layers.RecallCell(4).inject(SEQUENCES), "inputs"),
    (lambda: layers.BoardCell(4, (2, 4)).inject(IMAGES), "inputs"),
    (lambda: layers.GraphCell(3).inject(SEQUENCES), "edges"),
    (
        lambda: layers.GraphCell(3).inject(
            dict.fromkeys(("edges", "features"), SEQUENCES)
        ),
        "integers",
    ),
    (lambda: layers.MonotoneConvCell(3).inject(INPUTS), "inputs"),
    (lambda: layers.MonotoneMultiscaleCell((2, 2, 2)).inject(IMAGES), "inputs"),
    (lambda: layers.MultiscaleCell((8, 8, 8)).inject(IMAGES), "inputs"),
    (lambda: layers.TrellisCell(8).inject(INPUTS), "inputs"),
    (lambda: layers.TrellisCell(8, kernel_size=6).inject(SEQUENCES), "inputs"),
    (
        lambda: layers.TrellisCell(8).inject({"inputs": SEQUENCES, "memory": MEMORY}),
        "memory",
    ),
    (lambda: _call(SEQUENCES, layers.TransformerCell(8, 3, 16)), "num_heads"),
    (lambda: layers.BoardEmbedding(5, 8, (4, 6))(np.ones((2, 6, 4), int)), "boards"),
    (lambda: layers.BoardEmbedding(5, 8, (4, 6))(np.ones((2, 4, 6))), "boards"),
    (
        lambda: layers.VariationalDropout(0.5, (None, 1)).sample_mask(
            (2, 3, 4), training=True
        ),
        "noise_shape",
    ),
    (lambda: layers.MultiscaleClassificationHead(5, (2, 3), 4)([IMAGES]), "filters"),
    (lambda: layers.MultiscaleFusion((4, 4))([IMAGES] * 3), "filters"),
    (lambda: layers.MultiscaleFusion((4, 4, 4))([IMAGES] * 2), "filters"),
    (lambda: layers.MonotoneDenseCell(4, activation="rellu"), "proximal map"),
    # Embeddings, softmaxes and layers of other layers.
    (lambda: _embedding()(INPUTS), "ids"),
    (lambda: _embedding(div_val=3), "div_val"),
    (lambda: layers.AdaptiveSoftmax(keras.layers.Embedding(20, 8)), "embedding"),
    (lambda: layers.AdaptiveSoftmax(_embedding(), tie_weights=1), "tie_weights"),
    (lambda: layers.AdaptiveSoftmax(_embedding(), tie_projections=True), "tie_proj"),
    (lambda: layers.AdaptiveSoftmax(_embedding(), tie_projections=(True,)), "tie_proj"),
    (lambda: layers.AdaptiveSoftmax(_embedding())(SEQUENCES[..., :7]), "output_dim"),
    (lambda: _softmax_loss(np.zeros((4, 3))), "ids"),
    (lambda: _softmax_loss(IDS[:3]), "targets"),
    (lambda: layers.MixtureSoftmax(_embedding(), 3), "embedding"),
    (lambda: _segment_memory(-1), "length"),
    (lambda: layers.SegmentMemory(keras.layers.Dense(3), 4), "deq"),
    (lambda: _trellis_stack(num_layers=0), "num_layers"),
    (lambda: _trellis_stack(dilations=()), "dilations"),
    (lambda: _trellis_stack(auxiliary_frequency=0), "auxiliary_frequency"),
    (lambda: _trellis_stack(recompute=1), "recompute"),
    (lambda: _trellis_stack(dilations=(1, 7))(SEQUENCES), "dilation_rate"),
    (lambda: layers.TrellisStack(None, 3), "cell"),
    (
        lambda: layers.TransformerStack([layers.TransformerCell(8, 2, 16)], True),
        "num_layers",
    ),
    (lambda: _weight_normalized(np.ones((3, 4), "float32")), "kernel"),
]


def _name(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("cls, name, value", BAD_VALUES, ids=_name)
def test_bad_argument_raises(cls, name, value):
    with pytest.raises(ValueError) as error:
        cls(**{**NEEDED[cls], name: value})
    assert name in str(error.value) and "Received" in str(error.value)


@pytest.mark.parametrize("call, name", CALLS, ids=[name for _, name in CALLS])
def test_bad_call_raises(call, name):
    with pytest.raises(ValueError) as error:
        call()
    assert name in str(error.value) and "Received" in str(error.value)
