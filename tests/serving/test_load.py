"""What `serving.load` refuses, and what it answers where a runtime cannot."""

import concurrent.futures
import json
import types
import unittest.mock
import zipfile

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf

from deq_keras import layers, serving, solvers
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(6, 4)).astype("float32")
STATES = RANDOM.normal(size=(6, 5)).astype("float32")
BUDGET = {"max_iter": np.array(0), "tol": np.array(-1, "float32")}
REQUEST = {"features": INPUTS, "initial_state": STATES, **BUDGET}
RECORD = {"promise": {"changed": 0.002}, "data_hash": "ab", "date": "2026-11-26"}
STATISTICS = ["evaluations", "residual", "status"]
RUNTIMES = {
    "saved_model": (serving.runtimes.SavedModelRuntime, ""),
    "litert": (serving.runtimes.LiteRTRuntime, ".tflite"),
    "onnx": (serving.runtimes.ONNXRuntime, ".onnx"),
}


def _model():
    solver = solvers.FixedPointIteration(20)
    deq = layers.DEQ(TanhCell(5), solver, name="deq")
    inputs = keras.Input((4,), name="features")
    return keras.Sequential([inputs, deq, keras.layers.Dense(2)])


def _nested_model():
    """Nested inputs, one without a name, and several outputs."""
    left, right, more = (keras.Input((4,), name=name) for name in ("left", "r", None))
    solver = solvers.FixedPointIteration(9, tol=None)
    deq = layers.DEQ(TanhCell(4), solver, name="deq")
    inputs = {"left": left, "pair": {"r": right, "all": [more]}}
    outputs = {"z": deq(left + right), "heads": {"b": right * 2, "a": more - left}}
    return keras.Model(inputs, outputs)


def _export(model, target, folder, **arguments):
    """Returns the path of a model in a format. Other tests check exports."""
    path = folder / f"model{RUNTIMES[target][1]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving.check, "check_export", lambda *arguments: 0.0)
        export = getattr(serving, f"export_{target}")
        export(model, path, metadata=RECORD, **arguments)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The paths of one model in all formats, by format."""
    keras.utils.set_random_seed(1)
    model, folder = _model(), tmp_path_factory.mktemp("files")
    paths = {"saved_model": _export(model, "saved_model", folder)}
    for target in ("litert", "onnx"):
        paths[target] = _export(model, target, folder, warm_start=True)
    return paths


@pytest.fixture(scope="module", params=RUNTIMES)
def path(files, request):
    return files[request.param]


@pytest.fixture(scope="module")
def ask(path):
    return serving.load(path)


def test_bad_request_raises(ask):
    for name, value in (
        ("initial_state", STATES[:1]),
        ("initial_state", STATES[:0]),
        ("features", INPUTS[:1]),
        ("features", INPUTS[0]),
        ("features", INPUTS[:, :3]),
        ("features", INPUTS + 1j),
        ("features", INPUTS > 0),
        ("features", [[1.0], [2.0, 3.0]]),
        ("max_iter", 2.7),
        ("max_iter", True),
        ("max_iter", np.array([3])),
        ("max_iter", 2**63),
        ("tol", np.nan),
        ("tol", True),
        ("images", INPUTS),
    ):
        with pytest.raises(ValueError, match=f"(?s){name}.*Received|Received.*{name}"):
            ask({**REQUEST, name: value})


def test_numbers_of_another_width_are_converted(ask):
    expected = ask(REQUEST)
    request = {
        "features": np.asfortranarray(INPUTS, "float64"),
        "initial_state": STATES.tolist(),
        "max_iter": np.array(0, "int8"),
        "tol": -1,
    }
    answer = ask(request)
    for name, array in expected.items():
        np.testing.assert_array_equal(answer[name], array)
    # A value that overflows float32 is infinite: its sample alone fails.
    large = INPUTS.astype("float64")
    large[2] = 1e300
    assert ask({**REQUEST, "features": large})["status"].tolist() == [0, 0, 2, 0, 0, 0]


def test_an_empty_request(ask):
    answer = ask({**REQUEST, "features": INPUTS[:0], "initial_state": STATES[:0]})
    assert answer["outputs"].shape == (0, 2) and answer["equilibrium"].shape == (0, 5)
    assert answer["status"].shape == (0,) and answer["status"].dtype == "int32"


def test_eight_threads_share_a_file(ask):
    rows = [RANDOM.randint(1, 7) for _ in range(24)]
    expected = ask(REQUEST)

    def outputs(count):
        sent = {"features": INPUTS[:count], "initial_state": STATES[:count]}
        return ask({**REQUEST, **sent})["outputs"]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for count, found in zip(rows, threads.map(outputs, rows), strict=True):
            np.testing.assert_allclose(found, expected["outputs"][:count], atol=1e-5)


@pytest.mark.parametrize("target", RUNTIMES)
def test_file_broadcasts_no_rows(files, target):
    """As a server sees it, without the checks of `load`."""
    answer = RUNTIMES[target][0](files[target])
    budget = {"max_iter": np.array(0, "int64"), "tol": np.array(-1, "float32")}
    for samples, states in ((6, 1), (1, 6), (1, 0)):
        sent = {"features": INPUTS[:samples], "initial_state": STATES[:states]}
        with pytest.raises(Exception, match="(?i)reshape|same number of rows"):
            answer({**sent, **budget})


def test_compiled_layer_broadcasts_no_rows():
    deq = _model().layers[0]
    open_batch = [tf.TensorSpec((None, size)) for size in (4, 5)]
    ask = tf.function(
        lambda inputs, state: deq(inputs, initial_state=state),
        open_batch,
        jit_compile=True,
    )
    assert ask(INPUTS, STATES).shape == (6, 5)
    for samples, states in ((6, 1), (1, 6)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="(?i)reshape|same number of rows"
        ):
            ask(INPUTS[:samples], STATES[:states])


def test_xla_compiles_a_saved_model(files):
    served = tf.saved_model.load(files["saved_model"])
    compiled = tf.function(
        lambda *request: served.serve_warm(*request), jit_compile=True
    )
    for arguments in ((INPUTS, STATES, 0, -1.0), (INPUTS[:2], STATES[:2], 3, 0.0)):
        dtypes = ("float32", "float32", "int64", "float32")
        request = [
            tf.constant(x, dtype) for x, dtype in zip(arguments, dtypes, strict=True)
        ]
        expected = served.serve_warm(*request)
        for name, tensor in compiled(*request).items():
            np.testing.assert_allclose(tensor, expected[name], atol=1e-5)


def test_bodies_of_an_onnx_file_compute_their_outputs(files):
    """OpenVINO cannot convert a body that returns an input as it is."""
    bodies = []

    def visit(graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    bodies.append(attribute.g)
                    visit(attribute.g)

    visit(onnx.load(files["onnx"]).graph)
    assert bodies
    for body in bodies:
        computed = {name for node in body.node for name in node.output}
        assert {output.name for output in body.output} <= computed


def test_served_outputs_and_statuses(files):
    spoilt = np.where(np.arange(6)[:, None] == 4, np.nan, INPUTS)
    served = tf.saved_model.load(files["saved_model"])
    for call in (served.serve, served.signatures["serving_default"]):
        answer = call(tf.constant(spoilt))
        assert set(answer) == {"outputs", "status"}
        assert answer["status"].numpy().tolist() == [0, 0, 0, 0, 2, 0]
        is_nan = np.isnan(answer["outputs"]).all(axis=1)
        assert is_nan.tolist() == [False, False, False, False, True, False]
    inputs = keras.Input((4,))
    first, second = (layers.DEQ(TanhCell(4), name=name) for name in ("one", "two"))
    served = serving.served_model.ServedModel(
        keras.Model(inputs, second(first(inputs)))
    ).serve()
    names = list(served.get_concrete_function().structured_outputs)
    assert names == ["outputs", "one_status", "two_status"]


class ComputedBudget(keras.Model):
    """A model whose budget and tolerance depend on the number of samples."""

    def __init__(self, deq):
        super().__init__()
        self.deq = deq

    def call(self, inputs):
        size = keras.ops.shape(inputs)[0]
        tol = 1e-9 * keras.ops.cast(size, "float32")
        return self.deq(inputs, max_iter=size, tol=tol)


def test_budgets_are_those_of_the_solvers():
    inputs = keras.Input((4,))
    first = layers.DEQ(TanhCell(4), solvers.FixedPointIteration(7), name="one")
    second = layers.DEQ(TanhCell(4), solvers.FixedPointIteration(9), name="two")
    once, both = first(inputs), second(first(inputs))
    longer = second(first(inputs, max_iter=11), tol=0.5)
    for outputs, limit in ((once, 7), (both, 9), (longer, 11), (inputs * 2, None)):
        served = serving.served_model.ServedModel(keras.Model(inputs, outputs))
        assert served.metadata(served.serve())["max_iter_limit"] == limit
    computed = ComputedBudget(first)
    computed(INPUTS)
    served = serving.served_model.ServedModel(computed, tf.TensorSpec((None, 4)))
    own = served.metadata(served.serve())["solvers"]
    assert own == {"one": {"max_iter": "computed", "tol": "computed"}}
    answer = served.serve_with_statistics()(tf.constant(INPUTS), 0, -1.0)
    assert answer["evaluations"].numpy().tolist() == [6] * 6
    served = serving.served_model.ServedModel(
        keras.Model(inputs, both), max_iter_limit=8
    )
    runtime = types.SimpleNamespace(
        signatures=[{"inputs": ((None, 4), "float32"), "max_iter": ((), "int64")}],
        outputs=["outputs"],
        metadata=served.metadata(served.serve()),
    )
    text = repr(serving.LoadedModel("model.onnx", "ONNX", runtime))
    assert "one=7 two=8 (at most 8)" in text


def test_metadata_without_this_package(files):
    with zipfile.ZipFile(files["litert"]) as archive:
        (name,) = archive.namelist()
        litert = archive.read(name)
    (onnx_property,) = onnx.load(files["onnx"]).metadata_props
    assert onnx_property.key == "deq_keras"
    saved_model = files["saved_model"] / "assets.extra" / "deq_keras.json"
    for text in (litert, onnx_property.value, saved_model.read_text()):
        content = json.loads(text)
        assert content["max_iter_limit"] == content["solvers"]["deq"]["max_iter"] == 20
        assert content["metadata"] == RECORD


def test_file_has_its_metadata(ask):
    assert ask.solvers == {"deq": {"max_iter": 20, "tol": 1e-3}}
    assert ask.metadata == RECORD
    assert list(ask.inputs) == ["features"]
    assert list(ask.options) == ["max_iter", "tol", "initial_state"]
    assert ask.outputs == list(ask(REQUEST)) == ["outputs", *STATISTICS, "equilibrium"]


@pytest.mark.parametrize("target", ["saved_model", slow("litert"), slow("onnx")])
def test_nested_inputs_and_several_outputs(target, tmp_path):
    model = _nested_model()
    loaded = serving.load(_export(model, target, tmp_path))
    assert list(loaded.inputs) == ["left", "pair_all_0", "pair_r"]
    pair = {"r": INPUTS[::-1], "all_0": INPUTS * 2}
    answer = loaded({"left": INPUTS, "pair": pair})
    assert list(answer) == ["z", "heads_b", "heads_a", *STATISTICS]
    again = loaded({"left": INPUTS}, pair=pair)
    np.testing.assert_array_equal(again["z"], answer["z"])
    expected = model({"left": INPUTS, "pair": {"r": pair["r"], "all": [INPUTS * 2]}})
    np.testing.assert_allclose(answer["z"], expected["z"], atol=1e-5)
    np.testing.assert_array_equal(answer["heads_a"], expected["heads"]["a"])
    np.testing.assert_array_equal(answer["heads_b"], expected["heads"]["b"])
    assert answer["evaluations"].tolist() == [9] * 6
    assert "max_iter=9 (at most 9), tol=None" in repr(loaded)
    with pytest.raises(ValueError, match="pair_all_0"):
        loaded(INPUTS)


def test_defaults_are_those_of_the_model(ask):
    own = ask(REQUEST)
    for request in (
        {"features": INPUTS, "initial_state": STATES},
        {**REQUEST, "max_iter": None, "tol": None},
        {**REQUEST, "max_iter": 20, "tol": 1e-3},
    ):
        for name, array in ask(request).items():
            np.testing.assert_array_equal(array, own[name])
    cold = ask(INPUTS, initial_state=np.full_like(STATES, np.nan))
    for answer in (ask(INPUTS), ask(features=INPUTS), ask({"features": INPUTS})):
        np.testing.assert_array_equal(answer["outputs"], cold["outputs"])
    warm = ask(INPUTS, initial_state=cold["equilibrium"])
    assert (cold["evaluations"] > 3).all() and (warm["evaluations"] == 1).all()
    np.testing.assert_allclose(warm["outputs"], cold["outputs"], atol=1e-3)
    short = ask(INPUTS, max_iter=4, tol=0.0)
    assert short["evaluations"].tolist() == [4] * 6 and (short["status"] == 1).all()
    assert (ask(INPUTS, tol=0.5)["evaluations"] < own["evaluations"].max()).all()


def test_bad_call_raises(ask):
    with pytest.raises(ValueError, match="features"):
        ask(INPUTS, features=INPUTS)
    with pytest.raises(ValueError, match="features.*Received"):
        ask(tol=0.1)
    with pytest.raises(ValueError, match="Received.*maxiter"):
        ask(INPUTS, maxiter=3)


def test_states_of_open_length():
    """A SavedModel starts from them on request; an ONNX file requires them."""
    cold = {"ids": ((None, None), "int32"), "max_iter": ((), "int64")}
    warm = {**cold, "initial_state": ((None, None, 2), "float32")}
    ids = np.zeros((3, 5), "int32")

    def loaded(*signatures):
        runtime = unittest.mock.Mock(return_value={"outputs": ids}, outputs=["outputs"])
        runtime.configure_mock(metadata={}, signatures=list(signatures))
        return runtime, serving.LoadedModel("model", "SavedModel", runtime)

    runtime, both = loaded({"ids": cold["ids"]}, cold, warm)
    both(ids)
    both(ids, initial_state=np.zeros((3, 5, 2)))
    sent = [set(call.args[0]) for call in runtime.call_args_list]
    assert sent == [set(cold), set(warm)]
    assert list(both.options) == ["max_iter", "initial_state"]
    with pytest.raises(ValueError, match="initial_state"):
        loaded(warm)[1](ids)


def test_names_of_inputs():
    def inputs(signature):
        model = keras.Sequential([keras.layers.Dense(2)])
        return list(serving.served_model.ServedModel(model, signature).inputs)

    def spec(name=None):
        return tf.TensorSpec((None, 4), name=name)

    assert inputs(spec()) == inputs(keras.Input((4,))) == ["inputs"]
    restored = keras.Model.from_config(
        keras.Model(*[keras.Input((4,))] * 2).get_config()
    )
    assert inputs(restored.inputs[0]) == ["inputs"]
    assert inputs(spec("Features")) == ["Features"]
    assert inputs([spec(), keras.Input((4,))]) == ["inputs_0", "inputs_1"]
    assert inputs([spec("left"), spec()]) == ["left", "inputs_1"]
    assert inputs({"b": spec("x"), "a": {"c": spec()}}) == ["a_c", "b"]
    assert inputs([spec("left-eye 2"), spec("class")]) == ["left_eye_2", "inputs_class"]
    with pytest.raises(ValueError, match="a_b"):
        inputs({"a": {"b": spec()}, "a_b": spec()})


@pytest.mark.parametrize("target", ["litert", "onnx"])
def test_functions_that_onnx_lacks(target, tmp_path):
    """Those of GELU, `expm1` and `log1p`; LiteRT lacks the last two."""
    inputs = keras.Input((4,))
    outputs = keras.activations.gelu(inputs)
    if target == "onnx":
        outputs += keras.ops.expm1(-inputs * inputs) + keras.ops.log1p(inputs * inputs)
    model = keras.Model(inputs, outputs)
    path = tmp_path / f"model{RUNTIMES[target][1]}"
    samples = np.linspace(-8, 8, 4000, dtype="float32").reshape(-1, 4)
    getattr(serving, f"export_{target}")(model, path, samples=samples)
    loaded = serving.load(path)
    assert not loaded.options  # An explicit model takes no options.
    answer = loaded({"inputs": samples})["outputs"]
    np.testing.assert_allclose(answer, model(samples), rtol=0, atol=8e-6)


def test_leaves_of_an_equilibrium_are_numbered_in_order(tmp_path):
    """The order of the keys of a dict: first the map, then the vector."""
    deq = layers.DEQ(TwoScaleCell(3), solvers.FixedPointIteration(20), name="deq")
    inputs = {name: keras.Input((2,), name=name) for name in "xy"}
    model = keras.Model(inputs, deq(inputs))
    path = _export(model, "saved_model", tmp_path)
    features = {name: INPUTS[:, :2] for name in "xy"}
    expected = model(features)
    states = {
        "initial_state_0": np.zeros((len(INPUTS), 3, 1), "float32"),
        "initial_state_1": np.zeros((len(INPUTS), 3), "float32"),
    }
    answer = serving.load(path)({**features, **states})
    np.testing.assert_allclose(answer["equilibrium_0"], expected["map"], atol=1e-5)
    np.testing.assert_allclose(answer["equilibrium_1"], expected["vector"], atol=1e-5)
