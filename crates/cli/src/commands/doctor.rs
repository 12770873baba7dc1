//! `tapedeck doctor`: every check of the whole database, on live data, from beside. It reports and
//! changes nothing.

use serde::Serialize;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::audit::Scope;
use tapedeck_store::{Audit, AuditRequest, Check, Checked, Finding};

use crate::context::{Beside, Context};
use crate::exit::Exit;
use crate::output::{Printer, Tone, or_nothing};

/// Sweeps that may pass before a lease counts as overdue.
const SWEEPS: i64 = 3;
/// Findings of a check that are shown.
const FINDINGS: u32 = 20;

/// Check that everything in the database is as it must be.
///
/// Works on the data directory or on the PostgreSQL database itself, also while servers work on it,
/// and writes nothing. It reads the whole history, in one moment's view of the database.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck doctor
  tapedeck doctor --data-dir /var/lib/tapedeck --json
  TAPEDECK_DATABASE=postgres://… tapedeck doctor

It exits with 0 where nothing is wrong, with 8 where a check has findings, and with another code
where the database can't be looked at.")]
pub(crate) struct Args {}

/// What was found in a database, for programs.
#[derive(Serialize)]
struct Report<'a> {
    database: String,
    findings: usize,
    checks: Vec<CheckReport<'a>>,
}

#[derive(Serialize)]
struct CheckReport<'a> {
    check: &'static str,
    holds: &'static str,
    result: &'static str,
    findings: Vec<FindingReport<'a>>,
    more: bool,
}

#[derive(Serialize)]
struct FindingReport<'a> {
    session_id: Option<SessionId>,
    run_id: Option<RunId>,
    detail: &'a str,
}

/// Runs it.
pub(crate) async fn run(context: Context) -> anyhow::Result<Exit> {
    let beside = Beside::open(&context.config).await?;
    let checked = examine(beside.audit(), &context).await?;
    tell(context.printer, &beside.to_string(), &checked)
}

/// Runs every check.
pub(crate) async fn examine(audit: &dyn Audit, context: &Context) -> anyhow::Result<Vec<Checked>> {
    let _working = context.printer.working("checking the database");
    let request = AuditRequest {
        checks: Check::ALL.to_vec(),
        most: FINDINGS,
        patience_ms: SWEEPS * context.config.timings().sweep_ms,
    };
    Ok(audit.audit(&request).await?)
}

/// How many findings there are.
pub(crate) fn count(checked: &[Checked]) -> usize {
    checked.iter().map(|checked| checked.findings.len()).sum()
}

/// Prints what was found.
pub(crate) fn tell(printer: Printer, database: &str, checked: &[Checked]) -> anyhow::Result<Exit> {
    let findings = count(checked);
    if printer.is_json() {
        printer.object(&Report {
            database: database.to_owned(),
            findings,
            checks: checked.iter().map(report).collect(),
        })?;
    } else {
        print(printer, checked)?;
    }
    if findings == 0 {
        return Ok(Exit::Success);
    }
    printer.note(format!("`{database}` breaks a rule"))?;
    Ok(Exit::Findings)
}

fn report(checked: &Checked) -> CheckReport<'_> {
    CheckReport {
        check: checked.check.as_str(),
        holds: checked.check.sentence(),
        result: result(checked),
        findings: checked
            .findings
            .iter()
            .map(|finding| FindingReport {
                session_id: finding.session_id,
                run_id: finding.run_id,
                detail: &finding.detail,
            })
            .collect(),
        more: checked.more,
    }
}

/// In one word.
fn result(checked: &Checked) -> &'static str {
    match (checked.findings.is_empty(), checked.check.scope()) {
        (true, _) => "ok",
        (false, Scope::Live | Scope::History) => "broken",
        (false, Scope::Overdue) => "overdue",
    }
}

fn print(printer: Printer, checked: &[Checked]) -> std::io::Result<()> {
    let rows: Vec<_> = checked
        .iter()
        .map(|checked| {
            let count = match checked.findings.len() {
                0 => String::new(),
                count => format!("{count}{}", if checked.more { "+" } else { "" }),
            };
            vec![
                checked.check.to_string(),
                result(checked).to_owned(),
                count,
                checked.check.sentence().to_owned(),
            ]
        })
        .collect();
    printer.table(&["CHECK", "RESULT", "FOUND", "WHAT MUST HOLD"], &rows, "")?;
    for checked in checked
        .iter()
        .filter(|checked| !checked.findings.is_empty())
    {
        printer.line("")?;
        printer.line(printer.paint(Tone::Strong, checked.check))?;
        for finding in &checked.findings {
            printer.line(format!("  {}", sentence(finding)))?;
        }
        if checked.more {
            printer.line("  and more")?;
        }
    }
    Ok(())
}

fn sentence(finding: &Finding) -> String {
    let named = |what: &str, id: String| {
        if id.is_empty() {
            id
        } else {
            format!("{what} {id} ")
        }
    };
    format!(
        "{}{}{}",
        named("session", or_nothing(finding.session_id)),
        named("run", or_nothing(finding.run_id)),
        finding.detail
    )
}

/// Runs the checks of live rows as a server starts, and logs what they find: nothing is repaired by
/// itself.
pub(crate) async fn reconcile(audit: &dyn Audit) {
    let request = AuditRequest::of(&Check::live());
    match audit.audit(&request).await {
        Ok(checked) => {
            for checked in checked {
                for finding in checked.findings {
                    tracing::error!(
                        check = checked.check.as_str(),
                        session_id = or_nothing(finding.session_id),
                        run_id = or_nothing(finding.run_id),
                        detail = finding.detail,
                        "audit.finding"
                    );
                }
            }
        }
        Err(error) => tracing::warn!(%error, "audit.failed"),
    }
}
