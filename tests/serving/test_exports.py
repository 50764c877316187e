"""Files that answer as the model does, in their own runtimes."""

import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, models, serving, solvers
from deq_keras.serving.signature import SolveOutputs
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.layers.test_quantization import quantize

RANDOM = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def same_numbers():
    """Draws the same numbers in a test whichever tests precede it."""
    RANDOM.seed(0)


VECTORS = RANDOM.normal(size=(3, 4)).astype("float32")
EXPORTS = {
    "saved_model": (serving.export_saved_model, ""),
    "litert": (serving.export_litert, ".tflite"),
    "onnx": (serving.export_onnx, ".onnx"),
}
RUNTIMES = {
    "saved_model": "SavedModelRuntime",
    "litert": "LiteRTRuntime",
    "onnx": "ONNXRuntime",
}
SLOW = pytest.mark.slow


def _dense(solver="fixed_point_iteration", **arguments):
    deq = layers.DEQ(TanhCell(5), solver, name="deq", **arguments)
    return keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(2)]), VECTORS


def _backbone(solver, num_downsamplings):
    return models.MDEQBackbone(
        filters=(8, 16),
        expansion=2,
        groups=4,
        num_downsamplings=num_downsamplings,
        solver=solver,
    )


def _classifier(solver):
    model = models.MDEQImageClassifier(
        _backbone(solver, 0), 10, head_filters=(2, 4), final_filters=16
    )
    return model, RANDOM.normal(size=(3, 16, 16, 3)).astype("float32")


def _language_model(solver, **arguments):
    backbone = models.DEQTransformerBackbone(
        50, 16, num_heads=2, intermediate_dim=32, solver=solver, **arguments
    )
    ids = RANDOM.randint(0, 50, size=(3, 7)).astype("int32")
    return models.DEQTransformerCausalLM(backbone), ids


def _monotone(solver):
    cell = layers.MonotoneConvCell(4)
    images = RANDOM.normal(size=(3, 6, 6, 1)).astype("float32")
    return models.MonotoneClassifier(cell, (6, 6, 1), 3, solver), images


def _nest(solver):
    inputs = {name: keras.Input((4,), name=name) for name in ("x", "y")}
    outputs = layers.DEQ(TwoScaleCell(3), solver)(inputs)
    return keras.Model(inputs, outputs), {"x": VECTORS, "y": VECTORS[::-1]}


FAMILIES = {
    "dense": _dense,
    "classifier": _classifier,
    "language_model": _language_model,
    "monotone": _monotone,
    "nest": _nest,
}


def _exported(name, folder, model, **arguments):
    export, suffix = EXPORTS[name]
    path = folder / f"model{suffix}"
    return path, export(model, path, **arguments)


@SLOW
@pytest.mark.parametrize("target", EXPORTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, target, tmp_path):
    """Each export is checked as it is made."""
    model, samples = FAMILIES[family](solvers.Anderson(max_iter=12, history=3))
    _, difference = _exported(target, tmp_path, model, samples=samples)
    assert difference < 1e-4


@SLOW
@pytest.mark.parametrize("target", EXPORTS)
@pytest.mark.parametrize(
    "solver",
    [
        solvers.Broyden(max_iter=8),
        solvers.Anderson(compact=True),
        solvers.Anderson(tol=None, stop_mode="rel_max", max_iter=8),
        solvers.FixedPointIteration(damping=0.5, compact=True),
        solvers.Aitken(),
    ],
    ids=["broyden", "compact", "no_tolerance", "damped", "aitken"],
)
def test_solvers(solver, target, tmp_path):
    model, samples = _dense(solver)
    path, _ = _exported(target, tmp_path, model, samples=samples)
    request = {
        "inputs": samples,
        "max_iter": np.array(0),
        "tol": np.array(-1, "float32"),
    }
    answer = serving.load(path)(request)
    expected = model.get_layer("deq").solve(samples)
    np.testing.assert_array_equal(answer["evaluations"], expected.num_evaluations)
    np.testing.assert_allclose(answer["outputs"], model(samples), atol=1e-4)


@SLOW
def test_signatures_of_a_saved_model(tmp_path):
    model, samples = _dense()
    path, _ = _exported("saved_model", tmp_path, model, max_iter_limit=4)
    loaded = tf.saved_model.load(path)
    solution = model.get_layer("deq").solve(samples, solvers.SolveRequest(max_iter=4))
    expected = model.layers[-1](solution.value)
    np.testing.assert_allclose(loaded.serve(samples)["outputs"], expected, atol=1e-5)
    names = {"serve", "serve_with_statistics", "serve_warm", "serving_default"}
    assert set(loaded.signatures) == names
    ask = serving.load(path)
    for asked, spent in ((2, 2), (2**40, 4), (-3, 4)):
        answer = loaded.serve_with_statistics(samples, asked, 0.0)
        assert (answer["evaluations"].numpy() == spent).all()
    assert ask({"inputs": samples[:0]})["outputs"].shape == (0, 2)
    with pytest.raises(ValueError, match="Received"):
        ask({"images": samples})


@SLOW
def test_quantized_models(tmp_path):
    """LiteRT cannot run the int8 activations of Keras."""
    weights = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    for i, how in enumerate(({"mode": "int8"}, {"mode": "int4"}, {"config": weights})):
        model = keras.Sequential([keras.Input((4,)), layers.DEQ(layers.DenseCell(5))])
        quantize(model, **how)
        for target, (export, suffix) in EXPORTS.items():
            path = tmp_path / f"{i}{suffix or target}"
            if i == 0 and target == "litert":
                with pytest.raises(serving.ExportError, match="activation_quantizer"):
                    export(model, path)
            else:
                assert export(model, path) < 1e-4


@SLOW
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    model, _ = _dense()
    path, _ = _exported("saved_model", tmp_path, model)
    start = np.zeros((len(VECTORS), 5), "float32")
    answer = serving.load(path)({"inputs": VECTORS, "initial_state": start})
    for name in ("outputs", "equilibrium"):
        assert answer[name].dtype == "float32"
    np.testing.assert_allclose(answer["outputs"], model(VECTORS), atol=2e-2)
    if policy == "mixed_bfloat16":
        for target in ("litert", "onnx"):
            with pytest.raises(serving.ExportError, match="float32"):
                _exported(target, tmp_path, model)


class SineCell(layers.EquilibriumCell):
    """f(z, u) = a sin(z) + u, which for a large a depends on the last bit."""

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, state, injection):
        return self.factor * ops.sin(state) + injection


def _sine(factor, *head):
    solver = solvers.FixedPointIteration(14, tol=None)
    return keras.Sequential(
        [keras.Input((4,)), layers.DEQ(SineCell(factor), solver), *head]
    )


def _integers(outputs):
    return ops.cast(1e6 * ops.sin(outputs), "int32")


@pytest.mark.parametrize(
    "head", [(), pytest.param((_integers,), marks=SLOW)], ids=["floats", "integers"]
)
def test_file_of_a_model_that_depends_on_rounding(head, tmp_path):
    """The file may differ as much as the model does from itself, on given samples."""
    model = _sine(8.0, *map(_Function, head))
    samples = np.linspace(-3, 3, 48, dtype="float32").reshape(12, 4)
    whole, moved = (
        model.predict(x, verbose=0) for x in (samples, samples * (1 + 1e-7))
    )
    own = np.abs(whole - moved).max()
    assert own > (10 if head else 1e-3)
    with pytest.warns(UserWarning, match="depend on rounding: it differs from itself"):
        path, _ = _exported("litert", tmp_path, model, samples=samples)
    assert np.abs(serving.load(path)(samples)["outputs"] - whole).max() < 20 * own


def _spoil(monkeypatch, kernel):
    """Lets LiteRT files be written with another kernel."""
    convert, difference = serving.litert._convert, np.full(kernel.shape, 1e-2)

    def converted(function):
        kernel.assign_add(difference)
        content = convert(function)
        kernel.assign_sub(difference)
        return content

    monkeypatch.setattr(serving.litert, "_convert", converted)


def test_other_results_raise_and_leave_no_file(tmp_path, monkeypatch):
    model, _ = _dense()
    _spoil(monkeypatch, model.layers[-1].kernel)
    with pytest.raises(serving.ExportError, match="`outputs`") as error:
        _exported("litert", tmp_path, model)
    assert not list(tmp_path.iterdir())
    (tolerance,) = re.findall("`tolerance=(.*?)`", str(error.value))
    _, difference = _exported("litert", tmp_path, model, tolerance=float(tolerance))
    assert 1e-3 < difference < float(tolerance)


def test_no_tolerance_covers_other_integers(tmp_path, monkeypatch):
    head = keras.layers.Dense(2), _Function(_integers)
    model = _sine(0.5, *head)
    _spoil(monkeypatch, head[0].kernel)
    with pytest.raises(serving.ExportError, match="only to floats.*`outputs`"):
        _exported("litert", tmp_path, model, tolerance=1e6)


def test_convolution_that_loses_nan(tmp_path):
    """In graphs, TensorFlow's kernel of a convolution and a ReLU maps NaN to 0."""
    stem = keras.layers.Conv2D(2, 3, activation="relu")
    pooled = keras.layers.GlobalAveragePooling2D()
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            *(stem, pooled, layers.DEQ(TanhCell(3), "fixed_point_iteration")),
        ]
    )
    path, difference = _exported("litert", tmp_path, model)
    assert difference < 1e-4
    images = RANDOM.normal(size=(2, 4, 4, 1)).astype("float32")
    images[1] = np.nan
    assert serving.load(path)(images)["status"].tolist() == [0, solvers.DIVERGED]
    explicit = keras.Sequential([keras.Input((4, 4, 1)), stem, pooled])
    assert serving.export_litert(explicit, tmp_path / "explicit.tflite") < 1e-4


def _sequential(*stem, shape=(4,)):
    deq = layers.DEQ(TanhCell(5), "fixed_point_iteration", name="last")
    return keras.Sequential([keras.Input(shape), *stem, deq, keras.layers.Dense(2)])


# `test_convolution_that_loses_nan` is the fast case.
@SLOW
@pytest.mark.parametrize(
    ("target", "stem", "shape"),
    [
        ("litert", lambda: keras.layers.Dense(5, activation="softplus"), (4,)),
        ("onnx", lambda: keras.layers.LSTM(5), (4, 3)),
        ("onnx", lambda: _Function(_finite_log), (4,)),
    ],
    ids=["softplus", "lstm", "log"],
)
def test_runtime_maps_nan_to_a_number(target, stem, shape, tmp_path):
    _, difference = _exported(target, tmp_path, _sequential(stem(), shape=shape))
    assert difference < 1e-4


class _Function(keras.layers.Layer):
    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.call = function


def _finite_log(inputs):
    """The logarithm of some inputs is NaN: they are non-finite only in a layer."""
    return ops.softplus(ops.log(inputs + 1.0))


def test_invalid_sample_must_not_change_others(tmp_path, monkeypatch):
    model = _sequential()
    inputs = keras.Input((4,))
    mixed = inputs + 0.0 * ops.mean(inputs, axis=0, keepdims=True)
    mixing = serving.served_model.ServedModel(keras.Model(inputs, model(mixed)))
    convert = serving.litert._convert
    monkeypatch.setattr(
        serving.litert, "_convert", lambda _: convert(mixing.single_function(False))
    )
    with pytest.raises(serving.ExportError, match="other"):
        _exported("litert", tmp_path, model)
    assert not list(tmp_path.iterdir())


def _recurrent_cell():
    cell = layers.cell_from(keras.layers.LSTM(3, return_sequences=True))
    return [layers.DEQ(cell, "fixed_point_iteration"), keras.layers.Flatten()]


@SLOW
@pytest.mark.parametrize(
    "make_stem",
    [
        _recurrent_cell,
        lambda: [keras.layers.GRU(5)],
        lambda: [keras.layers.Bidirectional(keras.layers.SimpleRNN(3))],
    ],
    ids=["cell", "gru", "bidirectional"],
)
def test_rnns_in_onnx(make_stem, tmp_path):
    _, difference = _exported("onnx", tmp_path, _sequential(*make_stem(), shape=(4, 3)))
    assert difference < 1e-4


@SLOW
def test_rnn_in_litert_needs_a_fixed_batch(tmp_path):
    model = _sequential(keras.layers.GRU(5), shape=(4, 3))
    with pytest.raises(serving.ExportError, match="`batch_size`.*Received"):
        _exported("litert", tmp_path, model)
    _, difference = _exported("litert", tmp_path, model, batch_size=2)
    assert difference < 1e-4


@pytest.mark.parametrize(
    "target",
    ["litert", *(pytest.param(t, marks=SLOW) for t in ("saved_model", "onnx"))],
)
def test_request_overrides_a_budget_of_the_call(target, tmp_path):
    inputs = keras.Input((4,), name="größe")
    solver = solvers.FixedPointIteration(12, tol=None)
    model = keras.Model(inputs, layers.DEQ(TanhCell(5), solver)(inputs, max_iter=5))
    path, _ = _exported(target, tmp_path, model)
    loaded = serving.load(path)
    assert list(loaded.inputs) == ["gr__e"]
    assert [one["max_iter"] for one in loaded.solvers.values()] == [5]
    assert loaded.max_iter_limit == 12 and "max_iter=5 (at most 12)" in repr(loaded)
    for options, expected in (({}, 5), ({"max_iter": 3}, 3), ({"max_iter": 12}, 12)):
        assert loaded(VECTORS, **options)["evaluations"].tolist() == [expected] * 3
    assert loaded(VECTORS, tol=0.9)["evaluations"].max() < 5
    with pytest.raises(ValueError, match="at most 12.*Received: max_iter=13"):
        loaded(VECTORS, max_iter=13)
    # A server does not check: the file spends its limit.
    budget = {"max_iter": np.array(99), "tol": np.array(-1, "float32")}
    run = getattr(serving.runtimes, RUNTIMES[target])(path)
    answer = run({"gr__e": VECTORS, **budget})
    assert answer["evaluations"].tolist() == [12] * 3


def test_scope_does_not_change_a_file(tmp_path):
    inputs = keras.Input((4,))
    deq = layers.DEQ(TanhCell(5), solvers.FixedPointIteration(12, tol=None))
    with layers.SolveScope(deq, max_iter=4):
        path, _ = _exported("litert", tmp_path, keras.Model(inputs, deq(inputs)))
    loaded = serving.load(path)
    assert "max_iter=12 (at most 12)" in repr(loaded)
    assert loaded(VECTORS)["evaluations"].tolist() == [12] * 3


def test_existing_file_raises(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        serving.export_litert(_dense()[0], path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("target", ["litert", "onnx"])
def test_name_without_the_suffix_raises(target, tmp_path):
    with pytest.raises(ValueError, match="must end in .*Received"):
        EXPORTS[target][0](_dense()[0], tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_other_inputs_raise(tmp_path):
    fixed, named = keras.Input((4,), batch_size=2), keras.Input((4,), name="tol")
    dynamic = keras.Input((None, 3))  # Samples cannot be drawn.
    for inputs in (fixed, {"tol": named}, dynamic):
        model = keras.Model(inputs, inputs)
        with pytest.raises(ValueError):
            serving.export_saved_model(model, tmp_path / "model")
    with pytest.raises(ValueError, match="not there"):
        serving.load(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    (tmp_path / "model.pt").touch()
    with pytest.raises(ValueError, match="neither"):
        serving.load(tmp_path / "model.pt")


@pytest.mark.parametrize("target", ["litert", "onnx"])
def test_unsupported_operation_is_named(target, tmp_path):
    layer = _Function(ops.erfinv, name="quantile")
    model = keras.Sequential([keras.Input((4,)), layer])
    with pytest.raises(serving.ExportError, match="(?s)Erfinv.*quantile"):
        _exported(target, tmp_path, model)
    assert not list(tmp_path.iterdir())


def test_names_that_collide_raise(tmp_path):
    deq, inputs = layers.DEQ(TanhCell(4)), keras.Input((4,), name="x")
    with pytest.raises(ValueError, match="Rename.*Received.*status"):
        _exported("litert", tmp_path, keras.Model(inputs, {"status": deq(inputs)}))
    with pytest.raises(ValueError, match="different names.*Received.*x"):
        _exported("onnx", tmp_path, keras.Model(inputs, {"x": deq(inputs)}))
    assert not list(tmp_path.iterdir())


def test_check_uses_at_most_32_samples(tmp_path, monkeypatch):
    sizes = []

    def responses(path, runtime, requests):
        sizes.extend(len(request["inputs"]) for request in requests)
        raise serving.ExportError

    monkeypatch.setattr(serving.check, "_responses", responses)
    for count in (1, 8, 40):
        with pytest.raises(serving.ExportError):
            _exported("litert", tmp_path, _dense()[0], samples=np.ones((count, 4)))
    assert set(sizes) == {1, 3, 8, 32}


class _Counter(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        return inputs + self.calls.assign_add(1.0)


def test_layer_with_memory_raises(tmp_path):
    model = keras.Sequential([keras.Input((4,)), _Counter(name="counter")])
    with pytest.raises(serving.ExportError, match="counter"):
        serving.export_litert(model, tmp_path / "model.tflite")


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    message = r"`tf2onnx` is missing.*\[serving\]"
    with pytest.raises(ImportError, match=message):
        serving.export_onnx(_dense()[0], tmp_path / "model.onnx")


def test_a_sample_fails_if_one_of_its_solves_fails():
    statuses = ([0, 2, 1, 0], [0, 0, 1, 2])
    blank = solvers.Solution(*[None] * len(solvers.Solution._fields))
    outputs = SolveOutputs(
        {
            f"deq_{i}": blank._replace(status=tf.constant(s))
            for i, s in enumerate(statuses)
        }
    )
    assert outputs.failures().numpy().tolist() == [False, True, False, True]


def test_litert_of_float64_raises(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="float64"),
            layers.DEQ(layers.DenseCell(2, dtype="float64"), dtype="float64"),
        ]
    )
    with pytest.raises(serving.ExportError, match="float32.*float64"):
        serving.export_litert(model, tmp_path / "model.tflite")


def test_litert_of_outputs_in_float64(tmp_path):
    cast = keras.layers.Lambda(lambda one: tf.cast(one, "float64"))
    cell = layers.DenseCell(2)
    model = keras.Sequential([keras.Input((3,)), layers.DEQ(cell), cast])
    serving.export_litert(model, tmp_path / "model.tflite")
    inputs = np.ones((2, 3), "float32")
    found = serving.load(tmp_path / "model.tflite")(inputs)["outputs"]
    np.testing.assert_allclose(found, model(inputs), rtol=1e-4)
