"""Speed of other frameworks: W1, W2 and W3 in each one's own environment, back to back, on this machine's CPU.

    benchmarks/peers/setup.sh                    once: creates the environments
    python benchmarks/peers/run.py --choose      once: tries each configuration and stores each peer's fastest
    python benchmarks/peers/run.py --cycles 5    measures those; a cycle runs each peer once

FedAvg, 100 clients with 600 samples of 28x28 each, batch 50, 1 epoch, SGD at 0.1; W1: 10 per round, 784-200-200-10; W2:
all 100; W3: cnn1, 10 per round. No evaluation in a round. Times leave out the first round. The fedloom measured is that
of the environment that runs this script. Medians over all rounds of all cycles; ratios are per cycle, and their median
is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from work import FOLDER, WORKS, invent

HERE = Path(__file__).resolve().parent
ROUNDS = {"W1": 8, "W2": 4, "W3": 4}
NOTES = {
    "fedloom": "`run` as a user calls it, with its ledger and the prices of messages",
    "pfl": "batches are slices without shuffling, as in its own examples, and metrics are not printed",
    "fedjax": "with jax 0.4.30: its last release calls jax.tree_map, which later ones do not have",
    "fluke": "from Python, models in memory, no evaluation; torchvision without its operators (without_operators.py)",
    "flower": "run_simulation, deprecated for `flwr run`, which starts more processes around the same engine; 1.41.0, "
    "as 1.42.0 asks for a certifi that was not to be had",
    "plain": "nn.Module, torch.optim.SGD, one client after another, by hand",
}
COLUMNS = (
    "configuration", "ms a round", "lowest - highest", "x", "whole process, s", "x", "first round after, s", "steps",
    "accuracy",
)  # fmt: skip
LIMIT = 300  # seconds for one process
UNCOMPILED = "PYTHONDONTWRITEBYTECODE"  # would compile fedloom in every process; pip compiled the peers beforehand
PACKAGES = {"plain": "torch", "pfl": "pfl", "flower": "flwr", "fluke": "fluke-fl", "fedjax": "fedjax"}


class Way(NamedTuple):
    """One configuration of a peer."""

    about: str
    environment: dict[str, str]
    ranks: int = 1


def _threads(count: int) -> dict[str, str]:
    return {name: str(count) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}


ONE_CORE_XLA = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
WAYS: dict[str, dict[str, Way]] = {
    "fedloom": {
        "own": Way("as it chooses by itself", {}),
        "1": Way("1 thread", _threads(1)),
    },
    "pfl": {
        "2x1": Way("2 ranks, 1 thread each", _threads(1), ranks=2),
        "1x2": Way("1 rank, 2 threads", _threads(2)),
        "1x1": Way("1 rank, 1 thread", _threads(1)),
    },
    "fedjax": {
        "jit": Way("jit", {}),
        "pmap": Way(
            "pmap over 2 devices",
            {"PEERS_BACKEND": "pmap", "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {ONE_CORE_XLA}"},
        ),
        "jit1": Way("jit, 1 thread", {"XLA_FLAGS": ONE_CORE_XLA}),
    },
    "fluke": {"2": Way("2 threads", _threads(2)), "1": Way("1 thread", _threads(1))},
    "plain": {"2": Way("2 threads", _threads(2)), "1": Way("1 thread", _threads(1))},
    "flower": {
        "2x1": Way("Ray, 2 workers of 1 core", {"PEERS_CPUS": "1", **_threads(1)}),
        "1x2": Way("Ray, 1 worker of 2 cores", {"PEERS_CPUS": "2", **_threads(2)}),
    },
}


def play(peer: str, way: Way, work: str) -> dict[str, Any]:
    """One process (or one per rank) from start to its last round; `error` if it gave no report."""
    python = sys.executable if peer == "fedloom" else str(HERE / ".venv" / peer / "bin" / "python")
    if not Path(python).exists():
        return {"error": f"no environment; run benchmarks/peers/setup.sh {peer}"}
    script = HERE / (f"{peer}.py" if peer == "plain" else f"{peer}_.py")
    environment = {k: v for k, v in os.environ.items() if k not in (*_threads(1), UNCOMPILED)} | way.environment
    environment["PYTHONPATH"] = str(HERE.parents[1] / "src") if peer == "fedloom" else ""
    environment["PYTHONWARNINGS"] = "ignore"
    if way.ranks > 1:
        environment["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{_free_port()}" for _ in range(way.ranks))
    environment["PEERS_STARTED"] = str(time.time())
    command, processes = [python, str(script), work, str(ROUNDS[work])], []
    for rank in range(way.ranks):
        own_rank = {"PFL_WORKER_RANK": str(rank)} if way.ranks > 1 else {}
        output = subprocess.DEVNULL if rank else subprocess.PIPE  # rank 0 alone reports
        processes.append(
            subprocess.Popen(
                command, env=environment | own_rank, stdout=output, stderr=output, text=True, start_new_session=True
            )
        )
    try:
        out, problem = processes[0].communicate(timeout=LIMIT)
        for process in processes[1:]:
            process.wait(10)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {LIMIT} s"}
    finally:
        for process in processes:  # with what they started themselves, such as Ray's workers
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        return dict(json.loads(out.strip().splitlines()[-1]))
    except (IndexError, ValueError):
        lines = (problem or out).strip().splitlines() or ["nothing was printed"]
        return {"error": f"exit code {processes[0].returncode}: {lines[-1][:200]}"}


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("localhost", 0))
        return int(place.getsockname()[1])


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def choose(works: list[str], peers: list[str], path: Path) -> None:
    """Measure each configuration once, and store each peer's fastest per workload."""
    best: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    for work in works:
        for peer in peers:
            found = {}
            for name, way in WAYS[peer].items():
                got = play(peer, way, work)
                found[name] = median(got["rounds_ms"]) if "rounds_ms" in got else float("inf")
                say(f"{work} {peer}, {way.about}: {got.get('error') or f'{found[name]:.0f} ms a round'}")
            best.setdefault(work, {})[peer] = min(found, key=found.__getitem__)
    path.write_text(json.dumps(best, indent=2) + "\n")


def machine() -> str:
    """The machine of the measurement."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def versions(peer: str) -> str:
    """The versions of a peer and of its framework."""
    listed = HERE / ".venv" / peer / "versions.txt"
    if peer == "fedloom" or not listed.exists():
        return ""
    found = dict(line.split("==") for line in listed.read_text().splitlines() if "==" in line)
    names = dict.fromkeys((PACKAGES[peer], "torch", "jax", "ray"))
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def tables(report: dict[str, Any]) -> str:
    """One table per workload; ratios are to fedloom in the same cycle."""
    text = [
        "# fedloom and its peers on two CPU cores",
        "",
        f"`{report['command']}`, {report['date']}, {report['machine']}; load before: {report['load']}.",
        "FedAvg, 100 clients of 600 samples, batch 50, 1 epoch, no evaluation in a round; medians over "
        f"{report['cycles']} cycles, the first round of each process left out. Whole process: from its start to "
        "the end of its last round. `x` is the peer's time in times of fedloom, the median of the cycles' own ratios.",
    ]
    for work, peers in report["results"].items():
        text += [
            "",
            f"## {work}: {WORKS[work][0]}, {WORKS[work][1]} clients a round, {ROUNDS[work]} rounds a process",
            "",
            "| " + " | ".join(("", *COLUMNS)) + " |",
            "|---" * (len(COLUMNS) + 1) + "|",
        ]
        for peer, runs in sorted(peers.items(), key=lambda pair: _middle(pair[1], "ms")):
            good = [run for run in runs if "error" not in run]
            if not good:
                text.append(f"| {peer} | {report['ways'][work][peer]} | {runs[0]['error']} | | | | | | | |")
                continue
            times = [ms for run in good for ms in run["rounds_ms"]]
            cells = [peer, report["ways"][work][peer], f"{median(times):.0f}", f"{min(times):.0f} - {max(times):.0f}"]
            cells += [_times(runs, peers.get("fedloom", []), "ms"), f"{_middle(runs, 'whole_s'):.1f}"]
            cells += [_times(runs, peers.get("fedloom", []), "whole_s"), f"{_middle(runs, 'first_s'):.1f}"]
            cells += [f"{good[-1]['steps']:g}", f"{good[-1]['accuracy']:.3f}"]
            text.append(f"| {' | '.join(cells)} |")
    text += ["", *(f"- {peer}: {NOTES[peer]}" for peer in report["versions"])]
    versions = [f"{peer}: {version}" for peer, version in report["versions"].items() if version]
    text += ["", f"Versions: {'; '.join(versions)}."]
    return "\n".join(text) + "\n"


def _value(run: dict[str, Any], what: str) -> float:
    return median(run["rounds_ms"]) if what == "ms" else float(run[what])


def _middle(runs: list[dict[str, Any]], what: str) -> float:
    values = [_value(run, what) for run in runs if "error" not in run]
    return median(values) if values else float("inf")


def _times(runs: list[dict[str, Any]], ours: list[dict[str, Any]], what: str) -> str:
    """A peer's time divided by fedloom's, per cycle."""
    both = [(a, b) for a, b in zip(runs, ours) if "error" not in a and "error" not in b]
    return f"{median(_value(a, what) / _value(b, what) for a, b in both):.2f}" if both else "-"


def main() -> None:
    """Choose configurations, or measure them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="W1 W2 W3; all if left out")
    parser.add_argument("--peers", default=",".join(WAYS), help="joined by commas")
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--choose", action="store_true", help="try every configuration and remember the fastest")
    parser.add_argument("--json", type=Path, default=HERE / ".venv" / "peers.json")
    parser.add_argument("--out", type=Path, help="write the tables to this .md too")
    options = parser.parse_args()
    works, peers, remembered = options.workloads or list(WORKS), options.peers.split(","), HERE / ".venv" / "best.json"
    if not set(works) <= set(WORKS) or not set(peers) <= set(WAYS):
        parser.error(f"workloads are {', '.join(WORKS)} and peers {', '.join(WAYS)}")
    if not (FOLDER / "labels.npy").exists():
        invent()
    if options.choose:
        choose(works, peers, remembered)
        return
    best = json.loads(remembered.read_text()) if remembered.exists() else {}
    ways = {
        work: {peer: WAYS[peer][best.get(work, {}).get(peer, next(iter(WAYS[peer])))] for peer in peers}
        for work in works
    }
    report: dict[str, Any] = {
        "command": "python benchmarks/peers/run.py " + " ".join(sys.argv[1:]),
        "date": date.today().isoformat(),
        "machine": machine(),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "cycles": options.cycles,
        "versions": {peer: versions(peer) for peer in peers},
        "ways": {work: {peer: way.about for peer, way in own.items()} for work, own in ways.items()},
        "results": {work: {peer: [] for peer in peers} for work in works},
    }
    for cycle in range(options.cycles):
        for work in works:
            for peer, way in ways[work].items():
                got = play(peer, way, work)
                report["results"][work][peer].append(got)
                shown = got.get("error") or f"{median(got['rounds_ms']):.0f} ms a round, {got['whole_s']:.1f} s"
                say(f"cycle {cycle + 1} of {options.cycles}, {work}, {peer}: {shown}")
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    text = tables(report)
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
