//! `tapedeck token`: what callers of a server prove who they are with.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use clap::Subcommand;
use jiff::{Span, SpanRelativeTo};
use tapedeck_domain::TokenId;
use tapedeck_domain::token::Role;
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::token::{CreateTokenRequest, CreatedTokenResponse, TokenResponse};

use crate::commands::sessions::{PageArgs, more};
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed};
use crate::output::{Printer, or_nothing, time};
use crate::words::one_of;

/// What callers of a server prove who they are with.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a token. Its secret is shown once and kept nowhere
    #[command(after_help = "Examples:
  tapedeck token create ops --role operator --out ~/.config/tapedeck/token
  tapedeck token create ci --role client --namespace team-a --expires-in 30d
  tapedeck --token-file token token create fleet --role executor --json

A client sees the sessions of its namespace. An executor serves every namespace and sees none of
them. An operator does everything, on the sessions of its namespace.")]
    Create {
        /// What people call it; no two live tokens are called the same
        name: String,
        /// What it lets its holder do
        #[arg(long, value_parser = one_of(Role::ALL, Role::as_str))]
        role: Role,
        /// Whose sessions it sees [default: default]
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// How long it holds, e.g. `12h`, `30d`, `8w`; without it until it is revoked
        #[arg(long, value_name = "TIME")]
        expires_in: Option<Period>,
        /// Write the secret into this new file, which only you can read, and do not print it
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List tokens, newest first
    #[command(after_help = "Examples:
  tapedeck token list
  tapedeck token list --all --json")]
    List {
        /// Also those that were revoked
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a token; its secret can't be shown again
    #[command(after_help = "Examples:
  tapedeck token show TOKEN")]
    Show {
        /// The token
        token: TokenId,
    },
    /// End a token: it is refused from now on, and its streams end
    #[command(after_help = "Examples:
  tapedeck token revoke TOKEN")]
    Revoke {
        /// The token
        token: TokenId,
    },
}

/// A number of whole seconds, as people write it: `90s`, `12h`, `30d`, `8w`, `1d 12h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period(u64);

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let broken = |_error| format!("`{text}` is no time like `12h` or `30d`");
        let span: Span = text.parse().map_err(broken)?;
        let days = SpanRelativeTo::days_are_24_hours();
        let duration = span.to_duration(days).map_err(broken)?;
        let seconds = u64::try_from(duration.as_secs());
        let seconds = seconds.ok().filter(|_| duration.subsec_nanos() == 0);
        seconds
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no number of whole seconds"))
    }
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    let work = async |connection: &Connection| answer(command, connection, context.printer).await;
    context.connected(work).await
}

async fn answer(
    command: Command,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<Exit> {
    let client = &connection.client;
    match command {
        Command::Create {
            name,
            role,
            namespace,
            expires_in,
            out,
        } => {
            let request = CreateTokenRequest {
                name: Some(name),
                role: Some(role),
                namespace,
                expires_in_seconds: expires_in.map(|period| period.0),
                command_id: None,
            };
            create(connection, printer, &request, out.as_deref()).await?;
        }
        Command::List { all, page } => {
            let list = client.tokens(all, &page.paging()).await?;
            if printer.is_json() {
                printer.object(&list)?;
            } else {
                let rows: Vec<_> = list.tokens.iter().map(row).collect();
                let head = [
                    "TOKEN",
                    "NAME",
                    "ROLE",
                    "NAMESPACE",
                    "MADE BY",
                    "EXPIRES",
                    "REVOKED",
                ];
                printer.table(&head, &rows, "no tokens")?;
                more(printer, list.next_cursor.as_deref())?;
            }
        }
        Command::Show { token } => show(printer, &client.token(token).await?)?,
        Command::Revoke { token } => {
            client.revoke_token(token).await?;
            match client.token(token).await {
                Ok(revoked) => show(printer, &revoked)?,
                // It was the caller's own.
                Err(error) if error.code() == Some(ErrorCode::Unauthorized) => {
                    printer.note(format!("token {token}: revoked"))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(Exit::Success)
}

/// Makes a token. The file is there first: a secret that can't be written would be lost.
async fn create(
    connection: &Connection,
    printer: Printer,
    request: &CreateTokenRequest,
    out: Option<&Path>,
) -> anyhow::Result<()> {
    let file = out.map(|path| Ok::<_, anyhow::Error>((path, new_file(path)?)));
    let file = file.transpose()?;
    let made = match connection.client.create_token(request).await {
        Ok(made) => made,
        Err(error) => {
            if let Some((path, _)) = file {
                let _gone = std::fs::remove_file(path);
            }
            return Err(error.into());
        }
    };
    let Some(secret) = made.token.as_deref() else {
        let id = made.about.token_id;
        return Err(Failed::with(
            Exit::Internal,
            format!(
                "the answer with the secret was lost: `tapedeck token revoke {id}`, and make another"
            ),
        ));
    };
    let Some((path, mut file)) = file else {
        let Err(error) = told(printer, &made) else {
            return Ok(());
        };
        // Nobody has seen the secret, or only a part of it.
        let id = made.about.token_id;
        let revoked = connection.client.revoke_token(id).await;
        return Err(error.context(match revoked {
            Ok(()) => "the secret can't be shown, and the token is revoked again".to_owned(),
            Err(_) => format!("the secret can't be shown: `tapedeck token revoke {id}`"),
        }));
    };
    writeln!(file, "{secret}")
        .and_then(|()| file.sync_all())
        .with_context(|| {
            let id = made.about.token_id;
            format!(
                "`{}` can't be written: `tapedeck token revoke {id}`, and make another",
                path.display()
            )
        })?;
    show(printer, &made.about)
}

fn new_file(path: &Path) -> anyhow::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(path);
    file.with_context(|| format!("`{}` can't be made", path.display()))
}

fn told(printer: Printer, made: &CreatedTokenResponse) -> anyhow::Result<()> {
    if printer.is_json() {
        return Ok(printer.object(made)?);
    }
    let mut fields = fields(&made.about);
    fields.push(("secret", or_nothing(made.token.as_ref())));
    printer.fields(&fields)?;
    Ok(printer.note("the secret is shown this once and kept nowhere")?)
}

fn show(printer: Printer, token: &TokenResponse) -> anyhow::Result<()> {
    if printer.is_json() {
        return Ok(printer.object(token)?);
    }
    Ok(printer.fields(&fields(token))?)
}

fn fields(token: &TokenResponse) -> Vec<(&'static str, String)> {
    vec![
        ("token", token.token_id.to_string()),
        ("name", token.name.clone()),
        ("role", token.role.to_string()),
        ("namespace", namespace(token)),
        ("made by", token.created_by.clone()),
        ("made", time(Some(token.created_at))),
        ("expires", time(token.expires_at)),
        ("revoked", time(token.revoked_at)),
        ("revoked by", or_nothing(token.revoked_by.as_ref())),
    ]
}

fn row(token: &TokenResponse) -> Vec<String> {
    vec![
        token.token_id.to_string(),
        token.name.clone(),
        token.role.to_string(),
        namespace(token),
        token.created_by.clone(),
        time(token.expires_at),
        time(token.revoked_at),
    ]
}

fn namespace(token: &TokenResponse) -> String {
    let every = || "every".to_owned();
    token.namespace.clone().unwrap_or_else(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_as_people_write_it() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("12h", 43_200),
            ("30d", 2_592_000),
            ("8w", 4_838_400),
            ("1d 12h", 129_600),
            ("2 weeks", 1_209_600),
            ("P30D", 2_592_000),
        ] {
            assert_eq!(text.parse(), Ok(Period(seconds)), "{text}");
        }
        for text in [
            "",
            "d",
            "30",
            "-1d",
            "1y",
            "1.5ms",
            "99999999999999999999w",
            "1é",
        ] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }
}
