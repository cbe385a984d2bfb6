"""Zeroth-order training of int8 networks: only forward passes, exact integers, any number of
threads, the same bits.

``npusim.zo.run.train`` is the whole of ``npusim train``. An algorithm (``algorithm``) is composed
of small values with explicit state: a direction (``directions``), an estimator (``estimator``), a
scheduler of q (``schedulers``) and an update (``updates``). ``rng`` says which random number each
weight gets, ``reference`` what perturbation and update compute, ``kernels`` computes it fast.
``log`` and ``checkpoint`` are the files of a run, ``replay`` rebuilds its weights.
"""
