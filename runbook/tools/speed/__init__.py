"""Predicts training speeds from a table, and explains a slow training from its log.

Both work for other programs as well as for our own.
"""
