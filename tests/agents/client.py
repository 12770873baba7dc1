"""A whole conversation with `tapedeck acp`, held by the official Python library.

    client.py DIRECTORY COMMAND [ARGUMENT...]

The agent behind it must be the demo agent. One line a step; exit code 0 only if all went well.
"""

import asyncio
import contextlib
import os
import sys
import time

from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process, text_block
from acp.interfaces import Client
from acp.schema import AllowedOutcome, ClientCapabilities, Implementation, RequestPermissionResponse

LIMIT = 60


class Editor(Client):
    """Allows once whatever is asked, and remembers what it is told."""

    def __init__(self):
        self.updates = []
        self.asked = 0

    async def request_permission(self, options, session_id, tool_call, **_):
        self.asked += 1
        option = next(option for option in options if option.kind == "allow_once")
        outcome = AllowedOutcome(outcome="selected", option_id=option.option_id)
        return RequestPermissionResponse(outcome=outcome)

    async def session_update(self, session_id, update, **_):
        self.updates.append(update)

    async def ext_notification(self, method, params):
        raise AssertionError(f"unexpected notification {method}")

    def kinds(self):
        return {update.session_update for update in self.updates}

    def text(self, kind="agent_message_chunk"):
        chunks = (update for update in self.updates if update.session_update == kind)
        return "".join(chunk.content.text for chunk in chunks)


async def until(what, condition):
    """Looks again and again; the condition is what ends the wait."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT} s: {what}"
        await asyncio.sleep(0.02)


def passed(step):
    print(f"ok    python      {step}", flush=True)


@contextlib.asynccontextmanager
async def agent(editor, command):
    # A process that was killed is no reason to complain at its end.
    with contextlib.suppress(ConnectionError, ProcessLookupError):
        async with spawn_agent_process(editor, *command, env=dict(os.environ)) as (connection, process):
            hello = await connection.initialize(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(),
                client_info=Implementation(name="client.py", version="1"),
            )
            yield connection, process, hello


async def talk(directory, command):
    editor = Editor()
    async with agent(editor, command) as (connection, process, hello):
        capabilities = hello.agent_capabilities
        assert hello.protocol_version == 1 and capabilities.load_session, hello
        sessions = capabilities.session_capabilities
        assert sessions.list and sessions.close and sessions.resume, sessions
        passed("initialize")

        session = (await connection.new_session(cwd=directory, mcp_servers=[])).session_id

        async def prompt(text, session=session):
            asked = connection.prompt(session_id=session, prompt=[text_block(text)])
            return (await asyncio.wait_for(asked, LIMIT)).stop_reason

        assert await prompt('say hello; think hm; plan a | b; tool read {"path": "x"}; usage') == "end_turn"
        wanted = {"agent_message_chunk", "agent_thought_chunk", "plan", "tool_call", "tool_call_update"}
        assert wanted <= editor.kinds() and editor.text() == "hello", editor.kinds()
        passed("prompt with updates")

        assert await prompt('ask edit {"path": "a"}') == "end_turn"
        assert editor.asked == 1 and "was allowed" in editor.text()
        passed("permission")

        running = asyncio.ensure_future(prompt("slow 600"))
        await until("the agent speaks", lambda: "tick 2" in editor.text())
        with contextlib.suppress(RequestError):
            await prompt("say no")
            raise AssertionError("a second prompt was taken")
        await connection.cancel(session_id=session)
        assert await running == "cancelled"
        passed("cancel")

        try:
            await prompt("say x", "018f0000-0000-7000-8000-000000000001")
            raise AssertionError("an unknown session was taken")
        except RequestError as error:
            assert error.code == -32002, error
        passed("unknown session")

        running = asyncio.ensure_future(prompt("say begun; slow 2; ask edit {}; say the end"))
        await until("the run begins", lambda: "begun" in editor.text())
        process.kill()
        await asyncio.gather(running, return_exceptions=True)
    passed("kill -9")

    editor = Editor()
    async with agent(editor, command) as (connection, process, _):
        await connection.load_session(cwd=directory, session_id=session, mcp_servers=[])
        assert "slow 600" in editor.text("user_message_chunk") and "begun" in editor.text()
        await until("the run goes on to its end", lambda: editor.text().endswith("the end"))
        assert editor.asked == 1, "the question is asked again"
        passed("load after kill -9")

        listed = await connection.list_sessions(cwd=directory)
        assert session in {info.session_id for info in listed.sessions}
        await connection.close_session(session_id=session)
        passed("list and close")

        started = time.monotonic()
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), LIMIT) == 0
        assert time.monotonic() - started < 2
    passed("end of input")


asyncio.run(talk(sys.argv[1], sys.argv[2:]))
