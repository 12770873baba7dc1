//! Closed lists of words as arguments: help, mistakes and completions know the words from the domain.

use std::error::Error;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Reads one of these words.
pub(crate) fn one_of<T>(
    values: &'static [T],
    as_str: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync> + Copy + Send + Sync,
{
    PossibleValuesParser::new(values.iter().copied().map(as_str)).try_map(|word| word.parse::<T>())
}
