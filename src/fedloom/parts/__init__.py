"""All parts, the contracts of the slots they fill, and the types needed to write a part of your own."""

from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.pace import Pace, Wish
from fedloom.core.part import (
    Admit,
    Aggregate,
    Allocate,
    Mask,
    NobodyLeft,
    Part,
    Repair,
    Sampling,
    Select,
    ServerPart,
    Upload,
)
from fedloom.core.pool import Pool
from fedloom.core.rule import LocalRule, Objective, Shift, Traits, Tuning
from fedloom.core.sparsity import Sparsity
from fedloom.core.stale import Stale
from fedloom.core.types import Batch, Portion, State
from fedloom.core.work import Work
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.admit.bounded import Bounded
from fedloom.parts.admit.check import Check, Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.norm import Norm
from fedloom.parts.admit.part_asked import PartAsked, WithinShare
from fedloom.parts.admit.relative import Relative
from fedloom.parts.admit.weight import Weight
from fedloom.parts.aggregate.changed_mean import ChangedMean
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.krum import Krum
from fedloom.parts.aggregate.latest_updates import LatestUpdates
from fedloom.parts.aggregate.padded_mean import PaddedMean
from fedloom.parts.aggregate.plain_mean import PlainMean
from fedloom.parts.aggregate.private_mean import PrivateMean, private
from fedloom.parts.aggregate.ranked_mean import Median, TrimmedMean
from fedloom.parts.aggregate.refactored import Refactored
from fedloom.parts.aggregate.server_optimiser import (
    ServerAdagrad,
    ServerAdam,
    ServerOptimiser,
    ServerSgd,
    ServerYogi,
)
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.parts.allocate.affordable import Affordable
from fedloom.parts.allocate.latency_and_loss import LatencyAndLoss
from fedloom.parts.allocate.learnt_ranks import LearntRanks
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.allocate.whole import Whole
from fedloom.parts.local.candidates import Candidates
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.decay_some import DecaySome
from fedloom.parts.local.dense_gradients import DenseGradients
from fedloom.parts.local.exits import Exits
from fedloom.parts.local.freeze_layers import FreezeLayers
from fedloom.parts.local.fuse_missed import FuseMissed
from fedloom.parts.local.in_turn import InTurn
from fedloom.parts.local.keep_layers import KeepLayers
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.keep_own_part import KeepOwnPart
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.prune import Prune
from fedloom.parts.local.regrow import Regrow
from fedloom.parts.local.shrink_tail import ShrinkTail
from fedloom.parts.local.stop_early import StopEarly
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.local.tune import Tune
from fedloom.parts.mask.everything import Everything
from fedloom.parts.mask.from_pool import FromPool
from fedloom.parts.mask.largest import Largest
from fedloom.parts.mask.last_sent import LastSent
from fedloom.parts.mask.merged import Merged
from fedloom.parts.mask.own_classes import OwnClasses
from fedloom.parts.mask.own_scores import OwnScores
from fedloom.parts.mask.posterior import Posterior
from fedloom.parts.mask.pruned_by_time import PrunedByTime
from fedloom.parts.mask.ranked import Ranked
from fedloom.parts.mask.regions import Regions
from fedloom.parts.mask.share_layers import ShareLayers
from fedloom.parts.mask.share_out import ShareOut
from fedloom.parts.mask.sparse import Sparse
from fedloom.parts.mask.stages import Stages
from fedloom.parts.pace.barrier import Barrier
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.pace.in_flight import InFlight
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.repair.most_similar import MostSimilar
from fedloom.parts.repair.nothing import Nothing
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.by_success import BySuccess
from fedloom.parts.select.counted import Counted
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.power_of_choice import PowerOfChoice
from fedloom.parts.select.still_running import StillRunning
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.parts.select.uniform import Uniform
from fedloom.parts.select.utility import Utility
from fedloom.parts.select.within import FastestWithinBudget, WithinDeadline
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Constant, Cutoff, Discount, Hinge, Polynomial
from fedloom.parts.upload.as_sent import AsSent
from fedloom.parts.upload.as_trained import AsTrained
from fedloom.parts.upload.importance import Importance
from fedloom.parts.upload.leading_rank import LeadingRank
from fedloom.parts.upload.own_mask import OwnMask

__all__ = [
    "Adam",
    "Admit",
    "Affordable",
    "Aggregate",
    "Allocate",
    "AsChange",
    "AsModel",
    "AsSent",
    "AsTrained",
    "Barrier",
    "Batch",
    "Bernoulli",
    "Bounded",
    "Buffered",
    "BySuccess",
    "ByTier",
    "Candidates",
    "Chain",
    "ChangedMean",
    "Check",
    "Constant",
    "Counted",
    "CoverageMean",
    "Cutoff",
    "DecaySome",
    "DenseGradients",
    "Discount",
    "Everyone",
    "Everything",
    "Exits",
    "FastestWithinBudget",
    "Finite",
    "FreezeLayers",
    "FromPool",
    "FuseMissed",
    "Hinge",
    "Importance",
    "InFlight",
    "InTurn",
    "KeepLayers",
    "KeepOwn",
    "KeepOwnPart",
    "Krum",
    "Largest",
    "LastSent",
    "LatencyAndLoss",
    "LatestUpdates",
    "LeadingNeurons",
    "LeadingRank",
    "LearntRanks",
    "LocalRule",
    "Mask",
    "Median",
    "Merged",
    "MostSimilar",
    "NobodyLeft",
    "Norm",
    "Nothing",
    "Objective",
    "Optimiser",
    "OwnClasses",
    "OwnMask",
    "OwnScores",
    "Pace",
    "PaddedMean",
    "Part",
    "PartAsked",
    "PlainMean",
    "Polynomial",
    "Pool",
    "Portion",
    "Posterior",
    "PowerOfChoice",
    "PrivateMean",
    "Prox",
    "Prune",
    "PrunedByTime",
    "Ranked",
    "Refactored",
    "Regions",
    "Regrow",
    "Relative",
    "Repair",
    "Sampling",
    "Select",
    "ServerAdagrad",
    "ServerAdam",
    "ServerOptimiser",
    "ServerPart",
    "ServerSgd",
    "ServerYogi",
    "Several",
    "Sgd",
    "ShareLayers",
    "ShareOut",
    "Shift",
    "ShrinkTail",
    "SomeSend",
    "Sparse",
    "Sparsity",
    "Stages",
    "Stale",
    "State",
    "Stepped",
    "StillRunning",
    "StopEarly",
    "SubModel",
    "Tiers",
    "Traits",
    "TrimmedMean",
    "Tune",
    "Tuning",
    "UnheardFirst",
    "Uniform",
    "Upload",
    "Utility",
    "Weight",
    "Whole",
    "Windowed",
    "Wish",
    "WithinDeadline",
    "WithinShare",
    "Work",
    "private",
]
