"""Names and configs of the gradient strategies."""

import keras
import pytest

from deq_keras import gradients, solvers
from deq_keras.testing import check_gradient
from tests.regimes import slow

APPROXIMATE = (
    gradients.NeumannGradient,
    gradients.PhantomGradient,
    gradients.TruncatedGradient,
)

CONFIGURED = [
    gradients.ImplicitGradient(solvers.Broyden(max_iter=7)),
    gradients.ImplicitGradient(solvers.GMRES(max_iter=12, tol=1e-5)),
    gradients.ImplicitGradient("bicgstab"),
    gradients.ImplicitGradient(),
    gradients.PhantomGradient(num_steps=3, damping=0.25),
    gradients.ReversibleGradient(0.5, checkpoint_every=3),
    gradients.UnrolledGradient(),
    gradients.UnrolledGradient(checkpoints=4),
    gradients.TruncatedGradient(checkpoints=2),
    gradients.NeumannGradient(num_terms=2),
    gradients.TruncatedGradient([0.0, 1.0], 3, 7, 0.25, remat=True, damping=0.5),
    gradients.TruncatedGradient(),
]


@pytest.mark.parametrize("make", [*APPROXIMATE, slow(gradients.UnrolledGradient)])
def test_contract(make):
    check_gradient(make, exact=make not in APPROXIMATE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [gradients.ReversibleGradient, lambda: gradients.UnrolledGradient(checkpoints=6)],
    ids=["reversible", "checkpoints"],
)
def test_contract_of_gradients_that_repeat_evaluations(make):
    check_gradient(make, differentiates_captured=False)


@pytest.mark.parametrize("gradient", CONFIGURED, ids=repr)
def test_round_trips(gradient):
    config = gradients.serialize(gradient)
    for copy in (
        gradients.deserialize(config),
        keras.saving.deserialize_keras_object(config),
        type(gradient).from_config(gradient.get_config()),
    ):
        assert type(copy) is type(gradient)
        assert copy.get_config() == gradient.get_config()
    assert gradients.get(gradient) is gradient


@pytest.mark.parametrize(
    "name, cls",
    [
        ("implicit", gradients.ImplicitGradient),
        ("phantom", gradients.PhantomGradient),
        ("neumann", gradients.NeumannGradient),
        ("reversible", gradients.ReversibleGradient),
        ("truncated", gradients.TruncatedGradient),
        ("unrolled", gradients.UnrolledGradient),
        ("implicit_gradient", gradients.ImplicitGradient),
        ("PhantomGradient", gradients.PhantomGradient),
    ],
)
def test_names(name, cls):
    assert type(gradients.get(name)) is cls


def test_a_dict_configures():
    gradient = gradients.get(
        {"class_name": "implicit", "solver": {"class_name": "anderson", "max_iter": 4}}
    )
    assert isinstance(gradient.solver, solvers.Anderson)
    assert gradient.solver.max_iter == 4
    assert gradients.get({"class_name": "phantom", "num_steps": 2}).num_steps == 2


@pytest.mark.parametrize("identifier", ["implict", 3, None, {"num_steps": 3}])
def test_what_is_no_gradient_is_refused(identifier):
    with pytest.raises(ValueError, match="gradient"):
        gradients.get(identifier)


@pytest.mark.parametrize(
    "arguments", [{"num_steps": 0}, {"num_steps": 1.5}, {"damping": 0}, {"damping": 2}]
)
def test_bad_arguments_are_refused_and_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"Received: {name}={value}"):
        gradients.PhantomGradient(**arguments)


def test_an_adjoint_has_no_jitter():
    solver = {"class_name": "Anderson", "max_iter": 9, "max_iter_jitter": 2}
    with pytest.raises(ValueError, match="argument of `DEQ`.*max_iter_jitter=2"):
        gradients.ImplicitGradient(solver)


def test_unknown_arguments_raise():
    with pytest.raises(TypeError, match="steps"):
        gradients.PhantomGradient(steps=3)
    with pytest.raises(ValueError, match="tau"):
        gradients.get({"class_name": "phantom", "tau": 3})
    with pytest.raises(ValueError, match="solver"):
        gradients.ImplicitGradient("andersen")
