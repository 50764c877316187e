"""What a measurement ran on."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

_PACKAGES = ("deq-keras", "tensorflow", "keras", "numpy")


def describe():
    """Returns the machine, the versions, the commit and the time, for JSON."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": _has_changes(),
        "processor": _processor(),
        "processors_usable": _usable_processors(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def has_bfloat16():
    """Tells whether the processor computes in bfloat16; `None` if that is unknown."""
    flags = _cpu_info("flags")
    return None if flags is None else "bf16" in flags


def _processor():
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(key):
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    return None


def _usable_processors():
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_changes():
    status = _git("status", "--porcelain")
    return None if status is None else bool(status)


def _git(*arguments):
    """What git says about the checkout of this package; `None` if it is not in one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
