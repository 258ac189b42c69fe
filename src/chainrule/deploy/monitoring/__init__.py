"""Alerts for Prometheus and a dashboard for Grafana, over the metrics that servers have at `/metrics`.

alert_rules  rules for Prometheus
dashboard    a dashboard for Grafana

Modules, in reading order:

    _alerts     what should wake an operator, and when
    _dashboard  what an operator looks at
"""

from chainrule.deploy.monitoring._alerts import alert_rules
from chainrule.deploy.monitoring._dashboard import dashboard

__all__ = ["alert_rules", "dashboard"]
