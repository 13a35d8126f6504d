"""What reading a source left out, counted, and in sentences for the user."""

from dataclasses import dataclass, field

from pdtrace.analysis.counted import plural


@dataclass(slots=True)
class Skipped:
    """What reading one source left out."""

    not_json: int = 0
    """Lines that are not JSON."""
    log_lines: int = 0
    """Lines of a log that speak of other things."""
    too_long: int = 0
    """Lines above the size of one message."""
    not_traces: dict[str, int] = field(default_factory=dict)
    """Messages of another kind, by kind."""
    cut: list[str] = field(default_factory=list)
    """Files that end inside a message."""
    junk: list[str] = field(default_factory=list)
    """Files that cannot be read to their end."""
    over: list[str] = field(default_factory=list)
    """Sentences about files of which only a part was decompressed."""
    said: list[str] = field(default_factory=list)
    """Sentences of a running trace store."""
    incomplete: bool = False
    """It did not give all that was asked for."""

    def count_not_traces(self, kind: str) -> None:
        """One more message that is no trace export but `kind`."""
        self.not_traces[kind] = self.not_traces.get(kind, 0) + 1

    def sentences(self, source: object) -> list[str]:
        """The same for the user, with counts."""
        said = [*self.said]
        said += [f"{name} ends inside a message, which was skipped" for name in self.cut]
        said += [f"{name} has unreadable bytes; the rest was skipped" for name in self.junk]
        said += [
            f"{what} when it is decompressed; the rest was skipped (--max-decompressed-bytes)"
            for what in self.over
        ]
        if self.too_long:
            said.append(f"{source}: skipped {plural(self.too_long, 'line')} of more than 1 GiB")
        if self.not_json:
            said.append(f"{source}: skipped {plural(self.not_json, 'line')} that cannot be read")
        if self.log_lines:
            lines = plural(self.log_lines, "other line")
            said.append(f"{source}: passed over {lines} of the log")
        for kind, count in self.not_traces.items():
            said.append(f"{source}: skipped {plural(count, 'message')}: {kind}")
        return said
