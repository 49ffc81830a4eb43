"""Predicts training speeds from a table, and explains a slow training run from its log.

Both work for our own trainer and for other programs.
"""
