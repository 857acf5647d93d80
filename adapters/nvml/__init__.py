"""The GPUs of this machine, as NVIDIA's management library tells them."""
