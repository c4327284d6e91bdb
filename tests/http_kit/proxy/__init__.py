"""The data path over real sockets: clients, the proxy, and backends that follow a script."""
