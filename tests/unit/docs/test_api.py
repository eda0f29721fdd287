import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_made_from_the_protos() -> None:
    subprocess.run([sys.executable, ROOT / "protos/document.py", "--check"], check=True)


def test_the_page_tells_types_presence_and_comments() -> None:
    lines = (ROOT / "docs/api.md").read_text().splitlines()
    assert "| `top_k` | 2 | uint32, optional | Keep the k most likely tokens; 0 keeps all. Default: 0. |" in lines
    assert "| `choices` | 14 | [Choices](#choices), one of `constraint` | One of these texts. |" in lines
    assert "| `completions` | 2 | list of [Completion](#completion) | By index. |" in lines
    assert "| `FINISH_REASON_LENGTH` | 2 | max_tokens, or the end of the context. |" in lines
    (bias,) = (line for line in lines if line.startswith("| `logit_bias` "))
    assert bias.startswith("| `logit_bias` | 8 | map of uint32 to float | Added to the logits of tokens, by id.")
    (prefill,) = (line for line in lines if line.startswith("| `Prefill` "))
    assert "| stream of [PrefillRequest](#prefillrequest) | stream of [PrefillResponse](#prefillresponse) |" in prefill


def test_every_link_within_the_page_leads_somewhere() -> None:
    page = (ROOT / "docs/api.md").read_text()
    headings = {line.lstrip("# ").lower() for line in page.splitlines() if line.startswith("#")}
    targets = {part.split(")")[0] for part in page.split("](#")[1:]}
    assert len(targets) > 20
    assert targets <= headings
