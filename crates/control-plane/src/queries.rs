//! Lists and look-ups. A namespace's rows are all that its callers can see.

use tapedeck_domain::artifact::Artifact;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::executor::{Executor, ExecutorFilter};
use tapedeck_domain::interaction::Interaction;
use tapedeck_domain::run::Run;
use tapedeck_domain::snapshot::MessageSnapshot;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::{InteractionId, Rejection, RunId, SessionId};
use tapedeck_store::read::InteractionFilter;
use tapedeck_store::{EventFilter, Page, PageRequest, RunFilter, SessionView, TapeFilter, Target};

use crate::ControlPlane;
use crate::commands::drain_executor::DrainExecutor;
use crate::commands::forget_executor::ForgetExecutor;
use crate::cursor;
use crate::error::{Error, Outcome};

/// Executors of one read.
const EXECUTORS_A_READ: u32 = 200;

/// A page of events with the head as it was read before.
#[derive(Debug, Clone)]
pub struct EventPage {
    /// In order.
    pub events: Vec<EventRecord>,
    /// Where the next page continues.
    pub next_cursor: u64,
    /// The newest event.
    pub head_seq: u64,
}

impl ControlPlane {
    /// One session.
    pub async fn session(&self, namespace: &str, id: SessionId) -> Outcome<SessionView> {
        Self::found(
            self.inner.store.reader().session(namespace, id).await?,
            Target::Session,
        )
    }

    /// A page of sessions.
    pub async fn sessions(&self, namespace: &str, page: PageRequest) -> Outcome<Page<SessionView>> {
        Ok(self.inner.store.reader().sessions(namespace, page).await?)
    }

    /// One run.
    pub async fn run(&self, namespace: &str, id: RunId) -> Outcome<Run> {
        Self::found(
            self.inner.store.reader().run(namespace, id).await?,
            Target::Run,
        )
    }

    /// A page of runs.
    pub async fn runs(
        &self,
        namespace: &str,
        filter: RunFilter,
        page: PageRequest,
    ) -> Outcome<Page<Run>> {
        if let Some(session) = filter.session_id {
            self.session(namespace, session).await?;
        }
        let reader = self.inner.store.reader();
        Ok(reader.runs(namespace, filter, page).await?)
    }

    /// The newest settled run of a session that no restore has put aside.
    pub async fn latest_settled_run(
        &self,
        namespace: &str,
        session: SessionId,
    ) -> Outcome<Option<Run>> {
        let reader = self.inner.store.reader();
        Ok(reader.latest_settled_run(namespace, session).await?)
    }

    /// A run's message snapshot.
    pub async fn snapshot(&self, namespace: &str, run: RunId) -> Outcome<MessageSnapshot> {
        let reader = self.inner.store.reader();
        Self::found(reader.snapshot(namespace, run).await?, Target::Snapshot)
    }

    /// What was told of changes under this name: by one run of a session, or by the newest that told
    /// of any and that no restore has put aside.
    pub async fn changes(
        &self,
        namespace: &str,
        session: SessionId,
        run: Option<RunId>,
        name: &str,
    ) -> Outcome<Artifact> {
        self.session(namespace, session).await?;
        if let Some(run) = run
            && self.run(namespace, run).await?.session_id != session
        {
            return Err(Error::NotFound(Target::Run));
        }
        let reader = self.inner.store.reader();
        let found = reader.artifact(namespace, session, run, name).await?;
        Self::found(found, Target::Changes)
    }

    /// A part of a session's tape, which catches up with the log first where `after` is its
    /// beginning; later pages continue what the first one found.
    pub async fn tape(&self, namespace: &str, filter: TapeFilter) -> Outcome<Vec<TapeEntry>> {
        self.session(namespace, filter.session_id).await?;
        if filter.after == 0 {
            match self.catch_up_tape(namespace, filter.session_id).await {
                // Another owner moves its tape itself; reading what is there needs nobody's leave.
                Ok(()) | Err(Error::Rejected(Rejection::OwnedElsewhere { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.inner.store.reader().tape(&filter).await?)
    }

    /// A page of a session's events. Where the filter leaves rows out, an empty page means that the
    /// head as read before has been reached.
    pub async fn events(&self, namespace: &str, filter: EventFilter) -> Outcome<EventPage> {
        let view = self.session(namespace, filter.session_id).await?;
        let head_seq = view.head.head_seq;
        if let Some(run_id) = filter.run_id {
            let run = self.run(namespace, run_id).await?;
            if run.session_id != filter.session_id {
                return Err(Error::NotFound(Target::Run));
            }
        }
        let reader = self.inner.store.reader();
        cursor::check_page(reader, &view, &filter).await?;
        let events = reader.events(&filter).await?.events;
        cursor::check_read(filter.after, events.first())?;
        let next_cursor = events
            .last()
            .map_or(filter.after, |event| event.session_seq);
        Ok(EventPage {
            events,
            next_cursor,
            head_seq,
        })
    }

    /// One interaction.
    pub async fn interaction(&self, namespace: &str, id: InteractionId) -> Outcome<Interaction> {
        Self::found(
            self.inner.store.reader().interaction(namespace, id).await?,
            Target::Interaction,
        )
    }

    /// A page of interactions.
    pub async fn interactions(
        &self,
        namespace: &str,
        filter: &InteractionFilter,
        page: PageRequest,
    ) -> Outcome<Page<Interaction>> {
        Ok(self
            .inner
            .store
            .reader()
            .interactions(namespace, filter, page)
            .await?)
    }

    /// Executors by name, those that the filter shows. Their status is not stored, so what the filter
    /// leaves out is read as well; executors are few.
    pub async fn executors(
        &self,
        filter: &ExecutorFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Outcome<Vec<Executor>> {
        let reader = self.inner.store.reader();
        let now = reader.now().await?;
        let (mut shown, mut after) = (Vec::new(), after.map(str::to_owned));
        loop {
            let page = reader.executors(after.as_deref(), EXECUTORS_A_READ).await?;
            let is_last = page.len() < EXECUTORS_A_READ as usize;
            after = page.last().map(|last| last.contact.executor_id.clone());
            let matching = page
                .into_iter()
                .filter(|executor| filter.shows(executor, now, self.timing()));
            shown.extend(matching);
            if is_last || shown.len() >= limit as usize {
                shown.truncate(limit as usize);
                return Ok(shown);
            }
        }
    }

    /// Tells an executor to take no new work, or to take it again.
    pub async fn drain_executor(&self, executor_id: &str, draining: bool) -> Outcome<Executor> {
        let command = DrainExecutor {
            executor_id: executor_id.to_owned(),
            draining,
        };
        self.inner.execute(command).await?;
        self.executor(executor_id).await
    }

    /// Removes an executor that is gone from the list.
    pub async fn forget_executor(&self, executor_id: &str) -> Outcome<()> {
        let executor_id = executor_id.to_owned();
        self.inner.execute(ForgetExecutor { executor_id }).await
    }

    /// One executor.
    pub async fn executor(&self, executor_id: &str) -> Outcome<Executor> {
        Self::found(
            self.inner.store.reader().executor(executor_id).await?,
            Target::Executor,
        )
    }

    /// The store's clocks, for statuses that are derived from them.
    pub async fn now(&self) -> Outcome<tapedeck_domain::Now> {
        Ok(self.inner.store.reader().now().await?)
    }
}
