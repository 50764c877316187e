"""`deq-keras audit` of a run and of a saved model."""

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
BUDGETS = ["--budgets", "4", "40"]


@keras.saving.register_keras_serializable("audit_tests")
class Halving(deq_keras.layers.EquilibriumCell):
    """f(z, x) = slope z + x, which has the equilibrium x / (1 - slope)."""

    def __init__(self, slope=0.5, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope

    def call(self, state, injection):
        return self.slope * state + injection

    def get_config(self):
        return {**super().get_config(), "slope": self.slope}


def _save(path, slope=0.5):
    """Saves a model whose scores of every entry are of "not positive", "positive"."""
    inputs = keras.Input((2,))
    solver = deq_keras.solvers.FixedPointIteration(tol=1e-3)
    state = deq_keras.layers.DEQ(Halving(slope), solver)(inputs)
    scores = keras.layers.Dense(2, use_bias=False, name="scores")
    model = keras.Model(inputs, scores(keras.layers.Reshape((2, 1))(state)))
    scores.set_weights([np.array([[-1.0, 1.0]])])
    model.save(path)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A folder of a contraction, of a model without a layer, and of problems."""
    folder = tmp_path_factory.mktemp("parts")
    _save(folder / "model.keras")
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(2.0)])
    plain.save(folder / "plain.keras")
    np.savez(folder / "easy.npz", **PROBLEMS)
    more = {"difficulty": [1, 2, 2, 3], "distance": [4, 4, 5, 9]}
    np.savez(folder / "hard.npz", **PROBLEMS, **more)
    np.savez(folder / "wide.npz", inputs=np.ones((4, 3)), targets=PROBLEMS["targets"])
    return folder


def _arguments(parts, out, model="{parts}/model.keras", **changes):
    options = {"data": parts / "easy.npz", "out": out, **changes}
    given = {name: value for name, value in options.items() if value is not None}
    words = (word for name in given for word in (f"--{name}", str(given[name])))
    return ["audit", str(model).format(parts=parts), *words, *BUDGETS]


def test_a_saved_model(parts, no_graphs, tmp_path, capsys):
    arguments = _arguments(parts, tmp_path / "audit.json", data=None, reach=4)
    data = ["--data", str(parts / "easy.npz"), str(parts / "hard.npz")]
    assert main([*arguments, *data]) == 0
    output = capsys.readouterr().out
    assert "Verdict: an equilibrium, unique: " in output
    assert output.count("passed: ") == 4
    found = json.loads((tmp_path / "audit.json").read_text())
    easy, hard = found["groups"]
    assert (easy["label"], easy["floor"]) == ("easy", None)
    assert (hard["label"], hard["floor"]) == ("hard", 3)
    assert hard["difficulty"] == [1, 2, 2, 3]
    assert easy["exact"] == [1.0] * 2 and found["criteria"][0]["passed"]


def test_tolerance_and_damping_of_the_command(parts, no_graphs, tmp_path, capsys):
    """Damped by 0.3, the slope -3 is a contraction by 0.2."""
    _save(tmp_path / "turning.keras", slope=-3.0)
    missed = _arguments(parts, tmp_path / "one.json", tmp_path / "turning.keras")
    assert main(missed) == 0
    output = capsys.readouterr().out
    assert "Verdict: no equilibrium: " in output
    assert "missed: converged 0.0000 (at least 0.99; easy" in output
    damped = {"damping": 0.3, "tol": 1e-4}
    out = tmp_path / "two.json"
    assert main(_arguments(parts, out, tmp_path / "turning.keras", **damped)) == 0
    assert "Verdict: an equilibrium, unique: " in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert (found["tol"], found["damping"]) == (1e-4, 0.3)


@pytest.mark.slow
def test_run_of_images(finished_run, tmp_path, capsys):
    run, out = str(finished_run.path), tmp_path / "audit.json"
    before = {file: file.read_bytes() for file in finished_run.path.rglob("*.*")}
    arguments = ["audit", run, "--variant", "equilibrium", "--out", str(out), *BUDGETS]
    assert main(arguments) == 0
    assert "Verdict: " in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [group["label"] for group in found["groups"]] == ["test"]
    assert found["groups"][0]["examples"] == 32
    after = {file: file.read_bytes() for file in finished_run.path.rglob("*.*")}
    assert before == after


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variant": "x"}, "--variant"),
        ({"data": None}, "--data"),
        ({"data": "nothing.npz"}, "nothing.npz"),
        ({"data": "{parts}/wide.npz"}, "wide"),
        ({"model": "nothing.keras"}, "nothing.keras"),
        ({"model": "{parts}/plain.keras"}, "plain.keras"),
        ({"out": "{parts}"}, "--out"),
        ({"tol": "nan"}, "--tol"),
    ],
)
def test_invalid_arguments(parts, changes, words, tmp_path, capsys):
    changes = {
        name: value and value.format(parts=parts) for name, value in changes.items()
    }
    out = tmp_path / "audit.json"
    assert main(_arguments(parts, **{"out": out, **changes})) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert not out.exists()


def test_unknown_class_can_be_imported(parts, no_graphs, tmp_path, monkeypatch, capsys):
    registered = keras.saving.get_custom_objects()
    monkeypatch.delitem(registered, "audit_tests>Halving")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_cells.py").write_text(
        f"import keras\nimport {__name__} as cells\n"
        "keras.saving.get_custom_objects()['audit_tests>Halving'] = cells.Halving\n"
    )
    arguments = _arguments(parts, tmp_path / "audit.json")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "model.keras has the class `Halving`, which is not registered" in error
    assert "--import MODULE" in error and "damaged" not in error
    assert main([*arguments, "--import", "their_cell"]) == 2
    assert "--import their_cell failed: ModuleNotFound" in capsys.readouterr().err
    assert main([*arguments, "--import", "their_cells"]) == 0
    assert "Verdict: an equilibrium, unique" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}"], "--variant"),
        (["{run}", "--variant", "tide"], "tied"),
        (["{run}", "--data", "x.npz"], "--data"),
        (["{run}", "--variant", "tied"], "`tol`"),
        (["nothing"], "nothing"),
    ],
)
def test_runs_that_cannot_be_audited(finished_run, arguments, words, tmp_path, capsys):
    arguments = [argument.format(run=finished_run.path) for argument in arguments]
    out = ["--out", str(tmp_path / "audit.json"), *BUDGETS]
    assert main(["audit", *arguments, *out]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "audit.json").exists()


def test_experiment_without_groups_raises():
    job = Job(types.SimpleNamespace(experiment="copy_memory"), load=None)
    with pytest.raises(InputError, match="experiment copy_memory are not audited"):
        job.group_problems(model=None)


@pytest.mark.parametrize(
    ("arrays", "name"),
    [
        ({"target": VECTORS}, "target"),
        ({"targets": None}, "targets"),
        ({"inputs": np.float32(1.0)}, "inputs"),
        ({"inputs": np.array(["a"] * 4)}, "inputs"),
        ({"inputs": np.array([None] * 4)}, "problems.npz"),
        ({"distance": [1, 2]}, "distance"),
        ({"distance": [1, 2, 3, -1]}, "distance"),
    ],
)
def test_invalid_problem_file_raises(arrays, name, tmp_path):
    arrays = {**PROBLEMS, **arrays}
    given = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "problems.npz", **given)
    with pytest.raises(InputError, match=name):
        read_problems(tmp_path / "problems.npz")
