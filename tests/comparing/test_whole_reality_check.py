"""The whole protocol on glyphs, as a user starts it, and its page."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Four folds, six trials, two repeats, three losses; two workers."""
    out = tmp_path_factory.mktemp("whole") / "bench"
    weiss = [sys.executable, "-m", "weiss"]
    asked = ["--losses", "mf_cwms,cwms,proxy_anchor", "--trials", "6", "--repeats", "2"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    done = subprocess.run(
        [*weiss, "bench", "reality-check", *asked, "--workers", "2", "--out", str(out)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = out.parent / "report.html"
    subprocess.run([*weiss, "report", str(out), "--out", str(page)], check=True)
    return json.loads((out / "summary.json").read_text()), page


def test_the_whole_protocol_finds_that_training_helps_and_four_networks_beat_one(bench):
    found, _ = bench
    assert found["is_complete"]
    assert found["num_done"] == found["num_units"] == 130
    mean = {}
    for row in found["rows"]:
        for how in ("separated", "concatenated"):
            score = row["scores"][f"{how}.map_at_r"]
            assert len(score["values"]) == 2
            mean[row["name"], how] = score["mean"]
    for loss in ("mf_cwms", "cwms", "proxy_anchor"):
        assert mean[loss, "concatenated"] > mean["untrained", "concatenated"]
        assert mean[loss, "concatenated"] > mean[loss, "separated"]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 400])
def test_its_page_looks_right_in_a_browser(bench, width):
    from browser import check_page

    text = check_page(bench[1], width)
    for word in ("Reality check on glyphs", "MFCWMS", "CWMS", "ProxyAnchor", "untrained"):
        assert word in text
    for part in ("The search for settings", "Significance", "Costs", "Worst classes"):
        assert part in text
