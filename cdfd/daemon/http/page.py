"""The page for people: markup, style and script in one answer, which loads nothing but the daemon's own documents."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from string import Template


def policy() -> str:
    """The Content-Security-Policy: the page's own script and style by their hashes, requests to the daemon, and nothing else.

    Text that gets into the markup could neither run nor load anything. The script cannot turn text into markup at all.
    """
    return (
        f"default-src 'none'; script-src {_hash('page.js')}; style-src {_hash('page.css')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


@cache
def render() -> bytes:
    """The page. It is the same for everyone: the script loads the rest."""
    page = Template(_text("page.html")).substitute(style=_text("page.css"), script=_text("page.js"))
    return page.encode()


@cache
def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    return f"'sha256-{b64encode(sha256(_text(name).encode()).digest()).decode()}'"
