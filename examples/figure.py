"""Takes a figure out of a report, as an SVG file.

    fedvi simulate examples/trauma/study.toml --pooled --quiet --out run
    fedvi report run --pooled
    python examples/figure.py run beside examples/trauma/figure.svg

A section is named as in the page's address: front, posterior, beside, prior, convergence, participation,
influence, privacy.
"""

import argparse
import base64
import re
from pathlib import Path


def main():
    """Writes the first figure of a section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run with a report in it")
    parser.add_argument("section", help="whose first figure to take")
    parser.add_argument("file", type=Path, help="the SVG file to write")
    args = parser.parse_args()
    page = (args.run / "report" / "report.html").read_text(encoding="utf-8")
    section = page.partition(f'aria-labelledby="{args.section}"')[2].partition("</section>")[0]
    found = re.search(r'<img class="broad" src="data:image/svg\+xml;base64,([^"]+)"', section)
    if found is None:
        raise SystemExit(f"{args.run}: its report has no figure in the section {args.section!r}")
    args.file.write_bytes(base64.b64decode(found[1]))


if __name__ == "__main__":
    main()
