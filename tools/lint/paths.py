"""No file names a place that exists on one machine only: an absolute path into somebody's home,
mount or work folder would break every other checkout. System places (/usr, /etc, /dev, /proc,
/tmp) are fine.
"""

import re
import sys

import lint

PRIVATE = re.compile(
    r"(?<![\w.$}\])/-])/(home|root|Users|work|workspace|mnt|media|scratch|data|srv)/[\w.]")


def check(tree):
    findings = []
    for path in tree.with_suffix(lint.TEXT) + tree.scripts():
        for number, line in enumerate(tree.lines(path), start=1):
            match = PRIVATE.search(line)
            if match:
                place = line[match.start():].split()[0]
                findings.append(f"{path}:{number}: {place}: a path of one machine")
    return findings


def private(place):
    """Built from parts, or this file would be its own finding."""
    return "/" + place + "/x"


CLEAN = {
    "README.md": "Run ./build/tools/assay, see /usr/include, https://a.com/home/x and a/data/x.\n",
    "tools/run": "#!/bin/sh\n# Runs ${dir}/work/x and $HOME/data/x.\n",
}
PLANTED = {
    "a home folder": ({"a.md": f"see {private('home')}\n"}, "a.md:1"),
    "root's folder in a string": ({"a.cpp": f'open("{private("root")}");\n'}, "a.cpp:1"),
    "a work folder in a build file": (
        {"meson.build": f"x = '{private('work')}'\n"}, "meson.build:1"),
    "a mount in a script": ({"tools/run": f"#!/bin/sh\ncd {private('mnt')}\n"}, "tools/run:2"),
}

if __name__ == "__main__":
    sys.exit(lint.run(check, CLEAN, PLANTED, __doc__))
