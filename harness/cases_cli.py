"""`hitparity check`: case files against laws, lookups and served engines."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from harness.terminal import terminal
from vocabulary.engine import Fidelity
from vocabulary.errors import ExitCode, UsageError

PUBLISHED = "published"
"""The shipped set that has block sizes beside its cases."""


def check(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Case files, or shipped sets: published, reports, exhibits.")
    ],
    by: Annotated[
        Fidelity | None, typer.Option("--by", help="Default: the level a case is made for, else law.")
    ] = None,
    emulated: Annotated[
        bool, typer.Option("--emulated", help="With --by served: the reference engine under each case's law.")
    ] = False,
    only: Annotated[str | None, typer.Option(metavar="TEXT", help="Only cases whose id or engine holds TEXT.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No reasons for cases that were not run.")] = False,
) -> None:
    """Evaluate golden cases; print each difference as two ledgers, findings, and the count."""
    from harness.block_size import check_published
    from harness.cases.check import SUBJECTS
    from harness.cases.check import check as check_cases
    from harness.cases.reading import find_cases
    from harness.cases.served import EmulatedSubject
    from harness.cases.show import difference, finding_line

    console = terminal()
    cases = find_cases(files)
    if only:
        cases = [placed for placed in cases if only in placed.case.id or only in placed.case.engine]
        if not cases:
            raise UsageError(f"--only {only!r}: no case id or engine of {', '.join(files)} holds it")
    if emulated and by is not Fidelity.SERVED:
        raise UsageError("--emulated says who serves: add --by served")
    checked = check_cases(cases, by, subjects=SUBJECTS | {Fidelity.SERVED: EmulatedSubject} if emulated else SUBJECTS)
    for result in checked.cases:
        for answer in result.answers:
            if answer.differences:
                for line in difference(result, answer, console):
                    console.print(line, soft_wrap=True)
            elif answer.findings:
                console.print(f"finding: {finding_line(result, answer)}", soft_wrap=True)
    if not quiet:
        for result in checked.not_run:
            first = (result.not_run or "").partition("\n")[0]
            reason = f"{result.placed.where} {result.placed.case.id}: {first}"
            console.print(f"not run: {escape(reason)}", soft_wrap=True)
    code = checked.code
    if PUBLISHED in files and by in (None, Fidelity.LAW) and not only:
        blocks = check_published()
        for sentence in blocks.differences:
            console.print(f"block size: {escape(sentence)}", soft_wrap=True)
        console.print(f"{blocks.numbers} numbers of published block sizes, {len(blocks.differences)} differ")
        code = ExitCode.FINDINGS if blocks.differences else code
    console.print(checked.summary)
    raise typer.Exit(code)
