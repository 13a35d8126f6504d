"""Grafana dashboards for compute wait and coordination wait (none yet)."""
