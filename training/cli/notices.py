"""Hides TensorFlow's log messages at startup. Run as a script, it is the filter.

TensorFlow reads `TF_CPP_MIN_LOG_LEVEL` too late: while its libraries load, they write
to file descriptor 2 at every level. The filter is a separate process, so that the last
messages of a process that crashes while TensorFlow loads are still written.
"""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_SEVERITIES = "IWEF"
# "I0000 00:00:1732449600.0 1 a.cc:1] Text" or "2025-11-24 21:00:00.0: I a.cc:1] Text".
_RECORD = re.compile(rb"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWEF])(?:\d{4}|) ")
_HEADING = b"WARNING: All log messages before absl::InitializeLog()"
# TensorFlow did not find a driver. `cudart_stub.cc` also logs this as information.
_NO_DRIVER = re.compile(rb"failed call to cuInit: .*UNKNOWN ERROR \(303\)")


def hide():
    """Hides TensorFlow's notices, but not its errors, in this process and its children.

    `TF_CPP_MIN_LOG_LEVEL` in the environment of the user takes precedence. Has no
    effect after TensorFlow has been imported.
    """
    os.environ.setdefault(_LEVEL, "2")
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds TensorFlow, once, with a loader that filters the output of the import."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader.exec_module = _filter_output(spec.loader.exec_module)
        return spec


def _filter_output(execute):
    def execute_filtered(module):
        with _filter(os.environ[_LEVEL]):
            execute(module)
            # TensorFlow logs when it first looks for a driver, which happens here.
            module.config.list_physical_devices()

    return execute_filtered


@contextlib.contextmanager
def _filter(level):
    """Redirects file descriptor 2 through a filter process."""
    try:
        own = os.dup(2)
    except OSError:  # File descriptor 2 is closed.
        yield
        return
    command = [sys.executable, "-I", "-S", __file__, level]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)


def is_hidden(line, level):
    """Returns whether a line of TensorFlow's log is below a level.

    Args:
        line: Bytes. A line of the log.
        level: Integer. Lowest severity to show, from 0 (information) to 3 (fatal).
    """
    if level >= 1 and line.startswith(_HEADING):
        return True
    record = _RECORD.match(line)
    if record is None:
        return False
    is_below = record[1].decode() in _SEVERITIES[:level]
    return is_below or level >= 2 and _NO_DRIVER.search(line) is not None


def main():
    """Copies lines from stdin to stderr, except hidden ones."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ends only with its writers.
    level = int(sys.argv[1]) if sys.argv[1].isdecimal() else 0
    for line in sys.stdin.buffer:
        if not is_hidden(line, level):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    main()
