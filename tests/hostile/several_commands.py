"""Stand-alone: runs several commands of hitparity in one process, as `python -m harness` would each, to save imports.

    python several_commands.py BLOCKED,MODULES < one JSON list of arguments a line

A blocked module cannot be found nor imported, as if it were not installed. Prints a line of JSON for each command:
its status, and what escaped of an exception.
"""

import glob
import importlib.abc
import importlib.util
import json
import sys
import traceback

BLOCKED = {name for name in sys.argv[1].split(",") if name}


class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def find_spec(name, package=None, *, original=importlib.util.find_spec):
    return None if name.partition(".")[0] in BLOCKED else original(name, package)


sys.meta_path.insert(0, Blocker())
importlib.util.find_spec = find_spec

for line in sys.stdin:
    from harness.__main__ import main

    # "glob:..." stands for the one path that exists by then
    arguments = json.loads(line)
    found = [glob.glob(each[5:])[0] if each.startswith("glob:") else each for each in arguments]  # noqa: PTH207
    sys.argv = ["hitparity", *found]
    status, escaped = 0, ""
    try:
        main()
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001
        escaped = traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    print("\n@@" + json.dumps([status, escaped]), flush=True)  # noqa: T201
