"""State dicts of the reference: their names, and their arrays into variables."""

import difflib

import numpy as np


def cleaned(state_dict, is_ignored):
    """Returns the arrays of a state dict without `module.` before their names.

    Args:
        state_dict: mapping of names to arrays.
        is_ignored: function of a name, true for what is left out.
    """
    arrays = {
        name.removeprefix("module."): np.asarray(value)
        for name, value in state_dict.items()
    }
    return {name: value for name, value in arrays.items() if not is_ignored(name)}


def check_known(architecture, known):
    """Raises `ValueError` if an argument of an architecture is not known."""
    for name in architecture:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise ValueError(
                f"Unknown argument `{name}`.{hint} The architecture takes: "
                f"{', '.join(sorted(known))}."
            )


def assign(variables, state_dict, as_keras, as_reference):
    """Assigns all variables, or none and names everything that does not fit.

    Args:
        variables: dict of the reference's names to variables; a tied one has several.
        state_dict: dict of the reference's names to arrays.
        as_keras: function of a name and its array that returns it in Keras' layout.
        as_reference: function of a name and a shape that returns the reference's shape.
    """
    arrays = {
        name: as_keras(name, state_dict[name])
        for name in variables
        if name in state_dict
    }
    found = {id(variables[name]) for name in arrays}
    missing = [name for name in variables if id(variables[name]) not in found]
    problems = [f"missing: {name}" for name in sorted(missing)]
    problems += [
        f"left over: {name}" for name in sorted(set(state_dict) - set(variables))
    ]
    problems += [
        f"wrong shape: {name}, which is {state_dict[name].shape} and not "
        f"{as_reference(name, variables[name].shape)}"
        for name, array in sorted(arrays.items())
        if array.shape != tuple(variables[name].shape)
    ]
    if problems:
        raise ValueError(
            "The checkpoint does not fit the architecture. " + "; ".join(problems) + "."
        )
    for name, array in arrays.items():
        variables[name].assign(array)
