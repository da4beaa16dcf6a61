"""The same table in Markdown and LaTeX: nothing given is obeyed, everything compiles."""

import re

import pytest
from reporting.latex import check_latex

from weiss.reporting.document import (
    Document,
    latex_cell,
    latex_table,
    latex_text,
    markdown_table,
    markdown_text,
)
from weiss.reporting.tables import Table

EVIL = r"a_b & 50 % #1 {x} $y$ ~ ^ \input{z} <b> | [q] *r* `s` -- é 日 \x00"
TABLE = Table(
    ("loss", "MAP@R", "paper"),
    (
        ("mf_cwms", "25.3 ± 0.3", None),
        ("a & b", "\N{MINUS SIGN}1,234.5", "20.0"),
        ("none", None, "1"),
    ),
    "95 % of A_B",
    best=frozenset({(0, 1)}),
    groups=(("", 1), ("here & there", 2)),
    apart=frozenset({2}),
)


@pytest.mark.parametrize(
    ("cell", "is_best", "shown"),
    [
        ("25.3 ± 0.3", False, r"$25.3 \pm 0.3$"),
        ("25.3 ± 0.3", True, r"$\mathbf{25.3} \pm 0.3$"),
        ("\N{MINUS SIGN}1,234.5", False, "$-1{,}234.5$"),
        (None, False, "--"),
        ("MF_X", True, r"\textbf{MF\_X}"),
        ("\N{ARABIC-INDIC DIGIT THREE}", False, "?"),  # a digit, but of another font
    ],
)
def test_latex_has_numbers_as_mathematics_the_best_bold_and_dashes(cell, is_best, shown):
    assert latex_cell(cell, is_best=is_best) == shown


def test_latex_escapes_every_special_character():
    shown = latex_text(EVIL)
    check_latex(shown)
    assert r"\_" in shown
    assert r"\textbackslash{}input\{z\}" in shown
    assert "日" not in shown  # no font for it: the compiler would stop
    assert "é" in shown
    assert "--" not in shown


def test_a_row_that_begins_with_a_bracket_or_star_is_no_argument_of_the_line_break():
    table = Table(("a", "b"), (("x", "1"), ("[2cm]", "2"), ("*", "3")), "")
    assert not re.search(r"\\\\\s*[\[*]", latex_table(table, "t"))


def test_a_latex_table_is_one_environment_of_even_rows():
    text = latex_table(TABLE, "tab:x-1")
    check_latex(text)
    assert text.count(r"\begin{table}") == text.count(r"\caption{") == 1
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert r"\multicolumn{2}{c}{here \& there}" in body[0]
    for line in body[1:]:
        assert len(re.findall(r"(?<!\\)&", line)) == 2
    assert r"\begin{tabular}{lrr}" in text
    assert text.count(r"\midrule") == 2  # below the headers, and before what is set apart


def test_columns_of_sentences_share_the_line_and_wide_tables_have_small_letters():
    long = "beta 1, " * 12
    table = Table(("loss", "settings"), (("a", long),), "")
    assert r"\begin{tabular}{lp{0.80\linewidth}}" in latex_table(table, "t")
    table = Table(("a", "b", "c", "d"), (("x", long, long, "y"),), "")
    assert r"{lp{0.35\linewidth}p{0.35\linewidth}l}" in latex_table(table, "t")
    for letters, is_small in (("abcdef", False), ("abcdefg", True)):
        wide = Table(tuple(letters), (tuple(letters),), "")
        assert (r"\footnotesize" in latex_table(wide, "t")) is is_small


def test_letters_without_a_font_are_left_out_unless_there_is_nothing_else():
    assert latex_text("U+2217 \u2217") == "U+2217"
    assert latex_text("\u9f8d") == "?"
    assert latex_text("") == ""


def test_a_markdown_table_is_even_and_shows_the_best_and_what_is_absent():
    lines = markdown_table(TABLE).splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[:5]]
    assert {len(row) for row in rows} == {3}
    assert rows[0][1].strip() == "here &amp; there: MAP@R"
    assert [cell.strip() for cell in rows[1]] == ["---", "---:", "---:"]
    assert rows[2][1].strip() == "**25.3 ± 0.3**"
    assert rows[2][2].strip() == "\N{EN DASH}"
    assert rows[4][0].strip() == "*none*"


def test_markdown_shows_markup_rather_than_obeying_it():
    shown = markdown_text("<script> | *a* _b_ `c` [d](e) # f $g$ & line\nbreak")
    assert "<" not in shown
    assert "\n" not in shown
    for sign in "|*_`[]#$":
        assert re.search(rf"(?<!\\){re.escape(sign)}", shown) is None
    assert markdown_text("1. first").startswith("\\1.")


def test_a_document_writes_three_files_and_both_forms_of_each_figure(tmp_path):
    document = Document(tmp_path / "my page.html", "A <title>", "A lead_")
    document.heading("Part & more")
    document.paragraph("Words.")
    document.table(TABLE)

    def draw(path):
        path.parent.mkdir(exist_ok=True)
        path.write_text("<svg xmlns='http://www.w3.org/2000/svg'></svg>")
        return "What it_shows"

    document.figure("a figure", draw)
    document.figure("nothing", lambda path: None)
    document.code("a = ```1```\n", "Recipe")
    written = document.write()
    names = [path.relative_to(tmp_path).as_posix() for path in written]
    assert names == [
        *("my page.html", "my page.md", "my page.tex"),
        *("my page-figures/a figure.svg", "my page-figures/a figure.pdf"),
    ]
    markdown = (tmp_path / "my page.md").read_text()
    assert r"![What it\_shows](my%20page-figures/a%20figure.svg)" in markdown
    assert "````text\na = ```1```\n````" in markdown
    latex = (tmp_path / "my page.tex").read_text()
    check_latex(latex)
    assert "Made by weiss report" in latex.splitlines()[1]
    assert r"\label{tab:my-page-1}" in latex
    assert "% Figure: my page-figures/a figure.pdf" in latex


@pytest.mark.parametrize("text", ["two\nlines", "two\n\n# lines", "a\rb\x00c"])
def test_neither_a_comment_of_latex_nor_a_summary_of_markdown_ends_early(tmp_path, text):
    document = Document(tmp_path / "a.html", text, "")
    document.heading(text)
    document.code("\x00", text)
    document.write()
    latex, markdown = ((tmp_path / f"a.{suffix}").read_text() for suffix in ("tex", "md"))
    assert all(line.startswith("%") for line in latex.splitlines() if line)
    assert "\x00" not in latex + markdown
    assert "\n# lines" not in markdown
