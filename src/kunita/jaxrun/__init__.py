"""How the package runs JAX: the doors to it, programs that are kept, and threads."""
