//! Copies of a whole database as rows, out of one transaction and into one. Its statements are made
//! from the one list of tables that both stores follow.

use std::fmt;

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, QueryBuilder, Row as _};
use tapedeck_domain::digest::Digest;
use tapedeck_store::archive::{Cell, Column, Kind, TABLES, Table, Translation, is_json};
use tapedeck_store::{Archive, ArchiveError, RowSink, RowSource, StoreError};
use uuid::Uuid;

use crate::database::PostgresDatabase;
use crate::encode::{At, bytes};
use crate::error::{expect_rows, from_sqlx};
use crate::open::known_schema;
use crate::store::PostgresStore;

/// Rows of an insert at most, and bytes of their texts.
const BATCH_ROWS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;

impl PostgresDatabase {
    /// Gives every row of one moment, also while servers write.
    pub async fn export(&self, sink: &mut dyn RowSink) -> Result<(), ArchiveError> {
        let mut conn = self.moment().await?;
        let (origin, translation) = self.origin(&mut conn).await?;
        sink.begin(&origin).await?;
        for table in TABLES {
            export_table(&mut conn, table, &translation, sink).await?;
        }
        conn.close().await.map_err(from_sqlx)?;
        Ok(())
    }
}

#[async_trait]
impl Archive for PostgresStore {
    async fn export(&self, sink: &mut dyn RowSink) -> Result<(), ArchiveError> {
        self.database.export(sink).await
    }

    async fn import(&self, source: &mut dyn RowSource) -> Result<(), ArchiveError> {
        let from = source.origin().await?;
        let known = known_schema();
        if from.schema != known {
            return Err(ArchiveError::Schema {
                found: from.schema,
                known,
            });
        }
        let mut conn = self.database.connect().await?;
        let mut whole = conn.begin().await.map_err(from_sqlx)?;
        // From now on the deployment lives, and its leases run.
        let now = self.database.clock.read(&mut whole).await?.lease;
        let (origin, _) = self.database.origin(&mut whole).await?;
        let translation = Translation::new(origin.deployment_id, now);
        sqlx::query!("UPDATE deployment SET alive_at = $1 WHERE id = 1", now.0)
            .execute(&mut *whole)
            .await
            .map_err(from_sqlx)?;
        lock_tables(&mut whole).await?;
        for table in TABLES {
            refuse_rows(&mut whole, table).await?;
        }
        take_rows(&mut whole, &translation, source).await?;
        for table in TABLES {
            go_on_after_keys(&mut whole, table).await?;
        }
        whole.commit().await.map_err(from_sqlx)?;
        conn.close().await.map_err(from_sqlx)?;
        Ok(())
    }
}

fn columns(table: &Table) -> String {
    let names = table.columns.iter().map(|column| column.name);
    names.collect::<Vec<_>>().join(", ")
}

/// Columns that are filled with what is derived from others.
fn derived(table: &Table) -> &'static str {
    match table.name {
        "run_queue" => ", label_key",
        _ => "",
    }
}

fn every_row(table: &Table) -> String {
    let (columns, name, key) = (columns(table), table.name, table.key);
    format!("SELECT {columns} FROM {name} ORDER BY {key}")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the statement is made from the constant list of tables"
)]
async fn export_table(
    conn: &mut PgConnection,
    table: &'static Table,
    translation: &Translation,
    sink: &mut dyn RowSink,
) -> Result<(), ArchiveError> {
    let mut rows = sqlx::query(AssertSqlSafe(every_row(table))).fetch(conn);
    while let Some(row) = rows.try_next().await.map_err(from_sqlx)? {
        let mut cells = Vec::with_capacity(table.columns.len());
        for (index, column) in table.columns.iter().enumerate() {
            cells.push(cell(&row, index, table, column)?);
        }
        translation.outgoing(table, &mut cells);
        sink.take(table, cells).await?;
    }
    Ok(())
}

/// What can't be read, of all rows: a few more than `most` at most.
#[expect(
    clippy::disallowed_methods,
    reason = "the statements are made from the constant list of tables"
)]
pub(crate) async fn unreadable(
    conn: &mut PgConnection,
    most: u32,
) -> Result<Vec<StoreError>, StoreError> {
    let mut found = Vec::new();
    for table in TABLES {
        let mut rows = sqlx::query(AssertSqlSafe(every_row(table))).fetch(&mut *conn);
        while let Some(row) = rows.try_next().await.map_err(from_sqlx)? {
            if found.len() > most as usize {
                return Ok(found);
            }
            for (index, column) in table.columns.iter().enumerate() {
                if !is_readable(&row, index, table, column) {
                    let key = Key { row: &row, table };
                    found.push(At::new(table.name, &key).bad(column.name));
                }
            }
        }
    }
    Ok(found)
}

fn is_readable(row: &PgRow, index: usize, table: &'static Table, column: &Column) -> bool {
    match (column.kind, cell(row, index, table, column)) {
        (Kind::Json, Ok(Cell::Text(text))) => is_json(&text),
        (_, read) => read.is_ok(),
    }
}

/// A row by its key.
struct Key<'a> {
    row: &'a PgRow,
    table: &'static Table,
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.table.key_index().and_then(|index| {
            let column = self.table.columns.get(index)?;
            cell(self.row, index, self.table, column).ok()
        });
        key.unwrap_or(Cell::Null).fmt(f)
    }
}

fn cell(
    row: &PgRow,
    index: usize,
    table: &'static Table,
    column: &Column,
) -> Result<Cell, StoreError> {
    let value = match column.kind {
        Kind::Integer | Kind::Wall | Kind::Lease => get(row, index)?.map(Cell::Integer),
        Kind::Flag => get(row, index)?.map(Cell::Flag),
        Kind::Text | Kind::Json | Kind::Owner => get(row, index)?.map(Cell::Text),
        Kind::Id => get(row, index)?.map(Cell::Id),
        Kind::IdOrNone => get::<Uuid>(row, index)?
            .filter(|id| !id.is_nil())
            .map(Cell::Id),
        Kind::Digest => {
            let at = At::new(table.name, &"of an export");
            let digest = get::<Vec<u8>>(row, index)?;
            at.maybe_digest(column.name, digest.as_deref())?
                .map(Cell::Digest)
        }
    };
    Ok(value.unwrap_or(Cell::Null))
}

fn get<'r, T>(row: &'r PgRow, index: usize) -> Result<Option<T>, StoreError>
where
    T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    row.try_get(index).map_err(from_sqlx)
}

/// Keeps everybody else from writing; servers on the database wait.
async fn lock_tables(conn: &mut PgConnection) -> Result<(), StoreError> {
    let names: Vec<_> = TABLES.iter().map(|table| table.name).collect();
    let statement = format!(
        "LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE",
        names.join(", ")
    );
    sqlx::Executor::execute(conn, AssertSqlSafe(statement))
        .await
        .map_err(from_sqlx)?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the statement is made from the constant list of tables"
)]
async fn refuse_rows(conn: &mut PgConnection, table: &'static Table) -> Result<(), ArchiveError> {
    let statement = format!("SELECT EXISTS (SELECT FROM {})", table.name);
    let some: bool = sqlx::query_scalar(AssertSqlSafe(statement))
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?;
    if some {
        return Err(ArchiveError::NotEmpty { table: table.name });
    }
    Ok(())
}

/// New rows get keys after those that were given.
async fn go_on_after_keys(
    conn: &mut PgConnection,
    table: &'static Table,
) -> Result<(), StoreError> {
    let (name, key) = (table.name, table.key);
    let counted = |column: &Column| column.name == key && column.kind == Kind::Integer;
    if !table.columns.iter().any(counted) {
        return Ok(());
    }
    let statement = format!(
        "SELECT setval(sequence, coalesce((SELECT max({key}) FROM {name}), 0) + 1, false)
         FROM pg_get_serial_sequence('{name}', '{key}') AS sequence
         WHERE sequence IS NOT NULL"
    );
    sqlx::Executor::execute(conn, AssertSqlSafe(statement))
        .await
        .map_err(from_sqlx)?;
    Ok(())
}

async fn take_rows(
    conn: &mut PgConnection,
    translation: &Translation,
    source: &mut dyn RowSource,
) -> Result<(), ArchiveError> {
    let (mut batch, mut weight): (Vec<Vec<Cell>>, usize) = (Vec::new(), 0);
    let mut of: Option<&'static Table> = None;
    loop {
        let next = source.next().await?;
        let full = batch.len() >= BATCH_ROWS || weight >= BATCH_BYTES;
        if let Some(table) = of
            && (full
                || next
                    .as_ref()
                    .is_none_or(|(other, _)| other.name != table.name))
        {
            insert(conn, table, std::mem::take(&mut batch)).await?;
            weight = 0;
        }
        let Some((table, mut row)) = next else {
            return Ok(());
        };
        translation.incoming(table, &mut row);
        weight += row.iter().map(size).sum::<usize>();
        of = Some(table);
        batch.push(row);
    }
}

fn size(cell: &Cell) -> usize {
    match cell {
        Cell::Text(text) => text.len(),
        Cell::Null | Cell::Integer(_) | Cell::Flag(_) | Cell::Id(_) | Cell::Digest(_) => 8,
    }
}

async fn insert(
    conn: &mut PgConnection,
    table: &'static Table,
    rows: Vec<Vec<Cell>>,
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let count = rows.len();
    let mut query = QueryBuilder::<Postgres>::new(format!(
        "INSERT INTO {} ({}{}) ",
        table.name,
        columns(table),
        derived(table)
    ));
    query.push_values(rows, |mut values, row| {
        let labels = label_key(table, &row);
        for (column, cell) in table.columns.iter().zip(row) {
            match (cell, column.kind) {
                (Cell::Integer(number), _) => values.push_bind(number),
                (Cell::Flag(flag), _) => values.push_bind(flag),
                (Cell::Text(text), _) => values.push_bind(text),
                (Cell::Id(id), _) => values.push_bind(id),
                (Cell::Digest(digest), _) => values.push_bind(bytes(&digest)),
                (Cell::Null, Kind::IdOrNone) => values.push_bind(Uuid::nil()),
                (Cell::Null, Kind::Integer | Kind::Wall | Kind::Lease) => {
                    values.push_bind(None::<i64>)
                }
                (Cell::Null, Kind::Flag) => values.push_bind(None::<bool>),
                (Cell::Null, Kind::Text | Kind::Json | Kind::Owner) => {
                    values.push_bind(None::<String>)
                }
                (Cell::Null, Kind::Id) => values.push_bind(None::<Uuid>),
                (Cell::Null, Kind::Digest) => values.push_bind(None::<Vec<u8>>),
            };
        }
        if let Some(key) = labels {
            values.push_bind(bytes(&key));
        }
    });
    let done = query.build().execute(conn).await.map_err(from_sqlx)?;
    expect_rows(table.name, done.rows_affected(), count as u64)
}

/// The digest by which label sets are compared.
fn label_key(table: &Table, row: &[Cell]) -> Option<Digest> {
    if derived(table).is_empty() {
        return None;
    }
    let labels = table
        .columns
        .iter()
        .position(|column| column.name == "labels")?;
    match row.get(labels)? {
        Cell::Text(labels) => Some(Digest::of_bytes(labels.as_bytes())),
        _ => None,
    }
}
