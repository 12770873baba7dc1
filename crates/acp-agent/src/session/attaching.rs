//! How a session is opened at the editor: anew, with its past, or with what comes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::v1::schema::{
    LoadSessionResponse, ResumeSessionResponse, SessionId as AcpSessionId,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{Client as Editor, Error};
use futures::stream::FuturesUnordered;
use tapedeck_client::{Client, Follow, Follower, Start as From, StreamOptions};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::session::SessionResponse;
use tapedeck_protocol::views::RunsQuery;

use super::Session;
use crate::choices::Choices;
use crate::desk::{Desk, Place};
use crate::failure::of_call;
use crate::mapping::Mapping;

/// How long a prompt waits for a server that is away.
const GIVE_UP_AFTER: Duration = Duration::from_mins(2);

/// A session that is about to be opened.
#[derive(Debug)]
pub(crate) struct Attaching {
    pub(crate) client: Client,
    pub(crate) session: SessionResponse,
}

impl Attaching {
    /// What can be chosen in it, before its agent has said anything.
    pub(crate) fn choices(&self, desk: &Desk) -> Choices {
        let session = &self.session;
        Choices::new(
            session.approval_policy,
            &session.agent,
            desk.takes_booleans(),
        )
    }
}

/// Where the editor begins.
#[derive(Debug)]
pub(crate) enum Start {
    /// With a session that has no past.
    New,
    /// With all of the past, which is told before the answer.
    Load(Responder<LoadSessionResponse>),
    /// With what comes; the editor knows the past.
    Resume(Responder<ResumeSessionResponse>),
}

/// Keeps a session open until the editor closes it or goes.
pub(crate) async fn attach(
    desk: Arc<Desk>,
    mut place: Place,
    attaching: Attaching,
    start: Start,
    editor: ConnectionTo<Editor>,
) {
    let id = attaching.session.session_id;
    let choices = attaching.choices(&desk);
    let opened = match &start {
        Start::New => Ok((From::After(attaching.session.head_seq), HashSet::new())),
        Start::Resume(_) => Ok((From::Head, HashSet::new())),
        Start::Load(_) => {
            let put_aside = put_aside(&attaching.client, id).await;
            put_aside.map(|runs| (From::Beginning, runs))
        }
    };
    let (from, put_aside) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            desk.ended(id, &place);
            let _closed = start.refuse(error);
            return;
        }
    };
    let acp_id = AcpSessionId::new(id.to_string());
    let last_seq = match from {
        From::After(seq) => Some(seq),
        From::Beginning | From::Head => None,
    };
    let mut session = Session {
        mapping: Mapping::new(desk.wants()),
        follower: follow(&attaching.client, id, from),
        is_live: matches!(start, Start::New),
        opening: Some(start).filter(|start| !matches!(start, Start::New)),
        title: attaching.session.title,
        are_choices_old: false,
        client: attaching.client,
        desk: Arc::clone(&desk),
        id,
        acp_id,
        editor,
        choices,
        put_aside,
        last_seq,
        active_run: None,
        turn: None,
        work: None,
        tasks: FuturesUnordered::new(),
        asked: HashMap::new(),
        pending: Vec::new(),
        out: VecDeque::new(),
    };
    session.run(&mut place).await;
    desk.ended(id, &place);
}

impl Start {
    pub(crate) fn refuse(self, error: Error) -> Result<(), Error> {
        match self {
            Self::New => Ok(()),
            Self::Load(responder) => responder.respond_with_error(error),
            Self::Resume(responder) => responder.respond_with_error(error),
        }
    }
}

pub(super) fn follow(client: &Client, id: SessionId, start: From) -> Follower {
    let options = StreamOptions {
        give_up_after: Some(GIVE_UP_AFTER),
        ..StreamOptions::default()
    };
    let selection = Follow {
        start,
        ..Follow::default()
    };
    client.follow(id, selection, options)
}

/// The runs that a restore has put aside: they are no part of the conversation any more.
async fn put_aside(client: &Client, id: SessionId) -> Result<HashSet<RunId>, Error> {
    let mut found = HashSet::new();
    let mut query = RunsQuery {
        include_superseded: true,
        limit: Some("200".to_owned()),
        ..RunsQuery::default()
    };
    loop {
        let page = client.runs(id, &query).await;
        let page = page.map_err(|error| of_call(&error, &id.to_string()))?;
        let aside = page.runs.iter().filter(|run| run.superseded_at.is_some());
        found.extend(aside.map(|run| run.run_id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(found);
        }
    }
}
