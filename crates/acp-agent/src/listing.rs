//! The list of sessions that an editor can open: those that work in a directory. The server's list
//! has no such filter, so pages are read until there are enough, and never more than a bound of them
//! for one answer; the cursor goes on where reading stopped.

use std::path::{Path, PathBuf};

use agent_client_protocol::Error;
use agent_client_protocol::v1::schema::{ListSessionsRequest, ListSessionsResponse, SessionInfo};
use serde_json::Value;
use tapedeck_client::{Client, Paging};
use tapedeck_domain::session::WorkspaceKind;
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::session::SessionResponse;

use crate::failure::{invalid, of_call};

/// Sessions of one page of the server's.
const PAGE: u32 = 100;
/// Sessions of one answer, at least, if there are as many.
const ENOUGH: usize = 50;
/// Pages that are read for one answer.
const PAGES: usize = 20;
/// No cursor of ours is longer, and an address can't be much longer.
const CURSOR_BYTES: usize = 1024;

/// One page for the editor.
pub(crate) async fn list(
    client: &Client,
    request: &ListSessionsRequest,
) -> Result<ListSessionsResponse, Error> {
    if let Some(cwd) = request.cwd.as_deref().filter(|cwd| !cwd.is_absolute()) {
        let cwd = cwd.display();
        return Err(invalid(format!("`cwd` must be absolute, not `{cwd}`")));
    }
    let is_ours = |cursor: &String| cursor.len() <= CURSOR_BYTES;
    if !request.cursor.as_ref().is_none_or(is_ours) {
        return Err(foreign_cursor());
    }
    let mut found = Vec::new();
    let mut paging = Paging {
        limit: Some(PAGE),
        cursor: request.cursor.clone(),
    };
    for _ in 0..PAGES {
        let page = client
            .sessions(&paging)
            .await
            .map_err(|error| match error.code() {
                Some(ErrorCode::CursorMalformed) => foreign_cursor(),
                _ => of_call(&error, ""),
            })?;
        let listed = page.sessions.iter();
        found.extend(listed.filter_map(|session| info(session, request.cwd.as_deref())));
        paging.cursor = page.next_cursor;
        if paging.cursor.is_none() || found.len() >= ENOUGH {
            break;
        }
    }
    Ok(ListSessionsResponse::new(found).next_cursor(paging.cursor))
}

fn foreign_cursor() -> Error {
    invalid("the cursor is none of this list")
}

/// A session as editors see it, if it works in a directory, and in the one that is asked for.
fn info(session: &SessionResponse, cwd: Option<&Path>) -> Option<SessionInfo> {
    let path = directory(session)?;
    if cwd.is_some_and(|cwd| cwd != path) {
        return None;
    }
    let directories = session.agent.get("additional_directories");
    let directories = directories.and_then(Value::as_array);
    let directories = directories.into_iter().flatten();
    let directories = directories.filter_map(|path| path.as_str().map(PathBuf::from));
    let info = SessionInfo::new(session.session_id.to_string(), path)
        .additional_directories(directories.collect::<Vec<_>>())
        .title(session.title.clone())
        .updated_at(session.last_activity_at.to_string());
    Some(info)
}

/// Where a session works, if that is a directory.
fn directory(session: &SessionResponse) -> Option<PathBuf> {
    let workspace = session.workspace.as_ref()?;
    if workspace.kind != WorkspaceKind::LocalPath {
        return None;
    }
    Some(PathBuf::from(workspace.fields.get("path")?.as_str()?))
}
