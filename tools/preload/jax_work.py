# SPDX-License-Identifier: BSD-2-Clause
"""Steps of gradient descent in JAX for real_programs.py.

usage: jax_work.py [STEPS]
Prints losses, and "time ... ms" for the median step.  Exits with 77 without a GPU.  The environment variable
XLA_PYTHON_CLIENT_ALLOCATOR chooses JAX's allocator.
"""
import os
import statistics
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

STEPS = 60


def loss_of(weights, x, y):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - y) ** 2)


def main():
    if jax.default_backend() != "gpu":
        print("SKIP: JAX finds no GPU")
        return 77
    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    weights = [jax.random.normal(key, (512, 512)) * 0.05 for key in keys[:4]]
    x, y = (jax.random.normal(key, (256, 512)) for key in keys[4:])
    step = jax.jit(jax.value_and_grad(loss_of))
    losses, times = [], []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS):
        start = time.perf_counter()
        loss, gradients = step(weights, x, y)
        weights = [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]
        losses.append(float(loss))
        times.append((time.perf_counter() - start) * 1e3)
    print("losses", losses[::10])
    x = jnp.linalg.inv(jnp.eye(256) * 3 + jnp.ones((256, 256)))  # uses cuSOLVER and cuBLAS beside XLA
    print(f"inverse {float(x.sum()):.6f}")
    print(f"time {statistics.median(times[len(times) // 4:]):.4f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
