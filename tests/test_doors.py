"""Every public door computes in 64-bit on its own and changes no global setting, in a fresh process."""

import os
import subprocess
import sys

CODE = """
import jax, numpy as np, kunita
assert not jax.config.jax_enable_x64
x = np.array([[0.0, 0], [3, 1], [1, 4], [5, 5]])
kernel = kunita.Gaussian(4.0, 1.0)
p = 0.1 * np.ones((4, 2))
trajectory = kunita.shoot(kernel, x, p)
reg = kunita.register(x, x + np.array([[0.5, 0], [0, 0.3], [0.2, 0], [0, 0]]), kernel=kernel, noise=0.1)
post = reg.posterior
points = post.predict(x.astype(np.float32))
results = {
    "shoot": trajectory.positions,
    "transport": kunita.transport(kernel, trajectory, x).positions,
    "reverse": kunita.reverse(kernel, trajectory).positions,
    "moments": kunita.moments(kernel, x, p).covariance,
    "simulate": kunita.simulate(kernel, x, p, num_paths=2, num_steps=4),
    "predict": points.mean, "inverse": post.inverse(x).covariance, "covariance": post.covariance(x, x),
    "jacobian": post.jacobian(x), "sample": post.sample(x, 2), "loo": post.leave_one_out().chi2, "std": points.std,
}
for name, value in results.items():
    assert type(value) is np.ndarray and value.dtype == np.float64, (name, type(value), value.dtype)
assert np.asarray(trajectory.drift).dtype == np.float64
assert jax.numpy.ones(1).dtype == np.float32 and not jax.config.jax_enable_x64
assert jax.config.jax_compilation_cache_dir is None
print("good")
"""


def test_doors_return_numpy_in_double_precision_and_leave_jax_alone():
    quick = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # most of its time is compilation
    assert subprocess.check_output([sys.executable, "-c", CODE], text=True, env=quick).strip() == "good"
