//! `OpenAPI` components for the closed word lists of `domain`, which itself knows nothing of
//! `OpenAPI`. These types stand in for the domain's in schemas only and are never built.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $source:path;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let words = <$source>::ALL.iter().map(|word| word.as_str());
                ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    )*};
}

words! {
    /// Who answers an agent's questions.
    ApprovalPolicy = tapedeck_domain::session::ApprovalPolicy;
    /// What a token lets its holder do.
    Role = tapedeck_domain::token::Role;
    /// What an approval rule answers.
    Decision = tapedeck_domain::rule::Decision;
    /// The kinds of display event.
    DisplayKind = tapedeck_domain::display::DisplayKind;
    /// How a run ends.
    Ending = tapedeck_domain::settle::Ending;
    /// The kinds of tape entry.
    EntryKind = tapedeck_domain::tape::EntryKind;
    /// How an executor is attached.
    ExecutorAttachment = tapedeck_domain::session::ExecutorAttachment;
    /// The status of an executor.
    ExecutorStatus = tapedeck_domain::executor::ExecutorStatus;
    /// What is asked.
    InteractionKind = tapedeck_domain::interaction::InteractionKind;
    /// How far a question is.
    InteractionStatus = tapedeck_domain::interaction::InteractionStatus;
    /// What to do with a prompt while a run is active.
    OnActive = tapedeck_domain::admit::OnActive;
    /// The status of a run.
    RunStatus = tapedeck_domain::run::RunStatus;
    /// How far an answer reaches.
    Scope = tapedeck_domain::interaction::Scope;
    /// What a session is doing.
    SessionStatus = tapedeck_domain::session::SessionStatus;
    /// The forms of a transcript.
    TranscriptFormat = tapedeck_domain::transcript::TranscriptFormat;
    /// What the current turn is doing.
    TurnStatus = tapedeck_domain::session::TurnStatus;
    /// The kinds of workspace.
    WorkspaceKind = tapedeck_domain::session::WorkspaceKind;
}
