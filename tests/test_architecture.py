"""Imports look down the levels of the library, and never form a cycle."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1]

# A module imports only from lower levels and from its own package.
LEVELS = {
    "core": 0,
    "proximal": 1,
    "solvers": 1,
    "initial_states": 1,
    "gradients": 2,
    "regularizers": 2,
    "multistart": 2,
    "losses": 2,
    "metrics": 2,
    "layers": 3,
    "tokenizers": 3,
    "diagnostics": 4,
    "models": 4,
    "callbacks": 5,
    "testing": 5,
    "tuning": 5,
    "converters": 5,
    "serving": 5,
}
LAYER_LEVELS = {
    "circular_convolution": 0,
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
# Top-level packages, and those that they must not import.
OUTSIDE = {
    "deq_keras": {"training", "benchmarks", "tests"},
    "training": {"benchmarks", "tests"},
    "benchmarks": {"tests"},
}


def _modules(folder):
    """Yields the name of every module in a folder, and the names that it imports."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = ".".join(parts[: -node.level]) if node.level else ""
                module = ".".join(filter(None, (package, node.module)))
                imported.update(f"{module}.{alias.name}" for alias in node.names)
        yield ".".join(parts).removesuffix(".__init__"), imported


def _check_levels(package, levels):
    """Checks the imports between the parts of a package."""
    depth = package.count(".") + 1
    for module, imported in _modules(package.replace(".", "/")):
        if module == package:  # Its `__init__` sees every part.
            continue
        own = module.split(".")[depth]
        for name in imported:
            if name.startswith(f"{package}."):
                part = name.split(".")[depth]
                is_lower = part == own or levels[part] < levels[own]
                assert is_lower, f"{module} imports {name}"


def test_packages_import_from_lower_levels():
    _check_levels("deq_keras", LEVELS)


def test_layers_import_from_lower_levels():
    _check_levels("deq_keras.layers", LAYER_LEVELS)


def test_modules_form_no_cycle():
    graph = {
        module: imported
        for module, imported in _modules("deq_keras")
        if (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
    }
    modules = {
        module: {
            target
            for name in imported
            for target in (name, name.rpartition(".")[0])
            if target in graph and target != module
        }
        for module, imported in graph.items()
    }

    def visit(module, ancestors):
        assert module not in ancestors, " -> ".join([*ancestors, module])
        for target in modules[module]:
            visit(target, [*ancestors, module])

    for module in modules:
        visit(module, [])


def test_applications_are_not_imported():
    for folder, outside in OUTSIDE.items():
        for module, imported in _modules(folder):
            roots = {name.partition(".")[0] for name in imported}
            assert not roots & outside, module
