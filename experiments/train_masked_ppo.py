"""How good are the schedules of an agent that knows nothing about edbatch?

Trains the unmodified MaskablePPO of sb3-contrib in the environment
`edbatch/Batching-v0`, makes a policy from the agent, and compares the policy with the
heuristics and the lower bound on held-out minibatches. In a clone:

    pip install -e ".[agents]"
    python experiments/train_masked_ppo.py --workload tree-lstm
    python experiments/train_masked_ppo.py --workload lattice-lstm --steps 30000
    python experiments/train_masked_ppo.py --workload lattices --steps 60000

Each takes a minute or less on one core. The policy is passed to
``eb.batch(model, policy=...)`` like any other. It calls the agent once per batch; the
last column shows the cost, at least a hundred times that of the heuristics.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np

import edbatch as eb
from edbatch.envs import (
    AgentPolicy,
    Sampler,
    sample_lattice_structure,
    sample_tree_structure,
)
from edbatch.graph import GraphStructure
from edbatch.models import get_workload
from edbatch.policies import Agenda, AgendaRemaining, Depth, Greedy, compare

from arguments import option, parse_arguments

SAMPLERS = {
    "trees": partial(sample_tree_structure, kinds=2),
    "lattices": sample_lattice_structure,
}


@dataclass(frozen=True)
class Arguments:
    workload: str = option(
        "tree-lstm",
        "A ready workload by name, on sampled inputs, or 'trees' or 'lattices': random"
        " graphs of two kinds of tree nodes, or of characters and words.",
    )
    steps: int = option(20_000, "How many batches the agent runs in training.")
    batch_size: int = option(16, "Instances per minibatch.")
    instances: int = option(
        400, "Instances of a ready workload to train on, and as many held out."
    )
    minibatches: int = option(10, "Held-out minibatches to compare on.")
    rollout: int = option(1024, "Batches that the agent runs between two updates.")
    gamma: float = option(0.95, "Discount factor.")
    seed: int = option(0, "Seed of the graphs and of the agent.")
    out: str = option("", "Folder for the agent's metrics, progress.csv; '' for none.")


def sampled(arguments: Arguments) -> tuple[Sampler, Sampler]:
    """Returns samplers of random graphs without a model, new in every draw."""
    sampler = partial(SAMPLERS[arguments.workload], instances=arguments.batch_size)
    return sampler, sampler


def recorded(arguments: Arguments) -> tuple[Sampler, Sampler]:
    """Returns samplers of graphs of a ready model, from disjoint instances."""
    workload = get_workload(arguments.workload)
    params = jax.eval_shape(partial(workload.init_params, hidden=4), jax.random.key(0))
    batched = eb.batch(workload.model).bind(params)
    rng = np.random.default_rng(arguments.seed)
    instances = workload.sample(rng, 2 * arguments.instances)
    # Record all before making any graph, so that each graph lists the types of all.
    recordings = [batched.record(each) for each in instances]

    def draw(part: Sequence[Any], rng: np.random.Generator) -> GraphStructure:
        chosen = rng.integers(len(part), size=arguments.batch_size)
        return batched.graph([part[k] for k in chosen]).structure

    to_train = recordings[: arguments.instances]
    return partial(draw, to_train), partial(draw, recordings[arguments.instances :])


def train(env: gymnasium.Env, arguments: Arguments) -> AgentPolicy:
    try:
        import torch
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.logger import configure
        from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"this experiment needs sb3-contrib but there is no {error.name}; install"
            ' it with: pip install -e ".[agents]"'
        ) from error

    class Logarithms(BaseFeaturesExtractor):
        """First layer of the agent: takes logarithms, as node counts vary widely."""

        def __init__(self, space: gymnasium.spaces.Box) -> None:
            super().__init__(space, math.prod(space.shape))

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return torch.log1p(observations).flatten(1)  # [batch, T · 3]

    torch.set_num_threads(1)  # more threads do not help such a small network
    agent = MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=arguments.rollout,
        gamma=arguments.gamma,
        policy_kwargs={"features_extractor_class": Logarithms},
        seed=arguments.seed,
        device="cpu",
    )
    if arguments.out:
        agent.set_logger(configure(arguments.out, ["csv"]))
    agent.learn(arguments.steps)
    return AgentPolicy(agent, env.unwrapped.type_keys, name="MaskablePPO")


def main(arguments: Arguments) -> None:
    make = sampled if arguments.workload in SAMPLERS else recorded
    sampler, held_out = make(arguments)
    rng = np.random.default_rng([arguments.seed, 1])
    graphs = [held_out(rng) for _ in range(arguments.minibatches)]
    env = gymnasium.make(
        "edbatch.envs:edbatch/Batching-v0",
        sampler=sampler,
        type_keys=graphs[0].type_keys,
    )
    start = time.perf_counter()
    policy = train(env, arguments)
    trained_s = time.perf_counter() - start
    heuristics = [Greedy(), Agenda(), AgendaRemaining(), Depth()]
    rows = compare([policy, *heuristics], graphs, repeats=1)
    print(
        f"{arguments.workload}: batches per minibatch of {arguments.batch_size}, mean"
        f" of {arguments.minibatches} held out; {policy.agent.num_timesteps:,} steps"
        f" of training took {trained_s:.0f} s"
    )
    print(f"{'policy':16}  batches  worst ratio  µs/node")
    for row in rows:
        print(
            f"{row.policy:16}  {row.mean_batches:7.1f}  {row.worst_ratio:11.2f}"
            f"  {row.schedule_us_per_node:7.2f}"
        )
    print(f"{'lower bound':16}  {rows[0].mean_lower_bound:7.1f}")


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
