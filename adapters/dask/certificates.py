"""TLS of Dask's own scheduler and workers, from the files of a platform."""

from __future__ import annotations

from distributed import Security

from rayshim.adapters.wire.tls import Credentials


def security_of(tls: Credentials | None) -> Security | None:
    """What a client of Dask is given; None without TLS."""
    if tls is None:
        return None
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=tls.ca,
        tls_client_cert=tls.cert,
        tls_client_key=tls.key,
    )
