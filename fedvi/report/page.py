"""Renders a report as one self-contained HTML page, and as Markdown; needs the extra `report`.

Its texts are in ``sections``, its layout in ``templates``.
"""

import base64
import re
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.report import sections, sheets
from fedvi.report.comparison_section import comparison_section
from fedvi.report.contents import Contents
from fedvi.report.declared_section import declared_section
from fedvi.report.front import Front, front
from fedvi.report.sections import Section
from fedvi.report.sheets import Sheet

__all__ = ["Said", "html", "markdown", "said"]

# The visible rows of a table; the rest unfolds.
_SEEN = 40
_MOST_ROWS = 1000
_MARKDOWN = str.maketrans({**{sign: f"\\{sign}" for sign in "\\`*_[]<>|#"}, "\n": " ", "\r": " "})


class Said(NamedTuple):
    """A report with its layout and figures, made once for all formats.

    Attributes:
      contents: its values.
      banner: lines above everything.
      front: the first page.
      in_short: (what, value) of the study and its run.
      sections: in order.
      sheets: the privacy statements.
    """

    contents: Contents
    banner: tuple[str, ...]
    front: Front
    in_short: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    sheets: tuple[Sheet, ...]


def said(contents: Contents) -> Said:
    """Lays a report out.

    Raises:
      ConfigError: matplotlib is not installed.
    """
    posterior, *others = sections.sections(contents)
    first = front(contents)
    if first.is_whole:
        posterior = posterior._replace(figures=())
    return Said(
        contents,
        sections.banner(contents),
        first,
        sections.in_short(contents),
        tuple(
            filter(
                None, (posterior, comparison_section(contents), *others, declared_section(contents))
            )
        ),
        sheets.sheets(contents),
    )


def html(report: Said) -> str:
    """Returns a report as the text of an HTML file.

    Guarantee: it runs no script and names no address that a browser would fetch: figures and style are
    inside, and its policy for content forbids all else. Every text is escaped.

    Raises:
      ConfigError: Jinja is not installed.
    """
    text: str = _environment(escaped=True).get_template("page.html").render(report._asdict())
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)


def markdown(report: Said) -> str:
    """Returns a report as the text of a Markdown file, with figures described in words.

    Raises:
      ConfigError: Jinja is not installed.
    """
    text: str = _environment(escaped=False).get_template("page.md").render(report._asdict())
    return text


def _environment(escaped: bool) -> Any:
    try:
        import jinja2
    except ImportError:
        raise errors.ConfigError(
            "a report needs Jinja, which is not installed", "pip install 'fedvi[report]'"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedvi.report"),
        autoescape=escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"seen": _SEEN, "most_rows": _MOST_ROWS}
    environment.filters |= {"inline": _inline, "md": _escaped}
    return environment


def _inline(svg: str) -> str:
    """Returns a data URL with the picture's content."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _escaped(text: str) -> str:
    """Escapes Markdown's special characters.

    >>> _escaped("x_1 | a*b")
    'x\\\\_1 \\\\| a\\\\*b'
    """
    return text.translate(_MARKDOWN)
