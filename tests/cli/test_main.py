"""The command line as a user meets it: a process, its two streams and its exit code."""

import json
import re
import subprocess
import sys

import pytest

import rankrise as rr


def rankrise(*args):
    return subprocess.run([sys.executable, "-m", "rankrise", *args], capture_output=True, text=True)


def test_version():
    done = rankrise("--version")
    assert (done.returncode, done.stdout) == (0, f"rankrise {rr.__version__}\n")


def test_help_does_not_import_torch():
    code = "import sys; sys.argv = ['rankrise', '--help']\nfrom rankrise.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Example: rankrise" in done.stdout


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
