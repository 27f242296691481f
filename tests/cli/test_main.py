"""The command line as a user meets it: a process, its two streams and its exit code."""

import json
import re
import subprocess
import sys

import pytest

import rankrise as rr
from rankrise.store._environment import _threads_without_torch


def rankrise(*args):
    return subprocess.run([sys.executable, "-m", "rankrise", *args], capture_output=True, text=True)


def test_version():
    done = rankrise("--version")
    assert (done.returncode, done.stdout) == (0, f"rankrise {rr.__version__}\n")


@pytest.mark.parametrize(
    ("args", "code", "answer"),
    [
        (["--help"], 0, "Example: rankrise"),
        (["--version"], 0, rr.__version__),
        (["env"], 0, "torch  "),
        (["list"], 0, "vit-digits"),
        (["diff", "mistyped/", "tuned/"], 1, "rankrise: mistyped does not exist."),
        (["lora", "mistyped/", "tuned/", "--out", "adapter"], 1, "rankrise: mistyped does not exist."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_answer_that_needs_no_torch_does_not_wait_for_it(args, code, answer, tmp_path):
    needs_torch = args == ["env"] and _threads_without_torch() is None  # as on a machine with a GPU
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "from rankrise.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert answer in (done.stderr if code else done.stdout)
    assert done.stderr.splitlines()[-1] == str(needs_torch)


def test_every_command_has_an_example_in_its_help():
    commands = re.findall(r"^  ([a-z]+)  ", rankrise("--help").stdout, flags=re.M)
    assert "env" in commands
    for command in commands:
        assert f"Example: rankrise {command}" in rankrise(command, "--help").stdout


def test_env_as_lines_and_as_json():
    lines = rankrise("env")
    assert lines.returncode == 0
    assert re.search(r"^rankrise +\S+$", lines.stdout, flags=re.M)
    record = json.loads(rankrise("env", "--json").stdout)
    assert record["rankrise"] == rr.__version__
    assert record["packages"]["torch"]


@pytest.mark.parametrize("args", [["nonsense"], ["env", "--nonsense"]])
def test_usage_errors_exit_with_two_and_no_traceback(args):
    done = rankrise(*args)
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def failing(*args):
    code = (
        "import sys; sys.argv = ['rankrise', *sys.argv[1:]]\n"
        "import rankrise.store as s\n"
        "def boom(): raise ValueError('the moon must be full;\\n got half. Wait.')\n"
        "s.environment = boom\n"
        "from rankrise.cli import main; main()"
    )
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)


def test_a_failure_is_one_sentence_and_exit_code_one():
    done = failing("env")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "rankrise: the moon must be full; got half. Wait.\n"


def test_debug_shows_the_traceback():
    for args in (["--debug", "env"], ["env", "--debug"]):
        done = failing(*args)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
