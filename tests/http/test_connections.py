"""Connections that a server closes: too many, and those that never send a request."""

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
import time

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from edbatch.http.connections import close_idle, connection_class, most_connections
from edbatch.http.process import Process
from edbatch.http.request_log import LOG

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"


async def quick(request):
    return PlainTextResponse("quick")


async def slow(request):
    await asyncio.sleep(1.0)
    return PlainTextResponse("slow")


@contextlib.asynccontextmanager
async def serving(most, limit_s):
    """A server in this event loop; yields what connects to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        Starlette(routes=[Route("/quick", quick), Route("/slow", slow)]),
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
            # A model that runs longer than the limit is no idle connection.
            assert await answer(used, b"slow") == (b"200", b"slow")
            assert await answer(used, b"quick") == (b"200", b"quick")
            ends = [asyncio.wait_for(each[0].read(), 30) for each in (silent, half)]
            assert await asyncio.gather(*ends) == [b"", b""]
            assert await asyncio.wait_for(used[0].read(), 30) == b""

    asyncio.run(main())


def test_a_connection_in_use_stays_open():
    async def main():
        async with serving(most=10, limit_s=0.4) as connect:
            used = await connect()
            began = time.monotonic()
            while time.monotonic() < began + 4 * 0.4:
                assert await answer(used, b"quick") == (b"200", b"quick")
                await asyncio.sleep(0.02)

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
    full = (LOG.name, "no file is left for more connections")
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
