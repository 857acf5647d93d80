"""What nodes count and measure, in Prometheus' text form."""
