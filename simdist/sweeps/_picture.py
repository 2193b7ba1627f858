"""A picture of a crash: the ranks' actions around it and the states of files, one column for each event.

An SVG that needs no library. Time goes from left to right, but all columns have the same width: most effects follow
each other at once, and their order matters. The light part of a file's bar was written and not synced, the dark part
was synced; behind the crash stands what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from simdist.result import Event, RunResult

__all__ = ["picture"]

_BEFORE, _AFTER = 18, 8  # columns on both sides of the crash
_COLUMN, _ROW, _LEFT, _TOP = 56, 30, 150, 78
_INK, _SOFT, _FAINT, _RED = "#1f2933", "#64707d", "#d5dae0", "#c5401b"
_WRITTEN, _SYNCED = "#f2ddb0", "#2a62a6"
_SHOWN = ("storage", "issue", "step", "fault", "restart", "exit")
_MOST_FILES = 12


def picture(result: RunResult, title: str) -> str:
    """Return the picture of a run with a crash, around the last of its faults that struck."""
    events = [event for event in result.events if event.kind in (*_SHOWN, "disk")]
    crash = max((at for at, event in enumerate(events) if _is_crash(event)), default=0)
    shown = [event for event in events[:crash] if event.kind in _SHOWN][-_BEFORE:]
    column = len(shown)
    shown += [event for event in events[crash:] if event.kind in _SHOWN][: _AFTER + 1]
    left = {str(event.data["path"]): str(event.data["text"]) for event in events[crash:] if event.kind == "disk"}
    return "\n".join(_drawn(shown, column, left, sorted({r.rank for r in result.ranks}), title, events[:crash])) + "\n"


def _is_crash(event: Event) -> bool:
    return event.kind == "fault" and not str(event.data["text"]).endswith("up again")


def _drawn(
    shown: Sequence[Event], crash: int, left: dict[str, str], ranks: Sequence[int], title: str, past: Sequence[Event]
) -> Iterator[str]:
    files = _files(shown, left)[:_MOST_FILES]
    width = _LEFT + _COLUMN * (len(shown) + 1) + 330
    lines = [*_wrapped(title, width // 7)]
    top = _TOP + 15 * (len(lines) - 1)
    height = top + _ROW * (len(ranks) + len(files) + 1) + 34
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    for number, line in enumerate(lines):
        yield _text(16, 24 + 15 * number, line, size=13)
    rows = {f"rank {rank}": top + _ROW * row for row, rank in enumerate(ranks)}
    below = top + _ROW * (len(ranks) + 1)
    rows |= {path: below + _ROW * row for row, path in enumerate(files)}
    end = _LEFT + _COLUMN * len(shown)
    for name, y in rows.items():
        yield f'<line x1="{_LEFT}" y1="{y}" x2="{end}" y2="{y}" stroke="{_FAINT}"/>'
        yield _text(_LEFT - 10, y + 4, name if len(name) < 22 else f"...{name[-19:]}", align="end")
    yield from _bars(shown, crash, rows, past)
    last: int | None = None
    for number, event in enumerate(shown):
        x = _LEFT + _COLUMN * number
        if event.time_ns != last:
            last = event.time_ns
            yield _text(x, top - 22, f"{event.time_ns / 1e6:.6g} ms", color=_SOFT, size=9)
        lane = rows.get(f"rank {event.rank}")
        if event.kind == "restart":
            yield _line(x, top - 14, height - 24, f'stroke="{_SOFT}" stroke-dasharray="4 3"')
            yield _text(x + 3, height - 12, "every rank starts again", color=_SOFT, size=10)
        elif lane is not None and not _is_crash(event):
            bad = event.kind in ("exit", "fault")
            yield f'<circle cx="{x + 4}" cy="{lane}" r="4" fill="{_RED if bad else _INK}"/>'
            yield _text(x, lane - 8, _word(event), color=_RED if bad else _INK, size=10)
    x = _LEFT + _COLUMN * crash
    yield _line(x, top - 14, height - 24, f'stroke="{_RED}" stroke-width="2"')
    if crash < len(shown):
        yield _text(x + 3, top - 34, str(shown[crash].data["text"]), color=_RED, size=11)
    for path in files:
        if path in left:
            yield _text(end + 8, rows[path] + 4, left[path], color=_RED, size=11)
    yield "</svg>"


def _files(shown: Sequence[Event], left: dict[str, str]) -> list[str]:
    found = dict.fromkeys(left)
    for event in shown:
        if event.kind == "storage":
            found |= dict.fromkeys(str(event.data[name]) for name in ("path", "to") if event.data[name])
    return list(found)


def _bars(shown: Sequence[Event], crash: int, rows: dict[str, int], past: Sequence[Event]) -> Iterator[str]:
    """Yield for each file the stretches in which it has bytes that are not synced, and in which it has none."""
    state: dict[str, str] = {}
    first = shown[0] if shown else None
    for event in past:
        if event is first:
            break
        _follow(state, event)
    for number, event in enumerate(shown[: crash + 1]):
        x = _LEFT + _COLUMN * number
        if number < crash:
            _follow(state, event)
            for path, color in state.items():
                if path in rows:
                    yield f'<rect x="{x + 4}" y="{rows[path] - 6}" width="{_COLUMN}" height="12" fill="{color}"/>'


def _follow(state: dict[str, str], event: Event) -> None:
    if event.kind != "storage":
        return
    path, to, effect = str(event.data["path"]), str(event.data["to"]), str(event.data["effect"])
    if effect in ("write", "create", "truncate"):
        state[path] = _WRITTEN
    elif effect in ("fsync", "fdatasync"):
        state[path] = _SYNCED
    elif effect == "sync":
        state.update(dict.fromkeys(state, _SYNCED))
    elif effect == "rename":
        state[to] = state.pop(path, _SYNCED)
    elif effect in ("unlink", "rmdir"):
        state.pop(path, None)


def _word(event: Event) -> str:
    data = event.data
    if event.kind == "storage":
        return str(data["effect"])
    if event.kind == "issue":
        return str(data["op"])[:9]
    if event.kind == "step":
        return f"step {data['step']}"
    if event.kind == "exit":
        return str(data["status"])
    return "up again" if str(data["text"]).endswith("up again") else str(data["fault"])


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    yield line


def _line(x: float, top: float, bottom: float, style: str) -> str:
    return f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" {style}/>'


def _text(x: float, y: float, text: str, *, color: str = _INK, size: int = 11, align: str = "start") -> str:
    said = escape(text)
    return f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}" text-anchor="{align}">{said}</text>'
