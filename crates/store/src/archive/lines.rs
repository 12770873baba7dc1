//! A copy as JSON Lines: a header, one line a row, and an end that counts the rows and holds a digest
//! of every line before it, so that a copy that was cut off or changed is noticed before anything of
//! it counts. It turns lines into rows and back and never touches a file.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tapedeck_domain::Timestamp;
use tapedeck_domain::digest::{Digest, hex};
use tapedeck_domain::id::{DeploymentId, LogId};
use uuid::Uuid;

use super::{ArchiveError, Cell, Column, Kind, Origin, TABLES, Table, is_json, table};

/// What a header says first.
pub const FORMAT: &str = "tapedeck-export";
/// The form of the lines.
pub const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u64,
    schema: i64,
    engine: String,
    deployment_id: DeploymentId,
    log_id: LogId,
    created_at: Timestamp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowLine {
    table: String,
    row: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    rows: Map<String, Value>,
    sha256: String,
}

/// How many rows of each table there were, and the digest of their lines.
#[derive(Debug, Clone)]
struct Tally {
    hasher: Sha256,
    rows: Vec<u64>,
}

impl Tally {
    fn new() -> Self {
        Self {
            hasher: Sha256::new(),
            rows: vec![0; TABLES.len()],
        }
    }

    fn line(&mut self, line: &str) {
        self.hasher.update(line.as_bytes());
        self.hasher.update(b"\n");
    }

    fn sha256(&self) -> String {
        hex(&self.hasher.clone().finalize())
    }

    fn counts(&self) -> Map<String, Value> {
        TABLES
            .iter()
            .zip(&self.rows)
            .map(|(table, rows)| (table.name.to_owned(), json!(rows)))
            .collect()
    }
}

/// Makes the lines of a copy, without their ends.
#[derive(Debug, Clone)]
pub struct Encoder(Tally);

impl Encoder {
    /// The first line, and what makes the others.
    pub fn begin(origin: &Origin) -> (Self, String) {
        let header = json!(Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            schema: origin.schema,
            engine: origin.engine.clone(),
            deployment_id: origin.deployment_id,
            log_id: origin.log_id,
            created_at: origin.created_at,
        });
        let line = header.to_string();
        let mut tally = Tally::new();
        tally.line(&line);
        (Self(tally), line)
    }

    /// A row's line.
    pub fn row(&mut self, of: &Table, row: Vec<Cell>) -> String {
        let fields: Map<_, _> = of
            .columns
            .iter()
            .zip(row)
            .filter_map(|(column, cell)| Some((column.name.to_owned(), written(cell)?)))
            .collect();
        let line = json!({"table": of.name, "row": fields}).to_string();
        self.0.line(&line);
        if let Some((index, _)) = table(of.name)
            && let Some(rows) = self.0.rows.get_mut(index)
        {
            *rows += 1;
        }
        line
    }

    /// How many rows there were.
    pub fn rows(&self) -> u64 {
        self.0.rows.iter().sum()
    }

    /// The last line.
    pub fn end(self) -> String {
        json!({"rows": self.0.counts(), "sha256": self.0.sha256()}).to_string()
    }
}

/// A value on a line; none is left out.
fn written(cell: Cell) -> Option<Value> {
    Some(match cell {
        Cell::Null => return None,
        Cell::Integer(number) => json!(number),
        Cell::Flag(flag) => json!(flag),
        Cell::Text(text) => Value::String(text),
        Cell::Id(id) => json!(id),
        Cell::Digest(digest) => Value::String(hex(&digest.0)),
    })
}

/// Reads the lines of a copy.
#[derive(Debug, Clone)]
pub struct Decoder {
    tally: Tally,
    lines: u64,
    /// The table of the newest row: none comes after a later one.
    at: usize,
    ended: bool,
}

/// What a line is.
#[derive(Debug)]
pub enum Line {
    /// A row.
    Row(&'static Table, Vec<Cell>),
    /// The end, which fits all that came before.
    End,
}

impl Decoder {
    /// Reads the first line.
    pub fn begin(line: &str) -> Result<(Self, Origin), ArchiveError> {
        let header: Value =
            serde_json::from_str(line).map_err(|_other| ArchiveError::NotAnExport)?;
        if header.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(ArchiveError::NotAnExport);
        }
        let found = header.get("version").and_then(Value::as_u64).unwrap_or(0);
        if found != VERSION {
            return Err(ArchiveError::Version {
                found,
                known: VERSION,
            });
        }
        let header: Header =
            serde_json::from_value(header).map_err(|error| ArchiveError::Line {
                line: 1,
                why: error.to_string(),
            })?;
        let mut tally = Tally::new();
        tally.line(line);
        let decoder = Self {
            tally,
            lines: 1,
            at: 0,
            ended: false,
        };
        let origin = Origin {
            engine: header.engine,
            schema: header.schema,
            deployment_id: header.deployment_id,
            log_id: header.log_id,
            created_at: header.created_at,
        };
        Ok((decoder, origin))
    }

    /// Reads a later line.
    pub fn line(&mut self, line: &str) -> Result<Line, ArchiveError> {
        self.lines += 1;
        if self.ended {
            return Err(ArchiveError::Altered {
                why: "there are lines after its end".to_owned(),
            });
        }
        let value: Value = serde_json::from_str(line).map_err(|error| self.broken(&error))?;
        if value.get("table").is_none() {
            let end = serde_json::from_value(value).map_err(|error| self.broken(&error))?;
            self.check_end(&end)?;
            self.ended = true;
            return Ok(Line::End);
        }
        let RowLine { table: name, row } =
            serde_json::from_value(value).map_err(|error| self.broken(&error))?;
        let Some((index, of)) = table(&name) else {
            return Err(self.broken(&format!("there is no table `{name}`")));
        };
        if index < self.at {
            return Err(self.broken(&format!("rows of `{name}` come too late")));
        }
        self.at = index;
        let cells = cells(of, row).map_err(|why| self.broken(&why))?;
        self.tally.line(line);
        if let Some(rows) = self.tally.rows.get_mut(index) {
            *rows += 1;
        }
        Ok(Line::Row(of, cells))
    }

    /// What it means that no line follows.
    pub fn end(&self) -> Result<(), ArchiveError> {
        if self.ended {
            Ok(())
        } else {
            Err(ArchiveError::Truncated { lines: self.lines })
        }
    }

    fn check_end(&self, end: &EndLine) -> Result<(), ArchiveError> {
        let altered = |why: &str| {
            Err(ArchiveError::Altered {
                why: why.to_owned(),
            })
        };
        if end.rows != self.tally.counts() {
            return altered("it has more or fewer rows than its end says");
        }
        if end.sha256 != self.tally.sha256() {
            return altered("its lines don't have the digest that its end says");
        }
        Ok(())
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> ArchiveError {
        ArchiveError::Line {
            line: self.lines,
            why: why.to_string(),
        }
    }
}

fn cells(of: &Table, mut row: Map<String, Value>) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::with_capacity(of.columns.len());
    for column in of.columns {
        let cell = match row.remove(column.name) {
            None if column.optional || column.kind == Kind::IdOrNone => Cell::Null,
            None => return Err(format!("`{}`.`{}` is missing", of.name, column.name)),
            Some(value) => read(column, &value)
                .ok_or_else(|| format!("`{}`.`{}` is unreadable", of.name, column.name))?,
        };
        cells.push(cell);
    }
    match row.keys().next() {
        None => Ok(cells),
        Some(name) => Err(format!("`{}` has no column `{name}`", of.name)),
    }
}

fn read(column: &Column, value: &Value) -> Option<Cell> {
    Some(match column.kind {
        Kind::Integer | Kind::Wall | Kind::Lease => Cell::Integer(value.as_i64()?),
        Kind::Flag => Cell::Flag(value.as_bool()?),
        Kind::Text | Kind::Owner => Cell::Text(value.as_str()?.to_owned()),
        Kind::Json => {
            let text = value.as_str().filter(|text| is_json(text))?;
            Cell::Text(text.to_owned())
        }
        Kind::Id | Kind::IdOrNone => Cell::Id(Uuid::try_parse(value.as_str()?).ok()?),
        Kind::Digest => Cell::Digest(unhex(value.as_str()?)?),
    })
}

fn unhex(text: &str) -> Option<Digest> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(Digest(bytes))
}
