import pytest

from training.config import reading as configs
from training.errors import InputError
from training.evaluation.report import score_table
from training.registry import Score


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


MINIMAL = """
experiment: classification
model: {cell: {class_name: residual_block_cell, filters: 8}}
phases: [{epochs: 2}]
"""


def test_fills_in_defaults(tmp_path):
    config = configs.load(write(tmp_path, MINIMAL))
    assert config.model.solver == "anderson"
    assert config.data.batch_size == 64
    assert config.phases[0].solver == "inherit"
    assert list(config.variants) == ["model"]


def test_resolved_mapping_resolves_to_the_same(tmp_path):
    config = configs.load(write(tmp_path, MINIMAL))
    assert configs.resolve(configs.to_mapping(config)) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sed": 1}, ["`sed`", "Did you mean `seed`?"]),
        ({"data": {"bach_size": 3}}, ["`data.bach_size`", "`data.batch_size`?"]),
        ({"phases": [{"epoch": 3}]}, ["`phases.0.epoch`", "`phases.0.epochs`?"]),
        ({"phases": [{"name": "x"}]}, ["`phases.0.epochs` is required"]),
        ({"phases": []}, ["`phases`", "at least one element"]),
        ({"phases": {"epochs": 1}}, ["`phases` must be a list"]),
        ({"phases": [{"epochs": 0}]}, ["an integer >= 1", "epochs=0"]),
        ({"phases": [{"epochs": 1.5}]}, ["an integer >= 1", "epochs=1.5"]),
        ({"phases": [{"epochs": True}]}, ["an integer >= 1", "epochs=True"]),
        ({"optimizer": {"learning_rate": 0}}, ["a number >= 1e-12", "learning_rate=0"]),
        ({"optimizer": {"learning_rate": "fast"}}, ["learning_rate='fast'"]),
        ({"optimizer": {"clip_norm": -1}}, ["a number > 0, or null", "clip_norm=-1"]),
        ({"precision": "float23"}, ["`precision`", "Did you mean `float32`?"]),
        ({"data": {"name": "cifar"}}, ["`data.name`", "`cifar10`?"]),
        ({"data": 3}, ["`data` must be a mapping", "data=3"]),
        ({"seed": -1}, ["`seed`", ">= 0 and <= 2147483647"]),
        (
            {"jit_compile": "yes"},
            ["`jit_compile` must be one of [True, False, 'auto']"],
        ),
        ({"jit_compile": 1}, ["`jit_compile` must be one of", "jit_compile=1"]),
        ({"jit_compile": "aut"}, ["Did you mean `auto`?"]),
        ({"evaluation": {"budgets": [1, 0]}}, ["`evaluation.budgets.1`"]),
        ({"evaluation": {"budgets": [3, 3]}}, ["without repetitions", "[3, 3]"]),
        ({"variants": {}}, ["`variants`", "at least one entry"]),
        ({"variants": {"../up": {}}}, ["`variants`", "'../up'"]),
        ({"variants": {"a": {"model.solvr": "x"}}}, ["variant `a`", "`model.solver`?"]),
        ({"variants": {"a": [1]}}, ["`variants.a` must be a mapping"]),
        ({"variants": {"a": None}}, ["`variants.a`", "{} for the config itself"]),
        ({"variants": {"seed_0": {}}}, ["`variants`", "`seeds`", "Received: seed_0"]),
        ({"variants": {"a": {}, "b": {"seed": 0}}}, ["`a` and `b` must differ"]),
        ({"published": [1]}, ["`published`", "mapping"]),
        ({"published": {"loss": 3}}, ["`published.loss`", "loss=3"]),
        ({"published": {"loss": {"modle": 1}}}, ["variant='modle'", "`model`?"]),
        ({"published": {"loss": {"model": None}}}, ["`published.loss.model`"]),
        ({"published": {"loss": {"model": True}}}, ["`published.loss.model`", "True"]),
        ({"variants": {"a": {"published": {}}}}, ["`variants.a` cannot change"]),
        ({"tasks": {"a": {}}}, ["`tasks.a` must be a mapping", "Received: a={}"]),
        ({"tasks": {"a": None}}, ["`tasks.a` must be a mapping", "Received: a=None"]),
        ({"experiment": "clasification"}, ["Did you mean `classification`?"]),
    ],
)
def test_refuses_what_is_wrong_with_path_and_value(small, change, words):
    with pytest.raises(InputError) as error:
        configs.resolve({**small, **change})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("solver", "andersen", ["`model.solver`", "Did you mean `anderson`?"]),
        ("solver", {"max_iter": 3}, ["`model.solver` must name its class"]),
        ("solver", None, ["`model.solver`", "solver=None"]),
        ("gradient", {"class_name": "implict"}, ["Did you mean `implicit`?"]),
        ("regularizer", "jacobain", ["`model.regularizer`"]),
        ("cell", "residual_cell", ["Did you mean `residual_block_cell`?"]),
        (
            "gradient",
            {"class_name": "implicit", "solver": "broydn"},
            ["`model.gradient.solver`", "Did you mean `broyden`?"],
        ),
    ],
)
def test_refuses_unknown_parts_of_the_model(small, part, value, words):
    small["model"][part] = value
    with pytest.raises(InputError) as error:
        configs.resolve(small)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("initial_state", "words"),
    [
        (["normal"], ["`model.initial_state`", "'auto' alone"]),
        ("normel", ["`model.initial_state`", "Did you mean `normal`?"]),
        (None, ["`model.initial_state`", "initial_state=None"]),
        ({"stddev": 2.0}, ["`model.initial_state` must name its class"]),
        (
            {"class_name": "mixed", "initial_states": "cell"},
            [
                "`model.initial_state.initial_states` must be a list",
                "initial_states='cell'",
            ],
        ),
        (
            {"class_name": "mixed", "initial_states": ["cell"] * 101},
            ["`model.initial_state.initial_states` must be a list of at most 100"],
        ),
        (
            {"class_name": "mixed", "initial_states": ["cell", "normel"]},
            ["`model.initial_state.initial_states.1`", "Did you mean `normal`?"],
        ),
        (
            {"class_name": "mixed", "initial_states": [{"class_name": "mixed"}]},
            ["`model.initial_state.initial_states.0`", "'zeros'"],
        ),
        (
            {"class_name": "mixed", "initial_states": ["cell"], "fractions": [1e30]},
            ["`model.initial_state.fractions.0` must be a number <="],
        ),
        (
            {"class_name": "predicted", "layer": {"class_name": "dens", "units": 4}},
            ["`model.initial_state.layer`", "Did you mean `dense`?"],
        ),
    ],
)
def test_refuses_unknown_initial_states(initial_state, words):
    tasks = {"experiment": "defaults", "phases": [{"epochs": 1}]}
    normal = {"class_name": "normal", "stddev": 2.0}
    predictor = {"class_name": "dense", "units": 4}
    predicted = {"class_name": "predicted", "layer": predictor}
    mixed = {
        "class_name": "mixed",
        "initial_states": [predicted, normal],
        "fractions": [0.5, 0.5],
    }
    config = configs.resolve({**tasks, "model": {"initial_state": mixed}})
    assert config.model.initial_state == mixed
    with pytest.raises(InputError) as error:
        configs.resolve({**tasks, "model": {"initial_state": initial_state}})
    for word in words:
        assert word in str(error.value)


def test_names_of_parts_are_those_of_the_library(small):
    from deq_keras import gradients, initial_states, layers, regularizers, solvers
    from training.config import component_fields

    for name in component_fields.SOLVERS:
        assert isinstance(solvers.get(name), solvers.FixedPointSolver)
    assert len(component_fields.SOLVERS) == len(solvers.ALL_OBJECTS)
    for name in component_fields.GRADIENTS:
        assert isinstance(gradients.get(name), gradients.EquilibriumGradient)
    assert len(component_fields.GRADIENTS) == len(gradients.ALL_OBJECTS)
    predictor = {"layer": {"class_name": "dense", "units": 4}}
    for name in component_fields.INITIAL_STATES:
        config = {"class_name": name, **(predictor if name == "predicted" else {})}
        assert isinstance(initial_states.get(config), initial_states.InitialState)
    assert len(component_fields.INITIAL_STATES) == len(initial_states.ALL_OBJECTS)
    for name in component_fields.REGULARIZERS:
        assert regularizers.get(name) is not None
    assert len(component_fields.REGULARIZERS) == len(regularizers.ALL_OBJECTS)
    for name in (*component_fields.CELLS, *component_fields.MONOTONE_CELLS):
        assert hasattr(layers, name.title().replace("_", ""))


def test_accepts_class_names_too(small):
    small["model"]["solver"] = "FixedPointIteration"
    assert configs.resolve(small).model.solver == "FixedPointIteration"


def test_overrides_are_yaml_and_go_into_lists_and_parts(tmp_path):
    path = write(tmp_path, MINIMAL)
    config = configs.load(
        path,
        [
            "phases.0.epochs=7",
            "model.solver.max_iter=12",
            "model.solver.tol=1e-4",
            "optimizer.learning_rate=3e-3",
            "model.regularizer={class_name: jacobian, weight: 2}",
            "data.directory=null",
            "variants.second={model.gradient: phantom}",
        ],
    )
    assert config.phases[0].epochs == 7
    assert config.model.solver == {
        "class_name": "anderson",
        "max_iter": 12,
        "tol": 1e-4,
    }
    assert config.optimizer.learning_rate == 3e-3
    assert config.model.regularizer["weight"] == 2
    assert configs.variant(config, "second").model.gradient == "phantom"
    assert configs.variant(config, "model").model.gradient == "implicit"


def test_a_mapping_changes_only_its_keys_of_a_section(tmp_path, small):
    small["optimizer"] = {"learning_rate": 0.01, "clip_norm": 1.0}
    nested = {"optimizer": {"clip_norm": 2.0}, "model": {"head": {"pool_size": 2}}}
    small["variants"] = {"nested": nested}
    config = configs.variant(configs.resolve(small), "nested")
    assert config.optimizer.learning_rate == 0.01 and config.optimizer.clip_norm == 2
    assert (config.model.head.pool_size, config.model.head.dropout_rate) == (2, 0.2)
    assert config.model.stem.filters == 4
    config = configs.load(
        write(tmp_path, MINIMAL + "optimizer: {clip_norm: 1.0}\n"),
        ["optimizer={learning_rate: 0.5}", "phases.0={name: warm}"],
    )
    assert config.optimizer.learning_rate == 0.5 and config.optimizer.clip_norm == 1
    assert config.phases[0].name == "warm" and config.phases[0].epochs > 0


def test_a_mapping_replaces_components_and_other_models(small):
    small["variants"] = {
        "solver": {"model": {"solver": {"class_name": "broyden", "max_iter": 3}}},
        "mdeq": {"model": {"name": "mdeq", "filters": [4, 8], "groups": 2}},
    }
    config = configs.resolve(small)
    solver = configs.variant(config, "solver").model.solver
    assert solver == {"class_name": "broyden", "max_iter": 3}
    assert configs.variant(config, "mdeq").model.name == "mdeq"


def test_a_seed_beside_seeds_is_refused(tmp_path):
    path = write(tmp_path, MINIMAL + "seeds: [0, 1]\n")
    with pytest.raises(InputError, match=r"Set seeds=\[7\].*Received: seed=7"):
        configs.load(path, ["seed=7"])
    assert configs.load(path, ["seed=7", "seeds=null"]).seed == 7


def test_unknown_variant(small):
    config = configs.resolve({**small, "variants": {"plain": {}}})
    with pytest.raises(InputError, match="Did you mean `plain`"):
        configs.variant(config, "plane")


def test_published_numbers_are_those_of_the_variants(small):
    small["variants"] = {"one": {}, "two": {"optimizer.learning_rate": 0.5}}
    small["published"] = {"loss": {"one": 1.5, "two": "diverged"}}
    config = configs.resolve(small)
    assert configs.resolve(configs.to_mapping(config)) == config
    assert configs.variant(config, "two").published == {}
    chosen = configs.resolve(small, [("variants", {"two": {}})])
    assert chosen.published == {"loss": {"two": "diverged"}}
    with pytest.raises(InputError, match="Received: variant='three'"):
        configs.resolve(small, [("published.loss.three", 1)])


def test_published_numbers_are_columns_of_the_scores():
    rows = {"one": [{"budget": 6, "loss": 1.25, "residual": 0.5}]}
    score = Score("loss", "loss", 1, ".2f")
    table = score_table(rows, score, published={"loss": {"one": 1.5}, "time": {}})
    heading, line, _, residual = (row.split() for row in table.splitlines())
    assert heading[-4:] == ["published", "loss", "published", "time"]
    assert line == ["one", "1.25", "1.5"] and residual == ["one", "0.5"]
