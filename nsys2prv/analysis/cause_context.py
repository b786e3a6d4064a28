"""Share what the texts of all causes of a job need: the job, its replay, names, and how a finding is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.host_time import TEXTS, describe_unrecorded
from nsys2prv.analysis.places import Places
from nsys2prv.analysis.result import Context, Finding, JobRanks
from nsys2prv.replay.causes import Cause
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.pipelines import Pipeline, find_pipeline
from nsys2prv.replay.whatif import Replay, sum_lasts

NONE = np.zeros(0, np.int64)
#: Kind of cause, or of what is found of it -> what helps; what helps against calls, by parts of names.
ADVICE: dict[str, str] = TEXTS["advice"]
CALLS: dict[str, str] = TEXTS["calls"]


class CauseContext(Struct, frozen=True, dict=True):
    """A job whose causes are put into words."""

    context: Context
    #: Names of ranks and GPUs.
    job: JobRanks
    replay: Replay
    #: What findings.py collects.
    frames: Mapping[str, pl.DataFrame]

    @cached_property
    def places(self) -> Places:
        """Names and times of edges."""
        return Places(self.context, self.replay)

    @property
    def waiting(self) -> str:
        """Return who waits for what holds the job back."""
        return "GPUs" if self.job.has_gpus else "Ranks"

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """The stages of the job, if it is a pipeline."""
        steady, replay = self.context.options.steady, self.replay
        count = steady.count if steady else 0
        return find_pipeline(self.context.reader, replay.begin, replay.end, count)

    @cached_property
    def host_places(self) -> list[tuple[int, int, float]]:
        """Kind, key and share of all of these, of the time of hosts on the critical path, the longest
        first.
        """
        path, kinds = self.replay.path, self.replay.job.graph.edges.kind
        path = path[np.isin(kinds[path], (Kind.CALL, Kind.GAP, Kind.LAUNCH))]
        sums = sum_lasts(self.replay.list_work(path), "kind", "key")
        share = pl.col("lasts") / max(sums["lasts"].sum(), 1)
        return sums.select("kind", "key", share).rows()

    def make_finding(
        self,
        cause: Cause,
        key: str,
        title: str,
        evidence: Iterable[str],
        worst: tuple[np.ndarray, np.ndarray] = (NONE, NONE),
        *,
        moments: tuple = (),
        tasks: list[int] | None = None,
        advice: str = "",
        at_most: bool = False,
    ) -> Finding:
        """Return a finding. key: of `kinds` in findings.yaml. worst: edges, and what each costs (ns): the moment to look at
        is that of the most costly, unless it is given. tasks: whose fault it is. advice: default: that of the key.
        """
        kind, views = TEXTS["kinds"][key]
        evidence = [*evidence]
        if cause.alone is not None:
            evidence.append(f"{cause.alone:.1%} by itself, the rest once the other causes are gone")
        ranks = self.job.list_ranks(tasks or [])
        return Finding(
            kind,
            title,
            cause.gain,
            ranks,
            self.job.list_devices(tasks or []),
            tuple(evidence),
            advice or ADVICE[key],
            tuple(views),
            moments or self.places.find_moment(*worst, ranks),
            at_most=at_most or not cause.is_specific,
        )

    def describe_unrecorded(self, what: str, known: object = None) -> str:
        """Say that something of hosts is not recorded, or not all, and what would record it."""
        options = describe_unrecorded(self.frames, self.context)
        return f"{what} is not {'all ' if known else ''}recorded{f': add {options}' if options else ''}"

    def list_unrecorded(self, known: list[str]) -> list[str]:
        """Return what recording would tell more about hosts, as a sentence."""
        lacks = self.frames["unrecorded"].height
        return [self.describe_unrecorded("what hosts do there", known)] if lacks else []
