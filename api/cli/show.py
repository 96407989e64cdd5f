"""Text as it streams to the terminal: one answer as it comes, or the lines of several with labels."""

from typing import Protocol, TextIO


class Show(Protocol):
    """Shows the texts of some streams."""

    def add(self, label: str, text: str) -> None:
        """Show more of the text with this label."""

    def end(self, label: str) -> None:
        """Show what is left of it."""


class ShowOne:
    """Writes the only text as it comes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def add(self, label: str, text: str) -> None:
        """Write it at once."""
        self._out.write(text)
        self._out.flush()

    def end(self, label: str) -> None:
        """End the line."""
        self._out.write("\n")


class ShowLines:
    """Writes the lines of several texts as each is complete, with the text's label before it.

    width: columns of the terminal; longer lines are broken at a space.
    """

    def __init__(self, out: TextIO, width: int) -> None:
        self._out = out
        self._width = width
        self._unwritten: dict[str, str] = {}

    def add(self, label: str, text: str) -> None:
        """Keep it, and write the lines that are complete by now."""
        *lines, rest = (self._unwritten.get(label, "") + text).split("\n")
        for line in lines:
            self._write(label, self._write_full_width(label, line))
        self._unwritten[label] = self._write_full_width(label, rest)

    def end(self, label: str) -> None:
        """Write the last line."""
        if rest := self._unwritten.pop(label, ""):
            self._write(label, rest)

    def _write_full_width(self, label: str, line: str) -> str:
        room = max(20, self._width - len(label) - 1)
        while len(line) > room:
            cut = line.rfind(" ", 1, room + 1)
            cut = cut if cut > 0 else room
            self._write(label, line[:cut])
            line = line[cut:].removeprefix(" ")
        return line

    def _write(self, label: str, line: str) -> None:
        self._out.write(f"{label} {line}\n")
        self._out.flush()
