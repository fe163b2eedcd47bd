"""The text that the sample model is trained on: the Python standard library of the interpreter that
runs the training, that is its source code, comments, docstrings and the language reference in
pydoc_data, all under PSF-2.0. Decides which files, and which of them are held out (whole files, so
that no held-out sentence was seen in training).
"""

import dataclasses
import hashlib
import math
import pathlib
import platform
import sysconfig

LICENCE = "PSF-2.0"
# Not prose and not code that anybody would write: generated tables, third-party wheels, caches.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "encodings", "ensurepip",
                   "lib2to3", "idlelib", "test", "tests"}


@dataclasses.dataclass
class Corpus:
    train: bytes
    held_out: list  # of (name, bytes), by name
    description: dict


def read_corpus(held_out_share=10, limit_bytes=None):
    """One file in `held_out_share`, chosen by a hash of its name, is held out."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    train, held_out, digest = [], [], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED_FOLDERS.intersection(name.split("/")):
            continue
        text = path.read_bytes()
        if len(text) < 512:
            continue
        digest.update(name.encode() + b"\0" + text)
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        if key % held_out_share == 0:
            held_out.append((name, text))
        else:
            train.append(text)
    train_bytes = b"\n".join(train)[:limit_bytes]
    held_bytes = sum(len(text) for _, text in held_out)
    return Corpus(train_bytes, held_out, {
        "text": f"Python {platform.python_version()} standard library (*.py)",
        "licence": LICENCE, "train_bytes": len(train_bytes), "held_out_bytes": held_bytes,
        "train_files": len(train), "held_out_files": len(held_out),
        "sha256": digest.hexdigest()})


def unigram_entropy_nats(text):
    """Entropy of the text's own byte frequencies: the loss of the best model without context that
    knows those frequencies in advance."""
    counts = [0] * 256
    for byte in text:
        counts[byte] += 1
    return -sum(c / len(text) * math.log(c / len(text)) for c in counts if c)
