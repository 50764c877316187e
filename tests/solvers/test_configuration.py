"""Constructors, names, configs."""

import keras
import pytest
import tensorflow as tf

from deq_keras import solvers

BAD_ARGUMENTS = [
    (solvers.FixedPointIteration, {"max_iter": 0}),
    (solvers.FixedPointIteration, {"max_iter": -3}),
    (solvers.FixedPointIteration, {"max_iter": 2.5}),
    (solvers.FixedPointIteration, {"max_iter": True}),
    (solvers.FixedPointIteration, {"tol": -1e-3}),
    (solvers.FixedPointIteration, {"tol": "small"}),
    (solvers.FixedPointIteration, {"tol": float("nan")}),
    (solvers.FixedPointIteration, {"tol": 10**400}),
    (solvers.FixedPointIteration, {"max_iter": tf.constant(3)}),
    (solvers.Anderson, {"tol": tf.constant(-1.0)}),
    (solvers.GMRES, {"max_iter": tf.constant(3)}),
    (solvers.FixedPointIteration, {"stop_mode": "relative"}),
    (solvers.FixedPointIteration, {"damping": 0.0}),
    (solvers.FixedPointIteration, {"damping": 1.5}),
    (solvers.Anderson, {"max_iter": 0}),
    (solvers.Anderson, {"history": 0}),
    (solvers.Anderson, {"ridge": -1.0}),
    (solvers.Anderson, {"ridge": float("inf")}),
    (solvers.Anderson, {"ridge": 10**400}),
    (solvers.Anderson, {"ridge_mode": "auto"}),
    (solvers.Anderson, {"mixing": 0}),
    (solvers.Broyden, {"max_iter": 0}),
    (solvers.Broyden, {"history": 0}),
    (solvers.Broyden, {"history": "all"}),
    (solvers.GMRES, {"max_iter": 0}),
    (solvers.GMRES, {"tol": -1.0}),
    (solvers.GMRES, {"restart": 0}),
    (solvers.GMRES, {"restart": 2.5}),
    (solvers.BiCGStab, {"max_iter": 0}),
    (solvers.BiCGStab, {"tol": "small"}),
]

CONFIGURED = [
    solvers.FixedPointIteration(max_iter=7, tol=None, stop_mode="abs", damping=0.25),
    solvers.FixedPointIteration(7, 0.5, "rel_max", noise=0.1, patience=3, factor=0.5),
    solvers.Anderson(4, 1e-2, "abs", 3, 1e-4, "absolute", 0.5),
    solvers.Broyden(9, 0.0, "abs", history=4),
    solvers.GMRES(9, 1e-5, restart=4),
    solvers.BiCGStab(9, None),
]


@pytest.mark.parametrize("cls, arguments", BAD_ARGUMENTS, ids=str)
def test_bad_arguments_are_refused_and_named(cls, arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError) as error:
        cls(**arguments)
    assert f"`{name}`" in str(error.value)
    assert f"Received: {name}={value!r}" in str(error.value)


def test_a_bad_budget_in_solve_is_refused(solver_class):
    with pytest.raises(ValueError, match="max_iter=0"):
        solver_class().solve(lambda z: z, solvers.SolveRequest([[1.0]], max_iter=0))
    with pytest.raises(ValueError, match="tol=-1"):
        solver_class().solve(lambda z: z, solvers.SolveRequest([[1.0]], tol=-1))


@pytest.mark.parametrize(
    "name, value",
    [
        ("budget", 0),
        ("budget", 9),
        ("budget", 2.5),
        ("budget", tf.constant(2.5)),
        ("max_iter", tf.constant([3, 4])),
        ("takes_last", "no"),
        ("records_trace", 1),
        ("allows_compaction", None),
        ("checkpoints", 0),
        ("checkpoints", -1),  # It once made the loop endless.
        ("halting", True),
    ],
)
def test_a_bad_value_in_a_request_is_refused_and_named(name, value):
    request = solvers.SolveRequest([[1.0]], **{name: value})
    with pytest.raises(ValueError, match=f"`{name}` must be .* Received: {name}"):
        solvers.Anderson(max_iter=8).solve(lambda z: 0.5 * z, request)


def test_unknown_arguments_raise(solver_class):
    with pytest.raises(TypeError, match="max_iters"):
        solver_class(max_iters=3)
    with pytest.raises(ValueError, match="max_iters"):
        solvers.get({"class_name": solver_class.__name__, "max_iters": 3})


@pytest.mark.parametrize("solver", CONFIGURED, ids=lambda s: type(s).__name__)
def test_round_trips(solver):
    config = solver.get_config()
    assert type(solver).from_config(config).get_config() == config
    for copy in (
        solvers.deserialize(solvers.serialize(solver)),
        keras.saving.deserialize_keras_object(solvers.serialize(solver)),
        solvers.get({"class_name": type(solver).__name__, **config}),
    ):
        assert type(copy) is type(solver)
        assert copy.get_config() == config
    assert solvers.get(solver) is solver
    assert all(repr(value) in repr(solver) for value in config.values())


def test_jitter_is_no_argument_of_a_solver(solver_class):
    flat = {"class_name": solver_class.__name__, "max_iter_jitter": 2}
    nested = solvers.serialize(solver_class())
    nested["config"]["max_iter_jitter"] = 2
    for config in (flat, nested):
        with pytest.raises(ValueError, match="argument of `DEQ`.*max_iter_jitter=2"):
            solvers.get(config)
    # What was saved without jitter can be read.
    nested["config"]["max_iter_jitter"] = 0
    assert solvers.get(nested).get_config() == solver_class().get_config()


@pytest.mark.parametrize(
    "name, cls",
    [
        ("fixed_point_iteration", solvers.FixedPointIteration),
        ("aitken", solvers.Aitken),
        ("anderson", solvers.Anderson),
        ("broyden", solvers.Broyden),
        ("Broyden", solvers.Broyden),
        ("gmres", solvers.GMRES),
        ("bicgstab", solvers.BiCGStab),
    ],
)
def test_names(name, cls):
    assert type(solvers.get(name)) is cls
    assert solvers.get(name).get_config() == cls().get_config()


def test_the_callers_dict_is_left_as_it_was():
    config = {"class_name": "anderson", "history": 3}
    assert solvers.get(config).history == 3
    assert config == {"class_name": "anderson", "history": 3}


@pytest.mark.parametrize("identifier", ["andersen", 3, None, {"name": "anderson"}])
def test_what_is_no_solver_is_refused(identifier):
    with pytest.raises(ValueError, match="solver"):
        solvers.get(identifier)


def test_a_typo_gets_a_suggestion():
    with pytest.raises(ValueError, match="Did you mean 'anderson'"):
        solvers.get("andersen")


def test_the_config_of_something_else_is_refused():
    config = keras.saving.serialize_keras_object(keras.layers.Dense(1))
    with pytest.raises(ValueError, match="solver"):
        solvers.get(config)
