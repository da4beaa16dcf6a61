"""What the hooks of the site do to a page: the room in formulas, and lines that must not end."""

import importlib.util
import re
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[2] / "docs" / "hooks"


def hook(name):
    found = importlib.util.spec_from_file_location(f"hook_{name}", HOOKS / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def formulas():
    pytest.importorskip("latex2mathml", reason="the site needs the extra `docs`")
    return hook("formulas")


def marked(formula):
    return rf'<span class="arithmatex">\({formula}\)</span>'


def room(written, sign):
    """The room to the left and the right of a sign."""
    found = re.search(rf'lspace="([^"]*)" rspace="([^"]*)">{re.escape(sign)}</mo>', written)
    return found and (found[1], found[2])


@pytest.mark.parametrize(
    ("formula", "sign", "left_and_right"),
    [
        (r"\tanh x", "tanh", ("0", "0.167em")),
        (r"\nu \log \frac{a}{b}", "log", ("0.167em", "0.167em")),
        (r"\log(1 + x)", "log", ("0", "0")),
        (r"1 - \cos", "cos", ("0", "0")),
        (r"\min_S H", "min", ("0", "0.167em")),
        ("E|M|", "&#x0007C;", ("0", "0")),
        (r"\lVert m \rVert", "&#x02016;", ("0", "0")),
        ("a / b", "&#x0002F;", ("0.1em", "0.1em")),
    ],
)
def test_signs_and_names_have_the_room_of_print(formulas, formula, sign, left_and_right):
    assert room(formulas.translated(formula), sign) == left_and_right


def test_a_thin_space_has_a_width_that_browsers_know(formulas):
    assert '<mspace width="0.167em"' in formulas.translated(r"a \thinspace b")


def test_no_line_ends_between_a_formula_and_what_belongs_to_it(formulas):
    content = formulas.on_page_content(f"averages ({marked('n_c')} members), {marked('x')}.")
    pieces = re.findall(r'<span class="unbroken">(.*?)</span>', content)
    assert [re.sub(r"<math.*</math>", "M", each) for each in pieces] == ["(M", "M."]


def test_a_long_formula_may_be_scrolled_and_keeps_its_comma(formulas):
    content = formulas.on_page_content(f"so {marked('a + ' * 20 + 'b')}, then")
    assert re.search(r'<span class="long-formula"><math.*</math></span>, then', content)


def test_options_are_not_cut_and_other_code_is_left_as_it_is():
    content = hook("unbroken").on_page_content("<code>weiss x --no-images a-b</code> -- <b>--c</b>")
    assert content == (
        '<code>weiss x <span class="unbroken">--no-images</span> a-b</code> -- <b>--c</b>'
    )


def test_numbers_of_a_table_hold_their_units():
    content = hook("unbroken").on_page_content("<td>25.9 ± 0.4, 45 MiB or 3 sets</td> 1 ms")
    assert content == "<td>25.9&nbsp;±&nbsp;0.4, 45&nbsp;MiB or 3 sets</td> 1 ms"
