"""Get a published data set: use what is there, download the rest, or tell what to do by hand."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weiss._base import checks
from weiss._base.downloads import DownloadError, fetch
from weiss._base.files import alone
from weiss.data.archives import unpack
from weiss.data.official import Archive, OfficialSet
from weiss.data.official_sets import OFFICIAL
from weiss.data.table import Table


def prepare(
    which: str | OfficialSet, root: str | Path, *, say: Callable[[str], None] = print
) -> Table:
    """Make a published data set complete below a folder.

    Complete data stays as it is. Archives in the folder are verified and unpacked. What is still
    missing is downloaded if there is an official address. It may be interrupted at any point and
    called again. The table that it returns has the official counts.

    Args:
        which: a short name (`weiss.data.official_sets.OFFICIAL`), or the description itself.
        root: the folder.
        say: called with a sentence for each step.

    Raises:
        FileNotFoundError: the data must be fetched by hand; the message says from where.
        DownloadError: the same, after trying to download.
        ValueError: an archive or the data is not what was published.
    """
    if isinstance(which, str):
        which = OFFICIAL[checks.one_of("name", which, OFFICIAL, "weiss data prepare")]
    official, root = which, Path(root)
    if (table := _complete(official, root)) is not None:
        say(f"{official.title} is complete in {root}: {len(table):,} images; nothing to do.")
        return table
    root.mkdir(parents=True, exist_ok=True)
    with alone(root / official.name):
        for step in (_unpack_what_is_there, _download):
            # Also after waiting: another process may have done it.
            if _complete(official, root) is None:
                step(official, root, say)
        table = _read(official, root)
    say(f"{official.title} is complete in {root}: {len(table):,} images.")
    say(f"Terms: {official.terms} {official.home}")
    return table


def _read(official: OfficialSet, root: Path) -> Table:
    """Return the table, which must have the official counts."""
    table = official.read(root)
    differences = official.differences(table)
    if differences:
        raise ValueError(
            f"{official.title} in {root} must have the official counts: {'; '.join(differences)}. "
            "Restore the official lists: remove them and prepare it again."
        )
    return table


def _complete(official: OfficialSet, root: Path) -> Table | None:
    """Return the table if all of it is there."""
    try:
        return _read(official, root)
    except (FileNotFoundError, ValueError):
        return None


def _unpack_what_is_there(official: OfficialSet, root: Path, say: Callable[[str], None]) -> None:
    for archive in official.archives:
        file = root / archive.name
        if not file.is_file():
            continue
        if archive.checksum is not None and not archive.checksum.fits(file):
            if archive.url is not None:
                continue  # the download renames it
            archive.checksum.verify(
                file, "Fetch it again; if it is another edition, unpack it yourself and remove it."
            )
        _unpack(archive, root, say)


def _download(official: OfficialSet, root: Path, say: Callable[[str], None]) -> None:
    by_hand = (
        f"{official.by_hand.format(root=root)} Then run again: "
        f"weiss data prepare {official.name} --root {root}"
    )
    if not any(archive.url for archive in official.archives):
        try:
            _read(official, root)
        except (FileNotFoundError, ValueError) as problem:
            raise FileNotFoundError(
                f"{official.title} is not complete in {root} and has no address to download from. "
                f"{by_hand}\nWhat was found: {problem}"
            ) from problem
    with suppress(FileNotFoundError):
        # An archive contains the official folder and must not be unpacked inside of it.
        if official.locate(root) == root:
            raise ValueError(
                f"{root} is the official folder of {official.title} itself, and not complete. "
                f"To fetch it again: weiss data prepare {official.name} --root {root.parent}"
            )
    for archive in official.archives:
        if archive.url is None:
            continue
        say(f"Fetching {archive.url} to {root / archive.name}")
        try:
            fetch(archive.url, root / archive.name, checksum=archive.checksum)
        except DownloadError as error:
            raise DownloadError(f"{error}\n{by_hand}") from error
        _unpack(archive, root, say)


def _unpack(archive: Archive, root: Path, say: Callable[[str], None]) -> None:
    if not archive.name.endswith(".mat"):
        say(f"Unpacking {root / archive.name}; it may be deleted afterwards.")
        unpack(root / archive.name, root)
