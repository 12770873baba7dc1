//! The checks of a whole database, each one statement, all in one transaction of one moment.

use async_trait::async_trait;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::audit::Scope;
use tapedeck_store::{Audit, AuditRequest, Check, Checked, Finding, StoreError};
use uuid::Uuid;

use crate::archive::unreadable;
use crate::database::PostgresDatabase;
use crate::error::{from_sqlx, is_of_the_data};
use crate::store::PostgresStore;

/// A check begins. What looks at all rows joins them as sets: nobody can tell the planner that few
/// rows break a check, and it would take a look into an index for each row to be the quicker way to
/// the first of many.
const fn step(scope: Scope) -> &'static str {
    match scope {
        Scope::History => "SAVEPOINT step; SET LOCAL enable_nestloop = off",
        Scope::Live | Scope::Overdue => "SAVEPOINT step",
    }
}

/// It ends, and what it set with it.
const STEP_BACK: &str = "ROLLBACK TO SAVEPOINT step";

/// A row that breaks a check.
struct FindingRow {
    session_id: Option<Uuid>,
    run_id: Option<Uuid>,
    detail: String,
}

impl From<FindingRow> for Finding {
    fn from(row: FindingRow) -> Self {
        Self {
            session_id: row.session_id.map(SessionId::new),
            run_id: row.run_id.map(RunId::new),
            detail: row.detail,
        }
    }
}

#[async_trait]
impl Audit for PostgresDatabase {
    async fn audit(&self, request: &AuditRequest) -> Result<Vec<Checked>, StoreError> {
        let mut conn = self.moment().await?;
        let mut checked = Vec::with_capacity(request.checks.len());
        for check in &request.checks {
            // A statement that fails ends its transaction, and the others belong to the same moment.
            conn.execute(step(check.scope())).await.map_err(from_sqlx)?;
            let found = match findings(&mut conn, *check, request).await {
                Ok(found) => Checked::new(*check, found, request.most),
                Err(error) if is_of_the_data(&error) => Checked::stopped(*check, &error),
                Err(error) => return Err(error),
            };
            conn.execute(STEP_BACK).await.map_err(from_sqlx)?;
            checked.push(found);
        }
        conn.close().await.map_err(from_sqlx)?;
        Ok(checked)
    }
}

#[async_trait]
impl Audit for PostgresStore {
    async fn audit(&self, request: &AuditRequest) -> Result<Vec<Checked>, StoreError> {
        self.database.audit(request).await
    }
}

/// Runs a statement that takes these values.
macro_rules! rows {
    ($conn:ident, $file:literal, $($value:expr),+) => {
        sqlx::query_file_as!(FindingRow, $file, $($value),+).fetch_all(&mut *$conn).await
    };
}

/// What breaks a check, one more than asked for.
async fn findings(
    conn: &mut PgConnection,
    check: Check,
    request: &AuditRequest,
) -> Result<Vec<Finding>, StoreError> {
    let (most, patience) = (i64::from(request.most) + 1, request.patience_ms);
    let rows = match check {
        Check::FileIsSound => rows!(conn, "queries/audit/file_is_sound.sql", most),
        Check::Readable => {
            let found = unreadable(conn, request.most).await?;
            return Ok(found.iter().map(Finding::of).collect());
        }
        Check::References => rows!(conn, "queries/audit/references.sql", most),
        Check::Heads => rows!(conn, "queries/audit/heads.sql", most),
        Check::Copies => rows!(conn, "queries/audit/copies.sql", most),
        Check::LogNumbers => rows!(conn, "queries/audit/log_numbers.sql", most),
        Check::HeadSeq => rows!(conn, "queries/audit/head_seq.sql", most),
        Check::TerminalEvents => rows!(conn, "queries/audit/terminal_events.sql", most),
        Check::SettledSeq => rows!(conn, "queries/audit/settled_seq.sql", most),
        Check::AfterTheEnd => rows!(conn, "queries/audit/after_the_end.sql", most),
        Check::Admissions => rows!(conn, "queries/audit/admissions.sql", most),
        Check::EventRuns => rows!(conn, "queries/audit/event_runs.sql", most),
        Check::ServerEvents => rows!(conn, "queries/audit/server_events.sql", most),
        Check::Folds => rows!(conn, "queries/audit/folds.sql", most),
        Check::OneActiveRun => rows!(conn, "queries/audit/one_active_run.sql", most),
        Check::ActiveRun => rows!(conn, "queries/audit/active_run.sql", most),
        Check::LiveRuns => rows!(conn, "queries/audit/live_runs.sql", most),
        Check::UnsettledRuns => rows!(conn, "queries/audit/unsettled_runs.sql", most),
        Check::RunStates => rows!(conn, "queries/audit/run_states.sql", most),
        Check::Queue => rows!(conn, "queries/audit/queue.sql", most),
        Check::QueueTargets => rows!(conn, "queries/audit/queue_targets.sql", most),
        Check::Claims => rows!(conn, "queries/audit/claims.sql", most),
        Check::ClaimHistory => rows!(conn, "queries/audit/claim_history.sql", most),
        Check::OverdueClaims => rows!(conn, "queries/audit/overdue_claims.sql", most, patience),
        Check::OverdueQuestions => {
            rows!(conn, "queries/audit/overdue_questions.sql", most, patience)
        }
        Check::OpenQuestions => rows!(conn, "queries/audit/open_questions.sql", most),
        Check::QuestionCounts => rows!(conn, "queries/audit/question_counts.sql", most),
        Check::Answers => rows!(conn, "queries/audit/answers.sql", most),
        Check::SummaryRuns => rows!(conn, "queries/audit/summary_runs.sql", most),
        Check::SummaryQueue => rows!(conn, "queries/audit/summary_queue.sql", most),
        Check::SummaryStatus => rows!(conn, "queries/audit/summary_status.sql", most),
        Check::SummaryCheckpoints => rows!(conn, "queries/audit/summary_checkpoints.sql", most),
        Check::Checkpoints => rows!(conn, "queries/audit/checkpoints.sql", most),
        Check::SupersededBy => rows!(conn, "queries/audit/superseded_by.sql", most),
        Check::SupersededRuns => rows!(conn, "queries/audit/superseded_runs.sql", most),
        Check::RestoredTape => rows!(conn, "queries/audit/restored_tape.sql", most),
        Check::Owners => rows!(conn, "queries/audit/owners.sql", most),
        Check::TapePositions => rows!(conn, "queries/audit/tape_positions.sql", most),
        Check::TapeCount => rows!(conn, "queries/audit/tape_count.sql", most),
        Check::TapeSeq => rows!(conn, "queries/audit/tape_seq.sql", most),
        Check::ToolResults => rows!(conn, "queries/audit/tool_results.sql", most),
        Check::Snapshots => rows!(conn, "queries/audit/snapshots.sql", most),
        Check::Artifacts => rows!(conn, "queries/audit/artifacts.sql", most),
        Check::Lineage => rows!(conn, "queries/audit/lineage.sql", most),
        Check::Results => rows!(conn, "queries/audit/results.sql", most),
        Check::Digests => rows!(conn, "queries/audit/digests.sql", most),
    };
    let rows = rows.map_err(from_sqlx)?;
    Ok(rows.into_iter().map(Finding::from).collect())
}
