"""`--anonymous`: no output identifies users, machines and programs, and the figures are
unchanged."""

import gzip
import json
import re
from pathlib import Path

import pytest
from tools.exports import (
    PID,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_host,
    make_kernel,
    make_nvtx_range,
    make_os_call,
    make_strings,
)

import nsys2prv
from nsys2prv.cli import main

MS = 1_000_000
#: Texts that no output may have; each is used once in the report.
SECRETS = {
    "host": "secrethost",
    "process": "SecretApp",
    "thread": "SecretThread",
    "range": "SecretRange",
    "domain": "SecretDomain",
    "function": "SecretFunction",
    "module": "libsecretmodule.so",
    "message": "token=secretkey42",
    "file": "secretjob",
}
PUBLIC = ("cudaLaunchKernel", "kern", "read", "libcuda.so.1")
TEXTS = (*PUBLIC, SECRETS["function"], SECRETS["module"], "push me SecretStored")


def write_report(path: Path) -> Path:
    thread = make_global_tid(PID)
    domain = {"domainId": 1, "globalTid": thread}
    frames = [(1, 3, 4), (1, 5, 6)]
    tables = {
        **make_host(SECRETS["host"]),
        "PROCESSES": [
            {"globalPid": make_global_pid(), "pid": PID, "name": f"/opt/{SECRETS['process']}"}
        ],
        "ThreadNames": [{"globalTid": make_global_tid(PID + 1), "nameId": 8}],
        "NVTX_EVENTS": [
            {"eventType": 75, "start": 0, "text": SECRETS["domain"], **domain},
            make_nvtx_range(10, 50 * MS, f"{SECRETS['range']} A", globalTid=thread),
            make_nvtx_range(51 * MS, 60 * MS, f"{SECRETS['range']} B", **domain),
            {**make_nvtx_range(61 * MS, 70 * MS, None, globalTid=thread), "textId": 7},
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            make_call(90 * MS, 91 * MS, 1, nameId=1, callchainId=1),
            make_call(91 * MS, 92 * MS, 2, nameId=1, globalTid=make_global_tid(PID + 1)),
        ],
        "CUDA_CALLCHAINS": [
            {"id": chain, "stackDepth": depth, "symbol": symbol, "module": module}
            for depth, (chain, symbol, module) in enumerate(frames)
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [make_kernel(92 * MS, 99 * MS, correlationId=1, demangledName=2, shortName=2)],
        "OSRT_API": [make_os_call(20 * MS, 80 * MS, 3)],
        "DIAGNOSTIC_EVENT": [
            {"timestamp": 5, "timestampType": 1, "source": 1, "severity": 3, "text": f"Lost events of {SECRETS['process']} in {SECRETS['message']}", "globalPid": make_global_pid()}
        ],
        "StringIds": make_strings(*TEXTS, SECRETS["thread"]),
    }  # fmt: skip
    return make_export(path, tables)


def read_outputs(folder: Path) -> dict[str, str]:
    """Return the texts of all files that do not start with the name of the reports."""
    texts = {}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        texts[path.name] = content.decode("utf-8", "replace")
    return texts


@pytest.mark.parametrize("trace", ["out.prv", "out.pftrace"])
def test_nothing_private_is_in_any_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    report = write_report(tmp_path / f"{SECRETS['file']}.sqlite")
    for options in ([], ["--anonymous"]):
        folder = tmp_path / ("hidden" if options else "shown")
        folder.mkdir()
        args = [str(report), "--json", str(folder / "r.json"), "--html", str(folder / "r.html")]
        assert main([*options, "--states", "--report", str(report), str(folder / trace)] if trace == "out.prv" else [*options, "--report", str(report), str(folder / trace)]) == 0  # fmt: skip
        assert main(["report", "--full", *options, *args]) == 0
        printed = capsys.readouterr()
        texts = read_outputs(folder) | {
            "printed": printed.out.replace(str(folder), ""),
            "error": printed.err,
        }
        found = {
            (name, what)
            for name, text in texts.items()
            for what, secret in SECRETS.items()
            if secret.lower() in text.lower()
        }
        seen = {what for _, what in found}
        if options:
            assert not found
            assert not any("SecretStored" in text for text in texts.values())
            assert any("cudaLaunchKernel" in text for text in texts.values())
        else:
            assert seen >= {"host", "process", "thread", "range", "domain", "function", "message", "file"}  # fmt: skip


def test_figures_stay(tmp_path: Path) -> None:
    """With pseudonyms the findings have the same shares, and ranges the same times."""
    samples = Path(__file__).parents[2] / "sample_reports"
    for sample in ("graphs", "mpi"):
        findings, ranges = [], []
        for anonymous in (False, True):
            with nsys2prv.open(samples / sample, quiet=True, anonymous=anonymous) as job:
                findings.append([(one.kind, one.share, one.ranks) for one in job.findings()])
                frame = job.frame("nvtx")
                ranges.append(frame.select("begin", "end", "device", "stream").rows())
        assert findings[0] == findings[1]
        assert ranges[0] == ranges[1]


def test_pseudonyms_are_the_same_in_every_trace(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        report = write_report(folder / f"{SECRETS['file']}.sqlite")
        assert main(["-q", "--anonymous", str(report), str(folder / "out.prv")]) == 0
        texts.append((folder / "out.pcf").read_text() + (folder / "out.row").read_text())
        inputs = json.loads((folder / "out.nsys2prv.json").read_text())["inputs"]
        assert re.fullmatch(r"report-[0-9a-f]{8}", inputs[0]["name"])
        assert re.fullmatch(r"host-[0-9a-f]{8}", inputs[0]["host"])
    assert texts[0] == texts[1]


def test_processes_that_are_not_profiled(tmp_path: Path) -> None:
    """Their names are in the account of thread states."""
    samples = Path(__file__).parents[2] / "sample_reports"
    assert main(["-q", "--anonymous", str(samples / "machine"), str(tmp_path / "out.prv")]) == 0
    account = (tmp_path / "out.nsys2prv.json").read_text()
    assert "irqbalance" not in account
    assert re.search(r"not-profiled: (process|thread)-[0-9a-f]{8}", account)


def write_iterations(path: Path, count: int = 20) -> Path:
    """Write a report with private texts where plugins and NVTX name things, and in a message."""
    thread = make_global_tid(PID)
    steps = [100 * number for number in range(count)]
    data = json.dumps({"SecretField": 1})
    tables = {
        "NVTX_EVENTS": [
            {"eventType": 75, "start": 0, "text": "SecretDomain", "domainId": 1, "globalTid": thread},
            *(make_nvtx_range(at, at + 90, f"SecretLoop {at}", globalTid=thread) for at in steps),
            *(
                make_nvtx_range(at + 1, at + 80, "SecretOp", domainId=1, jsonText='{"SecretKey": 5}')
                for at in steps
            ),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(at + 5, at + 9, at, nameId=1) for at in steps],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            make_kernel(at + 20, at + 70, correlationId=at, demangledName=2, shortName=2)
            for at in steps
        ],
        "GENERIC_EVENT_SOURCES": [{"sourceId": 1, "data": '{"Name": "SecretPlugin"}'}],
        "GENERIC_EVENT_TYPES": [{"typeId": 1, "sourceId": 1, "data": '{"Name": "SecretType"}'}],
        "GENERIC_EVENTS": [{"timestamp": at, "typeId": 1, "data": data} for at in steps],
        "DIAGNOSTIC_EVENT": [
            {"timestamp": 5, "severity": 3, "text": "Failed to open SecretWord and more", "globalPid": make_global_pid()}
        ],
        "StringIds": make_strings("cudaLaunchKernel", "kern"),
    }  # fmt: skip
    return make_export(path, tables)


@pytest.mark.slow
def test_names_of_iterations_metrics_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name in ("SecretRunA", "SecretRunB"):
        (tmp_path / name).mkdir()
        runs.append(str(tmp_path / name))
        write_iterations(tmp_path / name / "SecretFile.sqlite")
    report = f"{runs[0]}/SecretFile.sqlite"
    for anonymous in ([], ["--anonymous"]):
        out = tmp_path / f"out{len(anonymous)}"
        out.mkdir()
        files = ["--json", str(out / "r.json"), "--html", str(out / "r.html")]
        assert main([*anonymous, report, str(out / "t.prv")]) == 0
        assert main([*anonymous, report, str(out / "t.pftrace")]) == 0
        assert main([*anonymous, "--list", report]) == 0
        assert main(["report", *anonymous, "--full", *files, report]) == 0
        texts = list(read_outputs(out).values())
        assert main(["diff", *anonymous, *files, *runs]) == 0
        texts += read_outputs(out).values()
        more = ["--csv", str(out / "s.csv"), "--md", str(out / "s.md"), "--cut", str(out / "cut")]
        assert main(["study", *anonymous, "--regions", "SecretOp*", *files, *more, *runs]) == 0
        cut = read_outputs(out / "cut")
        texts += [*cut, *cut.values()]
        (out / "cut").rename(tmp_path / f"cut{len(anonymous)}")
        texts += read_outputs(out).values()
        texts += [capsys.readouterr().out.replace(str(tmp_path), "")]
        found = {word for text in texts for word in re.findall(r"Secret\w+", text)}
        if anonymous:
            assert found == set()
            assert any("Failed to open ... and more" in text for text in texts)
        else:
            assert found >= {"SecretLoop", "SecretKey", "SecretPlugin", "SecretWord", "SecretRunA"}
