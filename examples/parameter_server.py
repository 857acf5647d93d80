"""Train a logistic regression with a parameter server and workers, all actors.

In the synchronous mode every step averages the gradients of all shards, so the weights
must equal those of a serial run. In the asynchronous mode the server applies each
gradient as it arrives; then the loss must come close to the serial one.

    python examples/parameter_server.py --steps 60 --workers 2
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import rayshim as ray

RATE = 0.5


def make_data(rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of shape (rows, features), labels 0.0 or 1.0 of shape (rows,)."""
    generator = np.random.default_rng(7)
    points = generator.standard_normal((rows, features))
    truth = generator.standard_normal(features)
    noise = generator.standard_normal(rows)
    return points, (points @ truth + noise > 0).astype(float)


def predict(weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-(points @ weights)))


def gradient(weights: np.ndarray, points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return points.T @ (predict(weights, points) - labels) / len(labels)


def loss(weights: np.ndarray, points: np.ndarray, labels: np.ndarray) -> float:
    p = np.clip(predict(weights, points), 1e-12, 1 - 1e-12)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p)))


@ray.remote(num_cpus=0)
class ParameterServer:
    def __init__(self, features: int) -> None:
        self.weights = np.zeros(features)

    def apply(self, *gradients: np.ndarray) -> np.ndarray:
        # Not in place: what the caller holds of the old weights stays as it is.
        self.weights = self.weights - RATE * np.mean(gradients, axis=0)
        return self.weights

    def current(self) -> np.ndarray:
        return self.weights


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, points: np.ndarray, labels: np.ndarray) -> None:
        self.points, self.labels = points, labels

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        return gradient(weights, self.points, self.labels)


def train_in_step(server, workers, steps: int) -> np.ndarray:
    weights = server.current.remote()
    for _ in range(steps):
        weights = server.apply.remote(*[w.gradient.remote(weights) for w in workers])
    return ray.get(weights)


def train_as_they_come(server, workers, steps: int) -> np.ndarray:
    weights = server.current.remote()
    busy = {worker.gradient.remote(weights): worker for worker in workers}
    for _ in range(steps * len(workers)):
        (ready,), _ = ray.wait(list(busy))
        worker = busy.pop(ready)
        busy[worker.gradient.remote(server.apply.remote(ready))] = worker
    return ray.get(server.current.remote())


def train_serially(shards, features: int, steps: int) -> np.ndarray:
    weights = np.zeros(features)
    for _ in range(steps):
        weights = weights - RATE * np.mean(
            [gradient(weights, *shard) for shard in shards], axis=0
        )
    return weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    points, labels = make_data(options.rows, options.features)
    shards = list(
        zip(
            np.array_split(points, options.workers),
            np.array_split(labels, options.workers),
            strict=True,
        )
    )
    expected = train_serially(shards, options.features, options.steps)
    first, best = loss(0 * expected, points, labels), loss(expected, points, labels)
    print(f"loss {first:.4f} at the start, {best:.4f} after a serial run")

    ray.init()
    workers = [Worker.remote(*shard) for shard in shards]
    synchronous = train_in_step(
        ParameterServer.remote(options.features), workers, options.steps
    )
    asynchronous = train_as_they_come(
        ParameterServer.remote(options.features), workers, options.steps
    )

    print(f"loss {loss(synchronous, points, labels):.4f} in step")
    print(f"loss {loss(asynchronous, points, labels):.4f} with updates as they come")
    if not np.allclose(synchronous, expected, rtol=0, atol=1e-10):
        print("MISMATCH: the weights of the serial run differ", file=sys.stderr)
        return 1
    if not loss(asynchronous, points, labels) < (first + best) / 2:
        print("MISMATCH: asynchronous training did not learn", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
