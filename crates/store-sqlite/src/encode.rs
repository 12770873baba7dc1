//! How values lie in columns: ids and digests as blobs, words and JSON as text, numbers as
//! integers. What can't be read back is named by table, column and row; it is never guessed.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};
use tapedeck_domain::digest::{Digest, hex};
use tapedeck_store::StoreError;
use uuid::Uuid;

/// Where a value was read.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) table: &'static str,
    pub(crate) row: &'a (dyn Display + Sync),
}

impl<'a> At<'a> {
    pub(crate) fn new(table: &'static str, row: &'a (dyn Display + Sync)) -> Self {
        Self { table, row }
    }

    /// The error that names a column.
    pub(crate) fn bad(self, column: &'static str) -> StoreError {
        StoreError::Inconsistent {
            table: self.table,
            column,
            row: self.row.to_string(),
        }
    }

    pub(crate) fn id<T>(
        self,
        column: &'static str,
        blob: &[u8],
        make: impl Fn(Uuid) -> T,
    ) -> Result<T, StoreError> {
        Uuid::from_slice(blob)
            .map(make)
            .map_err(|_length| self.bad(column))
    }

    pub(crate) fn maybe_id<T>(
        self,
        column: &'static str,
        blob: Option<&[u8]>,
        make: impl Fn(Uuid) -> T,
    ) -> Result<Option<T>, StoreError> {
        blob.map(|blob| self.id(column, blob, make)).transpose()
    }

    pub(crate) fn digest(self, column: &'static str, blob: &[u8]) -> Result<Digest, StoreError> {
        blob.try_into()
            .map(Digest)
            .map_err(|_length| self.bad(column))
    }

    pub(crate) fn maybe_digest(
        self,
        column: &'static str,
        blob: Option<&[u8]>,
    ) -> Result<Option<Digest>, StoreError> {
        blob.map(|blob| self.digest(column, blob)).transpose()
    }

    pub(crate) fn word<T: FromStr>(
        self,
        column: &'static str,
        text: &str,
    ) -> Result<T, StoreError> {
        text.parse().map_err(|_unknown| self.bad(column))
    }

    pub(crate) fn json(self, column: &'static str, text: &str) -> Result<Value, StoreError> {
        serde_json::from_str(text).map_err(|_broken| self.bad(column))
    }

    pub(crate) fn maybe_json(
        self,
        column: &'static str,
        text: Option<&str>,
    ) -> Result<Option<Value>, StoreError> {
        text.map(|text| self.json(column, text)).transpose()
    }

    pub(crate) fn object(
        self,
        column: &'static str,
        text: &str,
    ) -> Result<Map<String, Value>, StoreError> {
        serde_json::from_str(text).map_err(|_broken| self.bad(column))
    }

    pub(crate) fn number<T: TryFrom<i64>>(
        self,
        column: &'static str,
        number: i64,
    ) -> Result<T, StoreError> {
        T::try_from(number).map_err(|_range| self.bad(column))
    }

    pub(crate) fn maybe_number<T: TryFrom<i64>>(
        self,
        column: &'static str,
        number: Option<i64>,
    ) -> Result<Option<T>, StoreError> {
        number.map(|number| self.number(column, number)).transpose()
    }

    /// A column that the row's state needs.
    pub(crate) fn present<T>(
        self,
        column: &'static str,
        value: Option<T>,
    ) -> Result<T, StoreError> {
        value.ok_or_else(|| self.bad(column))
    }
}

/// A number of the log as an integer column; none ever comes near the bound.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// An id as a blob.
pub(crate) fn blob(id: Uuid) -> Vec<u8> {
    id.as_bytes().to_vec()
}

/// A digest as a blob.
pub(crate) fn bytes(digest: &Digest) -> Vec<u8> {
    digest.0.to_vec()
}

/// JSON as text.
pub(crate) fn text(value: &Value) -> String {
    value.to_string()
}

/// A JSON object as text.
pub(crate) fn object_text(fields: &Map<String, Value>) -> String {
    serde_json::to_string(fields).unwrap_or_else(|_total| "{}".to_owned())
}

/// An id in hexadecimal, for statements that take their rows as one JSON text.
pub(crate) fn hex_id(id: Uuid) -> String {
    hex(id.as_bytes())
}

/// Where a page that starts at the newest begins: no version 7 id is as high.
pub(crate) fn before(id: Option<Uuid>) -> Vec<u8> {
    blob(id.unwrap_or(Uuid::max()))
}
