"""Names of fields as identifiers of CEL."""

from __future__ import annotations

_RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import"),
        *("in", "let", "loop", "namespace", "null", "package", "return", "true", "var", "void"),
        "while",
    )
)


def escape(name: str) -> str:
    """Return a field's name as an identifier of CEL."""
    if name in _RESERVED:
        return f"__{name}__"
    for text, replacement in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__")):
        name = name.replace(text, replacement)
    return name.replace("/", "__slash__")
