"""``ray.init`` and ``ray.shutdown``: arguments, contexts, ends of sessions."""

from __future__ import annotations

import os

import pytest

import ray


@ray.remote
def pid():
    return os.getpid()


@ray.remote
def echo(value):
    return value


@ray.remote
def variable(name):
    return os.environ.get(name)


@ray.remote
class Holder:
    def ping(self):
        return "pong"


def test_is_initialized_follows_init_and_shutdown(ray_fresh):
    assert ray.is_initialized() is False
    ray_fresh(num_cpus=1)
    assert ray.is_initialized() is True
    ray.shutdown()
    assert ray.is_initialized() is False


def test_shutdown_is_idempotent(ray_fresh):
    assert ray.shutdown() is None
    ray_fresh(num_cpus=1)
    ray.shutdown()
    ray.shutdown()


def test_resources_of_init(ray_fresh):
    ray_fresh(num_cpus=3, num_gpus=2, resources={"widget": 2})
    total = ray.cluster_resources()
    assert total["CPU"] == 3.0
    assert total["GPU"] == 2.0
    assert total["widget"] == 2.0
    assert total["memory"] > 0
    assert total["object_store_memory"] > 0


def test_context_of_init(ray_fresh):
    context = ray_fresh(num_cpus=1)
    info = context.address_info
    assert len(info["node_id"]) == 56
    assert info["node_id"] == ray.nodes()[0]["NodeID"]
    assert ":" in info["gcs_address"]
    assert os.path.isdir(info["session_dir"])
    assert context.python_version.startswith("3.")
    assert isinstance(context.ray_version, str)
    assert "RayContext" in repr(context)


def test_nodes(ray_fresh):
    ray_fresh(num_cpus=2)
    (node,) = ray.nodes()
    assert node["Alive"] is True
    assert node["Resources"]["CPU"] == 2.0
    assert set(node) >= {"NodeID", "NodeManagerAddress", "Resources", "Labels"}


def test_second_init_is_runtime_error(ray_fresh):
    ray_fresh(num_cpus=1)
    with pytest.raises(RuntimeError, match=r"ray\.init twice"):
        ray_fresh(num_cpus=1)
    assert ray.get(echo.remote(1)) == 1


def test_ignore_reinit_error_returns_the_context(ray_fresh):
    context = ray_fresh(num_cpus=1)
    again = ray_fresh(num_cpus=2, ignore_reinit_error=True)
    assert again.address_info == context.address_info
    assert ray.cluster_resources()["CPU"] == 1.0


def test_context_manager_shuts_down(ray_fresh):
    with ray_fresh(num_cpus=1):
        assert ray.get(echo.remote(1)) == 1
    assert not ray.is_initialized()


def test_context_manager_shuts_down_on_error(ray_fresh):
    with pytest.raises(KeyError), ray_fresh(num_cpus=1):
        raise KeyError
    assert not ray.is_initialized()


def test_context_disconnect(ray_fresh):
    context = ray_fresh(num_cpus=1)
    context.disconnect()
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"nope": 1}, RuntimeError),
        ({"num_cpus": -1}, ValueError),
        ({"num_cpus": 1.5}, ValueError),
        ({"num_cpus": "2"}, AssertionError),
        ({"resources": {"CPU": 1}}, AssertionError),
        ({"resources": {"a": -1}}, ValueError),
        ({"object_store_memory": 1000}, ValueError),
        ({"namespace": 3}, TypeError),
        ({"namespace": ""}, ValueError),
        ({"address": "nope"}, ValueError),
        ({"local_mode": True}, RuntimeError),
        ({"runtime_env": {"env_vars": {"A": 1}}}, TypeError),
        ({"logging_level": "NOPE"}, ValueError),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_arguments_of_init(ray_fresh, options, error):
    with pytest.raises(error):
        ray_fresh(**options)
    assert not ray.is_initialized()


def test_init_works_after_a_refused_init(ray_fresh):
    with pytest.raises(RuntimeError, match="nope"):
        ray_fresh(nope=1)
    ray_fresh(num_cpus=1)
    assert ray.get(echo.remote(1)) == 1


@pytest.mark.parametrize("call", [ray.nodes, ray.cluster_resources])
def test_state_before_init_is_refused(ray_fresh, call):
    with pytest.raises(ray.exceptions.RaySystemError, match="not been started"):
        call()
    assert not ray.is_initialized()


def test_remote_functions_outlive_the_session(ray_fresh):
    ray_fresh(num_cpus=1)
    first = ray.get(pid.remote())
    ray.shutdown()
    ray_fresh(num_cpus=1)
    assert ray.get(pid.remote()) != first


def test_refs_of_an_ended_session(ray_fresh):
    ray_fresh(num_cpus=1)
    put_ref, task_ref = ray.put(1), echo.remote(1)
    ray.get(task_ref)
    ray.shutdown()
    assert "ObjectRef(" in repr(put_ref)
    ray_fresh(num_cpus=1)
    for ref in (put_ref, task_ref):
        with pytest.raises(ValueError, match="session"):
            ray.get(ref, timeout=5)
        with pytest.raises(ValueError, match="session"):
            ray.wait([ref], timeout=5)
        with pytest.raises(ValueError, match="session"):
            ray.get(echo.remote(ref), timeout=5)
    assert ray.get(echo.remote("fine")) == "fine"


def test_actor_of_an_ended_session(ray_fresh):
    ray_fresh(num_cpus=1)
    holder = Holder.remote()
    assert ray.get(holder.ping.remote()) == "pong"
    ray.shutdown()
    ray_fresh(num_cpus=1)
    with pytest.raises(Exception, match="ctor"):
        ray.get(holder.ping.remote(), timeout=10)
    assert ray.get(Holder.remote().ping.remote()) == "pong"


def test_several_sessions_in_a_row(ray_fresh):
    for i in range(3):
        ray_fresh(num_cpus=1)
        assert ray.get(echo.remote(i)) == i
        ray.shutdown()


def test_workers_are_gone_after_shutdown(ray_fresh, wait_until):
    ray_fresh(num_cpus=1)
    worker = ray.get(pid.remote())

    def gone():
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{worker}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"

    ray.shutdown()
    wait_until(gone)


def test_namespace_of_the_job(ray_fresh):
    ray_fresh(num_cpus=1, namespace="spam")
    assert ray.get_runtime_context().namespace == "spam"

    @ray.remote
    def namespace():
        return ray.get_runtime_context().namespace

    assert ray.get(namespace.remote()) == "spam"


def test_anonymous_namespaces_differ(ray_fresh):
    seen = set()
    for _ in range(2):
        ray_fresh(num_cpus=1)
        seen.add(ray.get_runtime_context().namespace)
        ray.shutdown()
    assert len(seen) == 2


def test_env_vars_of_job_and_task_merge(ray_fresh):
    ray_fresh(num_cpus=1, runtime_env={"env_vars": {"JOB": "job", "BOTH": "job"}})
    assert ray.get(variable.remote("JOB")) == "job"
    task = variable.options(runtime_env={"env_vars": {"TASK": "t", "BOTH": "task"}})
    assert ray.get(task.remote("JOB")) == "job"
    assert ray.get(task.remote("TASK")) == "t"
    assert ray.get(task.remote("BOTH")) == "task"
    assert ray.get(variable.remote("BOTH")) == "job"


def test_env_vars_of_the_job_are_not_set_in_the_driver(ray_fresh):
    ray_fresh(num_cpus=1, runtime_env={"env_vars": {"COMPAT_JOB_ONLY": "1"}})
    assert ray.get(variable.remote("COMPAT_JOB_ONLY")) == "1"
    assert "COMPAT_JOB_ONLY" not in os.environ


def test_children_inherit_the_env_vars_of_their_parent(ray_fresh):
    ray_fresh(num_cpus=2)

    @ray.remote
    def parent():
        return ray.get(variable.remote("INHERITED"))

    task = parent.options(runtime_env={"env_vars": {"INHERITED": "yes"}})
    assert ray.get(task.remote()) == "yes"


@pytest.mark.parametrize("first_use", ["put", "remote", "get_runtime_context"])
def test_auto_init(run_driver, first_use):
    done = run_driver(
        """
        import sys
        import ray

        print("before", ray.is_initialized())
        if sys.argv[1] == "put":
            ray.put(1)
        elif sys.argv[1] == "remote":
            assert ray.get(ray.remote(lambda: 5).remote()) == 5
        else:
            ray.get_runtime_context()
        print("after", ray.is_initialized())
        """,
        first_use,
    )
    assert "before False" in done.stdout
    assert "after True" in done.stdout


def test_driver_that_ends_without_shutdown(run_driver):
    done = run_driver(
        """
        import ray

        ray.init(num_cpus=1, include_dashboard=False)

        @ray.remote
        class A:
            def m(self):
                return 1

        a = A.remote()
        print("got", ray.get(a.m.remote()))
        """
    )
    assert "got 1" in done.stdout
    assert "Traceback" not in done.stderr


def test_driver_that_ends_with_pending_tasks(run_driver):
    done = run_driver(
        """
        import time
        import ray

        ray.init(num_cpus=1, include_dashboard=False)
        refs = [ray.remote(lambda: time.sleep(60)).remote() for _ in range(5)]
        print("leaving")
        """
    )
    assert "leaving" in done.stdout


def test_driver_that_fails_has_exit_code_one(run_driver):
    done = run_driver(
        """
        import ray

        ray.init(num_cpus=1, include_dashboard=False)

        @ray.remote
        def divide():
            return 1 / 0

        ray.get(divide.remote())
        """,
        check=False,
    )
    assert done.returncode == 1
    assert "RayTaskError(ZeroDivisionError)" in done.stderr


def test_driver_exit_code_is_its_own(run_driver):
    done = run_driver(
        """
        import sys
        import ray

        ray.init(num_cpus=1, include_dashboard=False)
        sys.exit(7)
        """,
        check=False,
    )
    assert done.returncode == 7
