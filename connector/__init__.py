"""The vLLM side of pdtrace, loaded with one `--kv-transfer-config` line.

    {"kv_connector": "NixlPushConnector", "kv_connector_module_path": "pdtrace.connector.push", ...}

or with no change of configuration at all when `PDTRACE=1` is set (see `plugin`). Importing this
package imports nothing.
"""
