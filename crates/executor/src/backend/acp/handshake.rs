//! The first words with an agent: protocol version, what either side can do, and authentication. It
//! owns what the agent advertised; nothing may be asked of an agent that it does not offer.

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{Implementation, InitializeRequest};
use serde_json::{Value, json};

use super::connection::Connection;
use super::rpc::{CallError, RpcError};
use super::session::{Stop, describe};
use crate::backend::{AgentEvent, AgentSettings, Failure, FailureCode, Transport};
use crate::process::Redactor;

/// "Authentication required".
const AUTH_REQUIRED: i64 = -32000;

/// What this client offers to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offered {
    pub(super) files: bool,
    pub(super) terminals: bool,
    /// Whether a form reaches anybody.
    pub(super) forms: bool,
}

impl Offered {
    fn capabilities(self) -> Value {
        let elicitation = if self.forms {
            json!({"form": {}})
        } else {
            Value::Null
        };
        json!({
            "fs": {"readTextFile": self.files, "writeTextFile": self.files},
            "terminal": self.terminals,
            "elicitation": elicitation,
            "session": {
                "compaction": {},
                "configOptions": {"boolean": {}},
                "notices": {},
            },
        })
    }
}

/// What an agent said of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Hello {
    pub(super) name: String,
    pub(super) version: String,
    capabilities: Value,
    methods: Vec<Method>,
}

/// A way to authenticate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Method {
    id: String,
    name: String,
    /// Needs a person at a terminal; it is never asked for through the protocol.
    terminal: bool,
}

impl Hello {
    fn of(answer: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let methods = answer["authMethods"].as_array().into_iter().flatten();
        let methods = methods.filter_map(|method| {
            let id = method["id"].as_str()?.to_owned();
            let name = method["name"].as_str().unwrap_or(&id).to_owned();
            let terminal = method["type"] == "terminal";
            Some(Method { id, name, terminal })
        });
        Self {
            name: text(&answer["agentInfo"]["name"]),
            version: text(&answer["agentInfo"]["version"]),
            capabilities: answer["agentCapabilities"].clone(),
            methods: methods.collect(),
        }
    }

    pub(super) fn resumes(&self) -> bool {
        self.has_session("resume")
    }

    pub(super) fn loads(&self) -> bool {
        self.capabilities["loadSession"] == true
    }

    fn has_session(&self, capability: &str) -> bool {
        self.capabilities["sessionCapabilities"][capability].is_object()
    }

    /// Whether the agent can be given what the session wants it to have.
    pub(super) fn check(&self, settings: &AgentSettings) -> Result<(), Failure> {
        let unfit = |text: String| Err(Failure::new(FailureCode::AgentCapabilityMissing, text));
        for server in &settings.mcp_servers {
            let takes = match server.transport {
                Transport::Stdio => true,
                Transport::Http => self.capabilities["mcpCapabilities"]["http"] == true,
                Transport::Sse => self.capabilities["mcpCapabilities"]["sse"] == true,
            };
            if !takes {
                let (word, name) = (server.transport.as_str(), &server.name);
                return unfit(format!(
                    "the agent takes no MCP servers over {word}, as `{name}` is one"
                ));
            }
        }
        if !settings.directories.is_empty() && !self.has_session("additionalDirectories") {
            return unfit("the agent takes no additional directories".to_owned());
        }
        Ok(())
    }

    /// For the run's result, bounded and without secrets.
    pub(super) fn as_json(&self, redactor: &Redactor) -> Value {
        let methods: Vec<&str> = self
            .methods
            .iter()
            .map(|method| method.id.as_str())
            .collect();
        let payload = json!({
            "name": self.name,
            "version": self.version,
            "protocol_version": 1,
            "capabilities": self.capabilities,
            "auth_methods": methods,
        });
        AgentEvent::new("", payload, redactor).payload
    }

    fn listed_methods(&self) -> String {
        let listed: Vec<String> = self
            .methods
            .iter()
            .map(|method| {
                let place = if method.terminal {
                    ", at a terminal"
                } else {
                    ""
                };
                format!("`{}` ({}{place})", method.id, method.name)
            })
            .collect();
        if listed.is_empty() {
            "it offers no method to authenticate: log in with its own program".to_owned()
        } else {
            format!("it offers {}", listed.join(", "))
        }
    }

    /// The failure of a request, with what to do where the agent wants authentication.
    pub(super) fn failure(&self, method: &str, error: &RpcError, redactor: &Redactor) -> Failure {
        let text = format!("`{method}` failed: {}", describe(error, redactor));
        // Some agents have the same code for other failures.
        if needs_authentication(error) && !self.methods.is_empty() {
            let methods = redactor.redact(self.listed_methods());
            let text = format!("{text}; {methods}; name one with `--agent-auth`");
            return Failure::new(FailureCode::AgentAuthRequired, text);
        }
        Failure::new(FailureCode::AgentError, text)
    }
}

pub(super) fn needs_authentication(error: &RpcError) -> bool {
    error.code == AUTH_REQUIRED
}

/// The handshake, with authentication if a method is configured. An agent that offers none is
/// taken to need none.
pub(super) async fn shake_hands(
    connection: &Connection,
    offered: Offered,
    auth_method: Option<&str>,
    redactor: &Redactor,
) -> Result<Hello, Stop> {
    let client = Implementation::new("tapedeck", env!("CARGO_PKG_VERSION"));
    let request = InitializeRequest::new(ProtocolVersion::V1).client_info(client);
    let mut request = serde_json::to_value(request).unwrap_or_default();
    request["clientCapabilities"] = offered.capabilities();
    let answer = call(
        connection,
        "initialize",
        request,
        &Hello::default(),
        redactor,
    )
    .await?;
    if answer["protocolVersion"].as_u64() != Some(1) {
        let text = format!(
            "the agent speaks protocol version {}, not 1",
            answer["protocolVersion"]
        );
        return Err(Stop::Failed(Failure::new(FailureCode::AgentProtocol, text)));
    }
    let hello = Hello::of(&answer);
    let Some(wanted) = auth_method.filter(|_| !hello.methods.is_empty()) else {
        return Ok(hello);
    };
    let fits = |method: &Method| method.id == wanted && !method.terminal;
    if !hello.methods.iter().any(fits) {
        let text = format!(
            "the agent can't authenticate by `{wanted}`; {}",
            redactor.redact(hello.listed_methods())
        );
        return Err(Stop::Failed(Failure::new(
            FailureCode::AgentAuthRequired,
            text,
        )));
    }
    let params = json!({"methodId": wanted});
    call(connection, "authenticate", params, &hello, redactor).await?;
    Ok(hello)
}

/// A request whose error fails the turn.
pub(super) async fn call(
    connection: &Connection,
    method: &'static str,
    params: Value,
    hello: &Hello,
    redactor: &Redactor,
) -> Result<Value, Stop> {
    let called = connection.peer.request(method, params).await;
    called.map_err(|error| match error {
        CallError::Closed => Stop::Closed(method),
        CallError::Answered(error) => Stop::Failed(hello.failure(method, &error, redactor)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(capabilities: &Value) -> Hello {
        Hello::of(&json!({"agentCapabilities": capabilities}))
    }

    fn settings(agent: &Value) -> AgentSettings {
        AgentSettings::of(agent.as_object().unwrap()).unwrap()
    }

    #[test]
    fn servers_and_directories_need_the_agents_word() {
        let http = settings(&json!({"mcp_servers": [{"type": "http", "name": "w", "url": "u"}]}));
        let sse = settings(&json!({"mcp_servers": [{"type": "sse", "name": "w", "url": "u"}]}));
        let stdio = settings(&json!({"mcp_servers": [{"name": "w", "command": "c"}]}));
        let folders = settings(&json!({"additional_directories": ["/a"]}));
        let nothing = hello(&json!({}));
        let all = hello(&json!({"mcpCapabilities": {"http": true, "sse": true},
            "sessionCapabilities": {"additionalDirectories": {}}}));
        for wanted in [&http, &sse, &folders] {
            let failure = nothing.check(wanted).unwrap_err();
            assert_eq!(failure.code, FailureCode::AgentCapabilityMissing);
            assert_eq!(all.check(wanted), Ok(()));
        }
        assert_eq!(nothing.check(&stdio), Ok(()));
    }
}
