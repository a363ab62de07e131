"""What happens to requests when a replica dies? A Ray Serve deployment under load.

In a clone:

    pip install -e ".[ray]"
    python experiments/ray_serve.py

The script starts Ray on this machine, on the loopback address only, deploys
`ray_deployment.py` of the same folder and sends enough requests at once to fill all
replicas. When a third of them are answered, it kills a replica (SIGKILL). It prints the
number of answered requests, of wrong answers (checked by the equations in float64), of
requests sent again because their replica died, and of lost requests.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Import before Ray: this sets the environment that Ray reads.
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
    """The outcome of the requests.

    Attributes:
        answered: Number of answered requests.
        wrong: Number of wrong answers.
        retried: Number of repeated attempts.
        lost: The exceptions of unanswered requests.
        killed: Id of the killed process.
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
    # For a change close to the tolerance, rounding decides whether the model stops.
    stops = changes[-1] <= tolerance + 1e-6
    stops = stops and all(each > tolerance - 1e-6 for each in changes[:-1])
    return stops and np.allclose(answer["h"], h, atol=1e-5)


async def describe_all(handle: DeploymentHandle, replicas: int) -> dict[int, Any]:
    """Waits for descriptions of `replicas` replicas; returns them by process id."""
    found: dict[int, Any] = {}
    while len(found) < replicas:
        each = await handle.describe.remote()
        found[each["pid"]] = each
    return found


async def load(
    client: Client, requests: Sequence[dict[str, Any]], at_once: int, kill: int | None
) -> Outcome:
    """Sends requests, `at_once` at a time; kills a process when a third is answered."""
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
    """Runs the load, kills a replica, and waits until another has replaced it."""
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
