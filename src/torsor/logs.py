"""Structured logs: events of torsor as records of the standard `logging`, under the name "torsor".

A record's message is the name of the event; its `facts` are names and values.  Nothing is written unless the user asks:

    import logging
    from torsor.logs import JsonLines

    handler = logging.FileHandler("run.log")
    handler.setFormatter(JsonLines())                      # one JSON object per line
    logging.getLogger("torsor").addHandler(handler)
    logging.getLogger("torsor").setLevel("INFO")
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("torsor")
LOGGER.addHandler(logging.NullHandler())


def event(name: str, /, **facts: Any) -> None:
    """Log an event."""
    _tell(logging.INFO, name, facts)


def failure(name: str, /, **facts: Any) -> None:
    """Log a failure."""
    _tell(logging.ERROR, name, facts)


def _tell(level: int, name: str, facts: dict[str, Any]) -> None:
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"facts": facts})


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, process, event, and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        words = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname, "process": record.process, "event": record.getMessage(),
        }  # fmt: skip
        if record.exc_info:
            words["error"] = self.formatException(record.exc_info)
        return json.dumps(words | getattr(record, "facts", {}), default=str)
