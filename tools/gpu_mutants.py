"""gpu-check's part for mutants: every wrong kernel in a process of its own, as one that hangs or
faults takes its context with it, and the right one on the same words first. Decides what counts as
found; which there are, and what must find each, is verify/mutants."""

import json
import pathlib
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "verify" / "mutants"))
from make_cuda_mutant import mutants_on_cuda  # noqa: E402 (as gpu-check finds this file)
from make_mutant import parse  # noqa: E402

SECONDS = 90  # of a process


class MutantSteps:
    def mutants_program(self):
        """None where nobody built it."""
        program = find(self.build, "tools/assay_cuda_mutants")
        return program if shutil.which(str(program)) else None

    def mutants(self):
        """Those of dispatch and combine, each on its case of on_cuda.txt."""
        program = self.mutants_program()
        if "mutants" in self.skip or program is None:
            return
        asked = []
        for name, where in sorted(mutants_on_cuda().items()):
            row = {"mutant": name, "suite": where.suite, "check": where.check}
            if where.not_built:
                asked.append(({**row, "what": "not compiled for CUDA: " + where.not_built}, None))
            elif where.gpus > len(self.gpus):
                asked.append(({**row, "what": "needs %d GPUs" % where.gpus}, None))
            else:
                asked.append((row, where.command(program, "cuda", where.options)))
        self.mutants_step("mutants", program, asked, lambda row, found: row["check"] in found)

    def attention_mutants(self):
        """Those of attention, on the property and the profile that its head names."""
        program = self.mutants_program()
        if program is None:
            return
        asked = []
        for file in sorted((SOURCE / "verify" / "mutants" / "attention").glob("*.mutant")):
            head, _ = parse(file, attention=True)
            asked.append(({"mutant": file.stem, "profile": head["profile"],
                           "property": head["caught-by"]},
                          [str(program), "verify", "--suite", "attention." + head["caught-by"],
                           "--subject", "cuda", "--profile", head["profile"], "--budget", "0",
                           "--json"]))
        self.mutants_step("attention mutants", program, asked, lambda row, found: bool(found))

    def mutants_step(self, title, program, asked, by_the_right_one):
        """`asked`: rows of the table to come, each with the command that finds the mutant, or None
        for one that does not run here, and why in its "what". Without the mutant the command must
        CONFORM."""
        start, rows, controls, missed = time.monotonic(), [], {}, []
        for row, command in asked:
            row = {**row, "verdict": "not run", "found": "", "what": row.get("what", ""),
                   "seconds": 0.0}
            rows.append(row)
            if command is None:
                continue
            words = tuple(command)
            if words not in controls:
                controls[words] = judged(command)
            control = controls[words]
            said = judged([*command, "--mutant", row["mutant"]])
            row.update(verdict=said["verdict"], what=said["what"], seconds=said["seconds"])
            found = by_the_right_one(row, said["checks"])
            if found:
                row["what"] = said["checks"].get(row.get("check"), said["what"])
            elif said["checks"]:
                row["what"] = "by another check: " + said["what"]
            if control["verdict"] != "CONFORMS":
                found, row["what"] = False, "without a mutant: " + control["what"]
            row["found"] = "yes" if found else "no"
            if not found:
                missed.append(row["mutant"])
        self.results[title] = rows
        ran = [row for row in rows if row["found"]]
        count = str(len(ran)) if len(ran) == len(rows) else "%d of %d" % (len(ran), len(rows))
        self.note("%s (%s)" % (title, count), [program, "verify", "..."],
                  1 if missed or not ran else 0, "not found: " + ", ".join(missed),
                  time.monotonic() - start)


def judged(command):
    """What `assay verify --json` says: verdict, {check: sentence} of its mismatches, the first
    sentence (or what went wrong), seconds."""
    start = time.monotonic()
    said = {"verdict": "none", "checks": {}, "what": ""}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS,
                              stdin=subprocess.DEVNULL)
        said["what"] = "no report: %s" % (done.stderr.strip()[-300:] or done.returncode)
        document = json.loads(done.stdout)
        # A run of one suite has its verdict in the report.
        report = document.get("report", {})
        said["verdict"] = said["what"] = document.get("verdict") or report["verdict"]
        if said["verdict"] == "MISMATCH":
            for mismatch in report["mismatches"]:
                said["checks"].setdefault(mismatch.get("check", ""), mismatch["what"])
            said["what"] = report["mismatches"][0]["what"]
        elif report.get("reasons"):
            said["what"] += ": " + report["reasons"][0]
    except subprocess.TimeoutExpired:
        said["what"] = "ended after %d s" % SECONDS
    except (ValueError, KeyError, IndexError, OSError) as error:
        said["what"] = said["what"] or "no report: %s" % error
    return {**said, "seconds": round(time.monotonic() - start, 1)}


def find(build, name):
    """A program in the build directory, or beside the others in a flat one."""
    nested = build / name
    return nested.resolve() if nested.exists() else (build / pathlib.Path(name).name).resolve()
