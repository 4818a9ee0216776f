"""Formats the lines of the server's log on standard error.

A log line has a kind, a sentence and a few named fields: names of clients, counts, versions, public
figures. Callers must never pass anything else that was computed from records.
"""

import io
import json
import logging
import time
from typing import Any

__all__ = ["FORMATS", "LOGGER", "log", "set_up"]

FORMATS = ("plain", "json")

LOGGER = "fedvi.server"


def set_up(form: str, stream: io.TextIOBase | None = None) -> logging.Logger:
    """Sends the server's log to a stream, standard error if None: plain lines, or JSON objects.

    Other libraries' loggers are left alone, since their messages may quote private arguments.
    """
    logger = logging.getLogger(LOGGER)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form == "json" else _Plain())
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


def log(kind: str, text: str, level: int = logging.INFO, **fields: Any) -> None:
    """Writes one line: a kind of event, a sentence, and named public values."""
    logging.getLogger(LOGGER).log(level, text, extra={"kind": kind, "fields": fields})


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return _one_line(f"{clock}  {level}{record.getMessage()}")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "kind": getattr(record, "kind", "log"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return json.dumps(content, ensure_ascii=False, default=str)


def _one_line(text: str) -> str:
    """Replaces line breaks and terminal control characters, which outside input may hold."""
    return "".join(
        c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text
    )
