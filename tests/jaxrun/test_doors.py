"""Every public door computes in 64-bit on its own and changes no global setting, in a fresh
process."""

import os
import subprocess
import sys

import jax

CODE = """
import jax, numpy as np, kunita
assert not jax.config.jax_enable_x64
x = np.random.default_rng(0).uniform(0, 150, (12, 3))
kernel = kunita.Gaussian(50.0, 5.0)
p = 0.01 * np.ones((12, 3))

def doors():
    trajectory = kunita.shoot(kernel, x, p)
    post = kunita.register(x, x + 3 * np.sin(x / 30), kernel=kernel, noise=1.0).posterior
    points = post.predict(x[:8].astype(np.float32))
    return {
        "shoot": trajectory.positions, "drift": np.asarray(trajectory.drift),
        "transport": kunita.transport(kernel, trajectory, x).positions,
        "reverse": kunita.reverse(kernel, trajectory).positions,
        "moments": kunita.moments(kernel, x, p).covariance,
        "simulate": kunita.simulate(kernel, x, p, num_paths=2, num_steps=4),
        "predict": points.mean, "inverse": post.inverse(x[:8]).covariance, "covariance": post.covariance(x[:8], x[:8]),
        "jacobian": post.jacobian(x[:8]), "sample": post.sample(x[:3], 2), "loo": post.leave_one_out().chi2,
        "std": points.std,
    }

for name, value in doors().items():
    assert type(value) is np.ndarray and value.dtype == np.float64, (name, type(value), value.dtype)
jax.config.update("jax_compilation_cache_dir", None)
doors()
assert jax.config.jax_compilation_cache_dir is None
assert jax.numpy.ones(1).dtype == np.float32 and not jax.config.jax_enable_x64
print("good")
"""
"""Its shapes are those of test_posterior.py, with which it shares what is compiled, up to the
second round."""


def test_doors_return_numpy_in_double_precision_and_leave_jax_alone():
    quick = {
        **os.environ,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # most of its time is compilation
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(
            jax.config.jax_persistent_cache_min_compile_time_secs
        ),
    }
    assert (
        subprocess.check_output([sys.executable, "-c", CODE], text=True, env=quick).strip()
        == "good"
    )
