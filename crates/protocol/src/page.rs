//! Pages of lists: `limit` and `cursor` in, plural name and `next_cursor` out. A cursor is opaque to
//! clients; here it is the last identifier of the page before.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tapedeck_domain::limits;
use tapedeck_domain::rejection::{FieldError, UnknownWord};
use utoipa::IntoParams;

use crate::error::ErrorCode;
use crate::problem::Problem;

/// Why a query can't be used. Always a 400.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryFault {
    /// The cursor can't be read; says why.
    Cursor(String),
    /// Other parameters break rules.
    Parameters(Vec<FieldError>),
}

impl QueryFault {
    pub(crate) fn parameter(path: &str, message: impl Into<String>) -> Self {
        Self::Parameters(vec![FieldError::new(path, message)])
    }
}

impl From<QueryFault> for Problem {
    fn from(fault: QueryFault) -> Self {
        match fault {
            QueryFault::Cursor(why) => Self::new(ErrorCode::CursorMalformed, why),
            QueryFault::Parameters(errors) => Self::malformed(&errors),
        }
    }
}

/// Query of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A checked page: how many items, and after which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<Id> {
    /// Items, at most.
    pub limit: u32,
    /// The last item of the page before.
    pub after: Option<Id>,
}

impl PageQuery {
    /// The paging part of a query that has more parameters.
    pub(crate) fn of(limit: Option<&String>, cursor: Option<&String>) -> Self {
        Self {
            limit: limit.cloned(),
            cursor: cursor.cloned(),
        }
    }

    /// Checks limit and cursor.
    pub fn check<Id: FromStr>(&self) -> Result<Page<Id>, QueryFault> {
        let limit = limit(
            self.limit.as_deref(),
            limits::PAGE_DEFAULT,
            limits::PAGE_MAX,
        )?;
        let after = match self.cursor.as_deref() {
            None => None,
            Some(text) => {
                let Ok(id) = text.parse() else {
                    let why = "the cursor is none that this list gave out";
                    return Err(QueryFault::Cursor(why.to_owned()));
                };
                Some(id)
            }
        };
        Ok(Page { limit, after })
    }
}

/// Checks a `limit`.
pub(crate) fn limit(text: Option<&str>, default: u32, most: u32) -> Result<u32, QueryFault> {
    let Some(text) = text else { return Ok(default) };
    match text.parse() {
        Ok(limit) if (1..=most).contains(&limit) => Ok(limit),
        Ok(_) | Err(_) => Err(QueryFault::parameter(
            "limit",
            format!("must be 1 to {most}"),
        )),
    }
}

/// Reads a parameter that is one of a few words.
pub(crate) fn word<T: FromStr<Err = UnknownWord>>(
    path: &str,
    text: Option<&str>,
) -> Result<Option<T>, QueryFault> {
    let word = text.map(T::from_str).transpose();
    word.map_err(|error| QueryFault::parameter(path, error.to_string()))
}

/// Reads an identifier of a query.
pub(crate) fn id<Id: FromStr>(path: &str, text: Option<&str>) -> Result<Option<Id>, QueryFault> {
    match text.map(str::parse) {
        None => Ok(None),
        Some(Ok(id)) => Ok(Some(id)),
        Some(Err(_)) => Err(QueryFault::parameter(path, "must be a UUID")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapedeck_domain::SessionId;

    #[test]
    fn limits_and_cursors_are_checked() {
        let query = |limit: Option<&str>, cursor: Option<&str>| {
            PageQuery {
                limit: limit.map(str::to_owned),
                cursor: cursor.map(str::to_owned),
            }
            .check::<SessionId>()
        };
        assert_eq!(
            query(None, None),
            Ok(Page {
                limit: 50,
                after: None
            })
        );
        assert_eq!(query(Some("200"), None).map(|page| page.limit), Ok(200));
        for bad in ["0", "201", "-1", "x", ""] {
            assert!(
                matches!(query(Some(bad), None), Err(QueryFault::Parameters(_))),
                "{bad}"
            );
        }
        assert!(matches!(
            query(None, Some("nonsense")),
            Err(QueryFault::Cursor(_))
        ));
        let problem = Problem::from(query(None, Some("nonsense")).unwrap_err());
        assert_eq!(
            (problem.status, problem.code),
            (400, ErrorCode::CursorMalformed)
        );
    }
}
