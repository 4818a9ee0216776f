"""Shows a run to people: `run_log` (events to the logs), `public_values` (a run as plain values),
`metrics` (for Prometheus), `page` (over HTTP) with `page_content`, `page_spending` and `page_html`, and
`places` (how many may call both)."""

__all__: list[str] = []
