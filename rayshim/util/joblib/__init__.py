"""joblib's parallel loops, and so scikit-learn's ``n_jobs``, on a cluster."""

from __future__ import annotations

__all__ = ["register_ray"]


def register_ray() -> None:
    """Make joblib know the back end "ray".

    Raises:
        ImportError: joblib is not installed.

    Example:
        >>> import joblib
        >>> from rayshim.util.joblib import register_ray
        >>> register_ray()
        >>> with joblib.parallel_config("ray", n_jobs=2):
        ...     joblib.Parallel()(joblib.delayed(abs)(n) for n in [-1, 2])
        [1, 2]
        >>> import rayshim
        >>> rayshim.shutdown()
    """
    try:
        from joblib.parallel import register_parallel_backend
    except ImportError as error:
        raise ImportError(
            "register_ray() needs joblib, which is not installed: "
            "`pip install joblib`, or scikit-learn, which brings it."
        ) from error
    from rayshim.util.joblib.ray_backend import make_backend_class

    register_parallel_backend("ray", make_backend_class())
