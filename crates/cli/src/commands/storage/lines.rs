//! An export as a file or a pipe. A file gets its name once it is whole and on the disk; what is
//! read is never more than a line at a time.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tapedeck_store::archive::lines::{Decoder, Encoder, Line};
use tapedeck_store::archive::{Cell, Origin, Table};
use tapedeck_store::{ArchiveError, RowSink, RowSource};
use tempfile::TempPath;
use tokio::fs::File;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
    BufWriter,
};

use crate::output::Working;
use crate::whole_file;

/// Of a line: more than any row can have.
const LINE_BYTES: u64 = 256 * 1024 * 1024;
const BUFFER: usize = 256 * 1024;
const ROWS: &str = "rows";

/// Writes an export.
pub(super) struct Writing {
    out: BufWriter<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
    encoder: Option<Encoder>,
    file: Option<Part>,
    working: Working,
}

/// A file without its name yet; it goes with this value.
struct Part {
    file: File,
    path: TempPath,
    target: PathBuf,
}

impl Writing {
    pub(super) fn to_stdout(working: Working) -> Self {
        Self {
            out: BufWriter::with_capacity(BUFFER, Box::new(tokio::io::stdout())),
            encoder: None,
            file: None,
            working,
        }
    }

    /// To a file for its owner alone, where none is yet.
    pub(super) async fn to_file(target: &Path, working: Working) -> Result<Self, ArchiveError> {
        if target.symlink_metadata().is_ok() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
        }
        let (file, path) = whole_file::beside(target)?.into_parts();
        let file = File::from_std(file);
        Ok(Self {
            out: BufWriter::with_capacity(BUFFER, Box::new(file.try_clone().await?)),
            encoder: None,
            file: Some(Part {
                file,
                path,
                target: target.to_path_buf(),
            }),
            working,
        })
    }

    /// Writes the end. Gives how many rows there were.
    pub(super) async fn finish(mut self) -> Result<u64, ArchiveError> {
        let encoder = self.encoder.take().ok_or(ArchiveError::NotAnExport)?;
        let rows = encoder.rows();
        self.line(&encoder.end()).await?;
        self.out.flush().await?;
        if let Some(part) = self.file {
            part.file.sync_all().await?;
            part.path
                .persist_noclobber(&part.target)
                .map_err(|refused| refused.error)?;
        }
        Ok(rows)
    }

    async fn line(&mut self, line: &str) -> Result<(), ArchiveError> {
        self.out.write_all(line.as_bytes()).await?;
        self.out.write_all(b"\n").await?;
        Ok(())
    }
}

#[async_trait]
impl RowSink for Writing {
    async fn begin(&mut self, origin: &Origin) -> Result<(), ArchiveError> {
        let (encoder, header) = Encoder::begin(origin);
        self.encoder = Some(encoder);
        self.line(&header).await
    }

    async fn take(&mut self, table: &'static Table, row: Vec<Cell>) -> Result<(), ArchiveError> {
        let encoder = self.encoder.as_mut().ok_or(ArchiveError::NotAnExport)?;
        let line = encoder.row(table, row);
        self.working.counted(encoder.rows(), ROWS);
        self.line(&line).await
    }
}

/// Reads an export.
pub(super) struct Reading {
    from: BufReader<Box<dyn AsyncRead + Send + Sync + Unpin>>,
    begun: Option<(Decoder, Origin)>,
    lines: u64,
    rows: u64,
    working: Option<Working>,
}

impl Reading {
    pub(super) fn of_stdin() -> Self {
        Self::of(Box::new(tokio::io::stdin()))
    }

    pub(super) async fn of_file(path: &Path) -> Result<Self, ArchiveError> {
        Ok(Self::of(Box::new(File::open(path).await?)))
    }

    fn of(from: Box<dyn AsyncRead + Send + Sync + Unpin>) -> Self {
        Self {
            from: BufReader::with_capacity(BUFFER, from),
            begun: None,
            lines: 0,
            rows: 0,
            working: None,
        }
    }

    /// Reads the header: another file is refused before anything is done.
    pub(super) async fn begin(&mut self) -> Result<(), ArchiveError> {
        let header = self.line().await?.ok_or(ArchiveError::NotAnExport)?;
        self.begun = Some(Decoder::begin(&header)?);
        Ok(())
    }

    /// Shows from here on how far it is.
    pub(super) fn shown(&mut self, working: Working) {
        self.working = Some(working);
    }

    /// How many rows there were.
    pub(super) fn finish(self) -> u64 {
        self.rows
    }

    /// The next line without its end; `None` where there is no more.
    async fn line(&mut self) -> Result<Option<String>, ArchiveError> {
        let mut line = Vec::new();
        let read = (&mut self.from)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
            .await?;
        if read == 0 {
            return Ok(None);
        }
        self.lines += 1;
        let broken = |why: &str| ArchiveError::Line {
            line: self.lines,
            why: why.to_owned(),
        };
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if read as u64 == LINE_BYTES {
            return Err(broken("it is too long"));
        }
        match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_other) if self.lines == 1 => Err(ArchiveError::NotAnExport),
            Err(_other) => Err(broken("it is not UTF-8")),
        }
    }
}

#[async_trait]
impl RowSource for Reading {
    async fn origin(&mut self) -> Result<Origin, ArchiveError> {
        if self.begun.is_none() {
            self.begin().await?;
        }
        let (_, origin) = self.begun.as_ref().ok_or(ArchiveError::NotAnExport)?;
        Ok(origin.clone())
    }

    async fn next(&mut self) -> Result<Option<(&'static Table, Vec<Cell>)>, ArchiveError> {
        loop {
            let line = self.line().await?;
            let (decoder, _) = self.begun.as_mut().ok_or(ArchiveError::NotAnExport)?;
            let Some(line) = line else {
                decoder.end()?;
                return Ok(None);
            };
            if let Line::Row(table, row) = decoder.line(&line)? {
                self.rows += 1;
                if let Some(working) = &self.working {
                    working.counted(self.rows, ROWS);
                }
                return Ok(Some((table, row)));
            }
        }
    }
}
