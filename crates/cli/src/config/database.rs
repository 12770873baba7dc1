//! The URL of a PostgreSQL database. It may hold a password, so what is shown of it is only what
//! can't be one.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use url::Url;

use crate::exit::Failed;

const SCHEMES: [&str; 2] = ["postgres", "postgresql"];
const HIDDEN: &str = "…";

/// The URL of a database.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct DatabaseUrl(String);

impl DatabaseUrl {
    /// Takes a URL.
    pub(super) fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// All of it, for the one place that connects.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// That it names a PostgreSQL database.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let complaint = match Url::parse(&self.0) {
            Err(error) => format!("`database` is no URL: {error}"),
            Ok(url) if !SCHEMES.contains(&url.scheme()) => {
                "`database` must be a URL like `postgres://user@host/name`".to_owned()
            }
            Ok(url) if url.path().len() < 2 && !url.query().is_some_and(names_a_database) => {
                "`database` names a server and no database on it: `postgres://user@host/name`"
                    .to_owned()
            }
            Ok(_) => return Ok(()),
        };
        Err(Failed::usage(complaint))
    }
}

fn names_a_database(query: &str) -> bool {
    query.split('&').any(|pair| pair.starts_with("dbname="))
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(url) = Url::parse(&self.0) else {
            return f.write_str(HIDDEN);
        };
        write!(f, "{}://{}", url.scheme(), url.username())?;
        if url.password().is_some() {
            write!(f, ":{HIDDEN}")?;
        }
        if url.password().is_some() || !url.username().is_empty() {
            f.write_str("@")?;
        }
        f.write_str(url.host_str().unwrap_or_default())?;
        if let Some(port) = url.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(url.path())?;
        // A password may be among the parameters.
        if url.query().is_some() {
            write!(f, "?{HIDDEN}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_a_password() {
        for (url, shown) in [
            ("postgres://u:s3cret@h:5433/d", "postgres://u:…@h:5433/d"),
            ("postgresql://u@h/d?sslmode=require", "postgresql://u@h/d?…"),
            ("postgres://h/d?user=u&password=s3cret", "postgres://h/d?…"),
            ("postgres://:s3cret@h/d", "postgres://:…@h/d"),
            ("postgres:///d?host=/run/postgresql", "postgres:///d?…"),
            ("s3cret", "…"),
        ] {
            let url = DatabaseUrl::new(url);
            assert_eq!(url.to_string(), shown);
            let everywhere = format!("{url:?} {}", serde_json::to_string(&url).unwrap());
            assert!(!everywhere.contains("s3cret"), "{everywhere}");
        }
    }

    #[test]
    fn only_a_database_on_postgresql_is_taken() {
        for good in [
            "postgres://u:p@h/d",
            "postgresql://h/d",
            "postgres:///d?host=/run/postgresql",
            "postgres://h?dbname=d",
        ] {
            DatabaseUrl::new(good).check().unwrap();
        }
        for bad in [
            "mysql://u:s3cret@h/d",
            "s3cret",
            "postgres://u:s3cret@h",
            "sqlite:d",
        ] {
            let error = DatabaseUrl::new(bad).check().unwrap_err();
            let text = format!("{error:#}");
            assert!(
                text.contains("`database`") && !text.contains("s3cret"),
                "{text}"
            );
        }
    }
}
