"""Messages about invalid configs: where, what was expected, what was received.

Long values and paths are shortened.
"""

import difflib
import reprlib

from ..errors import InputError

_LONGEST_PATH = 200


class _Shortener(reprlib.Repr):
    """`repr` of at most a few hundred characters, for any value."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict = 3, 12, 6
        self.maxstring = self.maxother = 80

    def repr_int(self, value, level):
        # Python refuses to write more than 4300 decimal digits.
        is_short = value.bit_length() < 100
        return repr(value) if is_short else f"{value:#x}"[:20] + "..."


_shortener = _Shortener()


def shorten(value):
    """Returns the `repr` of a value; a long one without its middle."""
    return _shortener.repr(value)


def received_text(path, value):
    """Returns "Received: name=value." with the last name of a dotted path."""
    *parents, last = path.split(".")
    name = f"{parents[-1]}.{last}" if parents and last.isdecimal() else last
    return f"Received: {name or 'config'}={shorten(value)}."


def place(path):
    """Returns how a message names a place in the config."""
    if len(path) > _LONGEST_PATH:
        path = f"{path[:_LONGEST_PATH]}..."
    return f"`{path}`" if path else "The config"


def fail(path, expected, value, hint=""):
    """Raises `InputError` for a value that is not as expected."""
    raise InputError(
        f"{place(path)} must be {expected}. {received_text(path, value)}{hint}"
    )


def join(path, key):
    """Returns the dotted path of a part."""
    return f"{path}.{key}" if path else str(key)


def closest(name, names):
    """Returns " Did you mean ...?" for the nearest valid name, or nothing."""
    if not isinstance(name, str):
        return ""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" Did you mean `{matches[0]}`?" if matches else ""
