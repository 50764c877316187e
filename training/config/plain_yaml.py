"""YAML text from and to plain trees, without anything of YAML that a config is not."""

import re

import yaml
from yaml.constructor import ConstructorError

from ..errors import InputError
from .plain_tree import MAX_DEPTH, MAX_TEXT, MAX_VALUES, plain
from .refusal import shortened

_PREFIX = "tag:yaml.org,2002:"
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_TAGS = {_PREFIX + kind for kind in _KINDS}

# YAML 1.1 wants a dot and a signed exponent in a float; everybody else does not.
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Safe YAML of seven tags and bounded depth that refuses repeated keys."""

    def __init__(self, text):
        super().__init__(text)
        self.depth = self.num_nodes = 0

    def compose_node(self, parent, index):
        mark = self.peek_event().start_mark
        self.depth += 1
        self.num_nodes += 1
        # Checked here too, because composing recurses.
        if self.depth > MAX_DEPTH:
            _fail(f"nested more than {MAX_DEPTH} levels deep", mark)
        if self.num_nodes > MAX_VALUES:
            _fail(f"more than {MAX_VALUES} values", mark)
        node = super().compose_node(parent, index)
        _check_node(node, mark)
        self.depth -= 1
        return node

    def construct_object(self, node, deep=False):
        try:
            return super().construct_object(node, deep)
        # Python's errors for `!!int abc`, `!!bool maybe` or `!!int ""`.
        except (ArithmeticError, LookupError, ValueError) as error:
            kind = node.tag.removeprefix(_PREFIX)
            text = f"{shortened(node.value)} is not of type {kind} ({error})"
            _fail(text, node.start_mark)

    def construct_mapping(self, node, deep=False):
        mapping = super().construct_mapping(node, deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if key in seen:
                _fail(f"the key `{key}` is given twice", key_node.start_mark)
            seen.add(key)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that `_Loader` would take for something else."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_PREFIX + "float", _FLOAT, "-+.0123456789")


def parse(text):
    """Returns the plain tree of a YAML document.

    Raises:
        InputError: if it is not YAML or no plain tree, with the line where it is known.
    """
    try:
        loader = _Loader(text)
        tree = loader.get_single_data()
    except yaml.YAMLError as error:
        raise InputError(_reason(error)) from error
    return plain(tree)


def dump(tree):
    """Returns the YAML text that `parse` turns back into a plain tree."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def _check_node(node, mark):
    if node.tag not in _TAGS:
        kind = shortened(node.tag.removeprefix(_PREFIX))
        _fail(
            f"a config holds text, numbers, booleans, null, lists and mappings, and no "
            f"{kind}. If this is text, put it in quotes",
            mark,
        )
    if isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_TEXT:
        _fail(f"more than {MAX_TEXT} characters in a value", mark)


def _fail(problem, mark):
    raise ConstructorError(None, None, problem, mark)


def _reason(error):
    """Returns what is wrong and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).partition("\n")[0]
    words = ", ".join(filter(None, (error.context, error.problem)))
    return f"line {mark.line + 1}, column {mark.column + 1}: {words}."
