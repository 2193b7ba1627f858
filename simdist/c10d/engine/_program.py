"""The posts and waits of one rank of a collective, in order: the form in which a backend gives its message schedule.

`("send", peer, bytes, offset)` and `("recv", peer, bytes, offset, reduced)` post a transfer and do not block; the
offset is that in the rank's buffer, in bytes, and `reduced` says whether the data is reduced into it or placed there.
`("wait_send", k)` and `("wait_recv", k)` block until the rank's k-th posted send or receive is done. `("slot", name)`
sets the name under which the transfers posted from then on are matched.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["Program", "ProgramBuilder", "Step"]

Step = (
    tuple[Literal["send"], int, int, int]
    | tuple[Literal["recv"], int, int, int, bool]
    | tuple[Literal["wait_send", "wait_recv"], int]
    | tuple[Literal["slot"], str]
)
Program = list[Step]


class ProgramBuilder:
    """Writes the steps of one rank, and numbers its transfers.

    Example:
        >>> builder = ProgramBuilder()
        >>> builder.wait_send(builder.send(1, 8))
        >>> builder.steps
        [('send', 1, 8, 0), ('wait_send', 0)]
    """

    def __init__(self) -> None:
        self.steps: Program = []
        self._sends = 0
        self._receives = 0

    def send(self, peer: int, size: int, offset: int = 0) -> int:
        """Post a send of `size` bytes; returns its number."""
        self.steps.append(("send", peer, size, offset))
        self._sends += 1
        return self._sends - 1

    def recv(self, peer: int, size: int, offset: int = 0, *, reduced: bool = False) -> int:
        """Post a receive of `size` bytes; returns its number."""
        self.steps.append(("recv", peer, size, offset, reduced))
        self._receives += 1
        return self._receives - 1

    def wait_send(self, index: int) -> None:
        """Wait for a send by its number."""
        self.steps.append(("wait_send", index))

    def wait_recv(self, index: int) -> None:
        """Wait for a receive by its number."""
        self.steps.append(("wait_recv", index))
