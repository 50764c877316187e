"""Sets where lines may break in numbers, names and commands: a hook of MkDocs."""

import html as entities
import re

# Listings and styles, code spans, and tags, between which is text.
_PARTS = re.compile(
    r"(<(?:pre|script|style)\b.*?</(?:pre|script|style)>|<code>[^<]*</code>|<[^>]*>)",
    re.DOTALL,
)
# Two parts of one quantity, as in 1.0 ± 0.2, 33 × 33 and 7 %.
_QUANTITY = re.compile(r"(?<=\d)\s+(?=%)|(?<=\d)\s+(?=[x×]\s+\d)|(?<=\d [x×])\s+(?=\d)")
# A browser would break the lines of 1e-3 and (0.58-0.64) after the sign.
_SIGNED = re.compile(r"[(\d][\d.]*(?:(?:e-|-|–)\d[\d.]*)+\)?")
_CELL = re.compile(r"<(t[dh])>(?=(.*?)</\1>)", re.DOTALL)
# Characters of code that fit into a column, and of a cell that is prose.
_CODE, _PROSE = 26, 30


def on_page_content(html, **kwargs):
    """Returns the HTML of a page, with spaces and tags that control line breaks."""
    parts = _PARTS.split(html)
    parts[::2] = map(_text, parts[::2])
    parts[1::2] = [
        f"<code>{_code(part[6:-7])}</code>" if part.startswith("<code>") else part
        for part in parts[1::2]
    ]
    return _CELL.sub(_cell, "".join(parts))


def _text(text):
    text = re.sub(r"\s+±\s+", "\u00a0±\u00a0", text)
    return _SIGNED.sub(_nowrap, _QUANTITY.sub("\u00a0", text))


def _code(text):
    return re.sub(r"\S+" if len(entities.unescape(text)) > _CODE else ".+", _word, text)


def _word(match):
    """Returns short code that does not break, or a long word that breaks at signs."""
    if len(entities.unescape(match[0])) > _CODE:
        return re.sub(r"[/_(=,](?=\w)|\.(?=[A-Za-z])", r"\g<0><wbr>", match[0])
    return _nowrap(match) if re.search(r"\W", match[0]) else match[0]


def _nowrap(match):
    return f'<span class="nowrap">{match[0]}</span>'


def _cell(match):
    """Returns the tag of a cell; `site.css` keeps long texts from narrow columns."""
    text = entities.unescape(re.sub("<[^>]*>", "", match[2]))
    return f'<{match[1]} class="prose">' if len(text) > _PROSE else match[0]
