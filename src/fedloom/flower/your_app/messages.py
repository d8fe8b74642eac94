"""One round's messages between a strategy and its clients: one each way, as plain arrays or packed by the codec."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecordValues, RecordDict
from torch import Tensor

from fedloom.codec import AnyKeep, AnyMask, Expected, ModelPart, Rejected, decode, encode
from fedloom.core.refused import REASONS
from fedloom.core.types import Reply, Setting, Task
from fedloom.flower.protocol.part_form import ROWS, form_of, part_of
from fedloom.flower.protocol.records import FACTS, NodeMessage, Payload, pack, unpack
from fedloom.flower.protocol.round_id import RoundId
from fedloom.flower.your_app.arrays import from_arrays, size_of, to_arrays
from fedloom.flower.your_app.contract import client_half, frame_of, needs_mod
from fedloom.method import Method

log = logging.getLogger("flwr")

Metrics = dict[str, Any]


class RoundMessages:
    """Writes a round's tasks and reads its replies; a refused reply is counted by its reason and changes nothing."""

    def __init__(
        self, method: Method, setting: Setting, task: Task, round_id: RoundId, seed: int, keys: tuple[str, str]
    ) -> None:
        """`keys` are the names of the model's and the configuration's record."""
        self.method, self.setting, self.task, self.keys = method, setting, task, keys
        self.round_id, self.seed = round_id, seed
        self.up = self.down = 0  # bytes of models
        self.metrics: list[Metrics] = []  # of the replies that arrived
        self.rows: dict[int, int] = {}  # node -> row of the cohort, of the nodes that were sent a task
        self._needs_mod = needs_mod(method)
        self._parts: dict[int, ModelPart] = {}  # row -> the part that was sent
        count, total = len(task.share), setting.layout.total
        self._params = task.model.expand(count, -1).clone()
        self._mask = torch.zeros(count, total, dtype=torch.bool)
        self._arrived, self._rejected = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int8)
        self._report = {
            "examples": torch.zeros(count, dtype=torch.int64),
            "steps": torch.ones(count, dtype=torch.int64),
        }
        self._losses = torch.zeros(count)
        self._arrays: ArrayRecord | None = None  # the whole model, shared by all messages

    # ---- tasks

    def write(self, row: int, node: int, config: ConfigRecord, first: Tensor | None) -> RecordDict:
        """A client's task; `first` is the model before the first round, for a node that may not have it yet."""
        self.rows[node] = row
        task, setting = self.task, self.setting
        if not self._needs_mod:
            self._arrays = self._arrays or to_arrays(setting.module, setting.layout, task.model)
            self.down += size_of(self._arrays)
            return RecordDict({self.keys[0]: self._arrays, self.keys[1]: config})
        mask, keep = (None if given is None else given[row] for given in (task.mask, task.keep))
        part = self._parts[row] = part_of(setting, mask, keep, self.method.mask.rows)
        form, client = form_of(setting, part), self._client(row)
        stamp, frame = self.round_id.stamp(client, "down"), frame_of(setting, form)
        payloads = [Payload({}, encode(frame, stamp, task.model, part))]
        if first is not None and self.method.local.traits.needs_whole and not part.whole:
            payloads.append(Payload({}, encode(frame_of(setting, "all"), stamp, first)))
        self.down += sum(len(payload.data) for payload in payloads)
        facts = {
            "run": self.round_id.run, "round": task.round, "client": client, "base": self.round_id.base,
            "seed": self.seed, "share": float(task.share[row]), "authorised": bool(task.authorised[row]),
            "part": form, "arrays": self.keys[0], **client_half(self.method),
        }  # fmt: skip
        return RecordDict({**pack(NodeMessage(facts, payloads)), self.keys[1]: config})

    # ---- replies

    def read(self, node: int, message: Message, weight: str, loss: str) -> bool:
        """Read a reply; whether it is sound. `weight` and `loss` are names of metrics."""
        if message.has_error():
            hint = " (has its ClientApp mods=[fedloom.flower.masked(...)]?)" if self._needs_mod else ""
            log.warning("node %d failed%s: %s", node, hint, message.error.reason)
            return False
        try:
            if node not in self.rows:
                raise Rejected("client", "the node was sent no task in this round.")
            row = self.rows[node]
            if self._arrived[row]:
                raise Rejected("duplicate", "a reply of this node has been accepted already.")
            metrics = _read_metrics(message.content, weight)
            if not bool(self.task.authorised[row]):
                return True
            deciding = (self.method.select, self.method.allocate)
            if loss not in metrics and any(part.needs_losses for part in deciding):
                raise Rejected("report", f"the metrics have no '{loss}', by which this method decides; see loss_key.")
            values, mask = self._read_model(row, message.content)
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

    def _client(self, row: int) -> int:
        """The client in a row of the cohort."""
        assert self.task.ids is not None
        return int(self.task.ids[row])

    def _read_model(self, row: int, content: RecordDict) -> tuple[Tensor, Tensor]:
        """A client's weights [P], and the mask of those it sent [P]."""
        setting, task = self.setting, self.task
        everything = torch.ones(setting.layout.total, dtype=torch.bool)
        if not self._needs_mod:
            if len(content.array_records) != 1:
                raise Rejected("header", f"it sent {len(content.array_records)} ArrayRecords; expected one.")
            record = next(iter(content.array_records.values()))
            self.up += size_of(record)
            return from_arrays(record, setting.module, setting.layout), everything
        if FACTS not in content:
            raise Rejected("header", "it sent no packed model; its ClientApp needs mods=[fedloom.flower.masked(...)].")
        payloads = unpack(content).payloads
        if len(payloads) != 1:
            raise Rejected("header", f"it sent {len(payloads)} packed models; expected one.")
        self.up += len(payloads[0].data)
        part = self._expected_part(row)
        form = "bits" if isinstance(part, AnyMask) else ROWS if isinstance(part, AnyKeep) else form_of(setting, part)
        stamp = self.round_id.stamp(self._client(row), "up")
        message = decode(payloads[0].data, Expected(frame_of(setting, form), stamp, part))
        return message.on(task.model), everything if message.mask is None else message.mask

    def _expected_part(self, row: int) -> ModelPart | AnyKeep | AnyMask:
        """The part that a client was sent or, where it chooses what it sends, any part within its share."""
        upload, share = self.method.upload, min(1.0, float(self.task.share[row]))
        if upload.sends_what_came:
            return self._parts[row]._replace(known=True)
        share = 1.0 if upload.sends_all_outputs else share
        return AnyKeep(share, rows=True, outputs=True) if upload.rows else AnyMask(share)


def _read_metrics(content: RecordDict, weight: str) -> Metrics:
    """A reply's metrics; `Rejected` unless it is one record of finite numbers with a possible number of examples."""
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
    """Means of the numbers that all clients report, weighted by examples; the weights are summed."""
    sound = [each for each in found if isinstance(each.get(weight), int | float) and each[weight] > 0]
    if not sound:
        return {}
    total = sum(each[weight] for each in sound)
    shared = set.intersection(*(set(each) for each in sound)) - {weight}
    numbers = [name for name in sorted(shared) if all(isinstance(each[name], int | float) for each in sound)]
    means = {name: sum(each[name] * each[weight] for each in sound) / total for name in numbers}
    return {weight: total, **means}
