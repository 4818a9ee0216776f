"""Turns a notebook, with what it printed when it was run last, into a page of the site."""

import base64
import json
from pathlib import Path

__all__ = ["page"]


def page(text: str, beside: Path) -> str:
    """Returns the notebook as Markdown; its pictures are written beside the page.

    Args:
      text: the notebook's JSON.
      beside: the page's path without its ending; pictures are named after it.
    """
    parts, count = [], 0
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        streams = [output for output in cell["outputs"] if "text" in output]
        if streams:
            text = "".join(line for output in streams for line in output["text"])
            parts.append(_output(text))
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                count += 1
                picture = beside.with_name(f"{beside.name}-{count}.png")
                picture.write_bytes(base64.b64decode(data["image/png"]))
                parts.append(
                    f"```{{image}} {picture.name}\n:alt: Figure of the code above.\n:class: output\n```"
                )
            elif "text/plain" in data:
                parts.append(_output("".join(data["text/plain"])))
    return "\n\n".join(parts) + "\n"


def _output(text: str) -> str:
    return f"```{{code-block}} text\n:class: output\n\n{text.rstrip()}\n```"
