"""A reader of LaTeX that finds what would stop the compiler, for tests without one."""

import re


def check_latex(text):
    """Assert that environments and braces close in order and no special character stands raw."""
    lines = [re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines()]
    text = "\n".join(lines)
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert not open_environments
    depth = 0
    for sign in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if sign == "{" else -1
        assert depth >= 0
    assert depth == 0
    for line in lines:
        assert len(re.findall(r"(?<!\\)\$", line)) % 2 == 0, line
        # Outside of mathematics, whose own signs are not for text.
        words = re.sub(r"(?<!\\)\$.*?(?<!\\)\$", "", line)
        for sign in '#_^~<>|"':
            assert not re.search(rf"(?<!\\){re.escape(sign)}", words), (sign, line)
        # A separator of cells stands between spaces, in a row.
        for found in re.finditer(r"(?<!\\)&", words):
            assert words[found.start() - 1 : found.end() + 1] == " & ", line
    assert all(ord(letter) < 0x180 for letter in text)
