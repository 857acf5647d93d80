"""What a head tells over HTTP (Starlette, Uvicorn)."""
