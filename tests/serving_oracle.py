"""Oracle of the simulated server: slow plain Python, straight from the definition."""

import math


class Request:
    """A request: its nodes' types and operands, and the nodes that have run."""

    def __init__(self, number, arrival, types, operands, deadline):
        self.number = number
        self.arrival = arrival
        self.types = types
        self.operands = operands
        self.deadline = deadline
        self.done = set()
        self.ready = {}  # node -> time at which it became ready
        self.finish = math.inf

    def open_nodes(self):
        return {
            v
            for v in range(len(self.types))
            if v not in self.done and all(u in self.done for u in self.operands[v])
        }

    def is_over(self):
        return len(self.done) == len(self.types)

    def heads(self, kind):
        """Number of remaining nodes of a type that have no remaining ancestor of it."""
        blocked = set()
        count = 0
        for v in range(len(self.types)):
            if v in self.done:
                continue
            above = any(u in blocked for u in self.operands[v])
            if self.types[v] == kind:
                count += not above
            if above or self.types[v] == kind:
                blocked.add(v)
        return count


class Server:
    """Requests that arrive, join, run in waves, and are answered."""

    def __init__(self, requests, cost_ms, overhead, window, most, quantum):
        self.requests = requests
        self.cost_ms = cost_ms
        self.overhead = overhead
        self.window = window
        self.most = most
        self.quantum = quantum
        self.now = self.looked = 0.0
        self.flight = []  # requests that have joined and are not yet answered
        self.joined = 0
        self.batches = 0  # in this wave
        self.queue = {t: [] for t in range(len(cost_ms))}  # (request, node)
        self.settle()

    def at_door(self):
        return [r for r in self.requests[self.joined :] if r.arrival <= self.now]

    def look(self):
        for r in self.flight:
            if r.is_over():
                r.finish = self.now
        self.flight = [r for r in self.flight if not r.is_over()]
        door = self.at_door()
        may = self.most - len(self.flight)
        if self.window is not None and door:
            is_open = self.now >= door[0].arrival + self.window
            if self.flight or not (is_open or len(door) >= self.most):
                may = 0
        for r in door[:may]:
            self.flight.append(r)
            self.joined += 1
            self.make_ready(r)
        self.looked, self.batches = self.now, 0
        self.outside = len(self.at_door())

    def make_ready(self, r):
        for v in sorted(r.open_nodes() - r.ready.keys()):
            r.ready[v] = self.now
            self.queue[r.types[v]].append((r, v))

    def waits(self):
        return any(self.queue.values())

    def settle(self):
        while not self.waits():
            self.look()
            if self.waits() or all(r.finish < math.inf for r in self.requests):
                return
            times = [r.arrival for r in self.requests if r.arrival > self.now]
            door = self.at_door()
            if door:
                times.append(door[0].arrival + self.window)
            self.now = min(times)

    def run(self, kind, most):
        rows = self.queue[kind][:most]
        self.queue[kind] = self.queue[kind][most:]
        self.now += self.cost_ms[kind][len(rows)]
        if self.batches == 0:
            self.now += self.overhead
        self.batches += 1
        for r, v in rows:
            r.done.add(v)
        # A reader is queued at the place of its last operand in the batch.
        for r, v in rows:
            self.now_ready(r, v, rows)
        self.settle()
        return len(rows)

    def now_ready(self, r, v, rows):
        """Queues readers of v whose operands come no later than v in this batch."""
        place = rows.index((r, v))
        later = {u for s, u in rows[place + 1 :] if s is r}
        for w in range(len(r.types)):
            reads = r.operands[w]
            if v in reads and not later & {*reads} and {*reads} <= r.done:
                r.ready[w] = self.now
                self.queue[r.types[w]].append((r, w))

    def wait(self):
        times = [r.arrival for r in self.requests if r.arrival > self.now]
        until = min([self.now + self.quantum, *times])
        self.look()
        self.now = until
        self.look()
        self.settle()

    def integral(self):
        """Total time that requests have spent in the server so far."""
        return sum(max(0.0, min(self.now, r.finish) - r.arrival) for r in self.requests)

    def state(self):
        """The state as the fields of `ServingState`."""
        kinds = range(len(self.cost_ms))
        now = self.looked
        queue = self.queue
        return {
            "waiting": [len(queue[t]) for t in kinds],
            "remaining": [
                sum(
                    r.types[v] == t
                    for r in self.flight
                    for v in range(len(r.types))
                    if v not in r.done
                )
                for t in kinds
            ],
            "oldest_ms": [
                max([now - r.arrival for r, _ in queue[t]] + [0]) for t in kinds
            ],
            "waited_ms": [
                max([now - r.ready[v] for r, v in queue[t]] + [0]) for t in kinds
            ],
            "slack_ms": [
                min([r.arrival + r.deadline - now for r, _ in queue[t]] + [math.inf])
                for t in kinds
            ],
            "in_flight": len(self.flight),
            "arrived": self.outside,
            "batches": self.batches,
            "now_ms": now,
            "heads": [sum(r.heads(t) for r in self.flight) for t in kinds],
        }
