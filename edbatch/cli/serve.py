"""`edbatch serve`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_out, stage
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.serving_options import given_options
from edbatch.errors import nearest

if TYPE_CHECKING:
    from socket import socket as Socket

    from edbatch.http import Service
    from edbatch.http.limits import Limits
    from edbatch.serving import Server

LEVELS = ("debug", "info", "warning", "error")
_LIMITS = "Limits"
_RUN = "How to run"


def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help=(
                "An edbatch.http.Service, a function that returns one, or a plain"
                " model(params, instance); modules in the current folder are found."
            ),
            rich_help_panel="What to serve",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"A ready workload to serve instead, as a trial: {options.NAMES}.",
            rich_help_panel="What to serve",
        ),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Parameters: an .npz file as written by `edbatch run --save-params`;"
                " for your own model also a .msgpack file of flax.serialization, or an"
                " orbax folder. Random by default, if the service says how to make"
                " them."
            ),
            rich_help_panel="What to serve",
        ),
    ] = None,
    hidden: Annotated[
        int,
        typer.Option(
            metavar="H",
            min=1,
            help="Hidden size of a workload's random parameters.",
            rich_help_panel="What to serve",
        ),
    ] = 128,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Seed of random parameters.",
            rich_help_panel="What to serve",
        ),
    ] = 0,
    rng_seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=(
                "Seed of the random numbers that cells draw (their argument rng),"
                " different for each request; without it cells get no key."
            ),
            rich_help_panel=_RUN,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help=(
                "The policy that decides which operations run together: a policy file"
                " of train-policy, zoo:NAME, or depth, agenda, agenda-remaining,"
                " greedy."
            ),
            rich_help_panel=_RUN,
        ),
    ] = None,
    serving_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "The policy that decides which batches the next wave runs, and whether"
                " to wait for requests: a file of train-policy --serving. Without it, a"
                " wave runs all pending operations."
            ),
            rich_help_panel=_RUN,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on; 0.0.0.0 for all, behind a proxy.",
            rich_help_panel=_RUN,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help="The port to listen on; 0 for any that is free.",
            rich_help_panel=_RUN,
        ),
    ] = 8000,
    drain_s: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0,
            help="Seconds that requests have, after SIGTERM, to be answered.",
            rich_help_panel=_RUN,
        ),
    ] = 30.0,
    log_level: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help=f"What is written to stderr, as JSON lines: {', '.join(LEVELS)}.",
            rich_help_panel=_RUN,
        ),
    ] = "info",
    max_waiting: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Requests that may wait; more are refused (429).",
            rich_help_panel=_LIMITS,
        ),
    ] = 1024,
    max_in_flight: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Requests that run at the same time.",
            rich_help_panel=_LIMITS,
        ),
    ] = 256,
    max_nodes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Calls of cells that a request may make at once (422).",
            rich_help_panel=_LIMITS,
        ),
    ] = 100_000,
    max_new_types: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help=(
                "Most node types, such as new lengths of an array, that requests may"
                " add to those of the examples; each is compiled (422)."
            ),
            rich_help_panel=_LIMITS,
        ),
    ] = 32,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Length of a request's body (413).",
            rich_help_panel=_LIMITS,
        ),
    ] = 2**20,
    max_depth: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=190,
            help="Depth to which JSON may be nested (400).",
            rich_help_panel=_LIMITS,
        ),
    ] = 128,
    deadline_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0,
            help="Deadline of requests that name none (504).",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP: JSON in, JSON out, requests batched as they arrive.

    POST /v1/run takes {"input": ...}; /schema describes the input, / is a status page,
    /metrics is for Prometheus, /healthz and /readyz are for a supervisor. On SIGTERM,
    SIGHUP or Ctrl-C the server answers the requests that it has accepted, then ends; a
    second signal ends it at once.

    Example: edbatch serve --model my_service:service --params trained.npz

    Example: edbatch serve --workload tree-lstm --port 8000
    """
    if log_level not in LEVELS:
        raise CommandError(
            f"--log-level is one of {', '.join(LEVELS)} but this is {log_level!r};"
            f" {nearest(log_level, LEVELS)}"
        )
    _check_given(context, model is not None, params is not None)
    _require_extra()

    import jax

    from edbatch.http.limits import Limits
    from edbatch.http.model_error import guarded_batch
    from edbatch.http.process import listen
    from edbatch.serving import Server

    limits = Limits(max_body_bytes, max_depth, deadline_ms)
    with listen(host, port) as socket:  # before any long work
        service, values = _load(model, workload, params, hidden, seed)
        batched = guarded_batch(service.model, policy)
        with Server(
            batched,
            values,
            policy=serving_policy,
            rng=None if rng_seed is None else jax.random.key(rng_seed),
            max_waiting=max_waiting,
            max_in_flight=max_in_flight,
            max_nodes=max_nodes,
            max_new_types=max_new_types,
        ) as server:
            _run(server, service, limits, socket, drain_s, log_level)


def _run(
    server: "Server",
    service: "Service",
    limits: "Limits",
    socket: "Socket",
    drain_s: float,
    log_level: str,
) -> None:
    """Answers requests until a signal ends the process."""
    from edbatch.http.app import create_app
    from edbatch.http.model_error import first_line
    from edbatch.http.process import Process, end_now
    from edbatch.http.request_log import log_as_json
    from edbatch.serving.server import FOR_INSTANCE

    process = Process(create_app(server, service, limits), socket, drain_s)
    log_as_json(log_level)
    address, number = socket.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    print_out(f"Serving {service.name} at http://{shown}:{number}/")
    code = process.run()
    if process.error is not None:
        notes = getattr(process.error, "__notes__", [])
        note = next((each for each in notes if each.startswith(FOR_INSTANCE)), "")
        raise CommandError(
            f"the warm-up by the examples failed: {first_line(process.error)}"
            + (f" ({note})" if note else "")
        ) from process.error
    end_now(code)


def _require_extra() -> None:
    """Checks that the extra is installed, before anything is loaded."""
    import importlib

    from edbatch.errors import MissingServeExtraError

    for name in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingServeExtraError(name) from error


def _check_given(context: typer.Context, own: bool, has_params: bool) -> None:
    """Rejects options of random parameters when the parameters are not random."""
    given = {each.name for each in given_options(context)}
    for name, idle, why in (
        ("hidden", own, "the service of --model decides it"),
        ("hidden", has_params, "those of --params have one"),
        ("seed", has_params, "those of --params are not drawn"),
    ):
        if idle and name in given:
            raise CommandError(
                f"--{name} applies to random parameters only, but {why}; leave it out"
            )


def _load(
    model: str | None,
    workload: str | None,
    params: Path | None,
    hidden: int,
    seed: int,
) -> "tuple[Service, Any]":
    from edbatch.cli.served_model import load_params, load_service
    from edbatch.cli.served_workload import load_workload

    if (model is None) == (workload is None):
        raise CommandError(
            "edbatch serve takes one of --model package.module:name, your own, and"
            f" --workload, one of {options.NAMES}; give one of the two"
        )
    with stage("Loading the model and its parameters"):
        if workload is not None:
            return load_workload(workload, params, hidden, seed)
        assert model is not None, "one of the two was given"
        service = load_service(model)
        return service, load_params(service, params, seed)
