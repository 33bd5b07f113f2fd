"""Runs a job: streams the trace through the law, request by request, and writes what came of each.

<cell>/requests.parquet   one row per request, written in row groups as it goes
<cell>/cell.json          totals, also over time; written last, so a folder with it is complete
<cell>/timing.json        seconds and memory of this machine, which are no result
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.durable import writable, write_json
from harness.simulate.feed import Fed, feed, reader_of
from harness.simulate.job import Bucket, CellResult, Job, Totals
from reference_engine.laws.base import Expectation
from reference_engine.laws.registry import make_law
from vocabulary.errors import LawDoesNotCover, UsageError
from vocabulary.ledger import Cause

RESULT_FILE, REQUESTS_FILE, TIMING_FILE, PROGRESS_FILE = "cell.json", "requests.parquet", "timing.json", "progress"
ROW_GROUP = 8192
SECOND = 1_000_000_000
CAUSES = tuple(Cause)
Progress = Callable[[int], None]


def run_job(job: Job, folder: Path, *, requests: bool = True, progress: Progress = lambda _: None) -> CellResult:
    """Run one cell into its folder, anew. `requests=False` writes totals only.

    Raises UsageError (trace, option, disk) and LawDoesNotCover (options without a law).
    """
    started, cpu = time.monotonic(), time.process_time()
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT_FILE).unlink(missing_ok=True)
    law, reader = make_law(job.law, job.options), reader_of(job.trace)
    totals, buckets, refusal = Totals(), Buckets(job), ""
    done, serve = 0, law.replay()
    fed = feed(reader, chained=law.reads_chains, outputs=job.outputs, divide=job.trace.divide)
    with Rows(folder / REQUESTS_FILE if requests else None) as rows:
        for each in fed:
            try:
                expectation = serve(each.request, each.outputs)
            except LawDoesNotCover as error:
                expectation = None
                refusal = refusal or f"line {each.line}: {error}"
            buckets.count(done, each, expectation)
            rows.add(each, expectation)
            done += 1
            if done % ROW_GROUP == 0:
                progress(done)
    if not done:
        raise UsageError(f"{job.trace.path}: holds no request")
    made = buckets.made()
    for bucket in made:
        totals.add(bucket)
    result = CellResult(
        law=job.law,
        options=dict(job.options),
        outputs=job.outputs,
        change=job.change,
        cost=job.cost,
        base=job.base,
        block_len=reader.block_len // job.trace.divide,
        blind_below=reader.blind_below,
        chained=law.reads_chains,
        malformed=reader.malformed,
        split_ids=reader.split_ids,
        first_refusal=refusal or None,
        totals=totals,
        buckets=made,
    )
    write_timing(folder / TIMING_FILE, time.monotonic() - started, time.process_time() - cpu, done)
    write_json(folder / RESULT_FILE, asdict(result))
    return result


def write_timing(path: Path, seconds: float, cpu: float, requests: int) -> None:
    """Wall and processor seconds, and the process's largest memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with writable(path):
        path.write_text(
            f'{{"seconds": {seconds:.3f}, "cpu_seconds": {cpu:.3f}, "requests": {requests}, "peak_kib": {peak}}}\n',
            encoding="utf-8",
        )


class Buckets:
    """Totals over time, as requests come."""

    def __init__(self, job: Job) -> None:
        self._seconds, self._requests = job.bucket_s, job.bucket_requests
        self._buckets: dict[int, Bucket] = {}

    def count(self, number: int, fed: Fed, expectation: Expectation | None) -> None:
        """Request `number` (from 0) is over; None: it was refused."""
        if self._seconds is None:
            start = number // self._requests * self._requests
        elif fed.arrival_ns is None:
            raise UsageError(f"line {fed.line} has no arrival time: totals by seconds need one; use --bucket-requests")
        else:
            start = fed.arrival_ns // SECOND // self._seconds * self._seconds
        bucket = self._buckets.get(start)
        if bucket is None:
            bucket = self._buckets[start] = Bucket(start=start)
        if expectation is None:
            bucket.refused += 1
            return
        bucket.requests += 1
        bucket.prompt_tokens += fed.request.prompt_len
        bucket.output_tokens += len(fed.outputs) - 1
        tokens = bucket.by_cause
        for interval in expectation.ledger.intervals:
            tokens[interval.cause] = tokens.get(interval.cause, 0) + interval.end - interval.start

    def made(self) -> list[Bucket]:
        """In the order in which the first request of each came."""
        return list(self._buckets.values())


class Rows:
    """Requests as Parquet, written in row groups; `None` writes nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writer: Any = None
        if path is None:
            return
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UsageError(
                "requests are written as Parquet, which needs pyarrow: pip install 'hitparity[parquet]', or give "
                "--no-requests"
            ) from None
        self._arrow = pyarrow
        ends = pyarrow.list_(pyarrow.int32())
        causes = pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string()))
        self._schema = pyarrow.schema(
            [
                ("line", pyarrow.int64()),
                ("arrival_ns", pyarrow.int64()),
                ("prompt_len", pyarrow.int32()),
                ("hit_len", pyarrow.int32()),
                ("position_start", pyarrow.int32()),
                ("backed_len", pyarrow.int32()),
                ("ledger_ends", ends),
                ("ledger_causes", causes),
            ]
        )
        self._names = pyarrow.array([cause.value for cause in CAUSES])
        with writable(path):
            self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._clear()

    def _clear(self) -> None:
        self._plain: tuple[list[int | None], ...] = ([], [], [], [], [], [])
        self._offsets, self._ends, self._causes = [0], list[int](), list[int]()

    def add(self, fed: Fed, expectation: Expectation | None) -> None:
        """One row; without an expectation only what the trace says."""
        if self._writer is None:
            return
        line, arrival, length, hit, start, backed = self._plain
        line.append(fed.line)
        arrival.append(fed.arrival_ns)
        length.append(fed.request.prompt_len)
        hit.append(None if expectation is None else expectation.hit_len)
        start.append(None if expectation is None else expectation.position_start)
        backed.append(None if expectation is None else expectation.backed_len)
        for interval in () if expectation is None else expectation.ledger.intervals:
            self._ends.append(interval.end)
            self._causes.append(PLACES[interval.cause])
        self._offsets.append(len(self._ends))
        if len(line) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        assert self._path is not None
        arrow = self._arrow
        offsets = arrow.array(self._offsets, arrow.int32())
        causes = arrow.DictionaryArray.from_arrays(arrow.array(self._causes, arrow.int8()), self._names)
        columns = [arrow.array(values, field.type) for values, field in zip(self._plain, self._schema, strict=False)]
        columns.append(arrow.ListArray.from_arrays(offsets, arrow.array(self._ends, arrow.int32())))
        columns.append(arrow.ListArray.from_arrays(offsets, causes))
        with writable(self._path):
            self._writer.write_table(arrow.Table.from_arrays(columns, schema=self._schema))
        self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None and self._path is not None:
            if kind is None:
                self._flush()
            with writable(self._path):
                self._writer.close()


PLACES = {cause: number for number, cause in enumerate(CAUSES)}
