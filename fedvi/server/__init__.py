"""The server: a pure step over requests, and what surrounds it. Which file to open:

- what happens: `state` (its types), `turns` (folds, deadlines), `protocol` (the pure step),
  `coordinator` (save before reply);
- what lasts: `durable` (the store), `cells` and `stored` (its schema), `journal` (the operational log),
  `backup`;
- who calls: `app` (the process), `desk` (the one thread that the coordinator runs in), `service` (clients),
  `admin` (operators), `health`, `gate` (who may), `uploads`, `answering` (errors), `sockets`, `by_hand`
  (files in place of calls);
- what is told: `happenings` (sentences), `teller` (to whom), `prices` (ε beside each fold), `logs`,
  `metrics`, `shown` (a run as plain values), `page` (over HTTP) with `page_content`, `page_spending`,
  `page_html` and `assets/`.
"""

__all__: list[str] = []
