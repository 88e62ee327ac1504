"""A graph file, AMPD_* variables and --set: precedence, and errors that name the key, the value and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ampd.config import Graph, build_graph, config_variables, dump_graph, load_graph
from ampd.errors import ConfigError

MINIMAL = "workers: [{name: d, role: decode}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(MINIMAL)
    return path


def load(path: Path, *sets: str, **environ: str) -> Graph:
    return load_graph(path, sets, environ)


def test_defaults_are_the_papers(file: Path) -> None:
    policy = load(file).policy
    assert (policy.name, policy.alpha, policy.beta, policy.window_s, policy.reorder.window) == ("paper", 0.9, 0.85, 10.0, 3)


def test_precedence_is_flag_variable_file_default(file: Path) -> None:
    file.write_text(MINIMAL + "targets: {ttft_s: 1, itl_s: 1}\npolicy: {alpha: 1}\n")
    graph = load(file, "targets.ttft_s=3", AMPD_TARGETS__TTFT_S="2", AMPD_TARGETS__ITL_S="2")
    assert (graph.targets.ttft_s, graph.targets.itl_s, graph.policy.alpha, graph.policy.beta) == (3, 2, 1, 0.85)


def test_a_key_of_a_list_entry(file: Path) -> None:
    graph = load(file, "workers.0.replicas=2", "workers.0.cores=['0', '1']")
    assert (graph.workers[0].replicas, graph.workers[0].cores) == (2, ["0", "1"])


def test_values_are_read_as_yaml(file: Path) -> None:
    graph = load(file, "sessions.derive=false", "policy.force=[local, remote]", "profile=", "model.served_name=a=b")
    assert graph.sessions.derive is False
    assert graph.policy.force == ["local", "remote"]
    assert graph.profile is None
    assert graph.model.served_name == "a=b"


def test_variables_that_are_no_keys(file: Path) -> None:
    assert load(file, AMPD_CACHE_DIR="/c", AMPD_LOG="debug") == load(file)
    assert config_variables({"AMPD_CACHE_DIR": "/c", "AMPD_NAME": "n", "PATH": "p"}) == {"AMPD_NAME": "n"}


def test_what_is_shown_can_be_loaded(file: Path, tmp_path: Path) -> None:
    graph = load(file, "targets.ttft_s=3", "workers.0.engine_args={enforce_eager: true}")
    again = tmp_path / "again.yaml"
    again.write_text(dump_graph(graph))
    assert load(again) == graph


def test_paths_are_relative_to_the_file_but_those_of_flags_are_not(file: Path) -> None:
    file.write_text(MINIMAL + "profile: p.json\nmodel: {path: m}\n")
    graph = load(file)
    assert (graph.profile, graph.model.path) == (str(file.parent / "p.json"), str(file.parent / "m"))
    assert load(file, "profile=q.json").profile == "q.json"


@pytest.mark.parametrize("name", ["demo", "tiny", "small"])
def test_a_built_in_model_is_no_path(file: Path, name: str) -> None:
    file.write_text(MINIMAL + f"model: {{path: {name}}}\n")
    assert load(file).model.path == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: {}", "unknown key modle (did you mean model?)"),
        ("targets: {ttft: 1}", "unknown key targets.ttft (did you mean ttft_s?)"),
        ("policy: {reorder: {windows: 1}}", "unknown key policy.reorder.windows (did you mean window?)"),
        ("targets: {xyz: 1}", "unknown key targets.xyz (known keys: ttft_s, itl_s)"),
        ("targets: {ttft_s: fast}", "targets.ttft_s = 'fast': input should be a valid number"),
        ("targets: {ttft_s: -1}", "targets.ttft_s = -1: input should be greater than 0"),
        ("targets: {ttft_s: .nan}", "targets.ttft_s = nan: input should be "),
        ("targets: {ttft_s: .inf}", "targets.ttft_s = inf: input should be "),
        ("targets: 3", "targets = 3: expected keys below it"),
        ("model:", "model is empty; give it keys, or remove the line"),
        ("policy: {name: best}", "policy.name = 'best': input should be 'paper'"),
        ("policy: {reorder: {window: 65}}", "policy.reorder.window = 65: input should be less than or equal to 64"),
        ("frontend: {port: 70000}", "frontend.port = 70000: input should be less than or equal to 65535"),
        ("name: Not A Name", "name = 'Not A Name': string should match pattern"),
        ("state: {stale_after_s: 1, heartbeat_s: 1}", "state.stale_after_s = 1.0 must be at least twice state.heartbeat_s = 1.0"),
        (
            "policy: {conditional_disagg: {policy: prefill_load}}",
            "policy.conditional_disagg.policy = 'prefill_load' needs policy.conditional_disagg.prefill_busy_threshold, "
            "for example 1.0; or use 'isl_bounding'",
        ),
        ("apiVersion: ampd/v2", "apiVersion = 'ampd/v2': input should be 'ampd/v1'"),
        ("a: 1\nb: 1\nc: 1\nd: 1", "unknown key a"),
    ],
)
def test_errors_name_the_key_and_the_value(file: Path, text: str, words: str) -> None:
    file.write_text(MINIMAL + text)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ("[]", "workers = []: list should have at least 1 item"),
        ("[{name: p, role: prefill}]", "workers: at least one entry needs role: decode"),
        ("[{name: d, role: decode}, {name: d, role: decode}]", "workers: names must differ, got ['d', 'd']"),
        ("[{name: frontend, role: decode}]", "workers: the name 'frontend' belongs to another component"),
        ("[{name: d}]", "workers.0.role is required"),
        ("[{name: d, role: decode, core: 1}]", "unknown key workers.0.core (did you mean cores?)"),
        (
            "[{name: d, role: decode, replicas: 2, cores: ['0']}]",
            "workers: d has replicas 2 but cores for 1; give each an entry, or none",
        ),
        (
            "[{name: p, role: prefill, engine: sim, sim: {speed: 10}}, {name: d, role: decode, engine: sim}]",
            "workers.0.sim.speed = 10.0, workers.1.sim.speed = 1.0: all groups of a graph run at one speed; set each to the same",
        ),
        (
            "[{name: p, role: prefill, engine: sim}, {name: d, role: decode}]",
            "workers.0.engine = 'sim', workers.1.engine = 'vllm': one graph cannot mix them; give all groups the same engine",
        ),
    ],
)
def test_errors_of_workers(file: Path, workers: str, words: str) -> None:
    file.write_text(f"workers: {workers}\n")
    with pytest.raises(ConfigError) as error:
        load(file)
    assert words in str(error.value)


def test_simulated_groups_of_one_speed(file: Path) -> None:
    file.write_text("workers: [{name: p, role: prefill, engine: sim}, {name: d, role: decode, engine: sim}]\n")
    graph = load(file, "workers.0.sim.speed=10", "workers.1.sim.speed=10", "workers.1.sim.per_process=2")
    assert [group.sim.speed for group in graph.workers] == [10, 10]
    with pytest.raises(ConfigError, match=r"workers.0.sim.speed = 10.0, workers.1.sim.speed = 1.0: all groups"):
        load(file, "workers.0.sim.speed=10")


def test_the_speed_of_real_engines_means_nothing(file: Path) -> None:
    file.write_text("workers: [{name: p, role: prefill, sim: {speed: 3}}, {name: d, role: decode}]\n")
    assert {group.engine for group in load(file).workers} == {"vllm"}


def test_no_workers_key(file: Path) -> None:
    file.write_text("name: x\n")
    with pytest.raises(ConfigError, match="workers is required"):
        load(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "not valid YAML: "),
        (b"- 1\n", "expected a mapping of keys, got list"),
        (b"", "expected a mapping of keys, got NoneType"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"name: &a [*a]\n", "name = "),
        (b"1: 2\n" + MINIMAL.encode(), "unknown key 1"),
        (b"name: x\nname: y\n" + MINIMAL.encode(), "key name is there twice"),
    ],
)
def test_files_that_are_no_graph(file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; start from configs/local-cpu.yaml"):
        load(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("targets.ttft_s", "--set 'targets.ttft_s': expected key=value"),
        ("=1", "--set '=1': expected key=value"),
        ("workers.3.replicas=1", "--set workers.3.replicas: workers.3 is no entry of the list of 1, counted from 0"),
        ("workers.d.replicas=1", "--set workers.d.replicas: workers.d is no entry of the list of 1"),
        ("workers.0.name.x=1", "--set workers.0.name.x: workers.0.name is a single value, it has no key 'x'"),
        ("policy.force=[local", "--set policy.force: '[local' is not valid YAML"),
        ("targets.ttft_s=soon", "parse string as a number (from --set targets.ttft_s)"),
        ("targets.ttfts=1", "unknown key targets.ttfts (did you mean ttft_s?) (from --set targets.ttfts)"),
    ],
)
def test_errors_of_set(file: Path, item: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(file, item)
    assert words in str(error.value)


def test_errors_of_variables(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key target .* \(from variable AMPD_TARGET__TTFT_S\)"):
        load(file, AMPD_TARGET__TTFT_S="1")


def test_only_the_first_errors_are_told(file: Path) -> None:
    file.write_text(MINIMAL + "a: 1\nb: 1\nc: 1\nd: 1\ne: 1\n")
    with pytest.raises(ConfigError, match="; and 2 more$"):
        load(file)


def test_plain_data() -> None:
    with pytest.raises(ConfigError, match="^configuration: unknown key x"):
        build_graph({"x": 1, "workers": [{"name": "d", "role": "decode"}]})


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_graphs(path: Path) -> None:
    graph = load(path)
    assert graph.name == path.stem
    assert graph.profile is None or Path(graph.profile).parent.is_dir()
    # Comments must not drift from the keys: what the file says is what is in force.
    said = yaml.safe_load(path.read_text())
    assert graph.targets.ttft_s == said["targets"]["ttft_s"]
