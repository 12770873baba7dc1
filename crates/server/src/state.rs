//! What the server is made of. Everything in it is shared by all requests and never changes.

use tapedeck_control_plane::ControlPlane;

use crate::auth::BearerToken;
use crate::host::HostPolicy;
use crate::limits::Limits;

/// The parts of a server.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// The use cases.
    pub control: ControlPlane,
    /// The version that the server says of itself.
    pub version: &'static str,
    /// The shared bearer token, asked for on every endpoint; without one nothing is asked.
    pub token: Option<BearerToken>,
    /// Which `Host` and `Origin` are answered.
    pub hosts: HostPolicy,
    /// How much is taken at once.
    pub limits: Limits,
}

impl ServerState {
    /// A server without a token, for callers on this machine.
    pub fn local(control: ControlPlane, version: &'static str) -> Self {
        Self {
            control,
            version,
            token: None,
            hosts: HostPolicy::Loopback,
            limits: Limits::STANDARD,
        }
    }
}
