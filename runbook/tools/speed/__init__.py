"""Predicts training speeds from a table, and explains a slow training run from its log.

Both functions work for our own trainer and for other programs.
"""
