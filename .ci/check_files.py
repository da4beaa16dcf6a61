"""Two simple checks of files, for the hooks in .pre-commit-config.yaml."""

import argparse
import sys
from pathlib import Path


def problems(path: Path, end_of_file: bool, max_kilobytes: int | None) -> list[str]:
    """Return what is wrong with a file."""
    found = []
    content = path.read_bytes()
    if end_of_file and content and (content[-1:] != b"\n" or content[-2:] == b"\n\n"):
        found.append(f"{path} must end with one newline")
    if max_kilobytes is not None and len(content) > 1024 * max_kilobytes:
        found.append(f"{path} must have at most {max_kilobytes} kB; it has {len(content) // 1024}")
    return found


def main() -> None:
    """Check the files that are named; exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--end-of-file", action="store_true", help="one newline at the end")
    parser.add_argument("--max-kilobytes", type=int, help="the largest size of a file")
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    found = [
        problem
        for path in given.files
        if path.is_file()
        for problem in problems(path, given.end_of_file, given.max_kilobytes)
    ]
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
