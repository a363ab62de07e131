"""Services for tests of `edbatch serve`, with models that ask for values."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import jax
from asking_models import embed, join, make_params, score, turn
from pydantic import Field

import edbatch as eb
from edbatch.http import Service, as_json

Word = Annotated[int, Field(ge=0, lt=12)]


@dataclass(frozen=True)
class Job:
    """Words to read, and a number of steps, each after the value of the last."""

    words: Annotated[Sequence[Word], Field(min_length=1, max_length=20)]
    steps: Annotated[int, Field(ge=0)] = 0
    fails_at: int | None = None


def model(params, job):
    state = embed(params, job.words[0])
    for word in job.words[1:]:
        state = join(params["join"], state, embed(params, word))
    h = state[0]
    for k in range(job.steps):
        if k == job.fails_at:
            raise ValueError("told to fail\nSECRET second line")
        h = turn(params, h, 1.0 if eb.value(score(params, h))[0] > 0 else 0.5)
    return {"h": h, "name": f"{job.steps} steps"}


def encode(answer):
    if answer["name"] == "7 steps":
        raise KeyError("SECRET of the server")
    if answer["name"] == "8 steps":
        return {"h": float("nan")}
    return as_json(answer)


def decode(job):
    if job.words[0] == 11 and len(job.words) == 1:
        raise LookupError("nobody says eleven")
    return job


def init_params(key):
    return make_params(0)


EXAMPLES = [
    {"words": [k % 11, *range(k % 5)], "steps": k % 4, "fails_at": None}
    for k in range(12)
]
service = Service(
    model,
    input=Job,
    decode=decode,
    encode=encode,
    output=dict[str, list[float] | str],
    examples=EXAMPLES,
    init_params=init_params,
    name="jobs",
)
cold = Service(model, input=Job, init_params=init_params, name="cold jobs")
poisoned = Service(
    model,
    input=Job,
    examples=[{"words": [1], "steps": 3, "fails_at": 1}],
    init_params=init_params,
)
batched = eb.batch(model, "agenda")


def make_service():
    return cold


def not_a_service():
    return 7


def expected(params, job):
    """The unbatched model's result as JSON."""
    found = model(params, Job(**job))
    return as_json(jax.tree.map(lambda leaf: leaf, found))


@eb.cell
def draw(scale, x, rng):
    return x + scale * jax.random.normal(rng)


noisy = Service(
    lambda scale, x: draw(scale, x),
    input=float,
    examples=[1.0, 2.0],
    init_params=lambda: 1.0,
    name="noisy",
)


def stuck_model(params, job):
    while job.steps:
        time.sleep(0.01)
    return model(params, job)["h"]


def slow_decode(job):
    while job.fails_at:
        time.sleep(0.01)
    return job


stuck = Service(stuck_model, input=Job, decode=slow_decode, init_params=init_params)
