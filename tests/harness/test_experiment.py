"""Experiment files: what is accepted, and the one sentence that every mistake gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.catalogue import catalogue, find_experiment
from harness.experiment import load_experiment
from harness.plan import plan
from vocabulary.errors import HitparityError, UsageError

GOOD = """
name = "e"
models = ["tiny-qwen3"]

[[engine]]
name = "law"
law = "vllm@0.32"
matrix = { block_size = [16, 32] }

[[workload]]
family = "changed"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def _write(text: str, name: str = "e.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "e"', 'name = "e"\nsead = 1', "unknown key 'sead'; did you mean 'seed'?"),
        ('name = "law"', 'name = "vlm"', "unknown engine 'vlm'; did you mean 'vllm'?"),
        ('law = "vllm@0.32"', 'law = "vllm@0.31"', "unknown law 'vllm@0.31'; did you mean 'vllm@0.3"),
        ('law = "vllm@0.32"', 'laww = "vllm@0.32"', "unknown key 'engine.0.laww'; did you mean 'law'?"),
        ('law = "vllm@0.32"', "", "key 'law' is missing"),
        ("block_size = [16, 32]", "blocksize = [16]", "no option 'blocksize'"),
        ("block_size = [16, 32]", "block_size = [0]", "block_size = 0"),
        ("block_size = [16, 32]", "block_size = []", "key 'engine.0.matrix.block_size'"),
        ('family = "changed"', 'family = "change"', "unknown workload family 'change'; did you mean 'changed'?"),
        ('family = "changed"', 'family = "changed"\nshard = 4', "unknown key 'shard'; did you mean 'shared'?"),
        ('family = "changed"', 'family = "changed"\nshared = -4', "key 'shared'"),
        ('family = "changed"', 'family = "changed"\nextra = 14', "extra = 14 must be below suffix = 14"),
        ('family = "changed"', 'family = "changed"\nmodels = ["m"]', "names model 'm'; known: tiny-qwen3"),
        ('family = "changed"', 'family = "changed"\nengines = ["lew"]', "did you mean 'law'?"),
        ('models = ["tiny-qwen3"]', "models = []", "key 'models'"),
        ('models = ["tiny-qwen3"]', "", "key 'models' is missing"),
        ('models = ["tiny-qwen3"]', 'models = ["tiny-qwen3"', "not valid TOML"),
        ('name = "e"', 'name = "../e"', "key 'name'"),
        ('name = "law"', 'name = "llama.cpp"\nmode = "worker"', "mode 'worker' is not supported"),
        ('name = "law"', 'name = "llama.cpp"\nurl = "http://x"\nmode = "launch"', "go together"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_remedy(
    write: Callable[..., Path], old: str, new: str, message: str
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    if "llama.cpp" in new:
        text = text.replace('law = "vllm@0.32"\n', "").replace("matrix = { block_size = [16, 32] }\n", "")
    path = write(text)
    with pytest.raises(HitparityError) as caught:
        load_experiment(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value).replace("known: ", "") or "TOML" in message


def test_missing_unreadable_and_huge_files(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_experiment(tmp_path / "absent.toml")
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load_experiment(binary)
    with pytest.raises(UsageError, match="over 1048576 bytes"):
        load_experiment(write("#" * (1 << 20) + "\n"))


def test_extends_appends_lists_and_replaces_the_rest(write: Callable[..., Path]) -> None:
    write(GOOD, "base.toml")
    path = write('extends = "base.toml"\nname = "more"\n[[workload]]\nfamily = "trim"\n', "more.toml")
    more = load_experiment(path)
    assert more.name == "more"
    assert [w.family for w in more.workload] == ["changed", "trim"]
    write('extends = "loop.toml"\n', "loop.toml")
    with pytest.raises(UsageError, match="chained"):
        load_experiment(path.parent / "loop.toml")


def test_plan_makes_one_start_per_configuration_and_filters(write: Callable[..., Path]) -> None:
    experiment = load_experiment(write(GOOD + '\n[[workload]]\nfamily = "changed"\nseed = 5\n'))
    groups = plan(experiment)
    assert [g.engine_label for g in groups] == ["law vllm@0.32 block_size=16", "law vllm@0.32 block_size=32"]
    assert [c.workload.name for c in groups[0].cells] == ["changed", "changed-2"]
    assert [c.workload.seed for c in groups[0].cells] == [0, 5]
    ids = [c.id for g in groups for c in g.cells]
    assert len(set(ids)) == len(ids) == 4
    assert [c.id for g in plan(experiment, ["workload=changed-2"]) for c in g.cells] == [ids[1], ids[3]]
    with pytest.raises(UsageError, match="nothing to run"):
        plan(experiment, ["engine=vllm"])
    with pytest.raises(UsageError, match="key=value"):
        plan(experiment, ["vllm"])


def test_the_digest_follows_the_content_not_the_layout(write: Callable[..., Path]) -> None:
    one = load_experiment(write(GOOD))
    assert load_experiment(write("# a comment\n" + GOOD)).digest == one.digest
    assert load_experiment(write(GOOD.replace("[16, 32]", "[16, 64]"))).digest != one.digest
    assert (
        load_experiment(write(GOOD.replace('"changed"', '"changed"\nshared = 5\nsuffix = 3\nchanged_index = 1'))).digest
        != one.digest
    )


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_ready_experiment_loads_and_plans(name: str) -> None:
    assert plan(load_experiment(find_experiment(name)))


def test_experiments_are_found_by_name_or_path(write: Callable[..., Path]) -> None:
    path = write(GOOD)
    assert find_experiment(str(path)) == path
    assert find_experiment("laws") == find_experiment("laws.toml") == catalogue()["laws"]
    with pytest.raises(UsageError, match="did you mean 'quickstart'"):
        find_experiment("quickstat")
