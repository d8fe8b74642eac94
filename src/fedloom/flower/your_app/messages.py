"""What does a round write to its clients, and what do they answer? One Flower message each, as arrays or packed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecordValues, RecordDict
from torch import Tensor

from fedloom.codec import AnyKeep, AnyMask, Expected, Part, Rejected, Stamp, decode, encode
from fedloom.codec.stamp import Direction
from fedloom.core.refused import REASONS
from fedloom.core.types import Reply, Setting, Task
from fedloom.flower.protocol.part_form import ROWS
from fedloom.flower.protocol.records import FACTS, NodeMessage, Payload, pack, unpack
from fedloom.flower.your_app.arrays import from_arrays, to_arrays, weight_of
from fedloom.flower.your_app.contract import described, frame_of, plain, told, word_of
from fedloom.method import Method
from fedloom.parts.allocate.latency_and_loss import LatencyAndLoss
from fedloom.parts.select.power_of_choice import PowerOfChoice
from fedloom.parts.select.utility import Utility
from fedloom.parts.upload.as_sent import AsSent

log = logging.getLogger("flwr")

LISTENERS = (LatencyAndLoss, PowerOfChoice, Utility)  # parts that decide by clients' losses
Metrics = dict[str, Any]


class Letters:
    """One round's messages, out and in; whatever is refused is counted by its reason and changes nothing."""

    def __init__(
        self, method: Method, setting: Setting, task: Task, run: str, base: str, seed: int, keys: tuple[str, str]
    ) -> None:
        self.method, self.setting, self.task, self.keys = method, setting, task, keys
        self.run, self.base, self.seed = run, base, seed
        self.up = self.down = 0  # bytes of models
        self.metrics: list[Metrics] = []  # of those who arrived
        self.rows: dict[int, int] = {}  # of the nodes that were asked
        self._parts: dict[int, Part] = {}  # what each row was sent
        count, total = len(task.share), setting.layout.total
        self._params = task.model.expand(count, -1).clone()
        self._mask = torch.zeros(count, total, dtype=torch.bool)
        self._arrived, self._rejected = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int8)
        self._report = {
            "examples": torch.zeros(count, dtype=torch.int64),
            "steps": torch.ones(count, dtype=torch.int64),
        }
        self._losses = torch.zeros(count)
        self._plain: ArrayRecord | None = None  # the same for everybody

    # ---- out

    def written(self, row: int, node: int, config: ConfigRecord, first: Tensor | None) -> RecordDict:
        """What one client is sent; `first` is the model before the first round, for who may not have it yet."""
        self.rows[node] = row
        task, setting = self.task, self.setting
        if plain(self.method):
            self._plain = self._plain or to_arrays(setting.module, setting.layout, task.model)
            self.down += weight_of(self._plain)
            return RecordDict({self.keys[0]: self._plain, self.keys[1]: config})
        mask, keep = (None if given is None else given[row] for given in (task.mask, task.keep))
        part = self._parts[row] = described(setting, mask, keep, self.method.mask.rows)
        word = word_of(setting, part)
        stamp, frame = self._stamp(row, "down"), frame_of(setting, word)
        payloads = [Payload({}, encode(frame, stamp, task.model, part))]
        if first is not None and self.method.local.traits.needs_whole and not part.whole:
            payloads.append(Payload({}, encode(frame_of(setting, "all"), stamp, first)))
        self.down += sum(len(payload.data) for payload in payloads)
        facts = {
            "run": self.run, "round": task.round, "client": stamp.client, "base": self.base, "seed": self.seed,
            "share": float(task.share[row]), "authorised": bool(task.authorised[row]), "part": word,
            "arrays": self.keys[0], **told(self.method),
        }  # fmt: skip
        return RecordDict({**pack(NodeMessage(facts, payloads)), self.keys[1]: config})

    # ---- in

    def take(self, node: int, message: Message, weight: str, loss: str) -> bool:
        """Read one reply; whether it is sound."""
        if message.has_error():
            hint = "" if plain(self.method) else " (has its ClientApp mods=[fedloom.flower.masked(...)]?)"
            log.warning("node %d failed%s: %s", node, hint, message.error.reason)
            return False
        try:
            if node not in self.rows:
                raise Rejected("client", "nothing was asked of it in this round.")
            row = self.rows[node]
            if self._arrived[row]:
                raise Rejected("duplicate", "a reply of this node has been accepted already.")
            metrics = _metrics(message.content, weight)
            if not bool(self.task.authorised[row]):
                return True
            if loss not in metrics and any(
                isinstance(p, LISTENERS) for p in (self.method.select, self.method.allocate)
            ):
                raise Rejected("report", f"the metrics have no '{loss}', by which this method decides; see loss_key.")
            values, mask = self._read(row, message.content)
        except Rejected as refused:
            log.warning("node %d is not counted in round %d: %s", node, self.task.round, refused)
            if node in self.rows and not self._arrived[self.rows[node]]:
                self._rejected[self.rows[node]] = REASONS.index(refused.reason)
            return False
        self._params[row], self._mask[row], self._arrived[row], self._rejected[row] = values, mask, True, 0
        self._report["examples"][row] = int(metrics[weight])
        self._report["steps"][row] = max(1, int(metrics.get("steps", 1)))
        self._losses[row] = float(metrics.get(loss, 0.0))
        self.metrics.append(metrics)
        return True

    def reply(self) -> Reply:
        """The cohort's replies so far."""
        assert self.task.ids is not None
        whole = not self._parts or bool(self._mask[self._arrived].all())
        report = {**self._report, "loss": self._losses}
        mask = None if whole else self._mask
        return Reply(self.task.ids, self._params, mask, {}, report, self._arrived, rejected=self._rejected)

    def _stamp(self, row: int, direction: Direction) -> Stamp:
        assert self.task.ids is not None
        client = int(self.task.ids[row])
        return Stamp(self.run, self.task.round, client, self.base, direction=direction)

    def _read(self, row: int, content: RecordDict) -> tuple[Tensor, Tensor]:
        """A client's weights [P], and which of them it sent."""
        setting, task = self.setting, self.task
        everything = torch.ones(setting.layout.total, dtype=torch.bool)
        if plain(self.method):
            if len(content.array_records) != 1:
                raise Rejected("header", f"it sent {len(content.array_records)} ArrayRecords; expected one.")
            record = next(iter(content.array_records.values()))
            self.up += weight_of(record)
            return from_arrays(record, setting.module, setting.layout), everything
        if FACTS not in content:
            raise Rejected("header", "it sent no packed model; its ClientApp needs mods=[fedloom.flower.masked(...)].")
        payloads = unpack(content).payloads
        if len(payloads) != 1:
            raise Rejected("header", f"it sent {len(payloads)} packed models; expected one.")
        self.up += len(payloads[0].data)
        part = self._expected(row)
        word = "bits" if isinstance(part, AnyMask) else ROWS if isinstance(part, AnyKeep) else word_of(setting, part)
        message = decode(payloads[0].data, Expected(frame_of(setting, word), self._stamp(row, "up"), part))
        return message.on(task.model), everything if message.mask is None else message.mask

    def _expected(self, row: int) -> Part | AnyKeep | AnyMask:
        """The part that a client was sent or, where it chooses by itself, any within its share."""
        upload, share = self.method.upload, min(1.0, float(self.task.share[row]))
        if isinstance(upload, AsSent):
            return self._parts[row]._replace(known=True)
        share = share if getattr(upload, "outputs", True) else 1.0  # the output layer is then sent whole
        return AnyKeep(share, rows=True, outputs=True) if upload.rows else AnyMask(share)


def _metrics(content: RecordDict, weight: str) -> Metrics:
    """A reply's metrics, if it has one record of finite numbers with a possible number of examples in it."""
    if len(content.metric_records) != 1:
        raise Rejected("report", f"it sent {len(content.metric_records)} MetricRecords; expected one.")
    found = dict(next(iter(content.metric_records.values())))
    examples = found.get(weight)
    if not isinstance(examples, int | float) or not isfinite(examples) or not 1 <= examples < 2**53:
        raise Rejected("report", f"'{weight}' is {examples!r}; expected a number of examples.")
    for name, value in found.items():
        if isinstance(value, float) and not isfinite(value):
            raise Rejected("value", f"metric '{name}' is {value}.")
    return found


def mean_metrics(found: Sequence[Mapping[str, Any]], weight: str) -> dict[str, MetricRecordValues]:
    """Means by examples of the numbers that all have; the weight itself is added up."""
    sound = [each for each in found if isinstance(each.get(weight), int | float) and each[weight] > 0]
    if not sound:
        return {}
    total = sum(each[weight] for each in sound)
    shared = set.intersection(*(set(each) for each in sound)) - {weight}
    numbers = [name for name in sorted(shared) if all(isinstance(each[name], int | float) for each in sound)]
    means = {name: sum(each[name] * each[weight] for each in sound) / total for name in numbers}
    return {weight: total, **means}
