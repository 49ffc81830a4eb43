"""Silent data corruption.

Parts of a step are computed again, and everything computed is compared.
"""
