"""The live page: every run below a folder, and each of them while it trains.

The server only reads files, as anybody may who can read the folder; it never touches a training. A page shows the list
of runs, or one run or several over each other, and is told of every change by server-sent events.
"""

from rankrise.view.live._app import live_app as live_app
from rankrise.view.live._catalogue import Catalogue as Catalogue
from rankrise.view.live._cell import run_cell as run_cell
from rankrise.view.live._hub import Hub as Hub
from rankrise.view.live._serve import serve as serve
from rankrise.view.live._snapshot import snapshot as snapshot
