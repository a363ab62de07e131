"""A Ray Serve deployment whose replicas run requests with `eb.Server`.

This is an example of the code to write to serve a model with Ray, in a module that
replicas can import. docs/serve-a-model.md explains the settings; `ray_serve.py` in the
same folder runs it.

The model iterates a layer to its fixed point (Bai et al., "Deep Equilibrium Models",
NeurIPS 2019, forward pass only). It stops when a step changes the state by no more than
the request's tolerance, so the duration of a request depends on computed values.
"""

import asyncio
import logging
import os
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

import edbatch as eb

WIDTH = 16  # numbers per request
MOST_STEPS = 20_000
logger = logging.getLogger("ray.serve")  # Ray shows its messages to the deployer


@eb.cell
def step(params: Any, h: Array, x: Array) -> tuple[Array, Array]:
    """Makes one step; returns the new state and the largest change."""
    new = 0.5 * h + 0.5 * jnp.tanh(h @ params["W"] + x)
    return new, jnp.abs(new - h).max()


def settle(params: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The model, for one request: steps until a change is within the tolerance."""
    x = np.asarray(request["x"], np.float32)
    if x.shape != (WIDTH,):
        raise ValueError(f"x is a list of {WIDTH} numbers but has the shape {x.shape}")
    h: Any = np.zeros(WIDTH, np.float32)
    steps = 0
    while steps < MOST_STEPS:
        steps += 1
        h, change = step(params, h, x)
        if eb.value(change) <= request["tolerance"]:
            break
    return {"h": h, "steps": steps}


def make_params() -> dict[str, Array]:
    """Makes parameters; a real service would read a file."""
    return {"W": 0.2 * jax.random.normal(jax.random.key(0), (WIDTH, WIDTH))}


def sample(seed: int, count: int) -> list[dict[str, Any]]:
    """Samples requests in their JSON form."""
    rng = np.random.default_rng(seed)
    return [
        {
            "x": rng.normal(size=WIDTH).astype(np.float32).tolist(),
            "tolerance": float(10.0 ** -rng.integers(2, 6)),
        }
        for _ in range(count)
    ]


@serve.deployment
class Replica:
    """Answers calls of handles (`answer`) and HTTP requests (POST, JSON).

    Ray sends requests to a replica once it is constructed, that is, after the warm-up.

    Args:
        max_in_flight: Requests that run together, as for `edbatch.Server`.
    """

    def __init__(self, max_in_flight: int) -> None:
        self.max_ongoing = check_max_ongoing(max_in_flight)
        self.server = eb.Server(
            eb.batch(settle),
            make_params(),
            max_in_flight=max_in_flight,
            max_waiting=self.max_ongoing,  # all that Ray sends; Ray refuses the rest
        )
        self.server.warm_up(sample(0, max_in_flight))
        self.compiled_ahead = len(eb.compile_report())

    async def answer(
        self, request: dict[str, Any], deadline_ms: float | None = None
    ) -> dict[str, Any]:
        """Answers a request; ends it before the next wave if Ray cancels the call."""
        return await self.server.submit(request, deadline_ms=deadline_ms)

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            found = await self.answer(await request.json())
        except (KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        return JSONResponse({**found, "h": found["h"].tolist()})

    def check_health(self) -> None:
        """Called by Ray every few seconds; if it raises, Ray replaces the replica."""
        if not self.server.is_running:
            raise RuntimeError("the server of this replica answers no more requests")

    def describe(self) -> dict[str, Any]:
        """Returns the process id and the server's statistics."""
        return {
            "pid": os.getpid(),
            "max_ongoing": self.max_ongoing,
            "compiles": len(eb.compile_report()) - self.compiled_ahead,
            **asdict(self.server.stats()),
        }

    def __del__(self) -> None:
        """Closes the server; Ray stops a replica after its last accepted request."""
        if hasattr(self, "server"):
            self.server.close()


def check_max_ongoing(max_in_flight: int) -> int:
    """Returns Ray's maximum of ongoing requests; warns if they cannot fill a wave."""
    # Not public, but Ray's own `serve.batch` reads it from here, too.
    config = serve.get_replica_context()._deployment_config
    most = config.max_ongoing_requests
    if most < max_in_flight:
        logger.warning(
            f"max_in_flight of eb.Server is {max_in_flight}, but Ray sends a replica at"
            f" most {most} requests at the same time (max_ongoing_requests of the"
            f" deployment), so waves are never wider; set max_ongoing_requests to"
            f" {2 * max_in_flight}, or max_in_flight to {most}"
        )
    return most


def application(*, max_in_flight: int = 32, **options: Any) -> serve.Application:
    """Makes the application for `serve.run`.

    Args:
        max_in_flight: Requests that a replica runs together.
        options: Options of `serve.deployment` that override the ones set here.

    Returns:
        The application.
    """
    own: dict[str, Any] = {
        # Twice max_in_flight: when requests leave a wave, others can join at once.
        "max_ongoing_requests": 2 * max_in_flight,
        # Further requests wait at the handle or proxy that received them. Above this
        # number, clients get a BackPressureError, or the status 503.
        "max_queued_requests": 16 * max_in_flight,
        "health_check_period_s": 2,
        "graceful_shutdown_timeout_s": 30,
        "logging_config": {"enable_access_log": False},  # has a line for each request
    }
    if "autoscaling_config" not in options:
        own["num_replicas"] = 2
    return Replica.options(**{**own, **options}).bind(max_in_flight)


def autoscaling(max_in_flight: int, most: int) -> dict[str, Any]:
    """Makes the option `autoscaling_config`, for one to ``most`` replicas.

    Ray keeps the number of ongoing requests per replica, including waiting ones, at the
    target. Its default, 2, would start replicas long before waves are full.
    """
    return {
        "min_replicas": 1,
        "max_replicas": most,
        "target_ongoing_requests": max_in_flight,
        "upscale_delay_s": 10,  # the warm-up of a replica takes longer
        "downscale_delay_s": 300,
    }


class Client:
    """Sends requests to a deployment, and sends a request again if its replica died.

    Ray itself sends a request to another replica as long as no replica has accepted it.
    An accepted request fails with its replica, with a `RayActorError`: Ray cannot know
    that a repetition does no harm, but the client does.

    Args:
        handle: The handle that `serve.run` returns.
        attempts: Maximum number of attempts per request.

    Attributes:
        retried: Number of repeated attempts.
    """

    def __init__(self, handle: DeploymentHandle, attempts: int = 3) -> None:
        self.handle, self.attempts = handle, attempts
        self.retried = 0

    async def ask(
        self, request: dict[str, Any], *, deadline_ms: float | None = None
    ) -> dict[str, Any]:
        """Sends a request and waits for its answer; cancellation cancels the request.

        Raises:
            Exception: Raised by the model or the server for the request.
            RayActorError: The replicas of all attempts died.
            BackPressureError: Too many requests are waiting.
        """
        for attempt in range(1, self.attempts + 1):
            response = self.handle.answer.remote(request, deadline_ms)
            try:
                return await response
            except RayActorError:
                if attempt == self.attempts:
                    raise
                self.retried += 1
            except asyncio.CancelledError:
                response.cancel()  # Ray does not: the replica would go on
                raise
        raise AssertionError("attempts is at least 1")
