"""The board of a real run: a silent client must not hold it up."""

import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from typing import Any

import pytest

from simdist.hardware._board import Board, BoardClient

pytestmark = pytest.mark.real  # sockets

KEY = b"key"


def ends(function: Callable[[], Any]) -> bool:
    """True if `function` returns, however slow the machine is."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    board = Board(1, ("127.0.0.1", 0), KEY)
    with socket.create_connection(board.address):
        assert ends(lambda: BoardClient(board.address, KEY).call("end", 0, 0))
        assert ends(board.close)  # otherwise an interrupted run hangs


def test_a_board_closes_while_clients_are_connected_and_ask_nothing() -> None:
    board = Board(1, ("127.0.0.1", 0), KEY)
    client = BoardClient(board.address, KEY)
    assert client.call("wait_ended", 0, 1, 0.0) is True
    assert ends(board.close)
    with pytest.raises((EOFError, OSError)):
        client.call("end", 0, 0)


def test_a_client_with_another_key_is_turned_away() -> None:
    with Board(1, ("127.0.0.1", 0), KEY) as board:
        with pytest.raises((OSError, EOFError, AuthenticationError)):
            BoardClient(board.address, b"another").call("end", 0, 0)
        assert BoardClient(board.address, KEY).call("wait_ended", 0, 1, 0.0) is True
