"""`deq-keras audit` of a run, of a saved model, and of the parts of any other."""

import json
import types

import keras
import numpy as np
import pytest

import deq_keras
from training.cli import main
from training.errors import InputError
from training.evaluation.audit import read_problems
from training.runs.job import Job

VECTORS = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]], "float32")
PROBLEMS = {"inputs": VECTORS, "targets": (VECTORS > 0).astype("int32")}
BUDGETS = ["--budgets", "2", "4", "20", "40"]


def _signs():
    """Scores of the classes "not positive" and "positive" of every entry."""
    scores = keras.layers.Dense(2, use_bias=False)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Reshape((2, 1)), scores])
    scores.set_weights([np.array([[-1.0, 1.0]])])
    return model


def _cell(slope=0.5):
    state, injection = keras.Input((2,)), keras.Input((2,))
    return keras.Model(
        [state, injection], keras.layers.Rescaling(slope)(state) + injection
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A folder of parts that make a contraction, of others, and of problems."""
    folder = tmp_path_factory.mktemp("parts")
    models = {
        "cell": _cell(),
        "expansion": _cell(2.0),
        "encoder": keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(2.0)]),
        "head": _signs(),
        "wide": keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
    }
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
    np.savez(folder / "easy.npz", **PROBLEMS)
    more = {"difficulty": [1, 2, 2, 3], "distance": [4, 4, 5, 9]}
    np.savez(folder / "hard.npz", **PROBLEMS, **more)
    return folder


def _arguments(parts, out, **changes):
    options = {
        "cell": parts / "cell.keras",
        "encoder": parts / "encoder.keras",
        "head": parts / "head.keras",
        "data": parts / "easy.npz",
        "out": out,
        **changes,
    }
    given = {name: value for name, value in options.items() if value is not None}
    words = (word for name in given for word in (f"--{name}", str(given[name])))
    return ["audit", *words, *BUDGETS]


def test_parts_of_any_model(parts, tmp_path, capsys):
    arguments = _arguments(parts, tmp_path / "audit", data=None, reach=4)
    data = ["--data", str(parts / "easy.npz"), str(parts / "hard.npz")]
    assert main([*arguments, *data]) == 0
    output = capsys.readouterr().out
    assert "Verdict: an equilibrium, unique: " in output
    assert output.count("passed: ") == 4
    files = sorted(file.name for file in (tmp_path / "audit").iterdir())
    assert files == ["audit.html", "audit.json"]
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    easy, hard = found["groups"]
    assert (easy["label"], easy["floor"]) == ("easy", None)
    assert (hard["label"], hard["floor"]) == ("hard", 3)
    assert hard["difficulty"] == [1, 2, 2, 3]
    assert easy["exact"] == [1.0] * 4 and found["criteria"][0]["passed"]


@pytest.mark.slow
def test_an_expansion_misses(parts, tmp_path, capsys):
    arguments = _arguments(parts, tmp_path / "audit", cell=parts / "expansion.keras")
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "Verdict: no equilibrium: " in output
    assert "missed: converged 0.0000 (at least 0.99; easy" in output


@pytest.mark.slow
def test_thresholds_and_iteration_of_the_command(parts, tmp_path, capsys):
    """Damped by a half the slope -1 is a contraction to one point at once."""
    _cell(-1.0).save(tmp_path / "turning.keras")
    turning = {"cell": tmp_path / "turning.keras"}
    missed = _arguments(parts, tmp_path / "one", **turning)
    assert main(missed) == 0
    assert "missed: converged 0.0000" in capsys.readouterr().out
    damped = {**turning, "damping": 0.5, "tol": 1e-4, "converged": 1.0, "lost": 0}
    assert main(_arguments(parts, tmp_path / "two", **damped)) == 0
    output = capsys.readouterr().out
    assert "Verdict: an equilibrium, unique: " in output and "(at least 1; " in output
    found = json.loads((tmp_path / "two" / "audit.json").read_text())
    assert (found["tol"], found["damping"]) == (1e-4, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_saved_model_with_one_layer(parts, dtype, tmp_path, capsys):
    with_layer = tmp_path / "model.keras"
    inputs = keras.Input((2,))
    deq = deq_keras.layers.DEQ(
        deq_keras.layers.DenseCell(4, dtype=dtype),
        deq_keras.solvers.FixedPointIteration(tol=1e-2, damping=0.5),
        dtype=dtype,
    )
    scores = keras.layers.Dense(4, dtype="float32")(deq(inputs))
    outputs = keras.layers.Reshape((2, 2))(scores)
    keras.Model(inputs, outputs).save(with_layer)
    data = str(parts / "easy.npz")
    out = tmp_path / "audit"
    arguments = ["audit", str(with_layer), "--data", data, "--out", str(out)]
    assert main([*arguments, *BUDGETS]) == 0
    assert "Verdict: " in capsys.readouterr().out
    found = json.loads((out / "audit.json").read_text())
    assert (found["tol"], found["damping"]) == (1e-2, 0.5)


@pytest.mark.slow
def test_a_run_of_images(finished_run, tmp_path, capsys):
    run, out = str(finished_run.path), tmp_path / "audit"
    before = {file: file.read_bytes() for file in finished_run.path.rglob("*.*")}
    arguments = ["audit", run, "--variant", "equilibrium", "--out", str(out), *BUDGETS]
    assert main(arguments) == 0
    assert "Verdict: " in capsys.readouterr().out
    found = json.loads((out / "audit.json").read_text())
    assert [group["label"] for group in found["groups"]] == ["test"]
    assert found["groups"][0]["examples"] == 32
    after = {file: file.read_bytes() for file in finished_run.path.rglob("*.*")}
    assert before == after


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cell": None}, "Name either a run or a .keras file, or the parts"),
        ({"variant": "x"}, "--variant belongs to a run. Received: x."),
        ({"data": None}, "give --data FILE"),
        ({"data": "nothing.npz"}, "nothing.npz does not exist"),
        ({"cell": "nothing.keras"}, "nothing.keras does not exist"),
        ({"cell": "{parts}/easy.npz"}, "easy.npz cannot be read"),
        ({"cell": "{parts}/wide.keras"}, "of two inputs, keras.Model([state, inj"),
        ({"encoder": "{parts}/wide.keras"}, "do not fit together"),
        ({"head": "{parts}/wide.keras"}, "do not fit together"),
        ({"head": None}, "positions of the targets, (2,)"),
        ({"out": "{parts}"}, "--out must be a new folder"),
        ({"out": "{parts}/nothing/audit"}, "nothing does not exist"),
        ({"tol": "nan"}, "--tol, --damping: `tol` must be a finite number >= 0"),
        ({"damping": "2"}, "--tol, --damping: `damping` must be a number in (0, 1]"),
        ({"lost": "-1"}, "`lost` must be a number from 0 to 1"),
    ],
)
def test_what_cannot_be_audited(parts, changes, words, tmp_path, capsys):
    changes = {
        name: value and value.format(parts=parts) for name, value in changes.items()
    }
    assert main(_arguments(parts, **{"out": tmp_path / "audit", **changes})) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert not (tmp_path / "audit").exists()


def test_a_model_without_a_layer_cannot_be_audited(parts, tmp_path, capsys):
    model, data = str(parts / "encoder.keras"), str(parts / "easy.npz")
    out = tmp_path / "audit"
    assert main(["audit", model, "--data", data, "--out", str(out), *BUDGETS]) == 2
    error = capsys.readouterr().err
    assert "encoder.keras: Expected a DEQ layer" in error and not out.exists()


_HALVING = """
import keras

@keras.saving.register_keras_serializable("theirs")
class Halving(keras.layers.Layer):
    def call(self, inputs):
        return 0.5 * inputs
"""


def test_a_class_that_is_not_known_is_named_and_can_be_imported(
    parts, tmp_path, monkeypatch, capsys
):
    (tmp_path / "their_layers.py").write_text(_HALVING)
    state, injection = keras.Input((2,)), keras.Input((2,))
    names = {}
    exec(_HALVING, names)
    halved = names["Halving"]()(state)
    keras.Model([state, injection], halved + injection).save(tmp_path / "a.keras")
    registered = keras.saving.get_custom_objects()
    monkeypatch.delitem(registered, "theirs>Halving")
    arguments = _arguments(parts, tmp_path / "audit", cell=tmp_path / "a.keras")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "a.keras has the class `Halving`, which is not registered" in error
    assert "--import MODULE" in error and "damaged" not in error
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--import", "their_layer"]) == 2
    assert "--import their_layer failed: ModuleNotFound" in capsys.readouterr().err
    assert main([*arguments, "--import", "their_layers"]) == 0
    assert "Verdict: an equilibrium, unique" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}"], "one --variant of equilibrium, tied"),
        (["{run}", "--variant", "tide"], "Did you mean `tied`?"),
        (["{run}", "--data", "x.npz"], "--data belongs to a model that is no run"),
        (["{run}", "--cell", "x.keras"], "Name either a run or"),
        (["{run}", "--import", "x"], "--import belongs to a model that is no run"),
        (["{run}", "--variant", "tied"], "`tol` must be a number"),
        (["nothing"], "nothing does not exist"),
        ([], "Received: neither"),
    ],
)
def test_runs_that_cannot_be_audited(finished_run, arguments, words, tmp_path, capsys):
    arguments = [argument.format(run=finished_run.path) for argument in arguments]
    out = ["--out", str(tmp_path / "audit"), *BUDGETS]
    assert main(["audit", *arguments, *out]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "audit").exists()


def test_an_experiment_that_does_not_say_what_is_right():
    job = Job(types.SimpleNamespace(experiment="copy_memory"), load=None)
    with pytest.raises(InputError, match="experiment copy_memory are not audited"):
        job.groups(model=None)


class TestProblemFiles:
    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"target": VECTORS}, "unknown array `target`. Did you mean `targets`"),
            ({"targets": None}, "must have the arrays `inputs` and `targets`"),
            ({"inputs": np.float32(1.0)}, r"`inputs` must be an array .*shape \(\)"),
            ({"inputs": np.array(["a"] * 4)}, "`inputs` must be an array of numbers"),
            ({"inputs": np.array([None] * 4)}, "cannot be read"),
            ({"distance": [1, 2]}, r"`distance` must .* 4 problems.*shape \(2,\)"),
            ({"distance": [1, 2, 3, -1]}, "`distance` must .*minimum -1"),
            ({"distance": VECTORS[:, 0]}, "`distance` must .*float32"),
        ],
    )
    def test_are_refused(self, arrays, words, tmp_path):
        arrays = {**PROBLEMS, **arrays}
        given = {name: array for name, array in arrays.items() if array is not None}
        np.savez(tmp_path / "problems.npz", **given)
        with pytest.raises(InputError, match=words):
            read_problems(tmp_path / "problems.npz")

    def test_what_is_no_archive_is_refused(self, tmp_path):
        np.save(tmp_path / "array.npy", VECTORS)
        with pytest.raises(InputError, match="cannot be read"):
            read_problems(tmp_path / "array.npy")
        with pytest.raises(InputError, match="is a folder"):
            read_problems(tmp_path)

    def test_a_distance_without_a_reach_is_no_floor(self, tmp_path):
        np.savez(tmp_path / "a.npz", **PROBLEMS, distance=[1, 2, 3, 9])
        assert read_problems(tmp_path / "a.npz").floor is None
        assert read_problems(tmp_path / "a.npz", 5).floor == 2
