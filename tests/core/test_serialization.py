"""What is no config of an object is a ValueError, whatever Keras makes of it."""

import keras
import pytest

from deq_keras import gradients, regularizers, solvers

NO_CONFIGS = [
    {},
    {1: 2},
    {"class_name": []},
    {"class_name": {"class_name": "anderson"}},
    {"class_name": "anderson", 1: 2},
    {"class_name": "anderson", "ridge": 10**400},
    {"class_name": "anderson", "config": {"max_iter": 3}},
    {"class_name": "Anderson", "config": 3},
    {"class_name": "Anderson", "config": {"unknown": 3}},
    {"class_name": "Anderson", "config": {}, "registered_name": [1]},
    {"class_name": "Anderson", "config": {}, "build_config": 3},
    {"class_name": ["Anderson"], "config": {}},
    {"class_name": None, "config": {}},
    {"class_name": "x", "module": 3, "config": {}},
    {"class_name": "system", "module": "os", "config": {}},
    {"class_name": "__tensor__", "config": {}},
    {"class_name": "__typespec__", "config": []},
    {"class_name": "function", "config": "relu", "module": "builtins"},
    {"class_name": "Dense", "module": "keras.layers", "config": {"units": 2}},
]


@pytest.mark.parametrize("family", [solvers, gradients, regularizers])
@pytest.mark.parametrize("config", NO_CONFIGS, ids=lambda config: repr(config)[:60])
def test_is_refused(family, config):
    with pytest.raises(ValueError, match="Received"):
        family.get(config)


def test_a_misspelled_argument_is_corrected():
    with pytest.raises(ValueError, match="Did you mean 'max_iter'"):
        solvers.get({"class_name": "anderson", "tol": 1e-3, "maxiter": 4})


@pytest.mark.parametrize(
    ("family", "name"),
    [(solvers, "broyden"), (gradients, "phantom"), (regularizers, "jacobian")],
)
def test_what_serialize_returns_is_accepted(family, name):
    made = family.get(name)
    again = family.get(family.serialize(made))
    assert type(again) is type(made)
    assert again.get_config() == made.get_config()


@keras.saving.register_keras_serializable("tests")
class Renamed(solvers.Anderson):
    pass


def test_a_class_that_keras_has_registered_is_known_by_its_name():
    made = solvers.get({"class_name": "tests>Renamed", "max_iter": 7})
    assert type(made) is Renamed and made.max_iter == 7
    assert type(solvers.get("tests>Renamed")) is Renamed
    with pytest.raises(ValueError, match="FixedPointSolver of yours is known"):
        solvers.get("tests>Other")
    with pytest.raises(ValueError, match="Unknown gradient.*'tests>Renamed'"):
        gradients.get("tests>Renamed")
