"""A hook of MkDocs: lists every decision page in the navigation, so that a new page needs no second entry."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_SECTION = "Decisions"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the section's list with the pages in `decisions/`, by number."""
    docs = Path(config.docs_dir)
    pages = [path.relative_to(docs).as_posix() for path in sorted((docs / "decisions").glob("*.md"))]
    config.nav = [{_SECTION: pages} if _SECTION in entry else entry for entry in config.nav or []]
    return config
