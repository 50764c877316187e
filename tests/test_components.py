"""Names and configs of solvers, gradients, regularizers and initial states."""

import keras
import pytest

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.gradients import (
    ImplicitGradient,
    NeumannGradient,
    PhantomGradient,
    ReversibleGradient,
    TruncatedGradient,
    UnrolledGradient,
)
from deq_keras.regularizers import (
    ContractionRegularizer,
    JacobianRegularizer,
    ResidualRegularizer,
)
from deq_keras.solvers import (
    GMRES,
    Aitken,
    Anderson,
    BiCGStab,
    Broyden,
    FixedPointIteration,
    ForwardBackward,
    PeacemanRachford,
)

FAMILIES = {
    "solver": solvers,
    "gradient": gradients,
    "regularizer": regularizers,
    "initial state": initial_states,
}
CLASSES = [cls for family in FAMILIES.values() for cls in family.ALL_OBJECTS]


def _family(cls):
    return next(one for one in FAMILIES.values() if cls in one.ALL_OBJECTS)


CONFIGURED = [
    *((cls, {}) for cls in CLASSES),
    (FixedPointIteration, {"max_iter": 7, "tol": None, "noise": 0.1, "compact": True}),
    (FixedPointIteration, {"stop_mode": "rel_max", "patience": 3, "factor": 0.5}),
    (FixedPointIteration, {"damping": 0.25}),
    (Aitken, {"max_iter": 5, "tol": 0.5, "limit": 30.0}),
    (Anderson, {"history": 3, "ridge": 0.5, "ridge_mode": "absolute", "mixing": 0.5}),
    (Broyden, {"max_iter": 9, "tol": 0.0, "stop_mode": "abs", "history": 4}),
    (GMRES, {"max_iter": 9, "tol": 1e-5, "restart": 4}),
    (BiCGStab, {"max_iter": 9, "tol": None}),
    (PeacemanRachford, {"alpha": 0.5, "max_iter": 7, "tol": None, "stop_mode": "abs"}),
    (ForwardBackward, {"alpha": 0.2, "max_iter": 9, "tol": 0.0}),
    (ImplicitGradient, {"solver": Broyden(max_iter=7)}),
    (ImplicitGradient, {"solver": GMRES(max_iter=12, tol=1e-5)}),
    (NeumannGradient, {"num_terms": 2}),
    (PhantomGradient, {"num_steps": 3, "damping": 0.25}),
    (ReversibleGradient, {"beta": 0.5, "checkpoint_every": 3}),
    (UnrolledGradient, {"checkpoints": 4}),
    (TruncatedGradient, {"checkpoints": 2, "tol": 0.5, "free_noise": 0.5}),
    (TruncatedGradient, {"num_steps": [0.0, 1.0], "num_free_steps": 3, "max_steps": 7}),
    (TruncatedGradient, {"free_fraction": 0.25, "checkpoints": 12, "damping": 0.5}),
    (ContractionRegularizer, {"weight": 0.5, "margin": 0.5, "num_iterations": 2}),
    (ContractionRegularizer, {"residual_weight": 0.5, "residual_margin": 0.5}),
    (JacobianRegularizer, {"weight": 0.5, "num_probes": 3, "probability": 0.25}),
    (ResidualRegularizer, {"weight": 0.5, "margin": 0.25}),
    (initial_states.Normal, {"stddev": 0.5}),
    (initial_states.Mixed, {"initial_states": ["zeros", "normal"]}),
    (initial_states.Mixed, {"fractions": [0.25, 0.75]}),
]


@pytest.mark.parametrize("cls, arguments", CONFIGURED)
def test_round_trips(cls, arguments):
    family, component = _family(cls), cls(**arguments)
    config, serialized = component.get_config(), family.serialize(component)
    for copy in (
        family.deserialize(serialized),
        family.get({"class_name": cls.__name__, **config}),
        keras.saving.deserialize_keras_object(serialized),
        cls.from_config(config),
    ):
        assert type(copy) is cls
        assert repr(copy.get_config()) == repr(config)
    for name, value in arguments.items():
        if isinstance(value, (int, float, str, type(None))):
            assert config[name] == value
            assert f"{name}={value!r}" in repr(component)
    assert family.get(component) is component


def test_components_within_components():
    gradient = gradients.get(
        {"class_name": "implicit", "solver": {"class_name": "anderson", "max_iter": 4}}
    )
    assert isinstance(gradient.solver, Anderson) and gradient.solver.max_iter == 4
    normal = {"class_name": "normal", "stddev": 3.0}
    mixed = initial_states.get(
        {"class_name": "mixed", "initial_states": ["cell", normal], "fractions": [1, 0]}
    )
    assert mixed.initial_states[1].stddev == 3.0
    assert mixed.fractions == [1.0, 0.0]


def test_config_of_the_caller_is_unchanged():
    config = {"class_name": "anderson", "history": 3}
    assert solvers.get(config).history == 3
    assert config == {"class_name": "anderson", "history": 3}


@pytest.mark.parametrize(
    "name, cls",
    [
        ("fixed_point_iteration", FixedPointIteration),
        ("Broyden", Broyden),
        ("forward_backward", ForwardBackward),
        ("peaceman_rachford", PeacemanRachford),
        ("gmres", GMRES),
        ("implicit", ImplicitGradient),
        ("truncated", TruncatedGradient),
        ("contraction", ContractionRegularizer),
        ("cell", initial_states.FromCell),
        ("from_cell", initial_states.FromCell),
        ("normal", initial_states.Normal),
    ],
)
def test_names(name, cls):
    made = _family(cls).get(name)
    assert type(made) is cls
    assert repr(made) == repr(cls())


@keras.saving.register_keras_serializable("tests")
class Renamed(Anderson):
    pass


def test_registered_class_is_found_by_name():
    made = solvers.get({"class_name": "tests>Renamed", "max_iter": 7})
    assert type(made) is Renamed and made.max_iter == 7
    assert type(solvers.get("tests>Renamed")) is Renamed
    for family, name in ((solvers, "tests>Other"), (gradients, "tests>Renamed")):
        with pytest.raises(ValueError, match=name):
            family.get(name)


NO_COMPONENTS = [
    3,
    {},
    {1: 2},
    {"class_name": []},
    {"class_name": "anderson", "ridge": 10**400},
    {"class_name": "anderson", "config": {"max_iter": 3}},
    {"class_name": "Anderson", "config": {"unknown": 3}},
    {"class_name": "system", "module": "os", "config": {}},
    {"class_name": "__tensor__", "config": {}},
    {"class_name": "function", "config": "relu", "module": "builtins"},
    {"class_name": "Dense", "module": "keras.layers", "config": {"units": 2}},
]


@pytest.mark.parametrize("kind", FAMILIES)
def test_other_identifiers_raise(kind):
    for identifier in NO_COMPONENTS:
        with pytest.raises(ValueError, match="Received"):
            FAMILIES[kind].get(identifier)


@pytest.mark.parametrize(
    "kind, misspelled, name",
    [
        ("solver", "andersen", "anderson"),
        ("gradient", "implict", "implicit"),
        ("regularizer", "jacobain", "jacobian"),
        ("initial state", "nromal", "normal"),
    ],
)
def test_unknown_name_suggests_a_similar_one(kind, misspelled, name):
    with pytest.raises(ValueError, match=f"{misspelled!r}.*{name!r}"):
        FAMILIES[kind].get(misspelled)


@pytest.mark.parametrize("cls", CLASSES)
def test_unknown_arguments_raise(cls):
    with pytest.raises(TypeError):
        cls(max_iters=3)
    with pytest.raises(ValueError, match="Received.*max_iters"):
        _family(cls).get({"class_name": cls.__name__, "max_iters": 3})


def test_misspelled_argument_is_corrected():
    with pytest.raises(ValueError, match="Did you mean 'max_iter'"):
        solvers.get({"class_name": "anderson", "tol": 1e-3, "maxiter": 4})
