"""`edbatch serve` in its own process, and a client."""

import http.client
import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 120
TESTS = Path(__file__).parent
JSON = {"Content-Type": "application/json"}


def wait_until(has_come: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    end = time.monotonic() + limit_s
    while not (found := has_come()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


class ServeProcess:
    """The command on a free port of the loopback address."""

    def __init__(self, folder: Path, *options: str, ready: bool = True) -> None:
        self.errors, output = folder / "stderr.txt", folder / "stdout.txt"
        script = Path(sysconfig.get_path("scripts")) / "edbatch"
        with self.errors.open("w") as stderr, output.open("w") as stdout:
            self.process = subprocess.Popen(
                [str(script), "serve", "--port", "0", *options],
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=os.environ
                | {"PYTHONPATH": str(TESTS), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
            )
        self.port = 0
        try:
            self._wait_for(lambda: output.read_text().endswith("/\n"))
            self.port = int(output.read_text().rpartition(":")[2].strip("/\n"))
            self._wait_for(lambda: not ready or self.get("/readyz")[0] == 200)
        except BaseException:
            self.end()
            raise

    def _wait_for(self, has_come: Callable[[], bool]) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.errors.read_text()
            return has_come()

        wait_until(look)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def request(
        self, method: str, path: str, body: Any = None, headers: Any = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        status, _, body = self.request("GET", path)
        return status, body

    def post(self, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer; the body may be text, bytes or JSON."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        status, _, text = self.request("POST", "/v1/run", body, {**JSON, **headers})
        return status, json.loads(text)

    def run(self, job: Any, **options: Any) -> tuple[int, Any]:
        return self.post({"input": job, **options})

    def stats(self) -> dict[str, Any]:
        return json.loads(self.get("/v1/stats")[1])

    def log(self) -> list[dict[str, Any]]:
        """The complete JSON lines on stderr, without the text before them."""
        *lines, _ = self.errors.read_text().split("\n")  # the last may be incomplete
        return [json.loads(each) for each in lines if each.startswith("{")]

    def send_signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
