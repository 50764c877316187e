"""Files: exports run without this package, and random draws continue."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, regularizers
from tests import harness
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(5, 4)).astype("float32")
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


def _trained(deq, inputs):
    """A model that was trained, so that statistics and losses have been traced."""
    model = harness.functional_model(deq, inputs)
    model.compile(optimizer="sgd", loss="mse")
    targets = tf.nest.map_structure(np.zeros_like, model.predict(inputs, verbose=0))
    model.fit(inputs, targets, verbose=0)
    return model


@pytest.mark.slow
def test_saved_models_serve_where_the_package_is_missing(tmp_path):
    regularizer = regularizers.JacobianRegularizer(0.1, probability=0.5)
    vector, nest = TanhCell(5), TwoScaleCell(3)
    models = {
        "anderson": layers.DEQ(vector, "anderson", "implicit", regularizer, seed=1),
        "broyden": layers.DEQ(TanhCell(5), "broyden", "phantom", None),
        "nest": layers.DEQ(nest, "fixed_point_iteration", "unrolled"),
    }
    for name, deq in models.items():
        inputs = PAIR if name == "nest" else INPUTS
        model = _trained(deq, inputs)
        model.export(tmp_path / name, verbose=False)
        outputs = tf.nest.flatten(model.predict(inputs, verbose=0))
        arrays = inputs if isinstance(inputs, dict) else {"x": inputs}
        expected = {f"expected{i}": value for i, value in enumerate(outputs)}
        np.savez(tmp_path / f"{name}.npz", **arrays, **expected)
    printed = harness.run_in_clean_process(SERVE, *models, folder=tmp_path)
    assert printed.split() == [word for name in models for word in ("served", name)]


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


@pytest.mark.parametrize("solver", ["anderson", slow("broyden")])
def test_exported_loop_stops_early(solver, tmp_path):
    """The file evaluates f as often as its input needs."""
    easy, hard = np.random.RandomState(1).normal(size=(2, 2, 4)).astype("float32")
    easy[:, 0], hard[:, 0] = 0.05, 0.8
    log = tmp_path / "log"
    solver = {"class_name": solver, "max_iter": 30, "tol": 1e-4}
    deq = layers.DEQ(LoggingCell(log), solver)
    harness.functional_model(deq, easy).export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
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
    "solver, batch", [("anderson", None), *(slow("broyden", n) for n in (5, None))]
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


DATA = np.random.RandomState(0).normal(size=(8, 3)).astype("float32")


@keras.saving.register_keras_serializable("deq_keras_tests")
class DropoutCell(TanhCell):
    """Drops units of its injection."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.dropout = layers.VariationalDropout(0.5, dtype=self.dtype_policy)

    def inject(self, inputs, training=False):
        return self.dropout(super().inject(inputs), training=training)


def _random_model(cell=TanhCell, seed=None):
    # A few steps, of which samples that are drawn take free ones.
    gradient = gradients.TruncatedGradient(2, 2, free_fraction=0.5)
    deq = layers.DEQ(cell(4), gradient=gradient, seed=seed, name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def _states(model):
    deq = model.get_layer("deq")
    found = [deq.seed_generator]
    if hasattr(deq.cell, "dropout"):
        found.append(deq.cell.dropout.seed_generator)
    return [generator.state.numpy().tolist() for generator in found]


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_file_continues_the_draws(name, tmp_path):
    model = _random_model(DropoutCell)
    model.train_on_batch(DATA, DATA[:, :1])
    if name.endswith(".keras"):
        model.save(tmp_path / name)
        other = keras.saving.load_model(tmp_path / name)
        other.run_eagerly = True
    else:
        model.save_weights(tmp_path / name)
        other = _random_model(DropoutCell)
        other.optimizer.build(other.trainable_variables)
        assert _states(other) != _states(model)
        other.load_weights(tmp_path / name)
    assert _states(other) == _states(model)
    for one in (model, other):
        one.train_on_batch(DATA, DATA[:, :1])
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(one, two, err_msg=one.path)


def test_backup_continues_the_draws(tmp_path):
    model, other = (_random_model(DropoutCell) for _ in range(2))
    fit = {"x": DATA, "y": DATA[:, :1], "shuffle": False, "verbose": 0}
    first, second = (
        keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        for _ in range(2)
    )
    model.fit(**fit, callbacks=[first])
    assert _states(other) != _states(model)
    other.fit(**fit, epochs=2, callbacks=[second])
    model.train_on_batch(DATA, DATA[:, :1])
    assert _states(other) == _states(model)
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(one, two, err_msg=one.path)


@pytest.mark.parametrize(("seed", "is_loaded"), [(1, True), (2, False), (None, True)])
def test_layer_with_another_seed_keeps_its_own(seed, is_loaded, tmp_path):
    path = tmp_path / "model.weights.h5"
    model, other = _random_model(seed=1), _random_model(seed=seed)
    model(DATA, training=True)
    model.save_weights(path)
    before = _states(other)
    assert before != _states(model)
    other.load_weights(path)
    assert _states(other) == (_states(model) if is_loaded else before)


def test_paths_of_variables_are_unique_and_stable():
    def build():
        keras.utils.clear_session(free_memory=False)
        inputs = keras.Input((4,))
        dropped = layers.VariationalDropout(0.2)(inputs)
        first = layers.DEQ(TanhCell(4), gradient="implicit", seed=1)(dropped)
        second = layers.DEQ(TanhCell(4), gradient="neumann", initial_state="normal")
        model = keras.Model(inputs, second(layers.VariationalDropout(0.1)(first)))
        model.compile("adam", "mse")
        model.fit(INPUTS, np.zeros((5, 4)), verbose=0)
        return model

    model = build()
    tree = model.get_state_tree()  # Raises if two variables have one path.
    metrics = tree["metrics_variables"]
    assert metrics["deq"]["residual"]["count"] == 5.0
    assert metrics["deq_1"]["evaluations"]["total"] > 5.0
    paths = [variable.path for variable in model.variables + model.metrics_variables]
    assert len(set(paths)) == len(paths)
    for layer in model.layers[1:]:
        for variable in layer.variables:
            assert variable.path.startswith(f"{layer.name}/"), variable.path
    again = build()
    assert paths == [one.path for one in again.variables + again.metrics_variables]
    again.set_state_tree(tree)
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))
