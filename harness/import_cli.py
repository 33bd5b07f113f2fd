"""`hitparity import`: a log of served traffic as a trace of token IDs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from harness.wording import plain
from vocabulary.errors import UsageError

if TYPE_CHECKING:
    from workloads.traces.logs.base import LoggedRequest, LogReport
    from workloads.traces.logs.hashing import KeyedIds
    from workloads.traces.logs.template import ChatTokenizer

SOURCES = ("openai", "vllm", "sglang", "llama.cpp")
SHOWN = 5
"""Skipped rows printed."""


def import_log(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log; a name that ends in .gz is unpacked.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Trace to write (JSON lines).")],
    source: Annotated[str, typer.Option("--from", help="openai, vllm, sglang or llama.cpp (docs/traces.md).")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model folder whose tokenizer and chat template apply (openai).")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Chat template in place of the folder's own.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Day for chat templates that ask for it; today otherwise.")
    ] = None,
    hash_key: Annotated[
        str | None,
        typer.Option(
            envvar="HITPARITY_HASH_KEY",
            help="Replace every ID under this secret: who shares what stays, the text cannot be read.",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="IDs lie below; needed with --hash-key where there is no --tokenizer.")
    ] = None,
    skip_malformed: Annotated[
        bool, typer.Option("--skip-malformed", help="Leave out what cannot be read; an error otherwise.")
    ] = False,
) -> None:
    """Turn a log of served requests into a trace: token IDs, times and what was reported, but no text."""
    from workloads.traces.logs.base import LogReport
    from workloads.traces.own import TraceHead, TraceWriter

    if source not in SOURCES:
        raise UsageError(f"--from {source!r}: there are {', '.join(SOURCES)}")
    if not log.is_file():
        raise UsageError(f"{log}: no such file")
    chats = _tokenizer(source, tokenizer, chat_template, date)
    size = vocab_size or (chats.vocab_size if chats else None)
    keyed = _keyed(hash_key, size)
    report = LogReport()
    tokens = reused = told = 0
    begin_ns: int | None = None
    with TraceWriter(out, TraceHead(source=source, vocab_size=size, hashed=keyed is not None)) as writer:
        for request in _requests(source, log, report, chats):
            _stop_at_skipped(log, report, skip=skip_malformed)
            begin_ns = request.arrival_ns if begin_ns is None else begin_ns
            ids, output = _replaced(request, keyed)
            name = keyed.name if keyed else str
            writer.add(
                ids,
                output,
                output_len=request.output_len,
                arrival_ns=_since(begin_ns, request.arrival_ns),
                session=None if request.session is None else name(request.session),
                namespace=None if request.namespace is None else name(request.namespace),
                lora=None if request.lora is None else name(request.lora),
                hit_len=request.hit_len,
            )
            tokens += len(ids)
            told += request.hit_len is not None
            reused += request.hit_len or 0
        _stop_at_skipped(log, report, skip=skip_malformed)
        if not writer.requests:
            raise UsageError(f"{log}: no request in it; is it a log of {source}? docs/traces.md says how to make one")
        count = writer.requests
    typer.echo(f"{out}: {count} requests, {tokens} prompt tokens" + (", IDs hashed" if keyed else ""))
    if told:
        typer.echo(f"the engine reported {reused} tokens from its cache in {told} of them")
    _say(report)


def _requests(source: str, log: Path, report: LogReport, chats: ChatTokenizer | None) -> Iterator[LoggedRequest]:
    from workloads.traces.logs import llama_cpp, openai, sglang, vllm

    if source == "openai":
        assert chats is not None
        return openai.read(log, report, chats)
    return {"vllm": vllm.read, "sglang": sglang.read, "llama.cpp": llama_cpp.read}[source](log, report)


def _tokenizer(source: str, folder: Path | None, template: Path | None, date: str | None) -> ChatTokenizer | None:
    from workloads.traces.logs.template import ChatTokenizer

    if folder is None:
        if source == "openai":
            raise UsageError("--from openai needs --tokenizer: the folder of the model that was served")
        return None
    try:
        day = None if date is None else datetime.datetime.fromisoformat(date)
    except ValueError:
        raise UsageError(f"--date {date!r}: write a day such as 2026-11-30") from None
    return ChatTokenizer(folder, template=template, date=day)


def _keyed(key: str | None, vocab_size: int | None) -> KeyedIds | None:
    from workloads.traces.logs.hashing import KeyedIds

    if key is None:
        return None
    if vocab_size is None:
        raise UsageError("--hash-key needs --vocab-size (of the model that was served), or its --tokenizer")
    return KeyedIds(key, vocab_size)


def _replaced(
    request: LoggedRequest, keyed: KeyedIds | None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]] | None]:
    """Prompt and answer; under a key the answer goes on where the prompt ends, as it does in the next turn's prompt."""
    if keyed is None:
        return request.ids, request.output_ids
    if request.output_ids is None:
        return keyed.ids(request.ids), None
    both = keyed.ids(np.concatenate([request.ids, request.output_ids]))
    return both[: len(request.ids)], both[len(request.ids) :]


def _since(begin_ns: int | None, arrival_ns: int | None) -> int | None:
    return None if begin_ns is None or arrival_ns is None else max(0, arrival_ns - begin_ns)


def _stop_at_skipped(log: Path, report: LogReport, *, skip: bool) -> None:
    if report.skipped and not skip:
        row = report.skipped_rows[0]
        raise UsageError(f"{log}:{row.line}: {plain(row.why)}; --skip-malformed leaves such requests out")


def _say(report: LogReport) -> None:
    if report.skipped:
        typer.echo(f"{report.skipped} requests were left out:", err=True)
        for row in report.skipped_rows[:SHOWN]:
            typer.echo(f"  line {row.line}: {plain(row.why)}", err=True)
    for note in report.notes:
        typer.echo(f"note: {plain(note)}", err=True)
