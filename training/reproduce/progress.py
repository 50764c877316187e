"""Measurements of an experiment that an interrupted command continues."""

import re
import time

from ..files import records


def measured(folder, requests, measure, line):
    """Returns results of measurements. Reads finished measurements from files.

    Prints a line for each.

    Args:
        folder: `pathlib.Path` of a folder for the files, which is created.
        requests: Dict of unique names to the arguments of `measure`.
        measure: Function of one of the requests. Returns a dict of plain data.
        line: Function of a result. Returns the text to print.

    Returns:
        Dict of names to results.

    Raises:
        InputError: If a file is corrupt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for number, (name, request) in enumerate(requests.items(), start=1):
        file = folder / f"{_file_name(name)}.json"
        start = time.perf_counter()
        if file.is_file():
            result = records.read_json(
                file, f"Remove {file} and run the command again."
            )
        else:
            result = measure(request)
            records.write_json(file, result)
        seconds = time.perf_counter() - start
        print(
            f"{number}/{len(requests)} {name}: {line(result)} ({seconds:.0f} s)",
            flush=True,
        )
        results[name] = result
    return results


def _file_name(name):
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
