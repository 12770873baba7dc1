//! Sessions on the wire: create, change, list and show. The convenience fields `repo_path`,
//! `provider`, `model`, `base_url` and `max_steps` are folded into the settings here and nowhere else.

mod request;
mod response;

pub(crate) use request::MAX_STEPS;
pub(crate) use request::check_command_id;
pub use request::{
    Change, CreateSessionRequest, DeleteSessionQuery, SettingsChange, UpdateSessionRequest,
};
pub(crate) use response::AgentSettings;
pub use response::{ForkedFrom, OwnerResponse, SessionList, SessionResponse};
