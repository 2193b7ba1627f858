"""The faults: one a file, with its fields, problems, simulated and real arm, and words.

By what they strike: `processes` and their hosts, the `network` and the store, `disks`, `values` and devices. Their
bases are in `simdist.faults`; `simdist.faults._kinds` lists them.
"""
