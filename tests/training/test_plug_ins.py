"""Components of users in a config: imported, trained, saved, and read again."""

import copy
import sys

import keras
import pytest
import yaml

from training.cli import main
from training.config import reading as configs
from training.errors import InputError
from training.evaluation.budgets import equilibrium
from training.runs import variants
from training.runs.train import build
from training.runs.work_directory import WorkDirectory

MODULE = """
import keras
from deq_keras import layers, regularizers, solvers


@keras.saving.register_keras_serializable("me")
class Plain(solvers.FixedPointSolver):
    def step(self, evaluation, memory, num_evaluations):
        return evaluation.value, memory


@keras.saving.register_keras_serializable("me")
class Heavy(regularizers.JacobianRegularizer):
    pass


@keras.saving.register_keras_serializable("me")
class Cell(layers.ResidualBlockCell):
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which holds a module of the user."""
    (tmp_path / "my_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_parts", None)


@pytest.fixture
def plugged(small):
    plugged = copy.deepcopy(small)
    plugged["imports"] = ["my_parts"]
    plugged["model"]["solver"] = {"class_name": "me>Plain", "max_iter": 3}
    plugged["model"]["cell"]["class_name"] = "me>Cell"
    plugged["model"]["regularizer"] = {"class_name": "me>Heavy", "weight": 0.1}
    plugged["phases"] = [
        {
            "epochs": 2,
            "gradient": {"class_name": "implicit", "solver": "me>Plain"},
            "regularizer_weight_increment": {"every_epochs": 1, "amount": 0.1},
        }
    ]
    return plugged


def test_components_are_classes_of_the_user(folder, plugged):
    directory = WorkDirectory.start(folder / "run", configs.resolve(plugged))
    job = variants.make_jobs(directory)["model"]
    assert str(folder) not in sys.path
    model, _, spans = build(job)
    layer = equilibrium(model)
    parts = sys.modules["my_parts"]
    assert type(layer.solver) is parts.Plain and layer.solver.max_iter == 3
    assert type(layer.cell) is parts.Cell
    assert [span.phase.regularizer["class_name"] for span in spans] == ["me>Heavy"] * 2
    assert [span.phase.regularizer["weight"] for span in spans] == [0.1, 0.2]
    layer.gradient = spans[0].phase.gradient
    assert type(layer.gradient.solver) is parts.Plain
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras", compile=False)
    assert type(equilibrium(loaded).solver) is parts.Plain


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("imports", ["my_prats"], "`imports`: my_prats"),
        ("model.solver", "me>Palin", "`model.solver`: .*solver='me>Palin'"),
        ("model.solver", "a>b>c", "`model.solver`: .*solver='a>b>c'"),
        ("model.solver", "Plain", "`model.solver`: .*solver='Plain'"),
        ("model.cell.class_name", "me>Plain", "`model.cell` must be .*me>Plain"),
    ],
    ids=["module", "class", "package", "no package", "cell"],
)
def test_missing_class_is_named(path, value, words, folder, plugged):
    config = configs.resolve(plugged, [(path, value)])
    directory = WorkDirectory.start(folder / "run", config)
    with pytest.raises(InputError, match=words):
        variants.run(variants.make_jobs(directory), directory)
    assert not directory.path.exists()


@pytest.mark.slow
def test_run_with_plug_ins(folder, plugged, capsys):
    (folder / "config.yaml").write_text(yaml.safe_dump(plugged))
    assert main(["train", "config.yaml", "--work-dir", "run"]) == 0
    assert main(["evaluate", "run", "--budgets", "2"]) == 0
    assert "accuracy" in capsys.readouterr().out
