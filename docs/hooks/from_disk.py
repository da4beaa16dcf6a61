"""Pages opened from disk, without a server: the theme's script wants its index as a script there.

Without that file it stops, and with it the switch between light and dark. Searching itself needs a
server: browsers give a page from disk no worker.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority


@event_priority(-100)  # after the search plugin has written its index
def on_post_build(config: MkDocsConfig) -> None:
    """Write the index of the search once more, as a script."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")
