//! What happens to runs: cancels, ends, claims, uploads, questions, the sweep; and checkpoints.

use super::*;

/// How a question is answered at once.
fn immediate(
    policy: ApprovalPolicy,
    (allowed, denied): (bool, bool),
    cancelling: bool,
) -> Option<InteractionStatus> {
    if cancelling {
        return Some(InteractionStatus::Cancelled);
    }
    if denied {
        return Some(InteractionStatus::Denied);
    }
    (allowed || policy == ApprovalPolicy::Yolo).then_some(InteractionStatus::Approved)
}

/// Ends.
impl Expected {
    pub(super) fn end_questions(&mut self, run: usize, as_what: InteractionStatus) {
        for question in self.pending(run) {
            self.questions[question].status = as_what;
            self.say(self.runs[run].session, "ApprovalResponse", Some(run));
        }
    }

    pub(super) fn settle(&mut self, run: usize, ending: Ending, body: Option<Ending>) {
        let (session, before) = (self.runs[run].session, self.runs[run].status);
        self.end_questions(run, InteractionStatus::Cancelled);
        let seq = self.say(session, "TurnEnd", Some(run));
        let never = before == RunStatus::Queued;
        self.sessions[session].log.last_mut().unwrap().never = never;
        let found = &mut self.runs[run];
        found.status = match ending {
            Ending::Interrupted if before == RunStatus::Cancelling => RunStatus::Cancelled,
            other => other.status(),
        };
        found.settled_seq = Some(seq);
        found.settled_by = found.lease.take().map(|lease| lease.claim);
        found.body = body;
        found.never_requested = never;
        let status = found.status;
        let owner = &mut self.sessions[session];
        if never {
            owner.queue.retain(|waiting| *waiting != run);
            owner.held &= !owner.queue.is_empty();
        } else {
            owner.held = status == RunStatus::Interrupted && !owner.queue.is_empty();
            self.promote(session);
        }
    }

    pub(super) fn promote(&mut self, session: usize) {
        let found = &mut self.sessions[session];
        if found.held || found.closed || found.queue.is_empty() {
            return;
        }
        let run = found.queue.remove(0);
        self.say(session, "RunRequested", Some(run));
        self.runs[run].status = RunStatus::Requested;
        self.runs[run].ready_at = self.now;
    }

    pub(super) fn cancel_queue(&mut self, session: usize) {
        for run in self.sessions[session].queue.clone() {
            self.settle(run, Ending::Cancelled, None);
        }
        self.sessions[session].held = false;
    }

    pub(super) fn cancel(&mut self, run: usize) -> RunStatus {
        let session = self.runs[run].session;
        match self.runs[run].status {
            RunStatus::Queued | RunStatus::Requested => {
                self.settle(run, Ending::Cancelled, None);
            }
            RunStatus::Claimed | RunStatus::Running => {
                self.say(session, "TurnCancelling", Some(run));
                self.end_questions(run, InteractionStatus::Cancelled);
                let deadline = self.now + CANCEL;
                let found = &mut self.runs[run];
                found.status = RunStatus::Cancelling;
                found.deadline = Some(deadline);
                let lease = found.lease.as_mut().unwrap();
                lease.until = lease.until.min(deadline);
            }
            _ => {}
        }
        self.runs[run].status
    }

    pub(in super::super) fn cancel_session(
        &mut self,
        session: usize,
        me: OwnerName,
    ) -> Answer<Option<RunStatus>> {
        self.own(session, me)?;
        Ok(self.active(session).map(|run| self.cancel(run)))
    }

    pub(in super::super) fn cancel_run(&mut self, run: usize, me: OwnerName) -> Answer<RunStatus> {
        let session = self.runs[run].session;
        self.own(session, me)?;
        Ok(self.cancel(run))
    }
}

/// What executors do.
impl Expected {
    /// A run that an executor got.
    pub(in super::super) fn claim(&mut self, run: usize, executor: u8) -> u32 {
        let session = self.runs[run].session;
        self.say(session, "RunClaimed", Some(run));
        self.claims.push(Claim { run, executor });
        let found = &mut self.runs[run];
        found.attempt += 1;
        found.has_output = false;
        found.event_count = 0;
        found.status = RunStatus::Claimed;
        found.lease = Some(Lease {
            claim: self.claims.len() - 1,
            acknowledged: false,
            replayed: false,
            until: self.now + SHORT_LEASE,
        });
        found.attempt
    }

    /// The same request again.
    pub(in super::super) fn replay(
        &mut self,
        claim: usize,
        me: OwnerName,
        executor: u8,
    ) -> Answer<u32> {
        let run = self.claims[claim].run;
        let session = self.runs[run].session;
        if self.sessions[session].deleted {
            // Nobody remembers the request, and there is nothing of the session to claim.
            return Err("NoRunAvailable");
        }
        self.own(session, me)?;
        let (now, known) = (self.now, self.claims[claim].executor);
        let found = &mut self.runs[run];
        let deadline = found
            .deadline
            .filter(|_| found.status == RunStatus::Cancelling);
        let lease = found.lease.as_mut().filter(|lease| lease.claim == claim);
        let lease = lease.filter(|lease| lease.until > now && known == executor);
        let lease = lease.ok_or("ClaimLost")?;
        if !lease.acknowledged && !lease.replayed {
            let again = now + SHORT_LEASE;
            lease.replayed = true;
            lease.until = lease
                .until
                .max(deadline.map_or(again, |deadline| again.min(deadline)));
        }
        Ok(found.attempt)
    }

    fn prove(&mut self, claim: usize, me: OwnerName) -> Answer<Proof> {
        let run = self.claims[claim].run;
        if self.sessions[self.runs[run].session].deleted {
            return Err("NotFound(Run)");
        }
        self.own(self.runs[run].session, me)?;
        let found = &self.runs[run];
        if let Some(lease) = found.lease.as_ref().filter(|lease| lease.claim == claim) {
            return if lease.until > self.now {
                Ok(Proof::Live)
            } else {
                Err("ClaimLost")
            };
        }
        if found.settled_by == Some(claim) {
            Ok(Proof::Settled)
        } else {
            Err("ClaimLost")
        }
    }

    fn hold(&mut self, claim: usize, me: OwnerName) -> Answer<usize> {
        match self.prove(claim, me)? {
            Proof::Live => Ok(self.claims[claim].run),
            Proof::Settled => Err("RunSettled"),
        }
    }

    fn renew(&mut self, run: usize) {
        let now = self.now;
        let found = &mut self.runs[run];
        let lease = found.lease.as_mut().unwrap();
        let first = !lease.acknowledged;
        lease.acknowledged = true;
        lease.until = lease.until.max(now + LEASE);
        if found.status == RunStatus::Cancelling {
            lease.until = lease.until.min(found.deadline.unwrap());
        } else {
            found.status = RunStatus::Running;
        }
        if first {
            found.used += 1;
            found.unacknowledged = 0;
            self.say(self.runs[run].session, "RunStarted", Some(run));
        }
    }

    pub(in super::super) fn beat(&mut self, claim: usize, me: OwnerName) -> Answer<RunStatus> {
        let run = self.hold(claim, me)?;
        self.renew(run);
        Ok(self.runs[run].status)
    }

    /// Uploads by id and content; gives their numbers.
    pub(in super::super) fn append(
        &mut self,
        claim: usize,
        me: OwnerName,
        batch: &[(u8, u8, &'static str, Option<u8>)],
    ) -> Answer<Vec<u64>> {
        let proof = self.prove(claim, me)?;
        let run = self.claims[claim].run;
        let session = self.runs[run].session;
        let known = |expected: &Self, id: u8| expected.runs[run].uploads.get(&id).copied();
        for (id, content, ..) in batch {
            if known(self, *id).is_some_and(|(stored, _)| stored != *content) {
                return Err("EventIdConflict");
            }
        }
        if proof == Proof::Live {
            self.renew(run);
        }
        let mut numbers = Vec::new();
        for (id, content, kind, call) in batch {
            if let Some((_, seq)) = known(self, *id) {
                numbers.push(seq);
                continue;
            }
            if proof == Proof::Settled {
                return Err("RunSettled");
            }
            let seq = self.say(session, kind, Some(run));
            self.sessions[session].log.last_mut().unwrap().call = *call;
            let found = &mut self.runs[run];
            found.uploads.insert(*id, (*content, seq));
            found.event_count += 1;
            found.has_output |= *kind != "TurnBegin";
            numbers.push(seq);
        }
        Ok(numbers)
    }

    pub(in super::super) fn append_tape(
        &mut self,
        claim: usize,
        me: OwnerName,
        entry: u8,
        content: u8,
    ) -> Answer<()> {
        let proof = self.prove(claim, me)?;
        let run = self.claims[claim].run;
        match self.runs[run].entries.get(&entry) {
            Some(stored) if *stored != content => return Err("EntryIdConflict"),
            Some(_) if proof == Proof::Settled => return Ok(()),
            Some(_) => {
                self.renew(run);
                let session = self.runs[run].session;
                self.catch_up(session);
                self.sessions[session].tape.leave_to_executor(run);
            }
            None if proof == Proof::Settled => return Err("RunSettled"),
            None => {
                self.runs[run].has_output = true;
                self.renew(run);
                let session = self.runs[run].session;
                self.catch_up(session);
                self.sessions[session].tape.write_own(run);
                self.runs[run].entries.insert(entry, content);
            }
        }
        Ok(())
    }

    pub(in super::super) fn snapshot(&mut self, claim: usize, me: OwnerName) -> Answer<()> {
        let run = self.hold(claim, me)?;
        self.runs[run].has_output = true;
        self.renew(run);
        Ok(())
    }

    /// Gives the question, and whether it is new.
    pub(in super::super) fn ask(
        &mut self,
        claim: usize,
        me: OwnerName,
        (request, tool, seconds): (u8, u8, i64),
    ) -> Answer<usize> {
        let run = self.hold(claim, me)?;
        self.renew(run);
        let (session, attempt) = (self.runs[run].session, self.runs[run].attempt);
        let asked = self.questions.iter().position(|question| {
            (question.run, question.attempt, question.request) == (run, attempt, request)
        });
        if let Some(asked) = asked {
            let same = self.questions[asked].tool == tool;
            return if same {
                Ok(asked)
            } else {
                Err("RequestIdConflict")
            };
        }
        let cancelling = self.runs[run].status == RunStatus::Cancelling;
        let found = &self.sessions[session];
        let stands = |approved| found.rules.contains(&(tool, approved));
        let at_once = immediate(found.policy, (stands(true), stands(false)), cancelling);
        self.say(session, "ApprovalRequest", Some(run));
        if at_once.is_some() {
            self.say(session, "ApprovalResponse", Some(run));
        }
        self.runs[run].has_output = true;
        self.questions.push(Question {
            id: unknown(),
            run,
            attempt,
            request,
            tool,
            status: at_once.unwrap_or(InteractionStatus::Pending),
            answer: (at_once == Some(InteractionStatus::Approved)).then_some((true, false)),
            deadline: self.now + seconds * 1_000,
        });
        Ok(self.questions.len() - 1)
    }

    pub(in super::super) fn resolve(
        &mut self,
        question: usize,
        me: OwnerName,
        (approved, for_session): (bool, bool),
    ) -> Answer<InteractionStatus> {
        let run = self.questions[question].run;
        let session = self.runs[run].session;
        self.own(session, me)?;
        let now = self.now;
        let found = &mut self.questions[question];
        match found.status {
            InteractionStatus::Pending if found.deadline <= now => Err("AlreadyResolved"),
            InteractionStatus::Pending => {
                found.status = if approved {
                    InteractionStatus::Approved
                } else {
                    InteractionStatus::Denied
                };
                found.answer = Some((approved, for_session));
                let (status, tool) = (found.status, found.tool);
                if for_session {
                    self.sessions[session].rules.insert((tool, approved));
                }
                self.say(session, "ApprovalResponse", Some(run));
                Ok(status)
            }
            InteractionStatus::Approved | InteractionStatus::Denied
                if found.answer == Some((approved, for_session)) =>
            {
                Ok(found.status)
            }
            _ => Err("AlreadyResolved"),
        }
    }

    pub(in super::super) fn complete(
        &mut self,
        claim: usize,
        me: OwnerName,
        ending: Ending,
        event_count: Option<u64>,
    ) -> Answer<RunStatus> {
        let proof = self.prove(claim, me)?;
        let run = self.claims[claim].run;
        match proof {
            Proof::Settled if self.runs[run].body == Some(ending) => {}
            Proof::Settled => return Err("RunSettled"),
            Proof::Live if event_count.is_some_and(|sent| sent != self.runs[run].event_count) => {
                return Err("EventsMissing");
            }
            Proof::Live if ending == Ending::Interrupted && self.may_go_on(run) => {
                let found = &mut self.runs[run];
                let acknowledged = found.lease.as_ref().is_some_and(|lease| lease.acknowledged);
                found.used += u32::from(!acknowledged);
                found.unacknowledged = 0;
                self.end_questions(run, InteractionStatus::Cancelled);
                self.offer(run, 0);
                self.say(self.runs[run].session, "RunReleased", Some(run));
            }
            Proof::Live => self.settle(run, ending, Some(ending)),
        }
        Ok(self.runs[run].status)
    }

    /// Whether a run that is given back in the middle is offered again.
    fn may_go_on(&self, run: usize) -> bool {
        let found = &self.runs[run];
        let acknowledged = found.lease.as_ref().is_some_and(|lease| lease.acknowledged);
        found.status != RunStatus::Cancelling && found.used + u32::from(!acknowledged) < found.max
    }

    pub(in super::super) fn release(&mut self, claim: usize, me: OwnerName) -> Answer<RunStatus> {
        let run = self.hold(claim, me)?;
        let found = &mut self.runs[run];
        if found.status == RunStatus::Cancelling {
            return Err("RunCancelling");
        }
        if found.has_output {
            return Err("RunHasOutput");
        }
        if found.lease.take().unwrap().acknowledged {
            found.used -= 1;
        }
        found.unacknowledged = 0;
        self.offer(run, 0);
        self.say(self.runs[run].session, "RunReleased", Some(run));
        Ok(RunStatus::Requested)
    }

    fn offer(&mut self, run: usize, backoff: i64) {
        let now = self.now;
        let found = &mut self.runs[run];
        found.status = RunStatus::Requested;
        found.ready_at = now + backoff;
        found.lease = None;
    }
}

/// The sweep.
impl Expected {
    /// Runs of which three claims in a row were never acknowledged: whether the run is to blame
    /// depends on what else was heard of the executors.
    pub(in super::super) fn suspicious(&self) -> Vec<usize> {
        let third = |at: &usize| {
            let run = &self.runs[*at];
            run.unacknowledged >= 2
                && run.status == RunStatus::Claimed
                && run.lease.as_ref().is_some_and(|lease| !lease.acknowledged)
        };
        (0..self.runs.len()).filter(third).collect()
    }

    pub(in super::super) fn sweep(&mut self, process: usize, me: OwnerName, blamed: &[usize]) {
        self.note(process);
        self.mark_alive(process);
        let now = self.now;
        let ended = |run: &Run| run.lease.as_ref().is_some_and(|lease| lease.until <= now);
        let alive =
            |expected: &Self, run: usize| !expected.sessions[expected.runs[run].session].deleted;
        let orphaned = |expected: &Self, run: &Run| {
            let session = &expected.sessions[run.session];
            let lapsed = session.owned_until.is_none_or(|until| until <= now);
            run.status.is_active() && session.owner != me && lapsed
        };
        let candidates: Vec<_> = (0..self.runs.len())
            .filter(|run| ended(&self.runs[*run]) || orphaned(self, &self.runs[*run]))
            .filter(|run| alive(self, *run))
            .collect();
        let due: Vec<_> = (0..self.questions.len())
            .filter(|at| {
                let question = &self.questions[*at];
                question.status == InteractionStatus::Pending
                    && question.deadline <= now
                    && alive(self, question.run)
            })
            .collect();
        for run in candidates {
            let blamed = blamed.contains(&run);
            let _refused = self.attempt(process, |next| next.expire(run, me, blamed));
        }
        for question in due {
            let _refused = self.attempt(process, |next| next.expire_question(question, me));
        }
    }

    fn expire(&mut self, run: usize, me: OwnerName, blamed: bool) -> Answer<()> {
        let session = self.runs[run].session;
        self.own(session, me)?;
        let found = &mut self.runs[run];
        let Some(lease) = found.lease.clone() else {
            return Ok(());
        };
        if found.status == RunStatus::Cancelling {
            self.settle(run, Ending::Cancelled, None);
            return Ok(());
        }
        if !lease.acknowledged {
            found.unacknowledged += 1;
        }
        let spent = lease.acknowledged && found.used >= found.max;
        if blamed || spent {
            self.say(session, "RunLeaseExpired", Some(run));
            let ending = if blamed {
                Ending::Failed
            } else {
                Ending::Interrupted
            };
            self.settle(run, ending, None);
            return Ok(());
        }
        let backoff = i64::from(found.unacknowledged) * BACKOFF;
        self.end_questions(run, InteractionStatus::Cancelled);
        self.say(session, "RunLeaseExpired", Some(run));
        self.offer(run, backoff);
        Ok(())
    }

    fn expire_question(&mut self, question: usize, me: OwnerName) -> Answer<()> {
        let run = self.questions[question].run;
        self.own(self.runs[run].session, me)?;
        if self.questions[question].status == InteractionStatus::Pending {
            self.questions[question].status = InteractionStatus::Expired;
            self.say(self.runs[run].session, "ApprovalResponse", Some(run));
        }
        Ok(())
    }
}

/// Checkpoints.
impl Expected {
    pub(in super::super) fn capture(&mut self, session: usize, me: OwnerName) -> Answer<usize> {
        self.own(session, me)?;
        self.catch_up(session);
        self.idle(session)?;
        let found = &self.sessions[session];
        self.checkpoints.push(Checkpoint {
            id: unknown(),
            session,
            seq: found.log.len() as u64,
            position: found.tape.position,
            policy: found.policy,
            max_attempts: found.max_attempts,
            superseded: false,
            deleted: false,
        });
        self.say(session, "CheckpointCaptured", None);
        Ok(self.checkpoints.len() - 1)
    }

    pub(in super::super) fn delete_checkpoint(
        &mut self,
        session: usize,
        me: OwnerName,
        checkpoint: usize,
    ) -> Answer<()> {
        self.own(session, me)?;
        let found = &mut self.checkpoints[checkpoint];
        if found.session != session || found.superseded || found.deleted {
            return Err("NotFound(Checkpoint)");
        }
        found.deleted = true;
        Ok(())
    }

    fn usable(&self, session: usize, checkpoint: usize) -> Answer<Checkpoint> {
        let found = &self.checkpoints[checkpoint];
        if found.session != session {
            return Err("NotFound(Checkpoint)");
        }
        Ok(found.clone())
    }

    pub(in super::super) fn restore(
        &mut self,
        session: usize,
        me: OwnerName,
        checkpoint: usize,
    ) -> Answer<()> {
        self.own(session, me)?;
        let to = self.usable(session, checkpoint)?;
        self.idle(session)?;
        if to.superseded || to.deleted {
            return Err("CheckpointSuperseded");
        }
        self.cancel_queue(session);
        self.catch_up(session);
        for run in self.runs.iter_mut().filter(|run| run.session == session) {
            run.superseded |= run.settled_seq.is_some_and(|seq| seq > to.seq);
        }
        for later in &mut self.checkpoints {
            later.superseded |= later.session == session && later.seq > to.seq && !later.deleted;
        }
        let found = &mut self.sessions[session];
        found.tape.supersede(to.position);
        (found.policy, found.max_attempts) = (to.policy, to.max_attempts);
        self.say(session, "SessionRestored", None);
        Ok(())
    }

    /// From a checkpoint, or from what has settled.
    pub(in super::super) fn fork(
        &mut self,
        session: usize,
        me: OwnerName,
        checkpoint: Option<usize>,
    ) -> Answer<usize> {
        self.own(session, me)?;
        self.catch_up(session);
        let mut settings = (
            self.sessions[session].policy,
            self.sessions[session].max_attempts,
        );
        let position = match checkpoint {
            None => self.sessions[session].tape.settled_position(),
            Some(checkpoint) => {
                let from = self.usable(session, checkpoint)?;
                if from.superseded || from.deleted {
                    return Err("CheckpointSuperseded");
                }
                settings = (from.policy, from.max_attempts);
                from.position
            }
        };
        let tape = self.sessions[session].tape.copied(position);
        let fork = self.create(unknown(), me, settings.0, settings.1);
        self.sessions[fork].title = self.sessions[session].title;
        self.sessions[fork].tape = tape;
        self.say(fork, "SessionForked", None);
        self.catch_up(fork);
        Ok(fork)
    }
}
