"""An editor in front of `tapedeck acp`, as far as the conversation needs one: JSON-RPC on its pipes."""
import json
import queue
import threading


class Editor:
    """Allows once whatever is asked, and keeps what it is told; `noise` is what was no message."""

    def __init__(self, process):
        self.process, self.number = process, 0
        self.updates, self.asked, self.noise = [], [], []
        self.answers = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                self.noise.append(line)
                continue
            method = message.get("method")
            if method == "session/update":
                self.updates.append(message["params"]["update"])
            elif method == "session/request_permission":
                self.asked.append(message["params"])
                allow = [option["optionId"] for option in message["params"]["options"]
                         if option["kind"] == "allow_once"][0]
                self.send({"id": message["id"],
                           "result": {"outcome": {"outcome": "selected", "optionId": allow}}})
            elif method is None:
                self.answers.put(message)
        self.answers.put(None)

    def send(self, message):
        line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()

    def start(self, method, params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})

    def answer(self, seconds):
        """The answer to the oldest call; None if the agent is gone or takes too long."""
        try:
            return self.answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def call(self, method, params, seconds=30):
        self.start(method, params)
        return self.answer(seconds)

    def prompt(self, session, text):
        self.start("session/prompt", {"sessionId": session,
                                      "prompt": [{"type": "text", "text": text}]})

    def text(self):
        return "".join(update["content"].get("text", "") for update in list(self.updates)
                       if update["sessionUpdate"] == "agent_message_chunk")
