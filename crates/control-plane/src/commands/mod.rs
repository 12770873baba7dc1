//! The one list of commands, one file each. The macro that makes the list also makes a command
//! runnable, so a command outside the list can't be run and one inside is under the tests that
//! walk it.

macro_rules! commands {
    ($($module:ident::$name:ident,)*) => {
        $(pub mod $module;)*
        $(
            impl crate::execute::sealed::Listed for $module::$name {
                const NAME: &'static str = stringify!($name);
            }
        )*
        /// The names of all commands.
        pub const ALL: &[&str] = &[$(stringify!($name),)*];

        /// Any command of the list.
        #[derive(Debug)]
        pub enum Any {
            $(
                #[doc = concat!("[`", stringify!($module), "::", stringify!($name), "`].")]
                $name(Box<$module::$name>),
            )*
        }

        $(
            impl From<$module::$name> for Any {
                fn from(command: $module::$name) -> Self {
                    Self::$name(Box::new(command))
                }
            }
        )*

        impl Any {
            /// The command's name in the list.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }
        }

        impl crate::ControlPlane {
            /// Runs one command by itself, without what a use case does before and after it: whoever
            /// walks the list proves each command's own check.
            pub async fn run_alone(&self, command: Any) -> crate::Outcome<()> {
                match command {
                    $(Any::$name(command) => self.inner.execute(*command).await.map(drop),)*
                }
            }
        }
    };
}

commands! {
    acquire_owner::AcquireOwner,
    append_events::AppendEvents,
    append_tape::AppendTape,
    ask::Ask,
    cancel_run::CancelRun,
    capture_checkpoint::CaptureCheckpoint,
    check_claim::CheckClaim,
    claim_run::ClaimRun,
    close_session::CloseSession,
    configure_session::ConfigureSession,
    continue_queue::ContinueQueue,
    create_rule::CreateRule,
    create_session::CreateSession,
    create_token::CreateToken,
    delete_checkpoint::DeleteCheckpoint,
    delete_session::DeleteSession,
    drain_executor::DrainExecutor,
    expire_claim::ExpireClaim,
    expire_interaction::ExpireInteraction,
    flag_unservable::FlagUnservable,
    fold_run::FoldRun,
    forget_executor::ForgetExecutor,
    fork_session::ForkSession,
    heartbeat::Heartbeat,
    keep_house::KeepHouse,
    leave_executor::LeaveExecutor,
    list_expired::ListExpired,
    list_foldable::ListFoldable,
    load_context::LoadContext,
    mark_alive::MarkAlive,
    project_tape::ProjectTape,
    prompt::AdmitPrompt,
    record_contact::RecordContact,
    release_owner::ReleaseOwner,
    release_run::ReleaseRun,
    renew_owner::RenewOwner,
    repair_session::RepairSession,
    resolve_interaction::ResolveInteraction,
    restore_session::RestoreSession,
    resume::ResumeSession,
    revoke_rule::RevokeRule,
    revoke_token::RevokeToken,
    save_artifacts::SaveArtifacts,
    save_snapshot::SaveSnapshot,
    settle_run::SettleRun,
}
