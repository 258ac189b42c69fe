"""Reading the pages of `chainrule.view`."""

import json
import re


def data_of(html):
    """What a saved page shows."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
    return json.loads(text)
