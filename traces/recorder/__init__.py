"""Captures what a running model does: expert routing into traces, Q, K and V into captures.

Read in this order: trace_file.py and capture_file.py (what is written), hook.py and attention.py
(how it is seen), record.py and capture.py (any Hugging Face model), train.py with model.py and
corpus.py (the samples of our own). Decides nothing about replay or calibration. Needs torch;
transformers only for record.py and capture.py; the writers of files and their tests need the
standard library alone.
"""
