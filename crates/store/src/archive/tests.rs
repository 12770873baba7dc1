use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_domain::{LeaseInstant, Timestamp};
use uuid::Uuid;

use super::lines::{Decoder, Encoder, Line};
use super::{ArchiveError, Cell, Kind, Origin, TABLES, Table, Translation, table};

fn origin() -> Origin {
    Origin {
        engine: "sqlite".to_owned(),
        schema: 2,
        deployment_id: DeploymentId::new(Uuid::from_u128(1)),
        log_id: LogId::new(Uuid::from_u128(2)),
        created_at: Timestamp(1_700_000_000_007),
    }
}

/// A row with a value in every column, or in those only that need one.
fn row(of: &Table, full: bool) -> Vec<Cell> {
    let cell = |kind| match kind {
        Kind::Integer | Kind::Wall | Kind::Lease => Cell::Integer(-7),
        Kind::Flag => Cell::Flag(true),
        Kind::Text => Cell::Text("a \"quoted\"\nline\u{1}".to_owned()),
        Kind::Owner => Cell::Text("cli:x".to_owned()),
        Kind::Json => Cell::Text(r#"{"b": 1.0,"a":"\u0007"}"#.to_owned()),
        Kind::Id => Cell::Id(Uuid::from_u128(3)),
        Kind::IdOrNone if full => Cell::Id(Uuid::from_u128(4)),
        Kind::IdOrNone => Cell::Null,
        Kind::Digest => Cell::Digest(Digest([0xab; 32])),
    };
    let columns = of.columns.iter();
    columns
        .map(|column| match (column.optional, full) {
            (true, false) => Cell::Null,
            _ => cell(column.kind),
        })
        .collect()
}

/// The lines of a copy with two rows in every table.
fn copy() -> Vec<String> {
    let (mut encoder, header) = Encoder::begin(&origin());
    let mut lines = vec![header];
    for of in TABLES {
        lines.push(encoder.row(of, row(of, true)));
        lines.push(encoder.row(of, row(of, false)));
    }
    assert_eq!(encoder.rows(), 2 * TABLES.len() as u64);
    lines.push(encoder.end());
    lines
}

type Rows = Vec<(&'static str, Vec<Cell>)>;

fn read(lines: &[String]) -> Result<(Origin, Rows), ArchiveError> {
    let (mut decoder, origin) = Decoder::begin(&lines[0])?;
    let mut rows = Vec::new();
    for line in &lines[1..] {
        match decoder.line(line)? {
            Line::Row(of, cells) => rows.push((of.name, cells)),
            Line::End => {}
        }
    }
    decoder.end()?;
    Ok((origin, rows))
}

#[test]
fn what_was_written_is_read_back_byte_for_byte() {
    let lines = copy();
    assert!(lines.iter().all(|line| !line.contains('\n')));
    let (from, rows) = read(&lines).unwrap();
    assert_eq!(from, origin());
    let expected: Vec<_> = TABLES
        .iter()
        .flat_map(|of| [(of.name, row(of, true)), (of.name, row(of, false))])
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn a_copy_that_was_cut_off_is_refused_wherever() {
    let lines = copy();
    for end in 1..lines.len() {
        let cut = read(&lines[..end]).unwrap_err();
        assert!(
            matches!(cut, ArchiveError::Truncated { .. }),
            "{end}: {cut}"
        );
    }
}

#[test]
fn a_copy_that_was_changed_is_refused() {
    let whole = copy();
    let changed = |change: fn(&mut Vec<String>)| {
        let mut lines = whole.clone();
        change(&mut lines);
        assert_ne!(lines, whole);
        read(&lines).unwrap_err()
    };
    for refused in [
        changed(|lines| lines[1] = lines[1].replace("-7", "-8")),
        changed(|lines| lines[0] = lines[0].replace("sqlite", "postgres")),
        changed(|lines| drop(lines.remove(2))),
        changed(|lines| lines.insert(2, lines[2].clone())),
        changed(|lines| lines.swap(1, 2)),
        changed(|lines| lines.swap(1, 3)),
        changed(|lines| lines.push(lines[1].clone())),
    ] {
        assert!(
            matches!(
                refused,
                ArchiveError::Altered { .. } | ArchiveError::Line { .. }
            ),
            "{refused}"
        );
    }
}

#[test]
fn a_broken_line_is_named() {
    let (mut decoder, _) = Decoder::begin(&copy()[0]).unwrap();
    for line in [
        "",
        "{",
        r#"{"table":"nonsense","row":{}}"#,
        r#"{"table":"tape_states","row":{"session_key":1}}"#,
        r#"{"table":"tape_states","row":{"session_key":1,"state":"{}","more":1}}"#,
        r#"{"table":"tape_states","row":{"session_key":"1","state":"{}"}}"#,
        r#"{"table":"tape_states","row":{"session_key":1,"state":"{"}}"#,
        r#"{"table":"tape_states","row":{"session_key":1,"state":"{}"},"more":1}"#,
        r#"{"rows":{}}"#,
    ] {
        let mut decoder = decoder.clone();
        let refused = decoder.line(line).unwrap_err();
        assert!(
            matches!(refused, ArchiveError::Line { line: 2, .. }),
            "{line}: {refused}"
        );
    }
    let whole = r#"{"table":"tape_states","row":{"session_key":1,"state":"{}"}}"#;
    assert!(matches!(decoder.line(whole), Ok(Line::Row(..))));
}

#[test]
fn another_file_and_another_version_are_refused_in_plain_words() {
    for line in ["", "no json", "{}", r#"{"format":"else"}"#, "[]"] {
        assert!(
            matches!(Decoder::begin(line), Err(ArchiveError::NotAnExport)),
            "{line}"
        );
    }
    let newer = copy()[0].replace("\"version\":1", "\"version\":2");
    assert!(matches!(
        Decoder::begin(&newer),
        Err(ArchiveError::Version { found: 2, known: 1 })
    ));
}

#[test]
fn every_row_comes_after_those_that_it_refers_to() {
    let place = |name| table(name).unwrap().0;
    for (first, then) in [
        ("sessions", "session_heads"),
        ("sessions", "runs"),
        ("runs", "run_materials"),
        ("runs", "run_heads"),
        ("runs", "claims"),
        ("runs", "run_queue"),
        ("runs", "events"),
        ("runs", "interactions"),
        ("runs", "message_snapshots"),
        ("runs", "artifacts"),
        ("sessions", "checkpoints"),
    ] {
        assert!(place(first) < place(then), "{first}, {then}");
    }
    for of in TABLES {
        assert!(
            of.columns.iter().any(|column| column.name == of.key),
            "{}",
            of.name
        );
    }
}

#[test]
fn leases_and_the_deployment_move_to_the_other_database() {
    let (one, two) = (Uuid::from_u128(10), Uuid::from_u128(20));
    let from = Translation::new(DeploymentId::new(one), LeaseInstant(1_000));
    let to = Translation::new(DeploymentId::new(two), LeaseInstant(50_000));
    let (_, heads) = table("session_heads").unwrap();
    let at = |name| {
        heads
            .columns
            .iter()
            .position(|column| column.name == name)
            .unwrap()
    };
    let (owner, expires) = (at("owner_id"), at("owner_expires_at"));
    let moved = |owner_id: String| {
        let mut row = row(heads, true);
        row[owner] = Cell::Text(owner_id);
        row[expires] = Cell::Integer(1_700);
        from.outgoing(heads, &mut row);
        to.incoming(heads, &mut row);
        (row[owner].clone(), row[expires].clone())
    };
    assert_eq!(
        moved(format!("server:{one}")),
        (Cell::Text(format!("server:{two}")), Cell::Integer(50_700))
    );
    // A local process stays where it is.
    let local = "cli:7".to_owned();
    assert_eq!(moved(local.clone()), (Cell::Text(local), Cell::Null));
    let mut unowned = row(heads, false);
    from.outgoing(heads, &mut unowned);
    assert_eq!(unowned, row(heads, false));
}

/// A copy is of a moment after the last sign of life; a run that came in between waits for nothing.
#[test]
fn a_run_that_waits_can_be_claimed_from_a_copy_at_once() {
    let deployment = DeploymentId::new(Uuid::from_u128(1));
    let from = Translation::new(deployment, LeaseInstant(1_000));
    let to = Translation::new(deployment, LeaseInstant(50_000));
    for name in ["run_queue", "run_heads"] {
        let (_, waiting) = table(name).unwrap();
        let mut columns = waiting.columns.iter();
        let ready_at = columns
            .position(|column| column.name == "ready_at")
            .unwrap();
        let mut moved = row(waiting, true);
        moved[ready_at] = Cell::Integer(5_000);
        from.outgoing(waiting, &mut moved);
        to.incoming(waiting, &mut moved);
        assert_eq!(moved[ready_at], Cell::Integer(50_000), "{name}");
    }
}
