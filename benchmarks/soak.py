"""A deployment that is disturbed for minutes, one of fifty nodes, and what nodes cost when idle and busy.

    python benchmarks/soak.py soak  [--nodes 10] [--rounds 150] [--seed 0] [-o FILE]
    python benchmarks/soak.py fleet [--nodes 50] [--rounds 3]
    python benchmarks/soak.py costs [--nodes 10] [--rounds 20] [--seconds 60]

`soak` runs FedAvg twice on real nodes with the same disturbances: once with a node that answers badly in a new way each
round (`bad_node.py`), and once without that node. Nodes are killed and stopped at random, and some are behind a slow
link. It reports accuracies, memory over time, refusals, and what of the log or the processes is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fedloom.flower.deploy.processes import marked_processes
from fedloom.flower.deploy.relay import CHUNK, Relay, reset
from fedloom.flower.deploy.trial import Trial, rounds_reporter, started
from fedloom.layout import load
from fedloom.runs.build import prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows
from flower_disturbed import Disturber, lost_in, model_of, with_lost

UP, DOWN, DELAY = 2e6 / 8, 10e6 / 8, 0.1  # bytes a second and seconds of a slow link
DEADLINE = 60.0
SAMPLE = 2.0  # seconds between looks at memory
REFUSED = re.compile(r"a reply of client (-?\d+) in round (\d+) was refused: (\S+?)[;,:. ]")
ROLES = {"flower-superlink": "link", "flwr-serverapp": "server app", "flower-superexec": "superexec", "gate": "gate"}


class SlowRelay(Relay):
    """A relay whose connections are slow and far."""

    async def _carry(self, traffic: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection(self.host, self.port)
        except OSError:
            reset(writer)
            return

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, rate: float) -> None:
            free, loop = 0.0, asyncio.get_running_loop()
            with suppress(OSError, RuntimeError):
                while chunk := await source.read(CHUNK // 8):
                    free = max(free, loop.time()) + len(chunk) / rate
                    await asyncio.sleep(free - loop.time())
                    loop.call_later(DELAY, sink.write, chunk)
                await asyncio.sleep(DELAY + 0.01)
                if sink.can_write_eof():
                    sink.write_eof()

        try:
            await asyncio.gather(pump(reader, forth, UP), pump(back, writer, DOWN))
        finally:
            writer.close()
            forth.close()


def memory(mark: str) -> dict[str, float]:
    """Megabytes that link, gate, server app and all nodes together hold; pages of several processes count in parts."""
    found: Counter[str] = Counter()
    for pid in marked_processes(mark):
        with suppress(OSError, StopIteration, ValueError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            names = {Path(word).name for word in words[:4]}
            role = next((role for name, role in ROLES.items() if name in names), "nodes")
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found[role] += next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    return dict(found)


@dataclass
class Memory:
    """Memory over time."""

    mark: str
    began: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def look(self) -> None:
        """Take a sample, if it is time."""
        now = time.monotonic() - self.began
        if not self.samples or now - self.samples[-1][0] >= SAMPLE:
            self.samples.append((now, memory(self.mark)))

    def summary(self) -> dict[str, dict[str, float]]:
        """First, last and most megabytes of each role, and megabytes a minute after the first third."""
        found = {}
        for role in sorted({role for _, sample in self.samples for role in sample}):
            series = [(at, sample[role]) for at, sample in self.samples if role in sample]
            late = series[len(series) // 3 :]
            slope = np.polyfit([at / 60 for at, _ in late], [size for _, size in late], 1)[0] if len(late) > 2 else 0.0
            sizes = [size for _, size in series]
            found[role] = {"first": sizes[0], "last": sizes[-1], "most": max(sizes), "per_minute": float(slope)}
        return found


def soaked(nodes: int, rounds: int, seed: int, bad: bool, root: Path) -> dict[str, Any]:
    """One disturbed run, with the last node bad or away; what came of it."""
    experiment = Experiment(method="fedavg", clients=nodes, rounds=rounds, partition="iid", device="cpu", seed=seed)
    last, run = nodes - 1, root / "run"
    with started(experiment, nodes, root / "work", root / "states", {"deadline": DEADLINE}, lasting=True) as trial:
        text = (Path(__file__).parent / "bad_node.py").read_text()
        (trial.deployment.app / "client.py").write_text(text.replace('BAD = ""', f'BAD = "{last}"'))
        if not bad:
            trial.processes.heads[f"node-{last}"].terminate()
            trial.processes.heads[f"node-{last}"].wait()
        slow = list(range(0, last, 3))
        with SlowRelay("127.0.0.1", trial.relay.port) as relay:
            for node in slow:
                trial.relay.ports[node] = relay.add()
                trial.processes.heads[f"node-{node}"].terminate()
                trial.processes.heads[f"node-{node}"].wait()
                trial.start_node(node)
            sizes, disturber = Memory(trial.processes.mark), Disturber(trial, list(range(last)), random.Random(seed))
            looks = sizes.look, disturber.look, rounds_reporter(run, shown)

            def look() -> None:
                if bad and not trial.processes.running(f"node-{last}"):
                    trial.start_node(last)
                for one in looks:
                    one()

            began = time.monotonic()
            number = trial.control.start(trial.deployment.app, {"out": str(run), "deadline": DEADLINE})
            status = trial.wait(number, look)
            seconds = time.monotonic() - began
            idle = memory(trial.processes.mark)
    return {
        "outcome": status.outcome, "seconds": seconds, "slow": slow,
        "events": Counter(how for _, how, _ in disturber.events),
        "left": len(marked_processes(trial.processes.mark)), "memory": sizes.summary(), "at the end": idle,
        **verdict(run, last), **compared(run, experiment, last),
    }  # fmt: skip


def compared(run: Path, experiment: Experiment, last: int) -> dict[str, float]:
    """The run's model and the simulator's that loses the same replies; accuracy if it loses the last node's too."""
    lost, inputs = lost_in(run), prepare(experiment).inputs
    gone = lost | {(number, last) for number in range(1, experiment.rounds + 1)}
    model, honest, without = model_of(run, experiment), with_lost(experiment, lost), with_lost(experiment, gone)

    def accuracy(weights: torch.Tensor) -> float:
        network = load(inputs.network, inputs.setting.layout, weights).eval()
        with torch.no_grad():
            return float((network(inputs.test.x).argmax(1) == inputs.test.y).float().mean())

    return {
        "largest difference from the simulator": float((model - honest).abs().max()),
        "accuracy of the model": accuracy(model), "simulated without the last node": accuracy(without),
    }  # fmt: skip


def shown(row: dict[str, Any]) -> None:
    """Print a round."""
    print(f"round {row['round']}: {row['arrived']} of {row['clients']}, {row['wall_seconds']:.1f} s", file=sys.stderr)


def verdict(run: Path, last: int) -> dict[str, Any]:
    """What the run folder says: accuracy, the longest round, refusals, and lines that are twice in the log."""
    rows, text = table_rows(run / "rounds.parquet"), (run / "log.txt").read_text()
    reasons = [name for name in rows[-1] if name.startswith("rejected.")]
    lines = Counter(line.split(" ", 2)[2] for line in text.splitlines() if line.count(" ") > 2)
    refused = Counter(REFUSED.findall(text))
    return {
        "rounds": len(rows), "accuracy": mean(row["accuracy"] for row in rows[-10:]),
        "seconds a round": mean(row["wall_seconds"] for row in rows),
        "longest": max(row["wall_seconds"] for row in rows),
        "arrived": mean(row["arrived"] for row in rows),
        "refused": {name.partition(".")[2]: int(sum(row.get(name) or 0 for row in rows)) for name in reasons},
        "refused of others": sum(refused[one] for one in refused if int(one[0]) not in (last, -1, -7)),
        "log lines": sum(lines.values()), "log bytes": len(text),
        "twice in the log": {line[:100]: count for line, count in lines.items() if count > 1},
        "longest line": max(map(len, text.splitlines())),
    }  # fmt: skip


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Both runs."""
    found = {}
    for name, bad in (("with the bad node", True), ("without it", False)):
        with tempfile.TemporaryDirectory(prefix="fedloom-soak-") as root:
            print(f"{time.strftime('%H:%M:%S')} {name} ...", file=sys.stderr, flush=True)
            found[name] = soaked(args.nodes, args.rounds, args.seed, bad, Path(root))
        print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
    one, other = (found[name]["accuracy"] for name in found)
    return {**found, "points lost": 100 * (other - one)}


def fleet(args: argparse.Namespace) -> dict[str, Any]:
    """How long a deployment of many nodes takes, from nothing to its end."""
    experiment = Experiment(method="fedavg", clients=args.nodes, rounds=args.rounds, device="cpu")
    with tempfile.TemporaryDirectory(prefix="fedloom-soak-") as root:
        began = time.monotonic()
        with started(experiment, args.nodes, Path(root, "work"), Path(root, "states")) as trial:
            up, sizes = time.monotonic() - began, memory(trial.processes.mark)
            number = trial.control.start(trial.deployment.app, {"out": f"{root}/run"})
            status = trial.wait(number)
            ran = time.monotonic() - began
        whole = time.monotonic() - began
        rows = table_rows(Path(root, "run", "rounds.parquet"))
    return {
        "outcome": status.outcome, "seconds": whole, "nodes up after": up, "run ended after": ran, "times": trial.times,
        "arrived": [row["arrived"] for row in rows], "seconds of rounds": [row["wall_seconds"] for row in rows],
        "memory": sizes, "MB a node": sizes["nodes"] / args.nodes,
    }  # fmt: skip


def costs(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes and memory of nodes without a run, and in one."""
    experiment = Experiment(method="fedavg", clients=args.nodes, rounds=args.rounds, device="cpu")

    def carried(trial: Trial, work: Callable[[], Any]) -> dict[str, float]:
        before, began = [(one.up, one.down) for one in trial.relay.traffic], time.monotonic()
        work()
        seconds, sizes = time.monotonic() - began, memory(trial.processes.mark)
        up = sum(one.up - then for one, (then, _) in zip(trial.relay.traffic, before)) / args.nodes
        down = sum(one.down - then for one, (_, then) in zip(trial.relay.traffic, before)) / args.nodes
        found = {
            "seconds": seconds,
            "bytes up a node": up,
            "bytes down a node": down,
            "MB a node": sizes["nodes"] / args.nodes,
        }
        return {**found, **{f"MB {role}": size for role, size in sizes.items() if role != "nodes"}}

    with tempfile.TemporaryDirectory(prefix="fedloom-soak-") as root:
        with started(experiment, args.nodes, Path(root, "work"), Path(root, "states")) as trial:
            idle = carried(trial, lambda: time.sleep(args.seconds))
            out = Path(root, "run")
            busy = carried(trial, lambda: trial.wait(trial.control.start(trial.deployment.app, {"out": str(out)})))
            peaks = [trial.processes.peaks[f"node-{node}"] / 2**20 for node in range(args.nodes)]
        rows = table_rows(out / "rounds.parquet")
    more = {
        "seconds a round": mean(row["wall_seconds"] for row in rows),
        "most MB of a node": max(peaks),
        "rounds": len(rows),
    }
    return {"idle": idle, "busy": {**busy, **more}}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["soak", "fleet", "costs"])
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    measure, nodes, rounds = {"soak": (soak, 10, 150), "fleet": (fleet, 50, 3), "costs": (costs, 10, 20)}[args.what]
    args.nodes, args.rounds = args.nodes or nodes, args.rounds or rounds
    about = {
        "command": " ".join(sys.argv),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "machine": platform.machine(),
    }
    text = json.dumps({**about, **measure(args)}, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
