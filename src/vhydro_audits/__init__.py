"""The claims of the paper and of this package: audits, each one command, beside peers, labels and simulators.

Imports the library; the library never imports it. `vhydro audit` and `vhydro collect` find it by name.
"""
