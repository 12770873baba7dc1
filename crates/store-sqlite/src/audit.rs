//! The checks of a whole database, each one statement, all in one read transaction.

use async_trait::async_trait;
use sqlx::{Connection as _, SqliteConnection};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::{Audit, AuditRequest, Check, Checked, Finding, StoreError};

use crate::archive::unreadable;
use crate::encode::At;
use crate::error::{from_sqlx, is_of_the_data};
use crate::file::SqliteFile;
use crate::store::SqliteStore;

/// A row that breaks a check.
struct FindingRow {
    session_id: Option<Vec<u8>>,
    run_id: Option<Vec<u8>>,
    detail: String,
}

impl TryFrom<FindingRow> for Finding {
    type Error = StoreError;

    fn try_from(row: FindingRow) -> Result<Self, StoreError> {
        let at = At::new("runs", &"of a finding");
        Ok(Self {
            session_id: at.maybe_id("session_id", row.session_id.as_deref(), SessionId::new)?,
            run_id: at.maybe_id("run_id", row.run_id.as_deref(), RunId::new)?,
            detail: row.detail,
        })
    }
}

#[async_trait]
impl Audit for SqliteFile {
    async fn audit(&self, request: &AuditRequest) -> Result<Vec<Checked>, StoreError> {
        let mut conn = self.connect().await?;
        let mut moment = conn.begin().await.map_err(from_sqlx)?;
        let mut checked = Vec::with_capacity(request.checks.len());
        for check in &request.checks {
            let found = match findings(&mut moment, *check, request).await {
                Ok(found) => Checked::new(*check, found, request.most),
                Err(error) if is_of_the_data(&error) => Checked::stopped(*check, &error),
                Err(error) => return Err(error),
            };
            checked.push(found);
        }
        moment.rollback().await.map_err(from_sqlx)?;
        conn.close().await.map_err(from_sqlx)?;
        Ok(checked)
    }
}

#[async_trait]
impl Audit for SqliteStore {
    async fn audit(&self, request: &AuditRequest) -> Result<Vec<Checked>, StoreError> {
        self.file.audit(request).await
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
    conn: &mut SqliteConnection,
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
    rows.into_iter().map(Finding::try_from).collect()
}
