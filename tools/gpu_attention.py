"""gpu-check's part for attention: our kernels and their emulation on a device against the emulation
here, the suites, whole long problems, and the benchmark with its peers. Decides how their programs
are run; wrong kernels are gpu_mutants.py's, and gpu-check has the rest."""

import os
import shutil
import subprocess
import time

from gpu_mutants import SOURCE, MutantSteps, find  # beside this file, where gpu-check looks


class AttentionSteps(MutantSteps):
    def attention(self):
        """Kernels and emulation on the device against the emulation here."""
        if "attention" in self.skip:
            return
        self.run("attention kernels", [find(self.build, "cuda/attention_gpu_tests")], 600,
                 {"ASSAY_ATTENTION_CASES": "10"})
        self.attention_cases(200 if self.arguments.quick else 2000)
        self.run("attention emulated on the device",
                 [find(self.build, "cuda/cuda_emulator_gpu_tests")], 300)
        self.with_json("attention suites",
                       [self.assay, "verify", "--suite", "attention", "--subject", "cuda",
                        "--budget", 5 if self.arguments.quick else self.arguments.budget], 600)
        if shutil.which("compute-sanitizer"):
            self.run("attention under memcheck",
                     ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", 1,
                      find(self.build, "cuda/attention_gpu_tests"), "random *,constructed *"], 300,
                     {"ASSAY_ATTENTION_CASES": "20"})
        self.attention_mutants()
        one = ["--case", "heads=8/1"] if self.arguments.quick else []
        self.with_json("attention long",
                       [self.assay, "verify", "--suite", "attention.long", "--subject", "cuda",
                        *one], 400)
        timing = find(self.build, "cuda/emulator_timing")
        if shutil.which(str(timing)):  # built by name only
            self.with_lines("emulator timing", [timing], 300)

    def attention_cases(self, count):
        """Several processes share the cases, as the emulation on the CPU takes most of the time."""
        name = "attention kernels, %d random problems and %d decodes" % (count, count)
        program = find(self.build, "cuda/attention_gpu_tests")
        if not shutil.which(str(program)):
            self.note(name, [program], 3, "there is no such program", 0)
            return
        shares = min(16, os.cpu_count() or 1)
        edges = [count * i // shares for i in range(shares + 1)]
        start, running = time.monotonic(), []
        for low, high in zip(edges, edges[1:]):
            numbers = {**os.environ, "ASSAY_ATTENTION_CASES": "%d:%d" % (low, high)}
            running.append(subprocess.Popen(
                [str(program), "random *"], env=numbers, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        codes, said = [], ""
        for process in running:
            try:
                text = process.communicate(timeout=max(1, 600 - (time.monotonic() - start)))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                text = "ended after 600 s\n" + process.communicate()[0]
            code = process.returncode
            if code == 0 and "in 2 test cases)" not in text:
                code, text = 1, "ran other than two test cases:\n" + text
            codes.append(code)
            said += text[-1200:] if code else ""
        self.note(name, [program, "random *"], worst(codes), said, time.monotonic() - start)

    def attention_bench(self):
        if "attention-bench" in self.skip:
            return
        command = [self.assay, "bench", "attention", "--peers",
                   os.path.relpath(SOURCE / "tools/attention-peers")]
        if self.arguments.quick:
            command += ["--quick", "--peer-time", 60]
        self.with_json("bench attention", command, 400)


def worst(codes):
    """Of processes that share one step: a failure before "not served", and that before 0."""
    return next((code for code in codes if code not in (0, 3, 77)), max(codes, default=3))
