"""Run a function in a forked child, to kill it or to limit it; torch and pyarrow are then loaded once for all tests."""

import os
import traceback


def start(function):
    """Process id of a child that calls `function`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def wait(pid):
    """Exit code of a child once it has ended; minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def exit_code(function):
    """Exit code of a child that calls `function`; minus the signal that ended it."""
    return wait(start(function))
