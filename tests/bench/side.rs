//! A control plane over one of the databases that are compared, and short words for what clients
//! and executors do with it, without the network between.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::claim_run::{ClaimRun, ClaimedRun};
use tapedeck_control_plane::commands::heartbeat::{ClaimProof, Heartbeat};
use tapedeck_control_plane::commands::prompt::AdmitPrompt;
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_control_plane::ids::TimeOrdered;
use tapedeck_control_plane::{ControlPlane, Hints, Lifecycle, Options, ResumeRequest};
use tapedeck_domain::admit::{OnActive, Prompt};
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::claim::ClaimRequest;
use tapedeck_domain::executor::{Contact, Report};
use tapedeck_domain::owner::Authority;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::{Ending, RunEnd};
use tapedeck_domain::{RunId, SessionId, Timing};
use tapedeck_store::Store;

/// The namespace of all sessions.
pub(crate) const NAMESPACE: &str = "default";

/// Events of one turn of an agent as [`Side::speak`] uploads them: a thought, words, a call.
const TURN: usize = 25;

/// One of the databases that are compared, as a server has it.
pub(crate) struct Side {
    pub(crate) control: ControlPlane,
    /// The session with the long log.
    pub(crate) deep: SessionId,
    /// Sessions from everywhere in the list, to be worked on one after the other.
    pub(crate) others: Vec<SessionId>,
    /// A run that goes on from round to round.
    kept: Mutex<Option<Work>>,
}

/// A run that is worked on.
pub(crate) struct Work {
    proof: ClaimProof,
    pub(crate) claimed: ClaimedRun,
    uploads: usize,
}

impl Side {
    /// As a server starts; its sweeps run beside all that is measured.
    pub(crate) async fn open(store: Arc<dyn Store>, deep: SessionId) -> Self {
        let timing = Timing {
            keep_deltas_ms: Some(7 * 24 * 3_600_000),
            ..Timing::STANDARD
        };
        let deployment = store.reader().identity().deployment_id;
        let control = ControlPlane::new(Options {
            store,
            authority: Authority {
                owner_id: format!("server:{deployment}"),
                epoch: None,
                lease_ms: timing.owner_lease_ms,
            },
            timing,
            ids: Arc::new(TimeOrdered),
            lifecycle: Lifecycle::new(),
            ring_events: 256,
            ring_bytes: 1 << 20,
            hints: Hints::Sent,
        });
        control.start().await.unwrap();
        Self {
            control,
            deep,
            others: Vec::new(),
            kept: Mutex::default(),
        }
    }

    /// Keeps a run for the next round.
    pub(crate) fn keep(&self, work: Work) {
        *self.kept.lock().unwrap() = Some(work);
    }

    /// The run of the round before.
    pub(crate) fn kept(&self) -> Work {
        self.kept.lock().unwrap().take().unwrap()
    }

    pub(crate) async fn close(self) {
        self.control
            .lifecycle()
            .finish(Duration::from_secs(10))
            .await;
        self.control.store().close().await;
    }

    pub(crate) async fn session(&self) -> SessionId {
        let settings = SessionSettings::default();
        let view = self
            .control
            .create_session(NAMESPACE, settings, None)
            .await
            .unwrap();
        view.session.session_id
    }

    pub(crate) async fn head(&self, session: SessionId) -> u64 {
        let view = self.control.session(NAMESPACE, session).await.unwrap();
        view.head.head_seq
    }

    pub(crate) async fn prompt(&self, session_id: SessionId) {
        let prompt = AdmitPrompt {
            namespace: NAMESPACE.to_owned(),
            session_id,
            prompt: Prompt {
                run_id: RunId::new(self.control.new_id()),
                text: "Find out why the build is slow, and make it fast.".to_owned(),
                on_active: OnActive::Reject,
                metadata: Map::new(),
            },
            key: None,
        };
        self.control.prompt(prompt).await.unwrap();
    }

    pub(crate) async fn resume(&self, session: SessionId) {
        let request = ResumeRequest {
            reason: "user_resume".to_owned(),
            ..ResumeRequest::default()
        };
        let resumed = self.control.resume(NAMESPACE, session, request).await;
        resumed.unwrap();
    }

    pub(crate) async fn claim(&self) -> Work {
        let claim = ClaimRun {
            contact: contact(),
            request: ClaimRequest {
                executor_id: "bench".to_owned(),
                instance_id: Some("bench-instance".to_owned()),
                claim_request_id: self.control.new_id().to_string(),
                lease_ms: 300_000,
            },
            session_id: None,
        };
        let claimed = self.control.claim(claim, Duration::ZERO).await.unwrap();
        Work {
            proof: ClaimProof {
                run_id: claimed.run.run_id,
                session_id: Some(claimed.session.session_id),
                executor_id: "bench".to_owned(),
                token: claimed.token.clone(),
            },
            claimed,
            uploads: 0,
        }
    }

    /// A run of this session that an executor works on.
    pub(crate) async fn working(&self, session: SessionId) -> Work {
        self.prompt(session).await;
        let work = self.claim().await;
        self.beat(&work).await;
        work
    }

    pub(crate) async fn beat(&self, work: &Work) {
        let beat = Heartbeat {
            proof: work.proof.clone(),
            lease_ms: Some(300_000),
            report: Report::default(),
            agent_state: None,
        };
        self.control.heartbeat(beat, Duration::ZERO).await.unwrap();
    }

    /// Uploads so many events of an agent as one batch.
    pub(crate) async fn speak(&self, work: &mut Work, count: usize) {
        let batch = Self::batch(work, count);
        self.upload(batch).await;
    }

    pub(crate) fn batch(work: &mut Work, count: usize) -> AppendEvents {
        let batch = (0..count)
            .map(|index| {
                work.uploads += 1;
                uploaded(index, work.uploads)
            })
            .collect();
        AppendEvents {
            proof: work.proof.clone(),
            batch,
        }
    }

    pub(crate) async fn upload(&self, batch: AppendEvents) {
        self.control.append_events(batch).await.unwrap();
    }

    pub(crate) async fn settle(&self, work: Work, ending: Ending) {
        let command = SettleRun {
            proof: work.proof,
            end: RunEnd {
                ending,
                result: None,
                error: None,
                recovery_reason: None,
                body_digest: None,
            },
            event_count: None,
            agent_state: Some(json!({"agent_session_id": "a-session-of-the-agent"})),
            tape_id: None,
            tape: None,
        };
        self.control.settle_run(command).await.unwrap();
    }
}

/// The event of a run with this number, counted from 1.
fn uploaded(index: usize, number: usize) -> Uploaded {
    let (turn, step) = (number / TURN, number % TURN);
    let call = format!("call-{turn}");
    let (kind, data) = match step {
        1..=4 => (
            "ThinkingDelta",
            json!({"text": "The linker takes most of it, so I look at ", "message_id": format!("t{turn}")}),
        ),
        5 => (
            "ToolCallBegin",
            json!({"call_id": call, "tool_name": "shell", "arguments": {"command": "cargo build --timings"}}),
        ),
        6 => (
            "ToolResultDelta",
            json!({"call_id": call, "display_result": "   Compiling libc v0.2.177\n".repeat(8)}),
        ),
        7 => (
            "ToolCallEnd",
            json!({"call_id": call, "status": "completed"}),
        ),
        _ => (
            "StreamDelta",
            json!({"content": "some words of an agent, as long as ", "role": "assistant", "message_id": format!("m{turn}")}),
        ),
    };
    let id = format!("e{number:06}");
    Uploaded::check(index, id, kind.to_owned(), &Value::clone(&data), None).unwrap()
}

fn contact() -> Contact {
    Contact {
        executor_id: "bench".to_owned(),
        instance_id: Some("bench-instance".to_owned()),
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        labels: BTreeMap::new(),
        process_id: Some(1),
        version: Some("bench".to_owned()),
        capabilities: None,
        workspace: None,
        max_runs: Some(1),
    }
}
