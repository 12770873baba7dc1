//! No secret of a claim is kept anywhere (I24; rules R9): the store holds digests, events and
//! records hold neither. What servers log, and the tokens and passwords that only they know, are
//! looked for on real processes in `e2e`.

use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;

use crate::busy;
use crate::control::{Claim, NAMESPACE, TestControl, claim_request, key};

on_every_store! {
    no_secret_in_store_log_or_event,
}

/// Its runs wait apart from those of the busy database.
const POOL: &str = "secret";

/// What proves a claim, and what would let anybody make such a proof.
struct Secrets(Vec<String>);

fn hexadecimal(text: &str) -> String {
    let digits = |byte: u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16));
    text.bytes().flat_map(digits).flatten().collect()
}

impl Secrets {
    async fn claim(&mut self, t: &TestControl) -> Claim {
        let request_id = format!("a-claim-request-of-128-bits-{}", t.control.new_id());
        let mut request = claim_request("e1", &request_id);
        POOL.clone_into(&mut request.contact.pool);
        let claim = t.claim_as(request).await.unwrap();
        let token = claim.proof.token.secret().to_owned();
        // Its beginning is the attempt's number, which is no secret.
        let (_, secret) = token.split_once('.').unwrap();
        self.0
            .extend([request_id, token.clone(), secret.to_owned()]);
        claim
    }

    /// In none of the texts, neither as they are nor as bytes in hexadecimal.
    fn assert_absent<S: AsRef<str>>(&self, what: &str, texts: &[S]) {
        for secret in &self.0 {
            let bytes = hexadecimal(secret);
            for text in texts {
                let text = text.as_ref();
                let lower = text.to_lowercase();
                assert!(
                    !text.contains(secret.as_str()) && !lower.contains(&bytes),
                    "{what} shows a secret: {text}"
                );
            }
        }
    }
}

async fn no_secret_in_store_log_or_event(t: TestControl) {
    busy::fill(&t).await;
    let mut secrets = Secrets(Vec::new());
    let mut sessions = Vec::new();
    for end in ["completed", "released", "lost", "unheard of", "running"] {
        let mut settings = SessionSettings::default();
        POOL.clone_into(&mut settings.run_target.executor.pool);
        let session = t.session_with(settings).await;
        sessions.push(session);
        let mut prompt = t.prompt_command(
            session,
            "do it",
            OnActive::Reject,
            Some(key("prompt", &format!("key-{end}"), "body")),
        );
        prompt.prompt.text = format!("a prompt that ends {end}");
        let run = t.control.prompt(prompt).await.unwrap().run_id;
        let claim = secrets.claim(&t).await;
        assert_eq!(claim.run_id(), run);
        if end == "released" {
            let proof = claim.proof.clone();
            t.control.release_run(ReleaseRun { proof }).await.unwrap();
            let again = secrets.claim(&t).await;
            t.settle(&again, Ending::Interrupted).await.unwrap();
            continue;
        }
        if end != "unheard of" {
            t.beat(&claim).await.unwrap();
            t.say(&claim, "a", "words").await.unwrap();
            t.ask(&claim, "q").await.unwrap();
        }
        match end {
            "completed" => drop(t.complete(&claim).await),
            "lost" | "unheard of" => {
                t.pass(61_000).await;
                t.sweep().await;
                if end == "unheard of" {
                    t.pass(5_000).await;
                    let again = secrets.claim(&t).await;
                    t.complete(&again).await;
                }
            }
            _ => {}
        }
        // Who proves a claim with another's token has sent that token, too.
        let _refused = t.say(&claim, "late", "words").await;
    }
    assert!(secrets.0.len() >= 3 * 7);
    let dump = t.store.dump().await;
    let digests = dump.iter().filter(|row| row.starts_with("claims "));
    assert!(
        digests.count() >= 7,
        "the claims are among what is looked at"
    );
    secrets.assert_absent("the store", &dump);
    for session in sessions {
        let mut shown: Vec<_> = t
            .log(session)
            .await
            .iter()
            .map(|event| format!("{event:?}"))
            .collect();
        shown.push(format!("{:?}", t.view(session).await));
        let run = t.view(session).await.session.summary.last_run_id.unwrap();
        shown.push(format!("{:?}", t.run(run).await));
        secrets.assert_absent("a record", &shown);
        let captured = t
            .control
            .capture_checkpoint(NAMESPACE, session, None, None)
            .await;
        if let Ok(checkpoint) = captured {
            secrets.assert_absent("a checkpoint", &[format!("{checkpoint:?}")]);
        }
    }
}
