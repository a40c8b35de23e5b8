"""XML of untrusted robot files: no DTD, no entity, bounded size; errors name file, line and element.

The parser is expat without namespaces, so an undeclared prefix is part of a name and no error.
The text is UTF-8, whatever the declaration says, as in MuJoCo.  Defects of real files are accepted: declarations that
expat refuses (`<?xml version="0.0"?>`), comments that contain "--", and, with a remark, Latin-1 and text after the end
of the first element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from math import isfinite
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from torsor.errors import ModelError
from torsor.files import read_whole
from torsor.validate import shown

MOST_BYTES = 64 * 2**20  # of one file; the largest robot file that we know has 2 MB
MOST_ELEMENTS = 2_000_000
DECLARATION = re.compile(r"\s*<\?xml.*?\?>", re.DOTALL)
FIRST = re.compile(r"<([A-Za-z_][\w.:-]*)")
OPTENV = re.compile(r"\$\(optenv \w+ ([^()]*)\)")
LATIN_REMARK = "its text is not UTF-8, and is read as Latin-1"
OPTENV_REMARK = "$(optenv NAME default) stands for its default"
ENDS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>"}  # markup that is not a tag: start and end
QUOTE_OR_END = re.compile("[\"'>]")


class Document:
    """A parsed file. Readers get numbers through it, and raise the errors that `error` returns."""

    def __init__(self, content: bytes, path: str):
        self.path = path
        self.remarks: list[str] = []
        self.text = _text(content, path, self.remarks)
        if "$(optenv" in self.text:  # a remnant of launch files; no environment variable is read
            self.text = OPTENV.sub(r"\1", self.text)
            self.remarks.append(OPTENV_REMARK)
        try:
            self.root = self._parse()
        except expat.ExpatError as error:
            self._forgive()
            try:
                self.root = self._parse()
            except expat.ExpatError:
                reason = expat.ErrorString(error.code)
                raise ModelError(f"{path}:{error.lineno}: not well-formed XML: {reason}") from None

    @classmethod
    def read(cls, path: str) -> Document:
        """The document in a file."""
        return cls(read_whole(path, ModelError, most=MOST_BYTES), path)

    def _forgive(self) -> None:
        """Remove comments, which may contain "--", and everything after the end of the first element."""
        self.text = "".join(_without_comments(self.text))
        if first := FIRST.search(self.text):
            end = f"</{first[1]}>"
            start, _, rest = self.text.partition(end)
            if rest.strip():
                self.text = start + end
                self.remarks.append(f"what follows {end} is not read")

    def _parse(self) -> Element:
        builder, parser = TreeBuilder(), expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = builder.start
        parser.EndElementHandler = builder.end
        parser.CharacterDataHandler = builder.data
        parser.StartDoctypeDeclHandler = self._refuse_dtd
        parser.Parse(self.text, True)
        return builder.close()

    def _refuse_dtd(self, *_: object) -> None:
        raise ModelError(f"{self.path}: it has a document type declaration (DTD); robot files need none: remove it")

    # ---- messages ----

    def error(self, element: Element | None, message: str) -> ModelError:
        """An error that names the file, the line and the element."""
        if element is None:
            return ModelError(f"{self.path}: {message}")
        return ModelError(f"{self.where(element)}: {label(element)}: {message}")

    def where(self, element: Element) -> str:
        """File and line of an element."""
        return f"{self.path}:{self._lines[element]}"

    @cached_property
    def _lines(self) -> dict[Element, int]:
        """The line of each element, counted by a second pass on demand."""
        lines: list[int] = []
        parser = expat.ParserCreate()
        parser.StartElementHandler = lambda *_: lines.append(parser.CurrentLineNumber)
        parser.Parse(self.text, True)
        return dict(zip(self.root.iter(), lines))

    # ---- values ----

    def need(self, element: Element, tag: str) -> Element:
        """The child of that name."""
        found = element.find(tag)
        if found is None:
            raise self.error(element, f"it needs a <{tag}>")
        return found

    def word(self, element: Element, key: str) -> str:
        """An attribute that must exist and not be empty."""
        found = element.get(key)
        if not found:
            raise self.error(element, f"it needs {key}=")
        return found

    def named(self, parent: Element, tag: str) -> dict[str, Element]:
        """The children of one kind, by name; no two may share one."""
        found: dict[str, Element] = {}
        for element in parent.iterfind(tag):
            name = self.word(element, "name")
            if name in found:
                raise self.error(element, f"there are two {tag}s of this name")
            found[name] = element
        return found

    def number(self, element: Element, key: str, default: float | None = None, *, infinite: bool = False) -> float:
        """An attribute that is one number."""
        text = element.get(key, "").strip()
        if not text and default is None:
            raise self.error(element, f"it needs {key}=")
        return default if not text else self.parsed(element, f"{key}=", text, infinite=infinite)  # type: ignore[return-value]

    def numbers(self, element: Element, key: str, count: int, default: tuple[float, ...]) -> list[float]:
        """An attribute that is `count` numbers, separated by blanks."""
        words = element.get(key, "").split()
        if words and len(words) != count:
            raise self.error(element, f"{key}={shown(element.get(key))} must be {count} numbers, not {len(words)}")
        return [self.parsed(element, f"{key}=", word) for word in words] or list(default)

    def parsed(self, element: Element, what: str, word: str, *, infinite: bool = False) -> float:
        """A word as a number; `what` names it in messages."""
        try:
            value = float(word)
            if "_" not in word and (isfinite(value) or (infinite and value == value)):
                return value
        except ValueError:
            pass
        finite = "finite " if word.strip("+-").lower() in ("inf", "infinity", "nan") and not infinite else ""
        raise self.error(element, f"{what}{shown(word)} is not a {finite}number")


def label(element: Element) -> str:
    """An element in messages, with its name if it has one."""
    name = element.get("name")
    return f"<{element.tag} name={shown(name)}>" if name is not None else f"<{element.tag}>"


def _text(content: bytes, path: str, remarks: list[str]) -> str:
    """The text of a file, without its declaration; line numbers stay."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
        remarks.append(LATIN_REMARK)
    if declaration := DECLARATION.match(text):
        text = "\n" * declaration[0].count("\n") + text[declaration.end() :]
    if text.count("<") > 2 * MOST_ELEMENTS:
        raise ModelError(f"{path}: more than {MOST_ELEMENTS} elements")
    return text


def _without_comments(text: str) -> Iterator[str]:
    """Pieces of the text; comments become line ends.  Text inside a tag is never a comment."""
    at = 0
    while (start := text.find("<", at)) >= 0:
        yield text[at:start]
        kind = next((opening for opening in ENDS if text.startswith(opening, start)), "")
        at = _after(text, start + len(kind), ENDS[kind]) if kind else _after_tag(text, start + 1)
        yield "\n" * text.count("\n", start, at) if kind == "<!--" else text[start:at]
    yield text[at:]


def _after(text: str, at: int, end: str) -> int:
    found = text.find(end, at)
    return len(text) if found < 0 else found + len(end)


def _after_tag(text: str, at: int) -> int:
    """The index after the > of a tag; a > between quotes does not end it."""
    while found := QUOTE_OR_END.search(text, at):
        if found[0] == ">":
            return found.end()
        at = _after(text, found.end(), found[0])
    return len(text)
