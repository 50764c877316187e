"""The results as tables to read."""

from . import bounds

_LIBRARIES = ("deq_keras", "torchdeq")
_DISTURBED = "*"
_TOLERATED = 0.08


def table(results):
    """Returns the results as Markdown, one table a workload.

    Args:
        results: what `deq-keras benchmark solvers --out` writes, as a dict.
    """
    libraries = [name for name in _LIBRARIES if name in results]
    lines = [_heading(results["environment"])]
    for workload in results["workloads"]:
        measured = {name: results[name][workload] for name in libraries}
        rows = [("", *measured, "bound"), *_rows(workload, measured)]
        lines += ["", f"**{workload}**", "", *_aligned(rows)]
    return "\n".join([*lines, "", *_notes(results)])


def _heading(facts):
    changes = " with uncommitted changes" if facts["uncommitted_changes"] else ""
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v)
    return (
        f"{facts['processor']}, {facts['processors_usable']} processors; {versions}; "
        f"commit {facts['commit'] or 'unknown'}{changes}; {facts['time']}"
    )


def _notes(results):
    notes = [
        "Ratios are medians of pairs; quartiles are in the JSON. Milliseconds are "
        f"medians. {_DISTURBED}: other processes used the machine meanwhile."
    ]
    return notes + [
        f"{name} was left out: {reason}" for name, reason in results["left_out"].items()
    ]


def _rows(workload, measured):
    return [
        *_call_rows(measured),
        *_solve_rows(workload, measured, "solve"),
        *_solve_rows(workload, measured, "solve_xla"),
        *_step_rows(workload, measured),
        *_precision_rows(measured),
        *_memory_rows(workload, measured),
    ]


def _call_rows(measured):
    def cell(times):
        return _slashed(map(_number, times["calls"].values()))

    names = _slashed(next(iter(measured.values()))["calls"])
    return [(f"{names}, ms", *map(cell, measured.values()), "")]


def _solve_rows(workload, measured, section):
    rows = []
    for solver, costs in measured["deq_keras"].get(section, {}).items():
        limits = bounds.SOLVE.get((workload, solver), {}) if section == "solve" else {}
        label = f"{section} / (NFE f), NFE {_slashed(costs)}, {solver}"
        ratios = {budget: cost["ratio"]["median"] for budget, cost in costs.items()}
        verdict = _verdict(
            [
                (ratios[str(budget)], limit)
                for budget, limit in limits.items()
                if str(budget) in ratios
            ]
        )
        cells = [_solve_cell(m.get(section, {}).get(solver)) for m in measured.values()]
        rows.append((label, *cells, verdict))
    return rows


def _solve_cell(costs):
    if costs is None:
        return ""
    text = _slashed(_ratio(cost["ratio"]) for cost in costs.values())
    diverged = max(cost["num_diverged"] or 0 for cost in costs.values())
    return f"{text} ({diverged} samples diverged)" if diverged else text


def _step_rows(workload, measured):
    def cell(costs):
        if costs is None:
            return ""
        ratio = costs["ratio"]
        return f"{_ratio(ratio)} ({_number(ratio['numerator']['median'])} ms)"

    rows = []
    for solver, costs in measured["deq_keras"]["train"].items():
        limit = bounds.TRAIN.get((workload, solver))
        pairs = [] if limit is None else [(costs["ratio"]["median"], limit)]
        cells = [cell(m["train"].get(solver)) for m in measured.values()]
        rows.append((f"training step / ideal, {solver}", *cells, _verdict(pairs)))
    return rows


def _precision_rows(measured):
    rows = []
    for solver, cost in measured["deq_keras"].get("mixed_bfloat16", {}).items():
        speedup, angle = cost["speedup"]["median"], cost["angle"]
        met = speedup >= bounds.PRECISION_SPEEDUP and angle <= bounds.PRECISION_ANGLE
        bound = f">= {bounds.PRECISION_SPEEDUP}, <= {bounds.PRECISION_ANGLE} degrees"
        text = f"{_ratio(cost['speedup'])} times, {angle:.2f} degrees"
        others = [""] * (len(measured) - 1)
        label = f"float32 step / mixed_bfloat16 step, {solver}"
        rows.append((label, text, *others, f"{bound}: {_word(met)}"))
    return rows


def _memory_rows(workload, measured):
    rows = []
    ours = measured["deq_keras"]
    for solver, peaks in ours.get("memory", {}).items():
        label = f"peak memory of a step, MiB, NFE {_slashed(peaks)}, {solver}"
        cells = [
            _memory_cell(m.get("memory", {}).get(solver)) for m in measured.values()
        ]
        is_bounded = workload in bounds.MEMORY_WORKLOADS and len(peaks) > 1
        verdict = ""
        if is_bounded:
            verdict = _memory_verdict(solver, ours["memory"], ours["state_mib"])
        rows.append((label, *cells, verdict))
    return rows


def _memory_cell(peaks):
    if peaks is None:
        return ""
    return _slashed("?" if peak is None else f"{peak:.0f}" for peak in peaks.values())


def _memory_verdict(solver, memory, state_mib):
    """What is promised of a solver's memory, and whether it keeps to it: nothing is met
    where the control, which must grow, does not."""
    if solver not in bounds.MEMORY_STATES:
        return "the control"
    if not bounds.is_seen(memory["unrolled"], state_mib):
        return "not measurable here"
    bound = bounds.MEMORY_STATES[solver]
    # One decimal: the order of parallel operations moves a peak by a state or two.
    states = round(bounds.states_an_evaluation(memory[solver], state_mib), 1)
    return f"<= {bound:g} states an NFE: {_word(states <= bound)} ({states:.1f})"


def _verdict(pairs):
    """What is promised of some numbers, and whether they keep to it."""
    if not pairs:
        return ""
    met = all(value <= limit for value, limit in pairs)
    return f"<= {_slashed(f'{limit:.2f}' for _, limit in pairs)}: {_word(met)}"


def _word(met):
    return "met" if met else "MISSED"


def _ratio(ratio):
    others = ratio["numerator"]["other_processors"]
    mark = _DISTURBED if others is not None and others > _TOLERATED else ""
    return f"{ratio['median']:.2f}{mark}"


def _number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _slashed(items):
    return " / ".join(map(str, items))


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [
        lines[0],
        "|" + "|".join("-" * (width + 2) for width in widths) + "|",
        *lines[1:],
    ]
