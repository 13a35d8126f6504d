"""Counts in sentences."""


def plural(count: int, noun: str) -> str:
    """`1 line`, `4,800 lines`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
