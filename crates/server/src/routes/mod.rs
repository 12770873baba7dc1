//! Every endpoint, in groups that are bounded together. A handler reads, calls one use case, and
//! answers.

mod changes;
mod checkpoints;
mod events;
mod executor;
mod executors;
mod feed;
mod interactions;
mod operations;
mod rules;
mod runs;
mod sessions;
mod tape;
mod tokens;

use std::sync::Arc;

use axum::Json;
use axum::middleware::from_fn_with_state;
use tapedeck_control_plane::PageRequest;
use tapedeck_domain::id::{CheckpointId, InteractionId, RuleId, RunId, SessionId, TokenId};
use tapedeck_domain::token::Role;
use tapedeck_protocol::page::Page;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use crate::auth::{Access, permit};
use crate::limits::{Bounds, Class, Limits, bound};
use crate::openapi::{self, Frame};
use crate::problem::Fault;
use crate::state::ServerState;

type Endpoints = OpenApiRouter<Arc<ServerState>>;

/// What a handler without choice gives.
type Answer<T> = Result<Json<T>, Fault>;

/// All endpoints, and the document that describes them. Here and nowhere else it says which role an
/// endpoint takes.
pub(crate) fn all(limits: &Limits) -> Endpoints {
    let (client, executor, operator) = (Role::Client, Role::Executor, Role::Operator);
    let others = open_to(Access::Role(client), others())
        .merge(open_to(Access::Role(operator), operations()))
        .merge(open_to(Access::Any, signs_of_life()));
    let admissions = open_to(Access::Role(client), admissions());
    let claims = open_to(Access::Role(executor), claims());
    let uploads = open_to(Access::Role(executor), uploads());
    let leases = open_to(Access::Role(executor), leases());
    OpenApiRouter::with_openapi(Frame::openapi())
        .merge(within(Class::Admission, limits, admissions))
        .merge(within(Class::Claim, limits, claims))
        .merge(within(Class::Upload, limits, uploads))
        .merge(within(Class::Lease, limits, leases))
        .merge(within(Class::Other, limits, others))
}

/// Endpoints for callers of a role; the document says so, too.
fn open_to(access: Access, mut endpoints: Endpoints) -> Endpoints {
    openapi::add_role(endpoints.get_openapi_mut(), access);
    endpoints.layer(from_fn_with_state(access, permit))
}

fn within(class: Class, limits: &Limits, endpoints: Endpoints) -> Endpoints {
    endpoints.layer(from_fn_with_state(Bounds::new(class, limits), bound))
}

fn admissions() -> Endpoints {
    OpenApiRouter::new()
        .routes(routes!(sessions::create))
        .routes(routes!(sessions::prompt))
        .routes(routes!(sessions::resume))
        .routes(routes!(checkpoints::create))
        .routes(routes!(checkpoints::restore))
        .routes(routes!(checkpoints::fork))
        .routes(routes!(rules::create))
}

fn claims() -> Endpoints {
    OpenApiRouter::new().routes(routes!(executor::claim))
}

fn uploads() -> Endpoints {
    OpenApiRouter::new()
        .routes(routes!(executor::upload))
        .routes(routes!(executor::snapshot))
        .routes(routes!(executor::artifacts))
        .routes(routes!(executor::append_tape))
        .routes(routes!(executor::complete))
}

fn leases() -> Endpoints {
    OpenApiRouter::new()
        .routes(routes!(executor::heartbeat))
        .routes(routes!(executor::ask))
        .routes(routes!(executor::ask_question))
        .routes(routes!(executor::release))
        .routes(routes!(executor::leave))
}

fn others() -> Endpoints {
    OpenApiRouter::new()
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show, sessions::update, sessions::delete))
        .routes(routes!(sessions::configure))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::cancel))
        .routes(routes!(sessions::continue_queue))
        .routes(routes!(sessions::approve))
        .routes(routes!(sessions::runs))
        .routes(routes!(sessions::result))
        .routes(routes!(checkpoints::list))
        .routes(routes!(checkpoints::delete))
        .routes(routes!(changes::diff))
        .routes(routes!(changes::patch))
        .routes(routes!(tape::show))
        .routes(routes!(tape::transcript))
        .routes(routes!(events::of_session))
        .routes(routes!(feed::all))
        .routes(routes!(runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::interactions))
        .routes(routes!(runs::snapshot))
        .routes(routes!(events::of_run))
        .routes(routes!(events::displayed_of_run))
        .routes(routes!(interactions::list))
        .routes(routes!(interactions::show))
        .routes(routes!(interactions::resolve))
        .routes(routes!(rules::list))
        .routes(routes!(rules::show, rules::revoke))
        .routes(routes!(executors::list))
        .routes(routes!(executors::show))
}

fn operations() -> Endpoints {
    OpenApiRouter::new()
        .routes(routes!(sessions::repair))
        .routes(routes!(executors::forget))
        .routes(routes!(executors::drain))
        .routes(routes!(executors::undrain))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::show, tokens::revoke))
}

fn signs_of_life() -> Endpoints {
    OpenApiRouter::new()
        .routes(routes!(operations::capabilities))
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
}

/// Identifiers that lists are continued after.
trait Cursor: Copy {
    fn uuid(self) -> Uuid;
}

impl Cursor for SessionId {
    fn uuid(self) -> Uuid {
        self.uuid()
    }
}

impl Cursor for RunId {
    fn uuid(self) -> Uuid {
        self.uuid()
    }
}

impl Cursor for CheckpointId {
    fn uuid(self) -> Uuid {
        self.uuid()
    }
}

impl Cursor for RuleId {
    fn uuid(self) -> Uuid {
        self.uuid()
    }
}

impl Cursor for InteractionId {
    fn uuid(self) -> Uuid {
        self.uuid()
    }
}

impl Cursor for TokenId {
    fn uuid(self) -> Uuid {
        self.uuid()
    }
}

fn page_request<T: Cursor>(page: Page<T>) -> PageRequest {
    PageRequest {
        before: page.after.map(Cursor::uuid),
        limit: page.limit,
    }
}

fn next_cursor(next: Option<Uuid>) -> Option<String> {
    next.map(|id| id.to_string())
}
