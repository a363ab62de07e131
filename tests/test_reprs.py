"""Every public class has a `__repr__` that describes an object in one line."""

import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch import data, explain, memory_planner, policies
from edbatch.schedule.examples import chain

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Modules whose public names serve installed commands, not users.
LEFT_OUT = {"cli"}
LONGEST = 400


def packages():
    names = [each.name for each in pkgutil.iter_modules(eb.__path__) if each.ispkg]
    below = {*names, "envs", "policies", "memory_planner"} - LEFT_OUT
    yield eb
    for name in sorted(below):
        yield pytest.importorskip(f"edbatch.{name}")


def public_classes():
    """Each public class by name, without exceptions, whose text is their message."""
    found = {}
    for package in packages():
        for name in getattr(package, "__all__", ()):
            one = getattr(package, name)
            if inspect.isclass(one) and not issubclass(one, BaseException):
                found.setdefault(one, f"{package.__name__}.{name}")
    return found


def is_protocol(one):
    return getattr(one, "_is_protocol", False) or inspect.isabstract(one)


@pytest.fixture(scope="module")
def objects():
    """Objects of many public classes, and the objects they refer to."""
    params, rng = make_params(), np.random.default_rng(0)
    trees = sample_trees(rng, 20)
    batched = eb.batch(encode, params=params)
    loader = batched.loader(trees, 5)
    minibatch = next(iter(loader))
    recorded = batched.graph(trees)
    scheduled = batched.policy.schedule(recorded.structure)
    report = batched.explain(trees)
    sharded = batched.sharded()
    chosen = eb.choose_devices(batched, params, trees)
    letters = chain("abcab")
    return [
        *(batched, loader, minibatch, recorded, scheduled, report, sharded, chosen),
        *(eb.cell(encode, name="encode"), eb.jit(encode), eb.compile_report()),
        *(eb.Compiler(), eb.Planner(), eb.Search(), eb.Sizes()),
        *(report.batches, *report.types, report.plan, minibatch.plan.shape),
        *(sharded.plan(trees), sharded.plan(trees).report, sharded.plan(trees).shape),
        *(batched.types, *batched.types, *batched.types.avals, recorded.structure),
        *(batched.types.types[0].template, batched.types.keys[0], batched.types.params),
        *(batched.decisions, batched.cache_info, loader.report, batched.options),
        *(batched.rollout(params, trees), batched.rollout(params, trees).report),
        eb.gradient_memory(minibatch.plan),
        eb.Server(batched, params),
        eb.Server(batched, params).stats(),
        eb.verify(batched, params, trees[:2]),
        eb.Ragged(jnp.zeros((300, 4)), jnp.zeros(300, int), jnp.zeros(40, int)),
        explain.MinibatchUse(**vars(report)),
        batched.states.default().planning.plans,
        batched.states.default().planning.hoisted,
        batched.types.types[0],
        memory_planner.plan_layout(recorded, scheduled, eb.Sizes()),
        memory_planner.PQTree(30),
        *(policies.Agenda(), policies.AgendaRemaining(), policies.Depth()),
        *(policies.Greedy(), policies.BeamSearch(policies.Greedy(), width=4)),
        *(policies.guarded(policies.Depth()), policies.get_policy("zoo:tree-lstm")),
        *policies.compare([policies.Depth()], [letters]),
        *(Largest(), Largest().seen(letters)),
        eb.BatchingEnv(lambda rng: letters),
        data.Vocabulary(f"word{k}" for k in range(200)),
        data.Configuration(5),
    ]


class Largest(eb.FrontierPolicy):
    name = "largest"

    def choose(self, frontier):
        self.frontier = frontier
        return int(frontier.sizes.argmax())

    def seen(self, structure):
        """The last view of the frontier."""
        self.schedule(structure)
        return self.frontier


def test_objects_say_in_one_line_what_they_are(objects):
    for each in objects:
        text = repr(each)
        assert "\n" not in text, text
        assert " object at 0x" not in text, text
        assert len(text) <= LONGEST, text
        assert str(each), "and as text"


def test_every_public_class_defines_its_own():
    """The default, an address or a data class's arrays, is not informative."""
    for one, name in public_classes().items():
        if is_protocol(one):
            continue
        assert one.__repr__ is not object.__repr__, f"{name} has no repr"
        own = one.__repr__.__qualname__
        if hasattr(one, "__dataclass_fields__") and "__create_fn__" in own:
            for field in one.__dataclass_fields__.values():
                kind = str(field.type)
                is_array = any(each in kind for each in ("ndarray", "Array"))
                assert not (field.repr and is_array), f"{name}.{field.name} is an array"


def test_a_plan_inside_a_trace():
    batched = eb.batch(encode, params=make_params())
    minibatch = batched.plan([(1, 2)])
    texts = []
    jax.jit(lambda plan: texts.append(repr(plan)))(minibatch)
    assert texts and "\n" not in texts[0]


def test_types_are_iterable():
    batched = eb.batch(encode, params=make_params())
    batched.record(((1, 2), 3))
    assert [str(each.key) for each in batched.types] == ["leaf/0", "join@join/4"]
    assert len(list(batched.types)) == len(batched.types) == 2
    assert repr(batched.types) == "<TypeTable of 2 types: leaf/0, join@join/4>"
