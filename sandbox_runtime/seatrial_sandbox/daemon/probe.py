"""The standard health service, for a kubelet's gRPC probe: it has no token, and learns nothing but that we serve."""

import grpc

SERVICE = "grpc.health.v1.Health"
_SERVING = b"\x08\x01"
"""`HealthCheckResponse(status=SERVING)`, which never changes: before it holds, nothing listens."""


async def _check(_request: bytes, _context: object) -> bytes:
    return _SERVING


def probe_handler() -> grpc.GenericRpcHandler:
    """What answers a probe."""
    return grpc.method_handlers_generic_handler(SERVICE, {"Check": grpc.unary_unary_rpc_method_handler(_check)})
