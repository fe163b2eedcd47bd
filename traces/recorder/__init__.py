"""Captures expert routing from a running mixture-of-experts model into a trace file.

Read in this order: trace_file.py (what is written), hook.py (how routing is seen), record.py (any
Hugging Face model), train.py with model.py and corpus.py (the sample of our own).
Decides nothing about replay. Needs torch; transformers only for record.py; trace_file.py and its
tests need the standard library alone.
"""
