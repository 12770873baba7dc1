//! What a session asks of its agent, read from the session's `agent` settings. It owns their shapes
//! and the error that names the field; it knows no agent and does no I/O.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Servers, directories and options of one session, each.
const LIST_LIMIT: usize = 64;

/// What a session asks of its agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentSettings {
    /// The mode to set.
    pub mode: Option<String>,
    /// The model to choose.
    pub model: Option<String>,
    /// Further options to set, by the agent's own ids: texts or booleans.
    pub options: Map<String, Value>,
    /// Servers of tools that the agent is to use.
    pub mcp_servers: Vec<McpServer>,
    /// Where the agent may work besides its workspace.
    pub directories: Vec<PathBuf>,
}

impl AgentSettings {
    /// Reads what a backend needs; other fields are somebody else's.
    pub fn of(agent: &Map<String, Value>) -> Result<Self, String> {
        let options = match agent.get("options") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(options)) => options.clone(),
            Some(_) => return Err("`agent.options` must be an object".to_owned()),
        };
        let odd = options
            .iter()
            .find(|(_, value)| !value.is_string() && !value.is_boolean());
        if let Some((id, _)) = odd {
            return Err(format!("`agent.options.{id}` must be a text or a boolean"));
        }
        if options.len() > LIST_LIMIT {
            return Err(format!("`agent.options` has more than {LIST_LIMIT} fields"));
        }
        let mcp_servers = items(agent, "mcp_servers")?
            .iter()
            .enumerate()
            .map(|(position, server)| {
                McpServer::of(server)
                    .map_err(|error| format!("`agent.mcp_servers[{position}]`: {error}"))
            })
            .collect::<Result<_, _>>()?;
        let directories = items(agent, "additional_directories")?
            .iter()
            .enumerate()
            .map(|(position, path)| match path.as_str() {
                Some(path) => Ok(PathBuf::from(path)),
                None => Err(format!(
                    "`agent.additional_directories[{position}]` must be a path"
                )),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            mode: text(agent, "mode")?,
            model: text(agent, "model")?,
            options,
            mcp_servers,
            directories,
        })
    }
}

fn text(agent: &Map<String, Value>, field: &str) -> Result<Option<String>, String> {
    match agent.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(format!("`agent.{field}` must be a text that is not blank")),
    }
}

fn items<'a>(agent: &'a Map<String, Value>, field: &str) -> Result<&'a [Value], String> {
    match agent.get(field) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) if items.len() <= LIST_LIMIT => Ok(items),
        Some(Value::Array(_)) => Err(format!("`agent.{field}` has more than {LIST_LIMIT} items")),
        Some(_) => Err(format!("`agent.{field}` must be a list")),
    }
}

/// How an agent reaches a server of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// The agent starts a program.
    #[default]
    Stdio,
    /// Streamable HTTP.
    Http,
    /// Server-sent events.
    Sse,
}

impl Transport {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
        }
    }
}

/// A server of tools, in the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub transport: Transport,
    /// A program, or a URL.
    target: String,
    args: Vec<String>,
    /// Variables of the program, or headers.
    pairs: Vec<Pair>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    name: String,
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    #[serde(default, rename = "type")]
    transport: Transport,
    name: String,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Pair>,
    url: Option<String>,
    #[serde(default)]
    headers: Vec<Pair>,
}

impl McpServer {
    fn of(server: &Value) -> Result<Self, String> {
        let given = Given::deserialize(server).map_err(|error| error.to_string())?;
        if given.name.trim().is_empty() {
            return Err("`name` is blank".to_owned());
        }
        let program = !given.args.is_empty() || !given.env.is_empty();
        let (target, pairs) = match (given.transport, given.command, given.url) {
            (Transport::Stdio, Some(command), None) if given.headers.is_empty() => {
                (command, given.env)
            }
            (Transport::Stdio, ..) => {
                return Err("`stdio` takes `command`, `args` and `env`".to_owned());
            }
            (Transport::Http | Transport::Sse, None, Some(url)) if !program => (url, given.headers),
            (Transport::Http | Transport::Sse, ..) => {
                let word = given.transport.as_str();
                return Err(format!("`{word}` takes `url` and `headers`"));
            }
        };
        if target.trim().is_empty() {
            return Err("its `command` or `url` is blank".to_owned());
        }
        Ok(Self {
            name: given.name,
            transport: given.transport,
            target,
            args: given.args,
            pairs,
        })
    }

    /// Names and values of its variables or headers, some of which are secrets.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs
            .iter()
            .map(|pair| (pair.name.as_str(), pair.value.as_str()))
    }

    /// As the Agent Client Protocol has it.
    pub fn to_acp(&self) -> Value {
        let pairs: Vec<Value> = self
            .pairs()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let (name, target) = (&self.name, &self.target);
        match self.transport {
            Transport::Stdio => {
                json!({"name": name, "command": target, "args": self.args, "env": pairs})
            }
            Transport::Http | Transport::Sse => json!({
                "type": self.transport.as_str(), "name": name, "url": target, "headers": pairs
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(agent: &Value) -> Result<AgentSettings, String> {
        AgentSettings::of(agent.as_object().unwrap())
    }

    #[test]
    fn servers_become_what_the_protocol_has() {
        let settings = read(&json!({"mcp_servers": [
            {"name": "files", "command": "/bin/files", "args": ["-v"],
                "env": [{"name": "A", "value": "b"}]},
            {"type": "http", "name": "web", "url": "http://127.0.0.1:1/mcp"},
            {"type": "sse", "name": "old", "url": "http://127.0.0.1:1/sse",
                "headers": [{"name": "Authorization", "value": "Bearer x"}]},
        ]}))
        .unwrap();
        let servers: Vec<_> = settings.mcp_servers.iter().map(McpServer::to_acp).collect();
        assert_eq!(
            Value::from(servers),
            json!([
                {"name": "files", "command": "/bin/files", "args": ["-v"],
                    "env": [{"name": "A", "value": "b"}]},
                {"type": "http", "name": "web", "url": "http://127.0.0.1:1/mcp", "headers": []},
                {"type": "sse", "name": "old", "url": "http://127.0.0.1:1/sse",
                    "headers": [{"name": "Authorization", "value": "Bearer x"}]},
            ])
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        for (agent, expected) in [
            (json!({"mode": 1}), "`agent.mode`"),
            (json!({"mode": " "}), "`agent.mode`"),
            (json!({"options": []}), "`agent.options`"),
            (json!({"options": {"x": 1}}), "`agent.options.x`"),
            (json!({"mcp_servers": {}}), "`agent.mcp_servers`"),
            (json!({"mcp_servers": [{"name": "a"}]}), "[0]`: `stdio`"),
            (
                json!({"mcp_servers": [{"name": "a", "type": "http", "command": "x"}]}),
                "[0]`: `http` takes `url`",
            ),
            (
                json!({"mcp_servers": [{"name": "a", "command": "x", "odd": 1}]}),
                "odd",
            ),
            (json!({"additional_directories": [1]}), "[0]`"),
        ] {
            let error = read(&agent).unwrap_err();
            assert!(error.contains(expected), "{agent}: {error}");
        }
        let other = json!({"provider": "x", "max_steps": 3, "mode": null});
        assert_eq!(read(&other), Ok(AgentSettings::default()));
    }
}
