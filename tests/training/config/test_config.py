"""Configs merge variants, overrides and components as documented."""

import pytest
import yaml

from training.config import reading as configs
from training.errors import InputError


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


MINIMAL = """
experiment: classification
model: {cell: {class_name: residual_block_cell, filters: 8}}
phases: [{epochs: 2}]
"""


def test_components_are_names_or_mappings(small):
    small["model"]["solver"] = "FixedPointIteration"
    normal = {"class_name": "normal", "stddev": 0.5}
    mixed = {"class_name": "mixed", "initial_states": ["cell", normal]}
    small["model"]["initial_state"] = mixed
    config = configs.resolve(small)
    assert config.model.solver == "FixedPointIteration"
    assert config.model.initial_state == mixed


@pytest.mark.parametrize(
    "override",
    [
        "variants={one: {model.solver.max_iter: 5}}",
        "variants.one={model.solver.max_iter: 5}",
        "variants.one.model.solver.max_iter=5",
        "variants.two={model.solver.max_iter: 5}",
    ],
)
def test_overrides_of_variants_are_paths(tmp_path, small, override):
    solver = {"class_name": "anderson", "max_iter": 3, "tol": 1e-2}
    small["model"]["solver"] = solver
    small["variants"] = {"one": {"model.solver.max_iter": 4}}
    config = configs.load(write(tmp_path, yaml.safe_dump(small)), [override])
    name = "two" if "two" in override else "one"
    found = configs.run_config(config, name).model.solver
    assert found == {**solver, "max_iter": 5}


def test_overrides_change_lists_and_components(tmp_path):
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


def test_mapping_changes_keys_of_a_section(tmp_path, small):
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


def test_mapping_replaces_components_and_models(small):
    small["variants"] = {
        "solver": {"model": {"solver": {"class_name": "broyden", "max_iter": 3}}},
        "mdeq": {"model": {"name": "mdeq", "filters": [4, 8], "groups": 2}},
    }
    config = configs.resolve(small)
    solver = configs.variant(config, "solver").model.solver
    assert solver == {"class_name": "broyden", "max_iter": 3}
    assert configs.variant(config, "mdeq").model.name == "mdeq"


def test_seed_beside_seeds_raises(tmp_path):
    path = write(tmp_path, MINIMAL + "seeds: [0, 1]\n")
    with pytest.raises(InputError, match=r"Set seeds=\[7\].*Received: seed=7"):
        configs.load(path, ["seed=7"])
    assert configs.load(path, ["seed=7", "seeds=null"]).seed == 7


def test_unknown_variant_raises(small):
    config = configs.resolve({**small, "variants": {"plain": {}}})
    with pytest.raises(InputError, match="Did you mean `plain`"):
        configs.variant(config, "plane")


def test_published_numbers_belong_to_variants(small):
    small["variants"] = {"one": {}, "two": {"optimizer.learning_rate": 0.5}}
    small["published"] = {"loss": {"one": 1.5, "two": "diverged"}}
    config = configs.resolve(small)
    assert configs.resolve(configs.to_mapping(config)) == config
    assert configs.variant(config, "two").published == {}
    chosen = configs.resolve(small, [("variants", {"two": {}})])
    assert chosen.published == {"loss": {"two": "diverged"}}
    with pytest.raises(InputError, match="Received: variant='three'"):
        configs.resolve(small, [("published.loss.three", 1)])
