"""Serving: export, signatures, warm_up, manifest, thresholds, server_config, client."""
