//! What the server is made of. Everything in it is shared by all requests and never changes.

use tapedeck_control_plane::ControlPlane;

use crate::auth::{BearerToken, TokenPolicy};
use crate::host::HostPolicy;
use crate::limits::Limits;

/// The parts of a server.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// The use cases.
    pub control: ControlPlane,
    /// The version that the server says of itself.
    pub version: &'static str,
    /// The shared token of the token file, if there is one.
    pub token: Option<BearerToken>,
    /// The token of whoever may read the server's own files, where that isn't the one above. It is an
    /// operator's and asks nobody else for one.
    pub own_token: Option<BearerToken>,
    /// When a token is asked for where there is no such file.
    pub token_policy: TokenPolicy,
    /// Which `Host` and `Origin` are answered.
    pub hosts: HostPolicy,
    /// How much is taken at once.
    pub limits: Limits,
}

impl ServerState {
    /// A server that asks for no token, for callers in this process.
    pub fn local(control: ControlPlane, version: &'static str) -> Self {
        Self {
            control,
            version,
            token: None,
            own_token: None,
            token_policy: TokenPolicy::Never,
            hosts: HostPolicy::Loopback,
            limits: Limits::STANDARD,
        }
    }
}
