"""What can go wrong: one fault a file, with its fields, problems, simulated and real arm, and words.

Their bases are in `simdist.faults`; `simdist.faults._kinds` lists them.
"""
