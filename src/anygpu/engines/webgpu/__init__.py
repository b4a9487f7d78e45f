"""WebGPU through wgpu: Vulkan, Metal, Direct3D 12 and OpenGL, from a small install and with no vendor SDK.

In the order of reading: `probe` describes adapters, `engine` verifies them, `device` opens one, and `driver` computes
on it. Below the driver: `programs` compiles, `binding` and `numbers` give kernels what they work on, `pacing` decides
what is sent together, `encoding` writes it down and `gate` sends it, `staging` moves bytes, `timing` reads the device's
clock, and `errors` says what wgpu's errors mean.
"""
