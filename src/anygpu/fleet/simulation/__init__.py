"""A fleet that is not there: the real queue, state machine, chooser and batches on a simulated clock.

`simulate(scenario)` drives the code that a runtime runs on, and models what that code does not decide: devices, the
network, faults, arrivals, and what the driver's processor takes.
"""
