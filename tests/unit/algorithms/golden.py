"""Numbers of another framework, stored once; the file says where they come from."""

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("skyrl_golden.json").read_text())
