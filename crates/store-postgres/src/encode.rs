//! How values lie in columns: ids as uuids, digests as bytes, words and JSON as text, numbers as
//! integers. What can't be read back is named by table, column and row; it is never guessed.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};
use tapedeck_domain::digest::Digest;
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

    pub(crate) fn digest(self, column: &'static str, bytes: &[u8]) -> Result<Digest, StoreError> {
        bytes
            .try_into()
            .map(Digest)
            .map_err(|_length| self.bad(column))
    }

    pub(crate) fn maybe_digest(
        self,
        column: &'static str,
        bytes: Option<&[u8]>,
    ) -> Result<Option<Digest>, StoreError> {
        bytes.map(|bytes| self.digest(column, bytes)).transpose()
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

/// A bound in bytes as a parameter.
pub(crate) fn bound(max_bytes: usize) -> i64 {
    i64::try_from(max_bytes).unwrap_or(i64::MAX)
}

/// A digest as bytes.
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

/// Where a page that starts at the newest begins: no version 7 id is as high.
pub(crate) fn before(id: Option<Uuid>) -> Uuid {
    id.unwrap_or(Uuid::max())
}
