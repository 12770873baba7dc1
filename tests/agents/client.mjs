// A whole conversation with `tapedeck acp`, held by the official TypeScript library, whose schemas
// check every message.
//
//   ACP_SDK=DIR node client.mjs DIRECTORY COMMAND [ARGUMENT...]
//
// The agent behind it must be the demo agent. One line a step; exit code 0 only if all went well.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const library = `${process.env.ACP_SDK}/node_modules/@agentclientprotocol/sdk/dist/v1/stable/acp.js`;
const acp = await import(pathToFileURL(library));
const { agent: calls, client: events } = acp.methods;
const [directory, command, ...args] = process.argv.slice(2);
const LIMIT = 60_000;

const passed = (step) => console.log(`ok    typescript  ${step}`);

async function until(what, condition) {
  const end = Date.now() + LIMIT;
  while (!condition()) {
    assert(Date.now() < end, `not within ${LIMIT} ms: ${what}`);
    await sleep(20);
  }
}

// Starts the agent and gives a connection to it. The editor allows once whatever is asked.
async function withAgent(talk) {
  const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));
  const editor = { updates: [], asked: 0 };
  editor.kinds = () => new Set(editor.updates.map((update) => update.sessionUpdate));
  editor.text = (kind = "agent_message_chunk") =>
    editor.updates
      .filter((update) => update.sessionUpdate === kind)
      .map((update) => update.content.text)
      .join("");
  const app = acp
    .client({ name: "client.mjs" })
    .onNotification(events.session.update, ({ params }) => {
      editor.updates.push(params.update);
    })
    .onRequest(events.session.requestPermission, ({ params }) => {
      editor.asked += 1;
      const option = params.options.find((option) => option.kind === "allow_once");
      return { outcome: { outcome: "selected", optionId: option.optionId } };
    });
  const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
  await app.connectWith(stream, async (connection) => {
    const hello = await connection.request(calls.initialize, {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities: {},
      clientInfo: { name: "client.mjs", version: "1" },
    });
    await talk({ connection, editor, child, hello });
  });
  return { child, ended };
}

const block = (text) => [{ type: "text", text }];
const promptOf = (connection) => async (sessionId, text) => {
  const answer = await connection.request(calls.session.prompt, { sessionId, prompt: block(text) });
  return answer.stopReason;
};

let sessionId;
const killed = withAgent(async ({ connection, editor, child, hello }) => {
  const prompt = promptOf(connection);
  assert.equal(hello.protocolVersion, 1);
  assert(hello.agentCapabilities.loadSession);
  const { list, close, resume } = hello.agentCapabilities.sessionCapabilities;
  assert(list && close && resume);
  passed("initialize");

  ({ sessionId } = await connection.request(calls.session.new, { cwd: directory, mcpServers: [] }));
  const script = 'say hello; think hm; plan a | b; tool read {"path": "x"}; usage';
  assert.equal(await prompt(sessionId, script), "end_turn");
  for (const kind of ["agent_thought_chunk", "plan", "tool_call", "tool_call_update", "usage_update"]) {
    assert(editor.kinds().has(kind), kind);
  }
  assert.equal(editor.text(), "hello");
  passed("prompt with updates");

  assert.equal(await prompt(sessionId, 'ask edit {"path": "a"}'), "end_turn");
  assert.equal(editor.asked, 1);
  assert(editor.text().includes("was allowed"));
  passed("permission");

  const running = prompt(sessionId, "slow 600");
  await until("the agent speaks", () => editor.text().includes("tick 2"));
  await assert.rejects(prompt(sessionId, "say no"), { code: -32600 });
  await connection.notify(calls.session.cancel, { sessionId });
  assert.equal(await running, "cancelled");
  passed("cancel");

  const unknown = "018f0000-0000-7000-8000-000000000001";
  await assert.rejects(prompt(unknown, "say x"), { code: -32002 });
  passed("unknown session");

  const lost = prompt(sessionId, "say begun; slow 2; ask edit {}; say the end").catch(() => "lost");
  await until("the run begins", () => editor.text().includes("begun"));
  child.kill("SIGKILL");
  assert.equal(await lost, "lost");
  passed("kill -9");
});
// The connection of a killed process ends with an error of its own.
await killed.catch((error) => assert.match(String(error), /connection closed/));

const { child, ended } = await withAgent(async ({ connection, editor }) => {
  await connection.request(calls.session.load, { sessionId, cwd: directory, mcpServers: [] });
  assert(editor.text("user_message_chunk").includes("slow 600"));
  assert(editor.text().includes("begun"));
  await until("the run goes on to its end", () => editor.text().endsWith("the end"));
  assert.equal(editor.asked, 1, "the question is asked again");
  passed("load after kill -9");

  const { sessions } = await connection.request(calls.session.list, { cwd: directory });
  assert(sessions.some((session) => session.sessionId === sessionId));
  await connection.request(calls.session.close, { sessionId });
  passed("list and close");
});
const started = Date.now();
child.stdin.end();
assert.deepEqual(await ended, { code: 0, signal: null });
assert(Date.now() - started < 2000);
passed("end of input");
