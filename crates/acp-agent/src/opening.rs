//! What an editor says when it opens a session, as the session's settings: where it works, and what
//! its agent is given besides. It only translates; what fits is the server's and the agent's to say.

use std::path::{Path, PathBuf};

use agent_client_protocol::Error;
use agent_client_protocol::v1::schema::{EnvVariable, HttpHeader, McpServer};
use serde_json::{Map, Value, json};
use tapedeck_domain::session::{ApprovalPolicy, WorkspaceKind};
use tapedeck_protocol::run_target::{RunTargetRequest, WorkspaceBody};
use tapedeck_protocol::session::{CreateSessionRequest, SessionResponse, UpdateSessionRequest};

use crate::failure::invalid;

/// Where sessions of editors come from.
pub(crate) const ORIGIN: &str = "acp";

/// What an editor says of a session.
#[derive(Debug)]
pub(crate) struct Opening {
    cwd: PathBuf,
    directories: Vec<PathBuf>,
    servers: Vec<McpServer>,
}

impl Opening {
    /// Checks that the paths are whole.
    pub(crate) fn new(
        cwd: PathBuf,
        directories: Vec<PathBuf>,
        servers: Vec<McpServer>,
    ) -> Result<Self, Error> {
        absolute("cwd", &cwd)?;
        for directory in &directories {
            absolute("additionalDirectories", directory)?;
        }
        Ok(Self {
            cwd,
            directories,
            servers,
        })
    }

    /// Where the session works.
    pub(crate) fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// Where the agent may work besides.
    pub(crate) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The request for a new session.
    pub(crate) fn creation(&self, policy: ApprovalPolicy) -> Result<CreateSessionRequest, Error> {
        let path = path_text("cwd", &self.cwd)?;
        let workspace = WorkspaceBody {
            kind: WorkspaceKind::LocalPath,
            fields: Map::from_iter([("path".to_owned(), json!(path))]),
        };
        let agent = self
            .agent()?
            .into_iter()
            .filter(|(_, value)| !value.is_null());
        Ok(CreateSessionRequest {
            run_target: Some(RunTargetRequest {
                workspace: Some(workspace),
                ..RunTargetRequest::default()
            }),
            approval_policy: Some(policy),
            agent: Some(agent.collect()),
            origin: Some(ORIGIN.to_owned()),
            ..CreateSessionRequest::default()
        })
    }

    /// What has to change in a session that is opened again. Sessions that come from elsewhere keep
    /// their settings: an editor that names no servers doesn't mean to take theirs away.
    pub(crate) fn change(
        &self,
        session: &SessionResponse,
    ) -> Result<Option<UpdateSessionRequest>, Error> {
        if session.origin.as_deref() != Some(ORIGIN) {
            return Ok(None);
        }
        let mut agent = self.agent()?;
        agent.retain(|name, value| session.agent.get(name).unwrap_or(&Value::Null) != value);
        Ok((!agent.is_empty()).then(|| UpdateSessionRequest {
            agent: Some(agent),
            ..UpdateSessionRequest::default()
        }))
    }

    /// The settings for the agent; null where there are none.
    fn agent(&self) -> Result<Map<String, Value>, Error> {
        let directories = self.directories.iter();
        let directories: Vec<Value> = directories
            .map(|path| path_text("additionalDirectories", path).map(Value::from))
            .collect::<Result<_, _>>()?;
        let servers: Vec<Value> = self.servers.iter().map(server).collect::<Result<_, _>>()?;
        let list = |items: Vec<Value>| (!items.is_empty()).then_some(items).into();
        Ok(Map::from_iter([
            ("additional_directories".to_owned(), list(directories)),
            ("mcp_servers".to_owned(), list(servers)),
        ]))
    }
}

fn absolute(field: &str, path: &Path) -> Result<(), Error> {
    if path.is_absolute() {
        return Ok(());
    }
    let path = path.display();
    Err(invalid(format!("`{field}` must be absolute, not `{path}`")))
}

fn path_text<'a>(field: &str, path: &'a Path) -> Result<&'a str, Error> {
    let text = path.to_str();
    text.ok_or_else(|| invalid(format!("`{field}` is no text")))
}

/// A server of tools as an agent's settings have it.
fn server(server: &McpServer) -> Result<Value, Error> {
    let setting = setting(server)?;
    match setting["name"].as_str() {
        None | Some("") => Err(invalid("`mcpServers` has a server without a name")),
        Some(_) => Ok(setting),
    }
}

fn setting(server: &McpServer) -> Result<Value, Error> {
    match server {
        McpServer::Stdio(stdio) => Ok(json!({
            "name": stdio.name,
            "command": path_text("mcpServers", &stdio.command)?,
            "args": stdio.args,
            "env": stdio.env.iter().map(variable).collect::<Vec<_>>(),
        })),
        McpServer::Http(http) => Ok(reached("http", &http.name, &http.url, &http.headers)),
        McpServer::Sse(sse) => Ok(reached("sse", &sse.name, &sse.url, &sse.headers)),
        _ => Err(invalid("`mcpServers` has a server of an unknown kind")),
    }
}

fn reached(kind: &str, name: &str, url: &str, headers: &[HttpHeader]) -> Value {
    let headers: Vec<Value> = headers
        .iter()
        .map(|header| json!({"name": header.name, "value": header.value}))
        .collect();
    json!({"type": kind, "name": name, "url": url, "headers": headers})
}

fn variable(variable: &EnvVariable) -> Value {
    json!({"name": variable.name, "value": variable.value})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(servers: &Value) -> Vec<McpServer> {
        serde_json::from_value(servers.clone()).unwrap()
    }

    #[test]
    fn directories_and_servers_become_settings_of_the_agent() {
        let servers = servers(&json!([
            {"name": "files", "command": "/bin/files", "args": ["-v"],
                "env": [{"name": "A", "value": "b"}]},
            {"type": "http", "name": "web", "url": "https://x/mcp",
                "headers": [{"name": "K", "value": "v"}]},
        ]));
        let opening = Opening::new("/work".into(), vec!["/lib".into()], servers).unwrap();
        let creation = opening.creation(ApprovalPolicy::Auto).unwrap();
        let expected = json!({
            "additional_directories": ["/lib"],
            "mcp_servers": [
                {"name": "files", "command": "/bin/files", "args": ["-v"],
                    "env": [{"name": "A", "value": "b"}]},
                {"type": "http", "name": "web", "url": "https://x/mcp",
                    "headers": [{"name": "K", "value": "v"}]},
            ],
        });
        assert_eq!(creation.agent.clone().map(Value::Object), Some(expected));
        assert_eq!(creation.approval_policy, Some(ApprovalPolicy::Auto));
        let settings = creation.check().unwrap();
        let workspace = settings.run_target.workspace.unwrap();
        assert_eq!(workspace.fields.get("path"), Some(&json!("/work")));
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing() {
        let opening = Opening::new("/work".into(), Vec::new(), Vec::new()).unwrap();
        let creation = opening.creation(ApprovalPolicy::Interactive).unwrap();
        assert_eq!(creation.agent, Some(Map::new()));
    }

    #[test]
    fn relative_paths_are_refused() {
        for (cwd, directory) in [("work", "/lib"), ("/work", "lib")] {
            let opening = Opening::new(cwd.into(), vec![directory.into()], Vec::new());
            assert_eq!(i32::from(opening.unwrap_err().code), -32602);
        }
    }
}
