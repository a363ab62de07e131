"""What becomes of requests when a replica dies? A deployment of Ray Serve under load.

In a clone:

    pip install -e ".[ray]"
    python experiments/ray_serve.py

starts Ray on this machine, on the loopback address alone, deploys `ray_deployment.py`
beside this file and sends requests, so many at once that all replicas are full. When a
third is answered it kills a replica (SIGKILL). It prints how many requests were
answered, how many answers were wrong, by the equations in float64, how often one was
sent again since its replica had died with it, and how many were lost.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Before Ray, which reads the environment that this sets.
from ray_local import local_cluster

# isort: split
import numpy as np
from ray import serve
from ray.serve.handle import DeploymentHandle

from arguments import option, parse_arguments
from ray_deployment import Client, application, make_params, sample


@dataclass(frozen=True)
class Arguments:
    requests: int = option(600, "How many requests to send.")
    at_once: int = option(96, "How many of them wait for their answers at once.")
    replicas: int = option(2, "How many replicas serve them.")
    max_in_flight: int = option(16, "How many requests a replica runs together.")
    seed: int = option(0, "Seed of the requests.")


@dataclass
class Outcome:
    """What became of the requests.

    Attributes:
        answered: Requests that were answered.
        wrong: Those whose answers are wrong.
        retried: How often one was sent again.
        lost: The exceptions of those without an answer.
        killed: The process that was killed.
    """

    answered: int = 0
    wrong: int = 0
    retried: int = 0
    lost: list[Exception] = field(default_factory=list)
    killed: int | None = None


def is_right(request: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Checks an answer by the equations of the model, in NumPy and float64."""
    weights = np.asarray(make_params()["W"], np.float64)
    x, tolerance = np.asarray(request["x"]), request["tolerance"]
    h, changes = np.zeros(len(x)), []
    for _ in range(answer["steps"]):
        new = 0.5 * h + 0.5 * np.tanh(h @ weights + x)
        changes.append(np.abs(new - h).max())
        h = new
    # Rounding may decide about a change that is as good as the tolerance.
    stops = changes[-1] <= tolerance + 1e-6
    stops = stops and all(each > tolerance - 1e-6 for each in changes[:-1])
    return stops and np.allclose(answer["h"], h, atol=1e-5)


async def describe_all(handle: DeploymentHandle, replicas: int) -> dict[int, Any]:
    """Waits until so many replicas have described themselves; by process."""
    found: dict[int, Any] = {}
    while len(found) < replicas:
        each = await handle.describe.remote()
        found[each["pid"]] = each
    return found


async def load(
    client: Client, requests: Sequence[dict[str, Any]], at_once: int, kill: int | None
) -> Outcome:
    """Sends requests, so many at once; kills a process when a third is answered."""
    outcome, places = Outcome(), asyncio.Semaphore(at_once)

    async def send(request: dict[str, Any]) -> None:
        async with places:
            try:
                answer = await client.ask(request)
            except Exception as error:
                outcome.lost.append(error)
                return
        outcome.answered += 1
        outcome.wrong += not is_right(request, answer)
        if kill and not outcome.killed and 3 * outcome.answered >= len(requests):
            os.kill(kill, signal.SIGKILL)
            outcome.killed = kill

    await asyncio.gather(*map(send, requests))
    outcome.retried = client.retried
    return outcome


async def kill_one(handle: DeploymentHandle, arguments: Arguments) -> Outcome:
    """Runs the load, kills a replica, and waits until another stands in its place."""
    before = await describe_all(handle, arguments.replicas)
    requests = sample(arguments.seed, arguments.requests)
    outcome = await load(Client(handle), requests, arguments.at_once, min(before))
    async with asyncio.timeout(120):
        while min(before) in (after := await describe_all(handle, arguments.replicas)):
            await asyncio.sleep(0.5)
    print(f"processes before {sorted(before)}, killed {outcome.killed}")
    print(f"processes after {sorted(after)}")
    for name in ("answered", "wrong", "retried"):
        print(f"{name}: {getattr(outcome, name)}")
    print(f"lost: {len(outcome.lost)}")
    return outcome


def main(arguments: Arguments) -> Outcome:
    with local_cluster(cpus=arguments.replicas):
        handle = serve.run(
            application(
                max_in_flight=arguments.max_in_flight, num_replicas=arguments.replicas
            )
        )
        return asyncio.run(kill_one(handle, arguments))


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
