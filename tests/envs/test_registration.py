import subprocess
import sys

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import edbatch.envs


def test_registering_again_changes_nothing():
    spec = gymnasium.spec("edbatch/Batching-v0")
    edbatch.envs.register()
    assert gymnasium.spec("edbatch/Batching-v0") is spec


def test_the_name_loads_the_module():
    # In a separate process that has not imported edbatch.
    code = (
        "import gymnasium; "
        "env = gymnasium.make('edbatch.envs:edbatch/Batching-v0'); "
        "print(env.reset(seed=0)[0].shape)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "(3, 3)\n"


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_gymnasium_checks_it_without_a_warning(render_mode):
    env = gymnasium.make("edbatch/Batching-v0", render_mode=render_mode)
    check_env(env.unwrapped)


def test_a_time_limit_truncates():
    env = gymnasium.make("edbatch/Batching-v0", max_episode_steps=2)
    _, info = env.reset(seed=0)
    flags = []
    for _ in range(2):
        action = env.action_space.sample(info["action_mask"])
        _, _, terminated, truncated, info = env.step(action)
        flags.append((terminated, truncated))
    assert flags == [(False, False), (False, True)]
