"""Names, configs and arguments of solvers, gradients, regularizers, initial states."""

import keras
import pytest
import tensorflow as tf

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
CLASSES.remove(initial_states.Predicted)  # It requires a layer.


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
    (TruncatedGradient, {"free_fraction": 0.25, "remat": True, "damping": 0.5}),
    (ContractionRegularizer, {"weight": 0.5, "margin": 0.5, "num_iterations": 2}),
    (ContractionRegularizer, {"residual_weight": 0.5, "residual_margin": 0.5}),
    (JacobianRegularizer, {"weight": 0.5, "num_probes": 3, "probability": 0.25}),
    (ResidualRegularizer, {"weight": 0.5, "margin": 0.25}),
    (initial_states.Normal, {"stddev": 0.5}),
    (initial_states.Learned, {"initializer": keras.initializers.Ones()}),
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


def test_no_regularizer():
    assert regularizers.get(None) is None
    assert regularizers.serialize(None) is None


def test_the_callers_dict_is_left_as_it_was():
    config = {"class_name": "anderson", "history": 3}
    assert solvers.get(config).history == 3
    assert config == {"class_name": "anderson", "history": 3}


@pytest.mark.parametrize(
    "name, cls",
    [
        ("fixed_point_iteration", FixedPointIteration),
        ("aitken", Aitken),
        ("anderson", Anderson),
        ("Broyden", Broyden),
        ("broyden", Broyden),
        ("forward_backward", ForwardBackward),
        ("peaceman_rachford", PeacemanRachford),
        ("gmres", GMRES),
        ("bicgstab", BiCGStab),
        ("implicit", ImplicitGradient),
        ("implicit_gradient", ImplicitGradient),
        ("neumann", NeumannGradient),
        ("phantom", PhantomGradient),
        ("PhantomGradient", PhantomGradient),
        ("reversible", ReversibleGradient),
        ("truncated", TruncatedGradient),
        ("unrolled", UnrolledGradient),
        ("contraction", ContractionRegularizer),
        ("jacobian", JacobianRegularizer),
        ("residual", ResidualRegularizer),
        ("cell", initial_states.FromCell),
        ("from_cell", initial_states.FromCell),
        ("zeros", initial_states.Zeros),
        ("normal", initial_states.Normal),
        ("Normal", initial_states.Normal),
        ("learned", initial_states.Learned),
        ("mixed", initial_states.Mixed),
    ],
)
def test_names(name, cls):
    made = _family(cls).get(name)
    assert type(made) is cls
    assert repr(made) == repr(cls())


@keras.saving.register_keras_serializable("tests")
class Renamed(Anderson):
    pass


def test_a_class_that_keras_has_registered_is_known_by_its_name():
    made = solvers.get({"class_name": "tests>Renamed", "max_iter": 7})
    assert type(made) is Renamed and made.max_iter == 7
    assert type(solvers.get("tests>Renamed")) is Renamed
    with pytest.raises(ValueError, match="FixedPointSolver of yours is known"):
        solvers.get("tests>Other")
    with pytest.raises(ValueError, match="Unknown gradient.*'tests>Renamed'"):
        gradients.get("tests>Renamed")


NO_COMPONENTS = [
    3,
    {"name": "anderson"},
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


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("identifier", NO_COMPONENTS, ids=lambda one: repr(one)[:60])
def test_what_is_no_component_is_refused(kind, identifier):
    """Whatever Keras makes of it."""
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
def test_the_family_and_a_similar_name_are_named(kind, misspelled, name):
    message = f"Unknown {kind}.*{misspelled!r}. Did you mean {name!r}"
    with pytest.raises(ValueError, match=message):
        FAMILIES[kind].get(misspelled)
    with pytest.raises(ValueError, match=f"{kind} must be a name"):
        FAMILIES[kind].get(3 if kind == "regularizer" else None)


@pytest.mark.parametrize("cls", CLASSES)
def test_unknown_arguments_are_refused(cls):
    with pytest.raises(TypeError, match="max_iters|takes no arguments"):
        cls(max_iters=3)
    with pytest.raises(ValueError, match="Received: {'max_iters': 3}"):
        _family(cls).get({"class_name": cls.__name__, "max_iters": 3})


def test_a_misspelled_argument_is_corrected():
    with pytest.raises(ValueError, match="Did you mean 'max_iter'"):
        solvers.get({"class_name": "anderson", "tol": 1e-3, "maxiter": 4})


INFINITY, NAN = float("inf"), float("nan")
# Bad values of each argument.
BAD_VALUES = [
    (FixedPointIteration, "max_iter", [0, -3, 2.5, True, tf.constant(3)]),
    (FixedPointIteration, "tol", [-1e-3, "small", NAN, 10**400, tf.constant(-1.0)]),
    (FixedPointIteration, "stop_mode", ["relative"]),
    (FixedPointIteration, "damping", [0.0, 1.5]),
    (FixedPointIteration, "patience", [0]),
    (FixedPointIteration, "factor", [0.0, 1.5]),
    (FixedPointIteration, "noise", [-0.1, "loud"]),
    (FixedPointIteration, "compact", [1]),
    (Aitken, "limit", [1.0, -2.0, "large"]),
    (Anderson, "max_iter", [0]),
    (Anderson, "tol", [tf.constant(-1.0)]),
    (Anderson, "history", [0]),
    (Anderson, "ridge", [-1.0, INFINITY, 10**400]),
    (Anderson, "ridge_mode", ["auto"]),
    (Anderson, "mixing", [0]),
    (Anderson, "compact", [1]),
    (Broyden, "max_iter", [0]),
    (Broyden, "history", [0, "all"]),
    (GMRES, "max_iter", [0, tf.constant(3)]),
    (GMRES, "tol", [-1.0]),
    (GMRES, "restart", [0, 2.5]),
    (BiCGStab, "max_iter", [0]),
    (BiCGStab, "tol", ["small"]),
    (PeacemanRachford, "alpha", [0, -1.0, INFINITY, "auto"]),
    (ForwardBackward, "alpha", [0, -1.0, INFINITY, "auto"]),
    (PhantomGradient, "num_steps", [0, 1.5]),
    (PhantomGradient, "damping", [0, 2]),
    (ReversibleGradient, "beta", [0.0, 1, "half"]),
    (ReversibleGradient, "checkpoint_every", [0]),
    (TruncatedGradient, "num_steps", [0, 2.5, "some", [], [0.0, 0.0], [1.0, -1.0]]),
    (TruncatedGradient, "num_steps", [[1.0, NAN], [1.0, "2"]]),
    (TruncatedGradient, "num_free_steps", [-1, True, None]),
    (TruncatedGradient, "max_steps", [0]),
    (TruncatedGradient, "free_fraction", [-0.1, 1.5, "half"]),
    (TruncatedGradient, "free_noise", [-0.1]),
    (TruncatedGradient, "remat", [1]),
    (TruncatedGradient, "checkpoints", [0]),
    (TruncatedGradient, "tol", [-0.1, "small", NAN]),
    (ContractionRegularizer, "weight", [-1]),
    (ContractionRegularizer, "residual_weight", [-1]),
    (ContractionRegularizer, "residual_margin", [-1]),
    (ContractionRegularizer, "num_iterations", [0]),
    (JacobianRegularizer, "weight", [-1]),
    (JacobianRegularizer, "num_probes", [0]),
    (JacobianRegularizer, "probability", [0.0, 1.5]),
    (ResidualRegularizer, "weight", [-1.0]),
    (ResidualRegularizer, "margin", ["0.1"]),
    (initial_states.Normal, "stddev", [0.0, -1.0, "1"]),
    (initial_states.Learned, "initializer", [None]),
    (initial_states.Mixed, "initial_states", [[], "cell", ["learned", "learned"]]),
    (initial_states.Mixed, "fractions", [[0.5], [0.5, 0.6]]),
]


@pytest.mark.parametrize(
    "cls, name, value",
    [(cls, name, value) for cls, name, values in BAD_VALUES for value in values],
    ids=lambda one: getattr(one, "__name__", repr(one)[:20]),
)
def test_bad_values_are_refused_and_named(cls, name, value):
    with pytest.raises(ValueError) as error:
        cls(**{name: value})
    assert f"`{name}`" in str(error.value)
    assert f"Received: {name}={value!r}" in str(error.value)


@pytest.mark.parametrize("fractions, received", [([1.5, -0.5], 0), ([1, "0"], 1)])
def test_the_bad_entry_of_a_list_is_named(fractions, received):
    message = rf"`fractions\[{received}\]` must be.*={fractions[received]!r}"
    with pytest.raises(ValueError, match=message):
        initial_states.Mixed(fractions=fractions)
