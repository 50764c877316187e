"""What `serving.load` refuses, and what it answers where a runtime cannot."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, serving, solvers
from tests.layers.cells import TanhCell

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(6, 4)).astype("float32")
STATES = RANDOM.normal(size=(6, 5)).astype("float32")
BUDGET = {"max_iter": np.array(0), "tol": np.array(-1, "float32")}
REQUEST = {"inputs": INPUTS, "initial_state": STATES, **BUDGET}
RUNTIMES = {
    "saved_model": (serving.runtimes.SavedModelRuntime, ""),
    "litert": (serving.runtimes.LiteRTRuntime, ".tflite"),
    "onnx": (serving.runtimes.ONNXRuntime, ".onnx"),
}


def _model():
    deq = layers.DEQ(TanhCell(5), "fixed_point_iteration")
    return keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(2)])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The paths of one model in all formats, by format. Other tests check exports."""
    folder = tmp_path_factory.mktemp("files")
    keras.utils.set_random_seed(1)
    model = _model()
    paths = {name: folder / f"model{suffix}" for name, (_, suffix) in RUNTIMES.items()}
    with pytest.MonkeyPatch.context() as patch:
        for module in (serving.saved_model, serving.litert, serving.onnx):
            patch.setattr(module, "check_export", lambda *arguments: 0.0)
        serving.export_saved_model(model, paths["saved_model"])
        serving.export_litert(model, paths["litert"], warm_start=True)
        serving.export_onnx(model, paths["onnx"], warm_start=True)
    return paths


@pytest.fixture(params=RUNTIMES)
def path(files, request):
    return files[request.param]


@pytest.fixture
def ask(path):
    return serving.load(path)


def test_a_request_that_is_refused(ask):
    for match, wrong in (
        ("same number of rows.*'initial_state': 1", {"initial_state": STATES[:1]}),
        ("same number of rows.*'inputs': 1", {"inputs": INPUTS[:1]}),
        ("same number of rows.*'initial_state': 0", {"initial_state": STATES[:0]}),
        (r"shape \(any, 4\).*\(4,\)", {"inputs": INPUTS[0]}),
        (r"shape \(any, 4\).*\(6, 1, 4\)", {"inputs": INPUTS[:, None]}),
        (r"shape \(any, 4\).*\(6, 3\)", {"inputs": INPUTS[:, :3]}),
        ("kind integer or floating-point.*complex64", {"inputs": INPUTS + 1j}),
        ("kind integer or floating-point.*<U", {"inputs": INPUTS.astype(str)}),
        ("kind integer or floating-point.*bool", {"inputs": INPUTS > 0}),
        ("lists of equal lengths", {"inputs": [[1.0], [2.0, 3.0]]}),
        ("kind integer,.*max_iter=2.7", {"max_iter": 2.7}),
        ("kind integer,.*max_iter=True", {"max_iter": True}),
        (r"shape \(\).*\(1,\)", {"max_iter": np.array([3])}),
        ("values from -9223372036854775808 to", {"max_iter": 2**63}),
        ("`tol` must be a finite number.*tol=nan", {"tol": np.nan}),
        ("`tol` must be a finite number.*tol=inf", {"tol": np.inf}),
        ("kind integer or floating-point.*tol=True", {"tol": True}),
        (r"takes these.*Received: \[images, initial_state", {"images": INPUTS}),
    ):
        with pytest.raises(ValueError, match=match):
            ask({**REQUEST, **wrong})


def test_numbers_of_another_width_are_converted(ask):
    expected = ask(REQUEST)
    request = {
        "inputs": np.asfortranarray(INPUTS, "float64"),
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
    assert ask({**REQUEST, "inputs": large})["status"].tolist() == [0, 0, 2, 0, 0, 0]


def test_an_empty_request(ask):
    answer = ask({**REQUEST, "inputs": INPUTS[:0], "initial_state": STATES[:0]})
    assert answer["outputs"].shape == (0, 2) and answer["equilibrium"].shape == (0, 5)
    assert answer["status"].shape == (0,) and answer["status"].dtype == "int32"


def test_eight_threads_share_a_file(ask):
    rows = [RANDOM.randint(1, 7) for _ in range(80)]
    expected = ask(REQUEST)

    def outputs(count):
        sent = {"inputs": INPUTS[:count], "initial_state": STATES[:count]}
        return ask({**REQUEST, **sent})["outputs"]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for count, found in zip(rows, threads.map(outputs, rows), strict=True):
            np.testing.assert_allclose(found, expected["outputs"][:count], atol=1e-5)


@pytest.mark.parametrize("target", RUNTIMES)
def test_the_file_itself_broadcasts_no_rows(files, target):
    """As a server sees it, without the checks of `load`."""
    answer = RUNTIMES[target][0](files[target])
    budget = {"max_iter": np.array(0, "int64"), "tol": np.array(-1, "float32")}
    for samples, states in ((6, 1), (1, 6), (6, 0), (1, 0)):
        sent = {"inputs": INPUTS[:samples], "initial_state": STATES[:states]}
        with pytest.raises(Exception, match="(?i)reshape"):
            answer({**sent, **budget})


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_compiled_model_broadcasts_no_rows(jit_compile):
    warm = serving.WarmStartModel(_model())
    open_batch = {
        "inputs": tf.TensorSpec((None, 4)),
        "initial_state": tf.TensorSpec((None, 5)),
    }
    ask = tf.function(warm, input_signature=[open_batch], jit_compile=jit_compile)
    request = {"inputs": INPUTS, "initial_state": STATES}
    assert ask(request)["outputs"].shape == (6, 2)
    for samples, states in ((6, 1), (1, 6)):
        sent = {"inputs": INPUTS[:samples], "initial_state": STATES[:states]}
        with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)reshape"):
            ask(sent)
        with pytest.raises(ValueError, match="same number of rows"):
            tf.function(warm)({k: tf.constant(v) for k, v in sent.items()})


def test_restarts_broadcast_no_rows():
    inputs = {name: keras.Input((4,), name=name) for name in ("x", "y")}
    outputs = layers.DEQ(TanhCell(5))(inputs["x"] + inputs["y"])
    searching = serving.RestartsModel(keras.Model(inputs, outputs), 1)
    with pytest.raises(ValueError, match="same number of rows.*6 and 1 rows"):
        searching({"x": INPUTS, "y": INPUTS[:1]})


def test_served_outputs_and_what_is_known_of_a_sample(files):
    spoilt = np.where(np.arange(6)[:, None] == 4, np.nan, INPUTS)
    answer = serving.load(files["saved_model"])({"inputs": spoilt})
    assert set(answer) == {"outputs", "status"}
    assert answer["status"].tolist() == [0, 0, 0, 0, 2, 0]
    inputs = keras.Input((4,))
    first, second = (layers.DEQ(TanhCell(4), name=name) for name in ("one", "two"))
    served = serving.served_model.ServedModel(
        keras.Model(inputs, second(first(inputs)))
    ).serve()
    names = list(served.get_concrete_function().structured_outputs)
    assert names == ["outputs", "one_status", "two_status"]


def test_the_largest_budget_of_a_file_is_that_of_its_solvers():
    inputs = keras.Input((4,))
    first = layers.DEQ(TanhCell(4), solvers.FixedPointIteration(7), name="one")
    second = layers.DEQ(TanhCell(4), solvers.FixedPointIteration(9), name="two")
    for outputs, limit in ((first(inputs), 7), (second(first(inputs)), 9)):
        served = serving.served_model.ServedModel(keras.Model(inputs, outputs))
        assert served.solve_outputs.max_iter == limit


def test_the_order_of_outputs_in_onnx(files):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(files["onnx"])
    assert [output.name for output in session.get_outputs()] == [
        "outputs",
        "evaluations",
        "residual",
        "status",
        "equilibrium",
    ]


@pytest.mark.parametrize("target", ["litert", "onnx"])
def test_the_default_gelu_of_keras(target, tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.activations.gelu(inputs))
    path = tmp_path / f"model{RUNTIMES[target][1]}"
    samples = np.linspace(-8, 8, 4000, dtype="float32").reshape(-1, 4)
    getattr(serving, f"export_{target}")(model, path, samples=samples)
    answer = serving.load(path)({"inputs": samples})["outputs"]
    np.testing.assert_allclose(answer, model(samples), rtol=0, atol=8e-6)
