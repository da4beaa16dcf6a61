"""Glyphs: the built-in data set, drawn from the fonts that matplotlib ships.

A class is a character; its images are drawn by different fonts: 32 x 32, grey, white on black,
moved a little at random. Test characters are never seen in training. They are drawn in seconds and
cached; the bytes are the same everywhere for given fonts and a given Pillow.
"""

import hashlib
import math
import unicodedata
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont, features

from weiss._base import draws
from weiss._base.arrays import Array
from weiss._base.files import cache_folder, replacing
from weiss.data.sources import Pixels
from weiss.data.table import Table

SIDE = 32
OVERSAMPLE = 4
"""Glyphs are drawn and moved at four times the size, then averaged down for smooth edges."""
EM = 26
"""Pixels of a font's em square; leaves room to move."""
ROOM = 26
"""Ink wider or higher than this many pixels is scaled down to it."""
MIN_FONTS, MIN_FONTS_OF_MANY = 8, 3
"""Characters that fewer fonts draw are left out; with ``many`` the second number holds."""
IMAGES_OF_MANY = 6
"""Images of every class with ``many``: its fonts at random, then the same ones moved otherwise."""
UNICODE_FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
# Computer Modern has TeX's order of symbols, so only its letters and digits match their codes. Left
# out: fonts of symbols in private codes or of enlarged symbols (cmsy, cmex, STIXNonUni, STIXSiz,
# Display), which do not draw the character.
LETTER_FONTS = ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10", "cmmi10")
KINDS = ("Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Po", "Ps", "Pe", "Pi", "Pf", "Sm", "Sc", "So")
"""Unicode's letters, numbers, punctuation and symbols; no marks, spaces, controls, modifiers."""
PATTERNS = (range(0x2500, 0x25A0), range(0x2800, 0x2900))
"""Box drawing, blocks and Braille: patterns of cells, which differ by less than jitter moves."""
ALIKE = 0.07
"""Two characters whose drawings differ by less than this share of their ink, in the median over
fonts, are look-alikes (Latin, Greek and Cyrillic A; hyphen and minus); the first of them stays."""
BLOCK = 256
"""Characters that are compared with all others at a time: a matrix of each font is held."""
TURN, SHEAR, GROW, SHIFT = math.radians(8), 0.1, 0.1, 1.5
"""Jitter, each uniform between minus and plus: radians, slope, share of the size, pixels."""


def glyphs(
    *,
    jitter: bool = True,
    many: bool = False,
    seed: int = 0,
    fonts: Path | None = None,
    cache: Path | None = None,
) -> Table:
    """Return the glyphs; half of the characters train, the others test.

    Args:
        many: many small classes: also characters that few fonts have, six images of each.
        jitter: turn, slant, scale and shift every image a little, at random.
        seed: of the jitter; the split and the characters are always the same.
        fonts: the folder of the fonts; matplotlib's by default.
        cache: the folder for the images; the user's cache folder by default.

    Returns:
        The table.
    """
    fonts = fonts or matplotlib_fonts()
    folder = (cache or cache_folder()) / "glyphs"
    if many and not jitter:
        raise ValueError(
            "jitter must be True with many, whose classes repeat a font and move it otherwise; got "
            "False. Leave out one of the two."
        )
    path = folder / f"{_fingerprint(fonts, jitter, many, seed)}.npz"
    drawn = _cached(path)
    if drawn is None:
        drawn = _draw_all(fonts, jitter, many, seed)
        try:
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **drawn)
        except OSError as error:
            warnings.warn(f"the glyphs cannot be cached: {error}", stacklevel=2)
    pixels, codes, labels, names = (drawn[key] for key in ("pixels", "codes", "labels", "fonts"))
    class_names = tuple(f"U+{code:04X} {chr(code)}" for code in codes)
    item_names = [f"{class_names[c]} in {f}" for c, f in zip(labels, names, strict=True)]
    # At random: in the order of codes, Latin would train and arrows would test.
    tests = np.zeros(len(codes), dtype=bool)
    tests[draws.permutation(len(codes), 0, draws.SPLITS)[: len(codes) // 2]] = True
    splits = np.where(tests[labels], "test", "train")
    return Table(
        "glyphs_many" if many else "glyphs", Pixels(pixels, item_names), labels, class_names, splits
    )


def matplotlib_fonts() -> Path:
    """Return the folder of matplotlib's fonts, without importing matplotlib."""
    spec = find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "matplotlib must be installed for the glyphs, which are drawn from its fonts. "
            "Install it with: pip install matplotlib"
        )
    return Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"


def _cached(path: Path) -> dict[str, Array] | None:
    """Return the drawings in a file; None if there is none or it is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return {key: kept[key] for key in ("pixels", "codes", "labels", "fonts")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _fingerprint(fonts: Path, jitter: bool, many: bool, seed: int) -> str:
    """Return a name for the drawings; it changes with fonts, Pillow and the code in this file."""
    freetype, unicode = features.version("freetype2"), unicodedata.unidata_version
    versions = f"{PIL.__version__} {freetype} {unicode} {jitter} {many} {seed}"
    digest = hashlib.sha256(versions.encode() + Path(__file__).read_bytes())
    for name in (*UNICODE_FONTS, *LETTER_FONTS):
        digest.update((fonts / f"{name}.ttf").read_bytes())
    return digest.hexdigest()[:24]


def _draw_all(fonts: Path, jitter: bool, many: bool, seed: int) -> dict[str, Array]:
    drawings = _still(fonts, MIN_FONTS_OF_MANY if many else MIN_FONTS)
    pixels, labels, names = [], [], []
    for c, (code, by_font) in enumerate(drawings.items()):
        drawn = list(by_font.items())
        if many:
            # At random: the first fonts of all are styles of one family.
            order = draws.permutation(len(drawn), 0, draws.FONTS, code)
            drawn = [drawn[order[i % len(drawn)]] for i in range(IMAGES_OF_MANY)]
        for i, (name, image) in enumerate(drawn):
            pixels.append(_small(_moved(image, seed, code, i) if jitter else image))
            labels.append(c)
            names.append(name)
    return {
        "pixels": np.stack(pixels),
        "labels": np.array(labels, dtype=np.int64),
        "codes": np.array(list(drawings), dtype=np.int64),
        "fonts": np.array(names),
    }


def _still(fonts: Path, fewest: int) -> dict[int, dict[str, Image.Image]]:
    """Return the drawings of all classes, not moved: by code, then by font, of at least so many."""
    drawings = {
        code: _distinct({name: _draw(font, chr(code)) for name, font in by.items()})
        for code, by in _characters(fonts).items()
        if len(by) >= fewest
    }
    drawings = {code: by for code, by in drawings.items() if len(by) >= fewest}
    return {code: drawings[code] for code in _without_look_alikes(drawings)}


def _characters(fonts: Path) -> dict[int, dict[str, ImageFont.FreeTypeFont]]:
    """Return the characters to draw, by code, and the fonts that have them by name."""
    from fontTools.ttLib import TTFont

    found: dict[int, dict[str, ImageFont.FreeTypeFont]] = {}
    for name in (*UNICODE_FONTS, *LETTER_FONTS):
        path = fonts / f"{name}.ttf"
        with TTFont(path, lazy=True) as tables:
            codes = sorted(tables.getBestCmap())
        # The basic layout is part of Pillow; the other one depends on libraries of the machine.
        font = ImageFont.truetype(path, EM * OVERSAMPLE, layout_engine=ImageFont.Layout.BASIC)
        for code in codes:
            character = chr(code)
            if name in LETTER_FONTS and not (character.isascii() and character.isalnum()):
                continue
            if name == "cmmi10" and character.isdigit():
                continue  # text figures: another form of the digits
            if _is_wanted(character):
                found.setdefault(code, {})[name] = font
    return {code: found[code] for code in sorted(found)}


def _is_wanted(character: str) -> bool:
    # A composed character, a base and a mark, looks like the base at this size.
    composed = unicodedata.decomposition(character)
    pattern = any(ord(character) in codes for codes in PATTERNS)
    # Fonts draw the replacement character as a box.
    box = character == "\ufffd"
    return unicodedata.category(character) in KINDS and not (composed or pattern or box)


def _draw(font: ImageFont.FreeTypeFont, character: str) -> Image.Image:
    """Draw a character, its ink in the middle of an oversampled tile, scaled down if too large."""
    side = SIDE * OVERSAMPLE
    left, top, right, bottom = font.getbbox(character)
    width, height = max(int(right - left), 1), max(int(bottom - top), 1)
    tile = Image.new("L", (max(width, side), max(height, side)))
    corner = ((tile.width - width) // 2 - left, (tile.height - height) // 2 - top)
    ImageDraw.Draw(tile).text(corner, character, fill=255, font=font)
    most = max(width, height) / (ROOM * OVERSAMPLE)
    if most > 1 or tile.size != (side, side):
        scale = max(most, 1.0)
        tile = _transformed(tile, (scale, 0.0, 0.0, scale), (0.0, 0.0))
    return tile


def _moved(tile: Image.Image, seed: int, code: int, image: int) -> Image.Image:
    turn, shear, grow, right, down = (
        2 * draws.uniform(seed, draws.JITTER, code, image, np.arange(5)) - 1
    )
    scale = 1 / (1 + GROW * grow)
    cos, sin = math.cos(TURN * turn) * scale, math.sin(TURN * turn) * scale
    slope = SHEAR * shear
    shift = (SHIFT * OVERSAMPLE * right, SHIFT * OVERSAMPLE * down)
    return _transformed(tile, (cos, sin + slope * cos, -sin, cos - slope * sin), shift)


def _transformed(
    tile: Image.Image, matrix: tuple[float, float, float, float], shift: tuple[float, float]
) -> Image.Image:
    """Map output pixels through a matrix about the centres of output and tile."""
    # Rounded to 1/65536: products with pixel positions are then exact, so the bytes do not depend
    # on a machine's sine or on fused multiplications and additions.
    a, b, c, d = (round(value * 65536) / 65536 for value in matrix)
    x, y = (round(value * 65536) / 65536 for value in shift)
    side = SIDE * OVERSAMPLE
    middle = side / 2
    to_x, to_y = tile.width / 2 - a * middle - b * middle, tile.height / 2 - c * middle - d * middle
    return tile.transform(
        (side, side),
        Image.Transform.AFFINE,
        (a, b, to_x - x, c, d, to_y - y),
        Image.Resampling.BILINEAR,
    )


def _small(tile: Image.Image) -> Array:
    return np.asarray(tile.reduce(OVERSAMPLE))


def _distinct(drawings: dict[str, Image.Image]) -> dict[str, Image.Image]:
    """Leave out drawings without ink, and those that are the same in another font.

    Many slanted or bold styles use the symbols of the upright one.
    """
    kept: dict[bytes, str] = {}
    for name, image in drawings.items():
        if image.getbbox() is not None:
            kept.setdefault(_small(image).tobytes(), name)
    return {name: drawings[name] for name in kept.values()}


def _without_look_alikes(still: dict[int, dict[str, Image.Image]]) -> list[int]:
    """Return the codes to keep: of characters that look alike the one with the lowest code."""
    codes = list(still)
    names = (*UNICODE_FONTS, *LETTER_FONTS)
    inks = np.zeros((len(names), len(codes), SIDE * SIDE), dtype=np.uint8)
    for i, code in enumerate(codes):
        for name, image in still[code].items():
            inks[names.index(name), i] = _small(image).ravel()
    kept: list[int] = []
    for start in range(0, len(codes), BLOCK):
        differences = np.stack([_differences(ink[start : start + BLOCK], ink) for ink in inks])
        for i in range(start, min(start + BLOCK, len(codes))):
            against = differences[:, i - start, kept]
            # Characters that no font has both of are not alike.
            typical = np.nanmedian(against[:, ~np.isnan(against).all(axis=0)], axis=0)
            if not (typical < ALIKE).any():
                kept.append(i)
    return [codes[i] for i in kept]


def _differences(some: Array, others: Array) -> Array:
    """Return |a - b|^2 against the ink of both, float32: 0 if they are the same, 1 if apart.

    A drawing without ink stands for one that the font does not have: NaN.
    """
    # Whole numbers in float64: products and sums are exact on every machine.
    left, right = some.astype(np.float64), others.astype(np.float64)
    square, squares = (left**2).sum(axis=1), (right**2).sum(axis=1)
    both = np.where((square > 0)[:, None] & (squares > 0), square[:, None] + squares, np.nan)
    return ((both - 2 * left @ right.T) / both).astype(np.float32)
