//! Artifacts: what an executor keeps of a run beside its events, such as the patch of what it
//! changed. Each has a name that is given once; a later attempt of the run replaces it.

use crate::digest::Digest;
use crate::id::RunId;
use crate::limits;
use crate::rejection::Rejection;
use crate::session::text_enum;
use crate::time::Timestamp;

text_enum! {
    /// How an artifact's content is written down.
    Encoding {
        /// As it is.
        Text = "text",
        /// In base64, for what is no text.
        Base64 = "base64",
    }
}

/// What an executor sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewArtifact {
    /// Its name in the run.
    pub name: String,
    /// What it is.
    pub media_type: String,
    /// How the content is written down.
    pub encoding: Encoding,
    /// The content.
    pub content: String,
    /// Bytes of the content itself.
    pub bytes: u64,
}

impl NewArtifact {
    /// The digest by which the same artifact is known again.
    pub fn digest(&self) -> Digest {
        let head = format!("{}\0{}\0", self.media_type, self.encoding);
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.content.as_bytes());
        Digest::of_bytes(&bytes)
    }
}

/// A stored artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The run.
    pub run_id: RunId,
    /// The attempt that sent it.
    pub attempt: u32,
    /// What was sent.
    pub sent: NewArtifact,
    /// When it came.
    pub created_at: Timestamp,
}

/// What is known of an artifact without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactFacts {
    /// Its name in the run.
    pub name: String,
    /// The attempt that sent it.
    pub attempt: u32,
    /// Bytes of the content itself.
    pub bytes: u64,
    /// Of what was sent.
    pub digest: Digest,
}

/// Which of the sent artifacts have to be written, by their places. The same artifact again is
/// stored already; another content under its name is refused within an attempt.
pub fn plan(
    stored: &[ArtifactFacts],
    attempt: u32,
    sent: &[NewArtifact],
) -> Result<Vec<usize>, Rejection> {
    let mut new = Vec::new();
    for (place, artifact) in sent.iter().enumerate() {
        let known = stored.iter().find(|facts| facts.name == artifact.name);
        match known {
            Some(known) if known.attempt == attempt => {
                if known.digest != artifact.digest() {
                    return Err(Rejection::ArtifactConflict {
                        name: artifact.name.clone(),
                    });
                }
            }
            Some(_) | None => new.push(place),
        }
    }
    let kept = stored
        .iter()
        .filter(|facts| !sent.iter().any(|artifact| artifact.name == facts.name));
    let (count, bytes) = kept.fold((sent.len(), 0), |(count, bytes), facts| {
        (count + 1, bytes + facts.bytes)
    });
    let bytes = sent
        .iter()
        .fold(bytes, |bytes: u64, artifact| bytes + artifact.bytes);
    if count > limits::RUN_ARTIFACTS {
        let message = format!(
            "would be {count} of the run; {} are allowed",
            limits::RUN_ARTIFACTS
        );
        return Err(Rejection::invalid("artifacts", message));
    }
    if bytes > limits::RUN_ARTIFACT_BYTES {
        let message = format!(
            "would be {bytes} bytes of the run; {} are allowed",
            limits::RUN_ARTIFACT_BYTES
        );
        return Err(Rejection::invalid("artifacts", message));
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(name: &str, content: &str) -> NewArtifact {
        NewArtifact {
            name: name.to_owned(),
            media_type: "text/plain".to_owned(),
            encoding: Encoding::Text,
            content: content.to_owned(),
            bytes: content.len() as u64,
        }
    }

    fn stored(name: &str, attempt: u32, content: &str) -> ArtifactFacts {
        let artifact = artifact(name, content);
        ArtifactFacts {
            digest: artifact.digest(),
            name: artifact.name,
            attempt,
            bytes: artifact.bytes,
        }
    }

    #[test]
    fn the_same_again_is_not_written_and_another_content_is_refused() {
        let known = [stored("a", 1, "x")];
        let sent = [artifact("a", "x"), artifact("b", "y")];
        assert_eq!(plan(&known, 1, &sent).unwrap(), [1]);
        let refused = plan(&known, 1, &[artifact("b", "y"), artifact("a", "z")]);
        let name = "a".to_owned();
        assert_eq!(refused, Err(Rejection::ArtifactConflict { name }));
        // The attempt that sent it is over.
        assert_eq!(plan(&known, 2, &[artifact("a", "z")]).unwrap(), [0]);
    }

    #[test]
    fn another_type_or_encoding_is_another_content() {
        let text = artifact("a", "eA==");
        let mut other = text.clone();
        other.encoding = Encoding::Base64;
        assert_ne!(text.digest(), other.digest());
        other = text.clone();
        other.media_type = "text/html".to_owned();
        assert_ne!(text.digest(), other.digest());
    }

    #[test]
    fn a_run_has_so_many_artifacts_and_bytes() {
        let sized = |name: &str, bytes| NewArtifact {
            bytes,
            ..artifact(name, "x")
        };
        let most = limits::RUN_ARTIFACT_BYTES;
        let known = [stored("a", 1, "x")];
        assert!(plan(&known, 1, &[sized("b", most - 1)]).is_ok());
        assert!(plan(&known, 1, &[sized("b", most)]).is_err());
        // What is replaced doesn't count.
        assert!(plan(&known, 2, &[sized("a", most)]).is_ok());
        let names: Vec<_> = (0..=limits::RUN_ARTIFACTS)
            .map(|number| artifact(&number.to_string(), "x"))
            .collect();
        assert!(plan(&[], 1, &names[1..]).is_ok());
        assert!(plan(&[], 1, &names).is_err());
    }
}
