"""What a registry asks for when it answers 401: the `WWW-Authenticate` header."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SCHEME = re.compile(r"^\s*([A-Za-z]+)\s*(.*)$", re.DOTALL)
_PARAMETER = re.compile(r'([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge: the scheme in lower case, and its parameters."""

    scheme: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, header: str) -> "Challenge":
        """Read a header with one challenge, as registries send it (RFC 9110, 11.6.1)."""
        found = _SCHEME.match(header)
        if found is None:
            return cls("", {})
        parameters = {
            name.lower(): re.sub(r"\\(.)", r"\1", quoted) or bare for name, quoted, bare in _PARAMETER.findall(found[2])
        }
        return cls(found[1].lower(), parameters)
