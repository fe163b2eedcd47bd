"""What golden attention, check and calibrate leave behind when a disk is full or they are killed
half-way: under an output's name lies the old file or the whole new one, nothing else [COR-2.1]."""

import os
import pathlib
import resource
import signal
import subprocess
import time
import unittest

from attention_testing import FACTOR, LAYOUTS, OURS, Attention
from cli_testing import ASSAY, BAD_INPUT, OK

LINE = "heads=2 kv=512 dim=32 spread=1.5 sinks=4 sink_gain=7 seed=3"
TEMPORARY = ".assay-tmp-*"


def limited(words, bytes_max, killed):
    """Runs a command that may write so many bytes to a file: beyond, the write fails as on a full
    disk, or, if `killed`, the system ends the process in the middle of it."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if killed else signal.SIG_IGN)
    return subprocess.run([ASSAY, *map(str, words)], capture_output=True, text=True, timeout=300,
                          restore_signals=False, preexec_fn=limit)


class Outputs(Attention):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "outputs"
        self.out.mkdir()
        self.source = self.write("in.safetensors", LAYOUTS["padded"])
        self.golden = self.make(LAYOUTS["padded"], OURS, *FACTOR)
        calibrate = ("calibrate", "--synthetic", LINE, "--profile", "modelopt-triton")
        check = ("check", "attention", "--in", self.golden, "--got", self.golden)
        # The command without its output, and how the output is named.
        self.commands = {
            "golden": (("golden", "attention", "--in", self.source, "--profile", OURS, *FACTOR),
                       lambda path: ("--out", path)),
            "check": (check, lambda path: (f"--json={path}",)),
            "configuration": (calibrate, lambda path: ("--out", path)),
            "checkpoint": (calibrate, lambda path: ("--checkpoint", path)),
            "plot": (calibrate, lambda path: ("--svg", path)),
            "document": (calibrate, lambda path: (f"--json={path}",)),
        }

    def each(self):
        """Name, words and path of each output, and what it should be; nothing is there yet."""
        for name, (words, output) in self.commands.items():
            path = self.out / name
            self.succeed(*words, *output(path), code=OK)
            whole = path.read_bytes()
            self.assertGreater(len(whole), 100, name)
            path.unlink()
            with self.subTest(name):
                yield name, (*words, *output(path)), path, whole
            for left in self.out.iterdir():
                left.unlink()

    def names(self):
        return sorted(p.name for p in self.out.iterdir())

    def test_a_full_disk_is_a_sentence_and_leaves_what_was_there(self):
        for name, words, path, whole in self.each():
            for old in (None, b"old"):
                for most in (1, len(whole) // 2, len(whole) - 1):
                    if old is not None:
                        path.write_bytes(old)
                    result = limited(words, most, killed=False)
                    self.assertEqual(result.returncode, BAD_INPUT, (name, most, result.stderr))
                    self.assertRegex(result.stderr, r"\Aassay: [^\n]*cannot be written: [^\n]+\n\Z")
                    self.assertIn(str(path), result.stderr)
                    self.assertNotIn("CONFORMS", result.stdout)
                    self.assertNotIn("CALIBRATED", result.stdout)
                    self.assertEqual(self.names(), [] if old is None else [name])
                    if old is not None:
                        self.assertEqual(path.read_bytes(), old)
            self.assertEqual(limited(words, len(whole), killed=False).returncode, OK)
            self.assertEqual(path.read_bytes(), whole)

    def test_a_process_that_ends_in_the_middle_of_a_write_leaves_what_was_there(self):
        for name, words, path, whole in self.each():
            for old in (None, b"old"):
                if old is not None:
                    path.write_bytes(old)
                result = limited(words, len(whole) // 2, killed=True)
                self.assertEqual(result.returncode, -signal.SIGXFSZ, (name, result.stderr))
                half = list(self.out.glob(TEMPORARY))
                self.assertEqual([p.stat().st_size for p in half], [len(whole) // 2])
                half[0].unlink()
                self.assertEqual(self.names(), [] if old is None else [name])
                if old is not None:
                    self.assertEqual(path.read_bytes(), old)
            # What was left behind by name does not hinder the next run.
            (self.out / ".assay-tmp-1-0").write_bytes(b"half")
            self.succeed(*words, code=OK)
            self.assertEqual(path.read_bytes(), whole)

    def test_a_kill_at_any_time_leaves_the_old_file_or_the_new_one(self):
        for name, words, path, whole in self.each():
            begin = time.monotonic()
            self.succeed(*words, code=OK)
            takes = time.monotonic() - begin
            kills = 12
            for i in range(kills):
                path.write_bytes(b"old")
                process = subprocess.Popen([ASSAY, *map(str, words)], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                # Half of them as soon as a temporary file is seen, half by the clock.
                until = time.monotonic() + (takes * (i + 1) / kills if i % 2 else 4 * takes)
                while time.monotonic() < until and process.poll() is None:
                    if i % 2 == 0 and any(p.startswith(".assay-tmp") for p in os.listdir(self.out)):
                        break
                process.kill()
                process.wait()
                self.assertIn(path.read_bytes(), (b"old", whole), name)
                for left in self.out.glob(TEMPORARY):
                    left.unlink()
                self.assertEqual(self.names(), [name])

    def test_devices_and_directories_are_refused_before_the_work(self):
        link = self.out / "link"
        link.symlink_to("/dev/full")
        for name, (words, output) in self.commands.items():
            for path, says in (("/dev/full", "not a regular file"), (link, "not a regular file"),
                               (self.out, "directory"), (self.out / "no" / "such", "No such file")):
                with self.subTest(name=name, path=path):
                    self.refuse(*words, *output(pathlib.Path(path)), says=["cannot write", says])
            if name in ("golden", "configuration", "checkpoint", "plot"):
                self.refuse(*words, *output(""), says=['cannot write ""', "the name is empty"])

    def test_a_full_standard_output_is_noticed_by_each(self):
        for name, (words, _) in self.commands.items():
            more = ("--out", self.out / "new") if name == "golden" else ()
            with self.subTest(name), open("/dev/full", "w") as full:
                result = subprocess.run([ASSAY, *map(str, words + more)], stdout=full,
                                        stderr=subprocess.PIPE, text=True)
                self.assertEqual(result.returncode, BAD_INPUT)
                self.assertIn("standard output", result.stderr)


if __name__ == "__main__":
    unittest.main()
