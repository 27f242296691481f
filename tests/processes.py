"""Run a function in a forked child, to kill it or to limit it; torch and pyarrow are then loaded once for all tests."""

import os
import traceback


def exit_code(function):
    """Exit code of a child that calls `function`; minus the signal that ended it."""
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
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
