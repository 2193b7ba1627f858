"""Which waits are checked when a key is set: worlds of thousands of ranks meet at one store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from simdist.c10d.surface._store_server import StoreServer


def test_a_change_concerns_only_those_that_wait_for_the_key() -> None:
    server = StoreServer("localhost:1")
    asked: list[str] = []

    def never(name: str) -> Callable[[], bool]:
        def over() -> bool:
            asked.append(name)
            return False

        return over

    one, other, connecting = (cast(Any, object()) for _ in range(3))
    missing: set[str] = set()
    with (
        server.expect(one, ["a", "b"], missing, never("one")),
        server.expect(other, ["b"], set(), never("other")),
        server.expect(connecting, [], set(), never("connecting")),
    ):
        server.changed("a")
        server.changed("b")
        server.changed("c")
    server.changed("a")

    assert asked == ["one", "one", "other"]
    assert missing == {"a", "b"}
