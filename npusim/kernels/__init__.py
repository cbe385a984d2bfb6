"""Numba kernels: the fast half of every operator. Only this folder (and zo/kernels.py) uses Numba.

A kernel never sees a profile: it gets addresses, sizes and the numbers that compile has frozen.
"""
