import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_parameters_page_is_current() -> None:
    assert (DOCS / "parameters.md").read_text() == runpy.run_path(str(DOCS / "generate.py"))["render"](), "run `make docs`"
