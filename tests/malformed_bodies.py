"""Bodies that no server may take, by many rules."""

import gzip
import json
import random
from collections.abc import Callable, Iterator

GOOD = {"input": {"words": [1, 2, 3], "steps": 2, "fails_at": None}, "priority": 0}
TEXT = json.dumps(GOOD).encode()


def changed(**fields: object) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def job(**fields: object) -> bytes:
    return changed(input={**GOOD["input"], **fields})


def raw(value: str) -> bytes:
    """The body with some text in place of a word."""
    return TEXT.replace(b"[1,", f"[{value},".encode())


def truncated(rng: random.Random) -> bytes:
    return TEXT[: rng.randrange(len(TEXT))]


def garbage(rng: random.Random) -> bytes:
    return b"\x00\xff" + rng.randbytes(rng.randrange(200))


def not_utf8(rng: random.Random) -> bytes:
    wrong = rng.choice([b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
    return b'{"input": {"words": [1]}, "' + wrong + b'": 1}'


def deep(rng: random.Random) -> bytes:
    depth = rng.choice([129, 200, 1000, 10_000, 100_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    closed = rng.choice([0, depth])
    return b'{"input":' + opening * depth + b"1" + closing * closed + b"}"


def not_finite(rng: random.Random) -> bytes:
    return raw(
        rng.choice(["NaN", "Infinity", "-Infinity", "1e999", "-1e400", "9" * 999])
    )


def wrong_number(rng: random.Random) -> bytes:
    wrong = rng.choice(["-1", "12", "1.5", "1e2", str(2**70), "1" * 250, "true", '"1"'])
    return raw(wrong)


def not_a_number(rng: random.Random) -> bytes:
    return raw(rng.choice(["01", "+1", ".5", "1.", "0x10", "1_000", "--1", "1e"]))


def wrong_words(rng: random.Random) -> bytes:
    odd = ([], {}, None, True, "", "abc", 1, [[1]], [None], ["1"], [1] * 21, {"0": 1})
    return job(words=rng.choice(odd))


def wrong_steps(rng: random.Random) -> bytes:
    return job(steps=rng.choice([-1, 0.5, "1", None, True, [], {}, [1]]))


def wrong_field(rng: random.Random) -> bytes:
    name = rng.choice(["step", "Words", "__class__", "", "x" * 10_000, "\u0000"])
    return job(**{name: 1}) if rng.random() < 0.5 else changed(**{name: 1})


def wrong_option(rng: random.Random) -> bytes:
    name = rng.choice(["deadline_ms", "priority"])
    return changed(**{name: rng.choice(["soon", [], {}, True, 1e12, -1e12, "1"])})


def wrong_top(rng: random.Random) -> bytes:
    top = ([], {}, None, True, 1, "a", [GOOD], {"inputs": 1}, {"input": None})
    return json.dumps(rng.choice(top)).encode()


def wrong_syntax(rng: random.Random) -> bytes:
    changes = (
        (b'"', b"'"),
        (b":", b"="),
        (b"]", b",]"),
        (b"{", b"{/* a comment */"),
        (b"null", b"None"),
        (b"null", b"undefined"),
        (b"}", b""),
        (b",", b""),
        (b'"words"', b"words"),
        (b'"words"', b'"wor\nds"'),
        (b'"words"', b'"\\x"'),
        (b'"words"', b'"\\ud800"'),
    )
    return TEXT.replace(*rng.choice(changes))


def extended(rng: random.Random) -> bytes:
    return TEXT + rng.choice([b"x", b"{}", TEXT, b"\x00", b",", b"]", b"}"])


def encoded(rng: random.Random) -> bytes:
    ways: tuple[Callable[[str], bytes], ...] = (
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-32"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: gzip.compress(text.encode()),
        lambda text: f"body={text}".encode(),
        lambda text: json.dumps(text).encode(),
    )
    return rng.choice(ways)(TEXT.decode())


def huge(rng: random.Random) -> bytes:
    size = rng.choice([2**18, 2**19])
    filled = rng.choice([b"1," * (size // 2), b"x" * size, b'"' * size, b" " * size])
    return b'{"input": {"words": [' + filled + b"]}}"


def strings(rng: random.Random) -> bytes:
    """What makes a careless search for strings take quadratic time."""
    return rng.choice([b'"' + b'\\"' * 30_000, b'"\\' * 30_000, b'["' * 30_000])


RULES = (
    *(truncated, garbage, not_utf8, deep, not_finite, wrong_number, not_a_number),
    *(wrong_words, wrong_steps, wrong_field, wrong_option, wrong_top, wrong_syntax),
    *(extended, encoded, huge, strings),
)


def malformed_bodies(count: int) -> Iterator[tuple[str, bytes]]:
    """So many bodies and the names of their rules; the same in every run."""
    for k in range(count):
        rule = RULES[k % len(RULES)]
        yield f"{rule.__name__} {k}", rule(random.Random(k))
