"""The remote functions and actors that the lines share, for one back end."""

from __future__ import annotations

from typing import Any


class Kit:
    """A back end and what the lines run on it.

    Args:
        ray: the module with Ray's API, initialized.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray

        # Defined here, since their decorator belongs to the back end; nested
        # definitions travel by value, so executors need not find this file.
        @ray.remote
        def small_value():
            return b"ok"

        @ray.remote
        def small_value_arg(x):
            return b"ok"

        @ray.remote(num_cpus=0)
        class Server:
            def small_value(self):
                return b"ok"

            def small_value_arg(self, x):
                return b"ok"

            def run_tasks(self, count):
                ray.get([small_value.remote() for _ in range(count)])

        @ray.remote(num_cpus=0)
        class AsyncServer:
            async def small_value(self):
                return b"ok"

            async def small_value_arg(self, x):
                return b"ok"

        @ray.remote(num_cpus=0)
        class Client:
            """Calls actors from inside the cluster."""

            def __init__(self, servers):
                self.servers = servers

            def call_each(self, count):
                ray.get(
                    [s.small_value.remote() for s in self.servers for _ in range(count)]
                )

            def call_each_with_ref(self, count):
                ref = ray.put(0)
                ray.get(
                    [
                        s.small_value_arg.remote(ref)
                        for s in self.servers
                        for _ in range(count)
                    ]
                )

        @ray.remote
        def call_round_robin(servers, count):
            ray.get(
                [servers[i % len(servers)].small_value.remote() for i in range(count)]
            )

        self.small_value = small_value
        self.small_value_arg = small_value_arg
        self.call_round_robin = call_round_robin
        self._server_class = Server
        self._async_server_class = AsyncServer
        self._client_class = Client

    def server(self, **options: Any) -> Any:
        """A synchronous actor that has answered a first call."""
        return self._started(self._server_class, options)

    def servers(self, count: int) -> list[Any]:
        """Several synchronous actors."""
        return [self.server() for _ in range(count)]

    def fresh_server(self) -> Any:
        """A synchronous actor that may not have started yet."""
        return self._server_class.remote()

    def async_server(self) -> Any:
        """An asyncio actor that has answered a first call."""
        return self._started(self._async_server_class, {})

    def async_servers(self, count: int) -> list[Any]:
        """Several asyncio actors."""
        return [self.async_server() for _ in range(count)]

    def client(self, servers: list[Any]) -> Any:
        """An actor that calls other actors."""
        return self._client_class.remote(servers)

    def _started(self, actor_class: Any, options: dict[str, Any]) -> Any:
        actor = (actor_class.options(**options) if options else actor_class).remote()
        self.ray.get(actor.small_value.remote())
        return actor
