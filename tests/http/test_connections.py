"""Connections that a server closes, and its log: no slow peer blocks the server."""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from edbatch.http import connections
from edbatch.http.body import read_body
from edbatch.http.connections import close_idle, connection_class, most_connections
from edbatch.http.log_thread import LogThread
from edbatch.http.process import Process
from edbatch.http.refusal import Refusal
from edbatch.http.request_log import LOG

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 2**24  # bytes, more than sockets hold


async def quick(request):
    return PlainTextResponse("quick")


async def large(request):
    return PlainTextResponse(b"x" * LARGE)


async def slow(request):
    await asyncio.sleep(1.0)
    return PlainTextResponse("slow")


async def read(request):
    try:
        return PlainTextResponse(await read_body(request, 1000))
    except Refusal as refusal:
        return refusal.response()


@contextlib.asynccontextmanager
async def serving(most, limit_s):
    """A server in this event loop; yields a function that connects to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        Starlette(
            routes=[
                Route(f"/{f.__name__}", f, methods=["GET", "POST"])
                for f in (quick, slow, large, read)
            ]
        ),
        http=connection_class(most),
        log_config=None,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve(sockets=[listening]))
    closing = asyncio.create_task(
        close_idle(server.server_state.connections, limit_s=limit_s)
    )
    opened = []

    async def connect():
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        opened.append(writer)
        return reader, writer

    connect.connections = server.server_state.connections
    try:
        yield connect
    finally:
        for each in opened:
            each.close()
        closing.cancel()
        server.should_exit = True
        await task


async def answer(connection, path):
    reader, writer = connection
    writer.write(GET % path)
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split()[1], await reader.readexactly(len(path))


def test_a_connection_without_a_whole_head_is_closed():
    async def main():
        async with serving(most=10, limit_s=0.4) as connect:
            silent, half, used = [await connect() for _ in range(3)]
            half[1].write(b"GET /quick HTTP/1.1\r\nHost: ")
            # A connection whose model runs longer than the limit is not idle.
            assert await answer(used, b"slow") == (b"200", b"slow")
            assert await answer(used, b"quick") == (b"200", b"quick")
            ends = [asyncio.wait_for(each[0].read(), 30) for each in (silent, half)]
            assert await asyncio.gather(*ends) == [b"", b""]
            assert await asyncio.wait_for(used[0].read(), 30) == b""

    asyncio.run(main())


def test_a_connection_in_use_stays_open():
    async def main():
        async with serving(most=10, limit_s=0.4) as connect:
            for _ in range(20):
                if await is_answered_for(4 * 0.4, await connect(), pause=0.2):
                    return
            pytest.fail("this machine pauses too often")

    asyncio.run(main())


def test_answers_of_one_length_are_no_answer_that_stays(monkeypatch):
    """At each check, as many bytes are unread as at the check before."""
    monkeypatch.setattr(connections, "_unread", lambda transport: 100)
    test_a_connection_in_use_stays_open()


async def is_answered_for(seconds, connection, pause):
    """Checks answers for `seconds`; returns False if the machine paused too long."""
    began = last = time.monotonic()
    while last < began + seconds:
        try:
            assert await answer(connection, b"quick") == (b"200", b"quick")
        except asyncio.IncompleteReadError:  # it was closed
            assert time.monotonic() > last + pause
            return False
        last = time.monotonic()  # from here on the connection is idle
        await asyncio.sleep(0.02)
    return True


@pytest.mark.parametrize("requests", [1, 50])
def test_a_client_that_does_not_read_its_answers_is_dropped(requests):
    async def main():
        async with serving(most=10, limit_s=0.4) as connect:
            reader, writer = await connect()
            writer.write(requests * (GET % b"large"))
            await reader.readuntil(b"\r\n\r\n")
            assert len(connect.connections) == 1
            async with asyncio.timeout(30):
                while connect.connections:
                    await asyncio.sleep(0.1)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(LARGE)

    asyncio.run(main())


def test_a_client_that_reads_slowly_has_its_whole_answer():
    async def main():
        async with serving(most=10, limit_s=2.0) as connect:
            reader, writer = await connect()
            writer.write(GET % b"large")
            await reader.readuntil(b"\r\n\r\n")
            left = LARGE
            for _ in range(28):  # more than three times the limit, at 400 KB/s
                left -= len(await reader.readexactly(100_000))
                await asyncio.sleep(0.25)
            assert len(await reader.readexactly(left)) == left

    asyncio.run(main())


def test_connections_beyond_the_most_are_closed_at_once():
    async def main():
        async with serving(most=2, limit_s=600) as connect:
            kept = [await connect() for _ in range(2)]
            for each in kept:
                assert await answer(each, b"quick") == (b"200", b"quick")
            late = await connect()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(late[0].read(), 30) == b""
            assert await answer(kept[0], b"quick") == (b"200", b"quick")
            kept[1][1].close()
            await kept[1][1].wait_closed()
            assert await answer(await connect(), b"quick") == (b"200", b"quick")

    asyncio.run(main())


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of POSIX")
def test_there_are_fewer_connections_than_files():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limits});"
        "from edbatch.http.connections import most_connections as most;"
        "print(most(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    for limits, expected in [
        ((64, 300), [200, 300]),
        ((100, 100), [50, 100]),
    ]:
        found = subprocess.run(
            [sys.executable, "-P", "-c", code.format(limits=limits)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(f"[{found.stdout.replace(' ', ',')}]") == expected
    assert most_connections() > 0


@pytest.mark.parametrize(
    ("request_text", "status", "told"),
    [
        (
            b"GET /quick HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c",
            200,
            [],
        ),
        (
            b"\x16\x03\x01 of TLS",
            400,
            [("not an HTTP request", "127.0.0.1", "illegal request line")],
        ),
    ],
)
def test_other_protocols(request_text, status, told, caplog):
    async def main():
        async with serving(most=10, limit_s=600) as connect:
            reader, writer = await connect()
            writer.write(request_text + b"\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert int(head.split()[1]) == status

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    found = [
        (each.message, each.fields["client"], each.fields["reason"])
        for each in caplog.records
        if each.name == LOG.name
    ]
    assert found == told
    assert "WebSocket" not in caplog.text and "Unsupported" not in caplog.text


def test_a_body_with_two_lengths_ends_the_connection():
    """A proxy may treat the bytes after the shorter body as another request."""

    async def main():
        async with serving(most=10, limit_s=600) as connect:
            reader, writer = await connect()
            writer.write(
                b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"2\r\n{}\r\n0\r\n\r\n"
            )
            return await asyncio.wait_for(reader.read(), 30)  # until it is closed

    answer = asyncio.run(main())
    assert answer.startswith(b"HTTP/1.1 400 ") and b"two_lengths" in answer


def test_where_no_file_is_left_one_line_says_so(caplog):
    process = Process.__new__(Process)
    process._full_until = 0.0
    problem = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(24, "Too many open files"),
    }

    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            process._on_problem(loop, problem)
        process._on_problem(loop, {"message": "another"})

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [(each.name, each.getMessage()) for each in caplog.records]
    full = (LOG.name, "no file descriptor is left for more connections")
    assert told == [full, ("asyncio", "another")]


@pytest.mark.parametrize(
    ("level", "others"), [("debug", 30), ("warning", 30), ("error", 40)]
)
def test_other_loggers_write_warnings_unless_errors_alone_are_asked_for(level, others):
    code = (
        "import logging; from edbatch.http.request_log import log_as_json;"
        f"log_as_json({level!r});"
        "print([logging.getLogger(name).getEffectiveLevel()"
        " for name in ('uvicorn.error', 'py.warnings', 'asyncio')])"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout) == [others] * 3


def test_a_line_of_uvicorn_that_ours_tells_better_is_left_out():
    code = (
        "import logging; from edbatch.http.request_log import flush_log, log_as_json;"
        "log_as_json('info'); log_as_json('info');"
        "told = logging.getLogger('uvicorn.error');"
        "told.warning('Invalid HTTP request received.'); told.warning('another');"
        "assert flush_log() and len(told.filters) == 1"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    lines = [json.loads(each)["message"] for each in found.stderr.splitlines()]
    assert lines == ["another"]


def test_a_log_that_nobody_reads_holds_nobody():
    """Lines are dropped, and a line says how many; the rest come in order when read."""
    theirs, own = os.pipe()
    os.set_blocking(theirs, False)
    with open(theirs, "rb", buffering=0) as reader, open(own, "w") as stream:
        handler = LogThread(stream, most=100)
        handler.setFormatter(logging.Formatter("%(message)s"))
        for k in range(1000):
            values = {"msg": f"{k:04} {'x' * 10_000}"}  # a pipe holds 64 KiB
            handler.handle(logging.makeLogRecord(values))
        assert not handler.wait(0.1)
        found = bytearray()
        while not handler.wait(0.01):
            while (piece := reader.read(2**20)) is not None:
                found += piece
        while (piece := reader.read(2**20)) is not None:
            found += piece
    text = found.decode()
    numbers = [int(each) for each in re.findall("^([0-9]{4}) x{10000}$", text, re.M)]
    dropped = [
        int(each) for each in re.findall("^([0-9]+) lines were dropped", text, re.M)
    ]
    assert numbers == sorted(numbers) and 100 <= len(numbers) < 1000
    assert len(numbers) + sum(dropped) == 1000
    assert len(text.splitlines()) == len(numbers) + len(dropped)


def test_a_line_that_cannot_be_told_raises_nothing_where_it_is_logged():
    stream = io.StringIO()
    handler = LogThread(stream)
    for message, arguments in [("%d items", ("x",)), ("%s", (Untold(),)), ("two", ())]:
        values = {"name": "lib", "msg": message, "args": arguments}
        handler.handle(logging.makeLogRecord(values))
    assert handler.wait(30)
    assert stream.getvalue().splitlines() == [
        "a line of lib cannot be written: TypeError",
        "a line of lib cannot be written: RuntimeError",
        "two",
    ]


class Untold:
    def __str__(self):
        raise RuntimeError


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of POSIX")
def test_a_fork_writes_a_log_of_its_own(tmp_path):
    code = (
        "import logging, os, sys; from edbatch.http.log_thread import LogThread;"
        "handler = LogThread(sys.stderr);"
        "handler.handle(logging.makeLogRecord({'msg': 'parent'}));"
        "assert handler.wait(30); child = os.fork();"
        "name = 'parent' if child else 'child';"
        "handler.handle(logging.makeLogRecord({'msg': name}));"
        "assert handler.wait(30); child and os.waitpid(child, 0)"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    lines = [each for each in found.stderr.splitlines() if each in ("child", "parent")]
    assert sorted(lines) == ["child", "parent", "parent"]  # JAX also warns about forks


def test_a_log_whose_reader_has_ended_holds_nobody():
    stream = io.StringIO()
    handler = LogThread(stream)
    stream.close()
    handler.handle(logging.makeLogRecord({"msg": "one"}))
    assert handler.wait(30)


def in_pieces(count):
    """A request whose body comes in chunks of one byte."""
    return (
        b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    )


def test_a_body_in_very_many_pieces_is_refused():
    async def main():
        async with serving(most=10, limit_s=30) as connect:
            reader, writer = await connect()
            for _ in range(2):  # pieces are counted per request
                writer.write(in_pieces(6_000))  # more than /read accepts
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(
                    int(head.split(b"content-length: ")[1].split()[0])
                )
                assert head.startswith(b"HTTP/1.1 413 ")
            writer.write(in_pieces(20_000))
            found = await asyncio.wait_for(reader.read(), 30)
            assert found.startswith(b"HTTP/1.1 400 ")
            assert found.endswith(b"in too many pieces; send larger chunks")
            assert await answer(await connect(), b"quick") == (b"200", b"quick")

    asyncio.run(main())
