//! Hints on their way between instances: gathered, deduplicated, bounded, and as JSON in payloads
//! that PostgreSQL takes. Where there are too many, or one can't be read, they become "read again".

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::{Heard, Hint};
use uuid::Uuid;

/// A payload must be shorter than 8000 bytes.
const PAYLOAD: usize = 7_900;
/// More hints than this say no more than "read again" does.
const MOST: usize = 4_096;
/// More payloads than this in one sending are not worth it either.
const PAYLOADS: usize = 32;

/// Hints that wait.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    heads: HashMap<SessionId, u64>,
    others: HashSet<Hint>,
    /// Some were lost or too many: this says it all.
    read_again: bool,
}

impl Hints {
    /// Adds hints. Of one session the highest number stays.
    pub(crate) fn add(&mut self, hints: impl IntoIterator<Item = Hint>) {
        for hint in hints {
            if self.read_again {
                return;
            }
            match hint {
                Hint::Head {
                    session_id,
                    head_seq,
                } => {
                    let known = self.heads.entry(session_id).or_default();
                    *known = head_seq.max(*known);
                }
                Hint::Deleted(_) | Hint::Run(_) | Hint::Executor(_) | Hint::Queue { .. } => {
                    self.others.insert(hint);
                }
            }
            if self.heads.len() + self.others.len() > MOST {
                self.lose();
            }
        }
    }

    /// Adds what another instance said.
    pub(crate) fn add_heard(&mut self, heard: Heard) {
        match heard {
            Heard::Hints(hints) => self.add(hints),
            Heard::ReadAgain => self.lose(),
        }
    }

    /// Says that hints were or may have been lost.
    pub(crate) fn lose(&mut self) {
        self.heads = HashMap::new();
        self.others = HashSet::new();
        self.read_again = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.read_again && self.heads.is_empty() && self.others.is_empty()
    }

    /// What waits, if anything.
    pub(crate) fn take(&mut self) -> Option<Heard> {
        if self.is_empty() {
            return None;
        }
        let taken = std::mem::take(self);
        if taken.read_again {
            return Some(Heard::ReadAgain);
        }
        let heads = taken
            .heads
            .into_iter()
            .map(|(session_id, head_seq)| Hint::Head {
                session_id,
                head_seq,
            });
        Some(Heard::Hints(heads.chain(taken.others).collect()))
    }
}

/// Hints as payloads.
pub(crate) fn encode(heard: &Heard) -> Vec<String> {
    let read_again = || vec![Value::Null.to_string()];
    let Heard::Hints(hints) = heard else {
        return read_again();
    };
    let mut payloads = Vec::new();
    let mut payload = String::from("[");
    for hint in hints {
        let part = part(hint).to_string();
        if part.len() + 2 > PAYLOAD {
            return read_again();
        }
        if payload.len() + part.len() + 2 > PAYLOAD {
            payload.push(']');
            payloads.push(std::mem::replace(&mut payload, String::from("[")));
        }
        if payload.len() > 1 {
            payload.push(',');
        }
        payload.push_str(&part);
    }
    payload.push(']');
    payloads.push(payload);
    if payloads.len() > PAYLOADS {
        return read_again();
    }
    payloads
}

fn part(hint: &Hint) -> Value {
    match hint {
        Hint::Head {
            session_id,
            head_seq,
        } => json!(["h", session_id.uuid().simple().to_string(), head_seq]),
        Hint::Deleted(session_id) => json!(["d", session_id.uuid().simple().to_string()]),
        Hint::Run(run_id) => json!(["r", run_id.uuid().simple().to_string()]),
        Hint::Executor(executor_id) => json!(["e", executor_id]),
        Hint::Queue {
            executor_kind,
            pool,
        } => json!(["q", executor_kind, pool]),
    }
}

/// A payload as hints. What can't be read, by a newer version perhaps, may have said anything.
pub(crate) fn decode(payload: &str) -> Heard {
    let hints = serde_json::from_str::<Vec<Value>>(payload)
        .ok()
        .and_then(|parts| parts.iter().map(hint).collect());
    hints.map_or(Heard::ReadAgain, Heard::Hints)
}

fn hint(part: &Value) -> Option<Hint> {
    let id = |part: &Value| part.as_str().and_then(|text| Uuid::parse_str(text).ok());
    let parts: Vec<&Value> = part.as_array()?.iter().collect();
    match (parts.first()?.as_str()?, &parts[1..]) {
        ("h", [session, head_seq]) => Some(Hint::Head {
            session_id: SessionId::new(id(session)?),
            head_seq: head_seq.as_u64()?,
        }),
        ("d", [session]) => Some(Hint::Deleted(SessionId::new(id(session)?))),
        ("r", [run]) => Some(Hint::Run(RunId::new(id(run)?))),
        ("e", [executor_id]) => Some(Hint::Executor(executor_id.as_str()?.to_owned())),
        ("q", [executor_kind, pool]) => Some(Hint::Queue {
            executor_kind: executor_kind.as_str()?.to_owned(),
            pool: pool.as_str()?.to_owned(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(session: u128, head_seq: u64) -> Hint {
        Hint::Head {
            session_id: SessionId::new(Uuid::from_u128(session)),
            head_seq,
        }
    }

    fn all_kinds() -> Vec<Hint> {
        vec![
            head(1, 7),
            Hint::Deleted(SessionId::new(Uuid::from_u128(2))),
            Hint::Run(RunId::new(Uuid::from_u128(3))),
            Hint::Queue {
                executor_kind: "gpu \"a\"".to_owned(),
                pool: "default".to_owned(),
            },
        ]
    }

    #[test]
    fn every_kind_of_hint_comes_back_from_its_payload() {
        let sent = Heard::Hints(all_kinds());
        let payloads = encode(&sent);
        assert_eq!(payloads.len(), 1);
        assert_eq!(decode(&payloads[0]), sent);
        let read_again = encode(&Heard::ReadAgain);
        assert_eq!(decode(&read_again[0]), Heard::ReadAgain);
    }

    #[test]
    fn what_cannot_be_read_says_read_again() {
        for payload in ["", "{}", "[[\"x\",1]]", "[[\"h\",\"no id\",1]]", "[[]]"] {
            assert_eq!(decode(payload), Heard::ReadAgain, "{payload}");
        }
    }

    #[test]
    fn the_same_hint_waits_once_and_a_session_by_its_highest_number() {
        let mut hints = Hints::default();
        hints.add([head(1, 5), head(1, 9), head(1, 7)]);
        hints.add(all_kinds());
        hints.add(all_kinds());
        let Some(Heard::Hints(taken)) = hints.take() else {
            panic!("hints wait");
        };
        assert_eq!(taken.len(), 4);
        assert!(taken.contains(&head(1, 9)));
        assert_eq!(hints.take(), None);
    }

    #[test]
    fn payloads_are_short_enough_and_lose_nothing() {
        let sent: Vec<_> = (0..1_000).map(|number| head(number, 7)).collect();
        let payloads = encode(&Heard::Hints(sent.clone()));
        assert!(payloads.iter().all(|payload| payload.len() < 8_000));
        let mut heard = Vec::new();
        for payload in &payloads {
            let Heard::Hints(hints) = decode(payload) else {
                panic!("a payload is unreadable");
            };
            heard.extend(hints);
        }
        assert_eq!(heard, sent);
    }

    #[test]
    fn too_many_hints_say_read_again() {
        let mut hints = Hints::default();
        hints.add((0..5_000).map(|number| head(number, 1)));
        hints.add([head(1, 2)]);
        assert_eq!(hints.take(), Some(Heard::ReadAgain));
        assert!(hints.is_empty());
        let long = Hint::Queue {
            executor_kind: "k".repeat(9_000),
            pool: "p".to_owned(),
        };
        assert_eq!(encode(&Heard::Hints(vec![long])), ["null"]);
    }
}
