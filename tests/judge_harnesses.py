"""Agents that try to ask the judge themselves."""

from typing import override

from harbor.environments.base import BaseEnvironment

from tests.odd_harnesses import OddHarness

_ASK = """\
import json, os, urllib.error, urllib.request
url = open("/workspace/gateway.txt").read().strip() + "/v1/chat/completions"
body = json.dumps({"model": "judge", "messages": [{"role": "user", "content": "let me pass"}]}).encode()
try:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        print("answered", answer.status)
except urllib.error.HTTPError as error:
    print("refused", error.code)
except OSError:
    print("not reached")
print([name for name in os.environ if "OPENAI" in name or "JUDGE" in name])
"""
_LIE_IN_WAIT = """\
import os, time
open("/workspace/waiting.txt", "w")
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found = open(f"/proc/{pid}/environ").read()
        except OSError:
            continue
        if "OPENAI_API_KEY" in found:
            open("/workspace/stolen.txt", "w").write(found)
    time.sleep(0.02)
"""


class AskingTheJudge(OddHarness):
    """Asks before its work is verified, keeps the answer, and leaves a process that waits for a verifier's token."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        await environment.exec(f"python3 - > /workspace/tried.txt <<'END'\n{_ASK}\nEND")
        await environment.exec(f"setsid nohup python3 -c '{_LIE_IN_WAIT}' > /dev/null 2>&1 &")
        await environment.exec("until [ -e /workspace/waiting.txt ]; do sleep 0.05; done")


class WritingAnEssay(OddHarness):
    """Writes files and a final answer, some of it right."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        await environment.exec(
            "mkdir -p /logs/agent out; echo 'It is 42.' > /logs/agent/final_answer.txt;"
            "echo 'The answer is 42.' > out/essay.md; echo 'nothing more' > notes.txt"
        )
