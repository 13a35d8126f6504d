"""Text from outside, as a terminal may print it."""


def plain(text: str) -> str:
    """`text` with everything that a terminal would not print as a character written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
