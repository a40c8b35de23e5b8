"""XML of robot files, read without trust: no DTD, no entity, bounded size; errors name file, line and element.

The parser is expat without namespaces, so a prefix that was never declared is part of a name and no error.
Three more faults of real files are forgiven: declarations that expat refuses (`<?xml version="0.0"?>`), comments that
contain "--", and text after the end of the first element (with a remark).
"""

from __future__ import annotations

import re
from math import isfinite
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from torsor.errors import ModelError
from torsor.validate import shown

MOST_BYTES = 64 * 2**20  # of one file; the largest robot known to us has 2 MB
MOST_ELEMENTS = 2_000_000
DECLARATION = re.compile(r"\s*<\?xml.*?\?>", re.DOTALL)
ENCODING = re.compile(rb"""<\?xml[^>]*?encoding\s*=\s*["']([\w.-]+)["']""")
FIRST = re.compile(r"<([A-Za-z_][\w.:-]*)")
OPTENV = re.compile(r"\$\(optenv \w+ ([^()]*)\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class Document:
    """A parsed file. Readers take numbers through it, and raise what `error` returns."""

    def __init__(self, content: bytes, path: str):
        self.path = path
        if len(content) > MOST_BYTES:
            raise ModelError(f"{path}: {len(content)} bytes; torsor reads robot files of at most {MOST_BYTES}")
        self.text = _text(content, path)
        self.remarks: list[str] = []
        if "$(optenv" in self.text:  # left over from launch files; no variable of the environment is read
            self.text = OPTENV.sub(r"\1", self.text)
            self.remarks.append("$(optenv NAME default) stands for its default")
        try:
            self.root = self._parse()
        except expat.ExpatError as error:
            self._forgive()
            try:
                self.root = self._parse()
            except expat.ExpatError:
                reason = expat.ErrorString(error.code)
                raise ModelError(f"{path}:{error.lineno}: not well-formed XML: {reason}") from None

    def _forgive(self) -> None:
        """Take out comments, which may hold "--", and what follows the end of the first element."""
        self.text = COMMENT.sub(_blank, self.text)
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
        """File and line of an element. Lines are not kept while reading: a second pass counts up to the element."""
        wanted = next(i for i, other in enumerate(self.root.iter()) if other is element)
        lines: list[int] = []
        parser = expat.ParserCreate()
        parser.StartElementHandler = lambda *_: lines.append(parser.CurrentLineNumber)
        parser.Parse(self.text, True)
        return f"{self.path}:{lines[wanted]}"

    # ---- values ----

    def need(self, element: Element, tag: str) -> Element:
        """The child of that name."""
        found = element.find(tag)
        if found is None:
            raise self.error(element, f"it needs a <{tag}>")
        return found

    def word(self, element: Element, key: str) -> str:
        """An attribute that must be there and not be empty."""
        found = element.get(key)
        if not found:
            raise self.error(element, f"it needs {key}=")
        return found

    def number(self, element: Element, key: str, default: float | None = None, *, infinite: bool = False) -> float:
        """An attribute that is one number."""
        text = element.get(key)
        try:
            if isfinite(value := float(text or "")) and "_" not in text:  # type: ignore[operator]
                return value
        except ValueError:
            pass
        if text is None or not text.strip():
            if default is None:
                raise self.error(element, f"it needs {key}=")
            return default
        return self.parsed(element, f"{key}=", text, infinite=infinite)

    def each(self, element: Element, keys: tuple[str, ...], default: float | None = None) -> list[float]:
        """Several attributes, one number each."""
        texts = [element.get(key, "") for key in keys]
        try:
            values = [float(text) for text in texts]
            if isfinite(sum(values)) and "_" not in "".join(texts):
                return values
        except ValueError:
            pass
        return [self.number(element, key, default) for key in keys]

    def numbers(self, element: Element, key: str, count: int, default: tuple[float, ...]) -> list[float]:
        """An attribute that is `count` numbers, separated by blanks."""
        text = element.get(key)
        if text is None or not text.strip():
            return list(default)
        words = text.split()
        if len(words) != count:
            raise self.error(element, f"{key}={shown(text)} must be {count} numbers, not {len(words)}")
        try:
            values = [float(word) for word in words]
            if isfinite(sum(values)) and "_" not in text:
                return values
        except ValueError:
            pass
        return [self.parsed(element, f"{key}=", word) for word in words]  # says which is wrong

    def parsed(self, element: Element, what: str, word: str, *, infinite: bool = False) -> float:
        """A word as a number; `what` names it in messages."""
        try:
            value = float(word)
        except ValueError:
            raise self.error(element, f"{what}{shown(word)} is not a number") from None
        if "_" in word or not (isfinite(value) or (infinite and value == value)):
            raise self.error(element, f"{what}{shown(word)} is not a {'' if infinite else 'finite '}number")
        return value


def label(element: Element) -> str:
    """An element in messages, with its name if it has one."""
    name = element.get("name")
    return f"<{element.tag} name={shown(name)}>" if name is not None else f"<{element.tag}>"


def _text(content: bytes, path: str) -> str:
    """The text of a file, without its declaration; line numbers stay."""
    found = ENCODING.search(content[:400])
    encoding = found[1].decode("ascii") if found else "utf-8-sig"
    try:
        text = content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise ModelError(f"{path}: it cannot be decoded as {encoding}: {error}") from None
    if declaration := DECLARATION.match(text):
        text = _blank(declaration) + text[declaration.end() :]
    if text.count("<") > 2 * MOST_ELEMENTS:
        raise ModelError(f"{path}: more than {MOST_ELEMENTS} elements")
    return text


def _blank(found: re.Match[str]) -> str:
    """As many line ends as the text that is taken out."""
    return "\n" * found[0].count("\n")
