"""How many requests go to one server at once, and the servers that are waited for."""

from __future__ import annotations

import threading

import pytest

from ckpt.bytes import far
from ckpt.ext.remote import traffic
from ckpt.ext.remote.store import BusyError
from ckpt.ext.remote.traffic import Gate, SilentServers, gate_of


def test_a_gate_lets_so_many_through() -> None:
    gate, inside, most = Gate(3), threading.Semaphore(0), 0
    lock, now = threading.Lock(), 0
    third = threading.Barrier(3)

    def ask() -> None:
        nonlocal now, most
        with gate.request():
            with lock:
                now += 1
                most = max(most, now)
            third.wait(60)
            with lock:
                now -= 1
        inside.release()

    threads = [threading.Thread(target=ask) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 3 and inside._value == 9


def overload(gate: Gate, error: Exception) -> None:
    with pytest.raises(type(error)), gate.request():
        raise error


def test_it_is_narrower_after_too_much_and_wider_later() -> None:
    gate = Gate(16)
    for limit in (8, 4, 2, 1, 1):
        overload(gate, BusyError("429", is_overload=True))
        assert gate.limit == limit
    for _ in range(2 * traffic._AGAIN):
        with gate.request():
            pass
    assert gate.limit == 3
    overload(gate, BusyError("500"))
    overload(gate, ValueError())
    assert gate.limit == 3, "other errors say nothing of it"
    for _ in range(100 * traffic._AGAIN):
        with gate.request():
            pass
    assert gate.limit == 16


def test_a_server_has_one_gate() -> None:
    assert gate_of("a.example") is gate_of("a.example") is not gate_of("b.example")
    assert gate_of("a.example").most == 16


def test_silent_servers_are_named_once() -> None:
    now = 0.0
    waits = SilentServers(lambda: now)
    with waits("a"), waits("b"):
        now = 4.9
        assert waits.overdue() == []
        with waits("c"), waits("a"):
            now = 5.0
            assert waits.overdue() == ["a", "b"]
            now = 20.0
            assert waits.overdue() == ["c"]
    now = 100.0
    assert waits.overdue() == []


@pytest.mark.slow
def test_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    heard = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        heard.set()

    times = iter([0.0])
    waits = SilentServers(lambda: next(times, 10.0))
    monkeypatch.setattr(far.Told, "tell", tell)
    with waits("slow.example"):
        thread = waits._thread
        assert heard.wait(60)
    assert thread is not None
    thread.join(60)
    assert waits._thread is None, "it looks while somebody waits"
    assert told == ["waiting for slow.example"]


def test_without_a_listener_no_thread_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far.Told, "tell", None)
    waits = SilentServers()
    with waits("a"):
        assert waits._thread is None
    far.tell("nobody hears it")
