"""TableRequest: a request whose numbers are in columns."""

from dataclasses import dataclass, field

from headrace.schedulers.columns import Columns
from headrace.schedulers.request import Request


@dataclass(slots=True, eq=False)
class TableRequest(Request):
    """A request; while it holds a row, its numbers are in the columns and its last ids in the row's tail."""

    columns: Columns = field(kw_only=True)
    last_step: int = 0
    """Once preempted, the last step that computes it."""

    @property
    def num_known(self) -> int:
        """Tokens whose ids the core has."""
        return len(self.ids) if self.row is None else int(self.columns.num_known[self.row])
