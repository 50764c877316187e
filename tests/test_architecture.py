"""Imports look down the levels of the library, and into public names only."""

import ast
import importlib
import pathlib

import keras
import pytest

import deq_keras

ROOT = pathlib.Path(__file__).parents[1]

# A module imports only from lower levels. Modules of one package may import one
# another, as long as they form no cycle.
LEVELS = {
    "core": 0,
    "proximal": 1,
    "solvers": 1,
    "initial_states": 1,
    "gradients": 2,
    "regularizers": 2,
    "multistart": 2,
    "diagnostics": 3,
    "losses": 2,
    "metrics": 2,
    "layers": 3,
    "tokenizers": 3,
    "models": 4,
    "callbacks": 4,
    "testing": 4,
    "tuning": 4,
    "converters": 5,
    "serving": 5,
}
# Within the layers, where a room sees only public names of rooms below it.
LAYER_LEVELS = {
    "composite_layer": 0,
    "kernel_initializer": 0,
    "variational_dropout": 0,
    "normalization": 0,
    "equilibrium": 1,
    "imaging": 2,
    "language": 2,
    "monotone": 2,
    "reasoning": 2,
    "vision": 2,
}
# Unit tests of these look inside; they are not packages.
INTERNAL_MODULES_WITH_TESTS = {
    "deq_keras.layers.language.attend",
    "deq_keras.testing.cell",
    "deq_keras.testing.problems",
}
OTHER_BACKENDS = {"jax", "torch"}


def _sources(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def _module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path):
    """Yields (module, name) of every absolute import; name is None for `import m`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            yield from ((module, alias.name) for alias in node.names)


def _absolute(path, node):
    """Returns the module that an `ImportFrom` names, however it does."""
    if node.level == 0:
        return node.module
    package = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _room(module):
    """`deq_keras.solvers.anderson` lives in the room `solvers`."""
    return module.split(".")[1] if "." in module else None


def _imported_rooms(path):
    for module, name in _imports(path):
        if module == "deq_keras":
            yield name
        elif module.startswith("deq_keras."):
            yield _room(module)


def _library_modules():
    return [path for path in _sources("deq_keras") if path.parent != ROOT]


def test_every_room_has_a_level():
    rooms = {
        path.stem
        for path in (ROOT / "deq_keras").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__"}
    assert rooms <= set(LEVELS)
    assert {"core", "solvers", "gradients", "layers"} <= rooms
    assert len(rooms) < 19, "a reader should see the package on one screen"


@pytest.mark.parametrize("path", _library_modules(), ids=_module_name)
def test_imports_look_down(path):
    room = _room(_module_name(path))
    if room is None:  # The package's own __init__ sees every room.
        return
    for imported in _imported_rooms(path):
        assert imported in LEVELS, f"{path} imports deq_keras.{imported}"
        is_own_room = imported == room
        assert is_own_room or LEVELS[imported] < LEVELS[room], (
            f"deq_keras.{room} (level {LEVELS[room]}) imports deq_keras.{imported} "
            f"(level {LEVELS[imported]})"
        )


def test_every_room_of_the_layers_has_a_level():
    rooms = {
        path.stem
        for path in (ROOT / "deq_keras" / "layers").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__"}
    assert rooms == set(LAYER_LEVELS)


@pytest.mark.parametrize("path", _sources("deq_keras/layers"), ids=_module_name)
def test_imports_look_down_within_the_layers(path):
    own = _module_name(path).split(".")[2:3]
    if not own:  # The __init__ of all layers.
        return
    for module, name in _imports(path):
        if not module.startswith("deq_keras.layers"):
            continue
        _, _, *rest = module.split(".")
        room = rest[0] if rest else name
        if room == own[0]:
            continue
        assert LAYER_LEVELS[room] < LAYER_LEVELS[own[0]], f"{path} imports {module}"
        package = importlib.import_module(f"deq_keras.layers.{room}")
        is_whole_room = len(rest) == 1
        assert is_whole_room, f"{path} looks into {module}"
        assert not hasattr(package, "__path__") or name in package.__all__


@pytest.mark.parametrize(
    "room", [r for r in LEVELS if (ROOT / "deq_keras" / r).is_dir()]
)
def test_no_import_cycles_within_a_room(room):
    folder = ROOT / "deq_keras" / room
    graph = {
        _module_name(path): {
            target
            for module, name in _imports(path)
            if module.startswith(f"deq_keras.{room}")
            for target in (f"{module}.{name}", module)
            if target != f"deq_keras.{room}"
        }
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }

    def visit(module, ancestors):
        assert module not in ancestors, " -> ".join([*ancestors, module])
        for target in graph.get(module, ()):
            visit(target, [*ancestors, module])

    for module in graph:
        visit(module, [])


def test_the_library_needs_no_other_framework():
    for path in _sources("deq_keras"):
        roots = {module.split(".")[0] for module, _ in _imports(path)}
        assert not roots & OTHER_BACKENDS, path
        assert not roots & {"training", "benchmarks", "tests"}, path


def test_the_application_needs_no_benchmark():
    for path in _sources("training"):
        roots = {module.split(".")[0] for module, _ in _imports(path)}
        assert not roots & {"benchmarks", "tests"}, path


def _outside_modules():
    return _sources("training") + _sources("benchmarks") + _sources("tests")


@pytest.mark.parametrize("path", _outside_modules(), ids=_module_name)
def test_users_of_the_library_use_public_names(path):
    for module, name in _imports(path):
        if module.split(".")[0] != "deq_keras":
            continue
        if module.startswith("deq_keras.core") or module in INTERNAL_MODULES_WITH_TESTS:
            assert path.is_relative_to(ROOT / "tests"), f"{path} imports {module}"
            continue
        package = importlib.import_module(module)
        assert hasattr(package, "__path__"), f"{path} imports the module {module}"
        if name is not None:
            assert name in package.__all__, f"{path} imports {module}.{name}"


@pytest.mark.parametrize(
    "package",
    [p.parent for p in _sources("deq_keras") if p.name == "__init__.py"],
    ids=lambda p: p.name,
)
def test_public_names_exist(package):
    module = importlib.import_module(".".join(package.relative_to(ROOT).parts))
    assert list(module.__all__) == sorted(set(module.__all__), key=_isort_key)
    for name in module.__all__:
        assert getattr(module, name, None) is not None


def _isort_key(name):
    """Constants, then classes, then functions, as ruff sorts `__all__`."""
    is_class = name[0].isupper()
    return (0 if name.isupper() and len(name) > 3 else 1 if is_class else 2, name)


def test_models_are_folders():
    entries = set((ROOT / "deq_keras" / "models").glob("[!_]*"))
    assert len(entries) < 10
    assert all(entry.is_dir() for entry in entries)


def _num_own_classes(model):
    """Returns how many classes of the library are between a model and Keras' own."""
    if not model.__module__.startswith("deq_keras"):
        return 0
    bases = [base for base in model.__bases__ if issubclass(base, keras.Model)]
    return 1 + max(map(_num_own_classes, bases))


def test_models_have_one_base_of_our_own_at_most():
    for name in deq_keras.models.__all__:
        model = getattr(deq_keras.models, name)
        if issubclass(model, keras.Model):
            assert _num_own_classes(model) <= 2, name


def test_source_has_no_assert():
    for path in _sources("deq_keras") + _sources("training"):
        tree = ast.parse(path.read_text())
        has_assert = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
        assert not has_assert or "testing" in path.parts, path


def test_rooms_have_telling_names():
    for path in _sources("deq_keras") + _outside_modules():
        assert path.stem not in {"utils", "misc", "common", "helpers"}, path


def test_the_package_lists_what_users_need():
    assert dir(deq_keras) == sorted([*deq_keras.__all__, "__version__"])
    assert not set(dir(deq_keras)) & {"core", "importlib"}
    assert deq_keras.DEQ is deq_keras.layers.DEQ
