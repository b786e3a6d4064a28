"""Sampled metrics of devices: what GPUs, network interfaces, switches, volumes do, read off at regular intervals.

:mod:`series` integrates activity between samples, :mod:`gpus` knows the metrics of GPU models, :mod:`gpu`,
:mod:`network` and :mod:`plugins` watch the job and write, :mod:`traffic` says what crosses the network. All of them are
:class:`~.watcher.Watcher` objects: they are shown every stretch of the job and write what they have sampled by then.
"""
