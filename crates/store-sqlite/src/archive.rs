//! Copies of a whole database as rows, out of one read transaction and into one write transaction.
//! Its statements are made from the one list of tables that both stores follow.

use std::fmt;

use async_trait::async_trait;
use futures::TryStreamExt as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection as _, QueryBuilder, Row as _, Sqlite, SqliteConnection};
use tapedeck_store::archive::{Cell, Column, Kind, TABLES, Table, Translation, is_json};
use tapedeck_store::{Archive, ArchiveError, RowSink, RowSource, StoreError};
use uuid::Uuid;

use crate::encode::{At, blob, bytes};
use crate::error::{expect_rows, from_sqlx};
use crate::file::SqliteFile;
use crate::open::known_schema;
use crate::store::SqliteStore;

/// Rows of an insert at most, and bytes of their texts.
const BATCH_ROWS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;

impl SqliteFile {
    /// Gives every row of one moment, also while a server writes.
    pub async fn export(&self, sink: &mut dyn RowSink) -> Result<(), ArchiveError> {
        let mut conn = self.connect().await?;
        let mut moment = conn.begin().await.map_err(from_sqlx)?;
        let (origin, translation) = self.origin(&mut moment).await?;
        sink.begin(&origin).await?;
        for table in TABLES {
            export_table(&mut moment, table, &translation, sink).await?;
        }
        moment.rollback().await.map_err(from_sqlx)?;
        conn.close().await.map_err(from_sqlx)?;
        Ok(())
    }
}

#[async_trait]
impl Archive for SqliteStore {
    async fn export(&self, sink: &mut dyn RowSink) -> Result<(), ArchiveError> {
        self.file.export(sink).await
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
        let mut conn = self.file.connect_to_write().await?;
        let mut whole = conn
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(from_sqlx)?;
        for table in TABLES {
            refuse_rows(&mut whole, table).await?;
        }
        // From now on the deployment lives, and its leases run.
        let (now, boot_id) = (self.clock.lease(), self.clock.boot_id());
        let (origin, _) = self.file.origin(&mut whole).await?;
        let translation = Translation::new(origin.deployment_id, now);
        sqlx::query!(
            "UPDATE deployment SET alive_at = ?, boot_id = ? WHERE id = 1",
            now.0,
            boot_id,
        )
        .execute(&mut *whole)
        .await
        .map_err(from_sqlx)?;
        take_rows(&mut whole, &translation, source).await?;
        whole.commit().await.map_err(from_sqlx)?;
        conn.close().await.map_err(from_sqlx)?;
        Ok(())
    }
}

/// As a column is called here: label sets are compared as one text.
pub(crate) fn spelled(table: &Table, column: &Column) -> &'static str {
    match (table.name, column.name) {
        ("run_queue", "labels") => "label_key",
        _ => column.name,
    }
}

fn columns(table: &Table) -> String {
    let names = table.columns.iter().map(|column| spelled(table, column));
    names.collect::<Vec<_>>().join(", ")
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
    conn: &mut SqliteConnection,
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
    conn: &mut SqliteConnection,
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

fn is_readable(row: &SqliteRow, index: usize, table: &'static Table, column: &Column) -> bool {
    match (column.kind, cell(row, index, table, column)) {
        (Kind::Json, Ok(Cell::Text(text))) => is_json(&text),
        (_, read) => read.is_ok(),
    }
}

/// A row by its key.
struct Key<'a> {
    row: &'a SqliteRow,
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
    row: &SqliteRow,
    index: usize,
    table: &'static Table,
    column: &Column,
) -> Result<Cell, StoreError> {
    let name = column.name;
    let unreadable = || At::new(table.name, &"of an export").bad(name);
    let value = match column.kind {
        Kind::Integer | Kind::Wall | Kind::Lease => get::<i64>(row, index)?.map(Cell::Integer),
        Kind::Flag => get::<i64>(row, index)?.map(|flag| Cell::Flag(flag != 0)),
        Kind::Text | Kind::Json | Kind::Owner => get::<String>(row, index)?.map(Cell::Text),
        Kind::IdOrNone | Kind::Id => match get::<Vec<u8>>(row, index)? {
            Some(blob) if blob.is_empty() && column.kind == Kind::IdOrNone => None,
            Some(blob) => {
                let id = Uuid::from_slice(&blob).map_err(|_length| unreadable())?;
                Some(Cell::Id(id))
            }
            None => None,
        },
        Kind::Digest => {
            let at = At::new(table.name, &"of an export");
            let digest = get::<Vec<u8>>(row, index)?;
            at.maybe_digest(name, digest.as_deref())?.map(Cell::Digest)
        }
    };
    Ok(value.unwrap_or(Cell::Null))
}

fn get<'r, T>(row: &'r SqliteRow, index: usize) -> Result<Option<T>, StoreError>
where
    T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
{
    row.try_get(index).map_err(from_sqlx)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the statement is made from the constant list of tables"
)]
async fn refuse_rows(
    conn: &mut SqliteConnection,
    table: &'static Table,
) -> Result<(), ArchiveError> {
    let statement = format!("SELECT EXISTS (SELECT 1 FROM {})", table.name);
    let some: bool = sqlx::query_scalar(AssertSqlSafe(statement))
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?;
    if some {
        return Err(ArchiveError::NotEmpty { table: table.name });
    }
    Ok(())
}

async fn take_rows(
    conn: &mut SqliteConnection,
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
    conn: &mut SqliteConnection,
    table: &'static Table,
    rows: Vec<Vec<Cell>>,
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let count = rows.len();
    let mut query =
        QueryBuilder::<Sqlite>::new(format!("INSERT INTO {} ({}) ", table.name, columns(table)));
    query.push_values(rows, |mut values, row| {
        for (column, cell) in table.columns.iter().zip(row) {
            match cell {
                Cell::Null if column.kind == Kind::IdOrNone => values.push_bind(Vec::<u8>::new()),
                Cell::Null => values.push_bind(None::<i64>),
                Cell::Integer(number) => values.push_bind(number),
                Cell::Flag(flag) => values.push_bind(flag),
                Cell::Text(text) => values.push_bind(text),
                Cell::Id(id) => values.push_bind(blob(id)),
                Cell::Digest(digest) => values.push_bind(bytes(&digest)),
            };
        }
    });
    let done = query.build().execute(conn).await.map_err(from_sqlx)?;
    expect_rows(table.name, done.rows_affected(), count as u64)
}
