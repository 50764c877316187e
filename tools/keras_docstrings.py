"""Docstrings in Keras' order, made such that Griffe, which knows Google's, reads them.

Keras has more sections than Google, and does not indent what follows `Example:`.
"""

import inspect
import re

import griffe

# The indentation, in a section, from which on a line is code.
_CODE = 4
_CODE_OF_ITEMS = 8

_ITEMS = {
    "Args": "Args",
    "Attributes": "Attributes",
    "Call arguments": "Other Parameters: Call arguments",
    "Raises": "Raises",
}
_EXAMPLES = ("Example", "Examples")
_TEXTS = ("Input shape", "Output shape", "Reference", "References", "Returns")
_HEADING = re.compile(r"(\w[\w ]*):")
_CODE_SPAN = re.compile(r"(`[^`]*`)")
# That of a name, as in z*, would begin an emphasis.
_STAR = re.compile(r"(?<=\w)\*")


class KerasDocstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            call = obj.members.get("call") if obj.is_class else None
            types = {
                parameter.name: str(parameter.annotation)
                for parameter in getattr(call, "parameters", ())
                if parameter.annotation
            }
            obj.docstring.value = in_google_style(obj.docstring.value, types)


def in_google_style(docstring, types=()):
    """Returns the text of a docstring of Keras' grammar in Google's.

    `types` has the types of the arguments of `call`. Without them, Griffe would take
    the type of the constructor's argument of the same name.
    """
    sections = _sections(inspect.cleandoc(docstring))
    for index, (heading, body) in enumerate(sections):
        if heading == "Call arguments":
            for name in types:
                item = re.compile(rf"^{name}:", re.MULTILINE)
                body = item.sub(lambda _, name=name: f"{name} ({types[name]}):", body)
            sections[index] = heading, body
    return "\n\n".join(_rewrite(heading, body) for heading, body in sections)


def _sections(text):
    """Returns headings and bodies; "" is the heading of a body without."""
    sections = [("", [])]
    for line in text.split("\n"):
        found = _HEADING.fullmatch(line)
        if found and found[1] in (*_ITEMS, *_EXAMPLES, *_TEXTS):
            sections.append((found[1], []))
            continue
        body = sections[-1][1]
        if body and body[0].startswith(" ") and line[:1].strip():
            # An indented section ends where the indentation does.
            sections.append(("", []))
        sections[-1][1].append(line)
    return [
        (heading, inspect.cleandoc("\n".join(["", *lines])).strip("\n"))
        for heading, lines in sections
    ]


def _rewrite(heading, body):
    if heading in _EXAMPLES:
        return _indent("Examples", body)
    if heading in _ITEMS:
        return _indent(_ITEMS[heading], _escape(body, _CODE_OF_ITEMS))
    title = f"**{heading}**\n\n" if heading else ""
    return title + _escape(body, _CODE)


def _indent(heading, body):
    lines = [f"    {line}".rstrip() for line in body.split("\n")]
    return "\n".join([f"{heading}:" if ":" not in heading else heading, *lines])


def _escape(text, code):
    """Escapes the stars of names outside of code."""
    lines, is_fenced = [], False
    for line in text.split("\n"):
        is_fenced ^= line.lstrip().startswith("```")
        if not is_fenced and not line.startswith(" " * code):
            parts = _CODE_SPAN.split(line)
            parts[::2] = [_STAR.sub(r"\\*", part) for part in parts[::2]]
            line = "".join(parts)
        lines.append(line)
    return "\n".join(lines)
