"""Exported models run without this package."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, regularizers, solvers
from tests import harness
from tests.layers.cells import TanhCell, TwoScaleCell

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(5, 4)).astype("float32")
SOLVERS = ("fixed_point_iteration", "anderson", "broyden")
PAIR = {"x": INPUTS, "y": RANDOM.normal(size=(5, 2)).astype("float32")}

SERVE = """
import sys
import numpy as np
import tensorflow as tf

try:
    import deq_keras
except ImportError:
    pass
else:
    raise SystemExit("deq_keras is importable here")
for name in sys.argv[1:]:
    arrays = dict(np.load(name + ".npz"))
    expected = [arrays.pop(key) for key in sorted(arrays) if key.startswith("expected")]
    model = tf.saved_model.load(name)
    for rows in (5, 1, 3):
        inputs = {key: tf.constant(value[:rows]) for key, value in arrays.items()}
        inputs = inputs["x"] if len(inputs) == 1 else inputs
        outputs = tf.nest.flatten(model.serve(inputs))
        assert len(outputs) == len(expected)
        for output, value in zip(outputs, expected):
            np.testing.assert_allclose(output, value[:rows], rtol=0, atol=1e-5)
    print("served", name)
"""


def _trained(deq, inputs, **compile_arguments):
    """A model that was trained, so that statistics and losses have been traced."""
    model = harness.functional_model(deq, inputs)
    model.compile(optimizer="sgd", loss="mse", **compile_arguments)
    targets = tf.nest.map_structure(np.zeros_like, model.predict(inputs, verbose=0))
    model.fit(inputs, targets, verbose=0)
    return model


def _models():
    regularizer = regularizers.JacobianRegularizer(0.1, probability=0.5)
    yield (
        "anderson",
        layers.DEQ(TanhCell(5), "anderson", "implicit", regularizer, seed=1),
        INPUTS,
    )
    yield (
        "broyden",
        layers.DEQ(TanhCell(5), solvers.Broyden(8), gradients.PhantomGradient(2), None),
        INPUTS,
    )
    yield (
        "nest",
        layers.DEQ(TwoScaleCell(3), "fixed_point_iteration", "unrolled"),
        PAIR,
    )


@pytest.mark.slow
def test_saved_models_serve_where_the_package_is_missing(tmp_path):
    names = []
    for name, deq, inputs in _models():
        model = _trained(deq, inputs)
        model.export(tmp_path / name, verbose=False)
        outputs = tf.nest.flatten(model.predict(inputs, verbose=0))
        arrays = inputs if isinstance(inputs, dict) else {"x": inputs}
        expected = {f"expected{i}": value for i, value in enumerate(outputs)}
        np.savez(tmp_path / f"{name}.npz", **arrays, **expected)
        names.append(name)
    printed = harness.run_in_clean_process(SERVE, *names, folder=tmp_path)
    assert printed.split() == [word for name in names for word in ("served", name)]


class LoggingCell(TanhCell):
    """Writes a line to a file at every evaluation, and contracts as the input says."""

    def __init__(self, log, **kwargs):
        super().__init__(5, scale=1.0, **kwargs)
        self.log = log

    def inject(self, inputs, training=False):
        return {"rate": inputs[:, :1], "inputs": self.projection(inputs)}

    def initial_state(self, injection):
        return tf.zeros_like(injection["inputs"])

    def call(self, state, injection):
        tf.print("evaluated", output_stream=f"file://{self.log}")
        return super().call(state * injection["rate"], injection["inputs"])


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_exported_loop_stops_early_and_has_elementary_operations(solver, tmp_path):
    """The file evaluates f as often as its input needs."""
    easy, hard = np.random.RandomState(1).normal(size=(2, 2, 4)).astype("float32")
    easy[:, 0], hard[:, 0] = 0.05, 0.8
    log = tmp_path / "log"
    solver = {"class_name": solver, "max_iter": 30, "tol": 1e-4}
    deq = layers.DEQ(LoggingCell(log), solver)
    harness.functional_model(deq, easy).export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    graph = loaded.signatures["serve"].graph
    types = {
        node.op
        for function in graph.as_graph_def().library.function
        for node in function.node_def
    } | {op.type for op in graph.get_operations()}
    # LiteRT and ONNX cannot express small dense solves.
    decompositions = ("Matrix", "BatchMatrix", "Cholesky", "Qr", "Svd", "Lu")
    decompositions += ("SelfAdjoint", "Eig")
    assert "MatMul" in types
    assert not {op for op in types if op.startswith(decompositions)}
    needed, counted = [], []
    for inputs in (easy, hard, np.concatenate([easy, hard])):
        needed.append(int(deq.solve(inputs).batch_evaluations))
        log.unlink()
        loaded.serve(inputs)
        # One carries the gradient; it goes with a graph unless it has side effects.
        counted.append(len(log.read_text().splitlines()) - 1)
    assert counted == needed
    assert needed[0] < needed[1] == needed[2] < 30


def _interpret(content, inputs):
    interpreter = tf.lite.Interpreter(model_content=content)
    index = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(index, inputs.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(index, inputs)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize(
    "solver, batch", [*((name, None) for name in [*SOLVERS, "aitken"]), ("broyden", 5)]
)
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
def test_lite_models_need_built_in_ops_only(solver, batch):
    # A budget that is read when the graph is made leaves an unbounded history open.
    bounded = {"history": 6} if solver == "broyden" else {}
    solver = {"class_name": solver, "max_iter": 6, **bounded}
    model = harness.functional_model(layers.DEQ(TanhCell(5), solver), INPUTS)

    @tf.function(input_signature=[tf.TensorSpec([batch, 4])])
    def serve(inputs):
        return model(inputs)

    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [serve.get_concrete_function()], serve
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    content = converter.convert()
    # Three times, because what reads memory that nobody wrote may be right by chance.
    for _ in range(3):
        outputs = _interpret(content, INPUTS)
        np.testing.assert_allclose(outputs, model(INPUTS), rtol=0, atol=1e-5)
