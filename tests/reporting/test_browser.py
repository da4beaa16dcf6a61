"""Reports in a real browser, wide and narrow."""

import pytest
from browser import check_page
from reporting.builders import KINDS, write_comparison

from weiss.reporting import write_report

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_a_report_of_every_kind_stands_alone_and_fits(tmp_path, kind, width):
    write_comparison(tmp_path / "a", kind=kind)
    out = tmp_path / "page.html"
    write_report([tmp_path / "a"], out)
    assert "How to reproduce" in check_page(out, width)
