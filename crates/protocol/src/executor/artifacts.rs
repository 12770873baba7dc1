//! Artifacts as an executor sends them. Sizes and forms are checked here; tables of changes have to
//! be readable, because they are given out as such.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tapedeck_domain::artifact::{Encoding, NewArtifact};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::{RunId, limits};
use utoipa::ToSchema;

use super::lease::{Presented, PresentedFields};
use crate::changes::{CHANGES_TYPE, ChangeSet, RUN_CHANGES, SESSION_CHANGES};
use crate::check::Faults;

/// One artifact; exactly one of the contents is given.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactUpload {
    /// Its name in the run: letters, digits, dots, dashes and underscores, at most 100.
    #[schema(required)]
    pub name: String,
    /// What it is; `application/octet-stream` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The content, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The content in base64, if it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
}

impl ArtifactUpload {
    /// An artifact of these bytes, as text where they are.
    pub fn new(name: impl Into<String>, media_type: impl Into<String>, bytes: Vec<u8>) -> Self {
        let artifact = Self {
            name: name.into(),
            media_type: Some(media_type.into()),
            ..Self::default()
        };
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self {
                content: Some(text),
                ..artifact
            },
            Ok(text) => artifact.with_bytes(text.as_bytes()),
            Err(error) => artifact.with_bytes(error.as_bytes()),
        }
    }

    fn with_bytes(self, bytes: &[u8]) -> Self {
        Self {
            content_base64: Some(STANDARD.encode(bytes)),
            ..self
        }
    }

    fn check(self, faults: &mut Faults, path: &str) -> NewArtifact {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=100).contains(&self.name.len()) || !self.name.bytes().all(plain) {
            let message = "must be 1 to 100 letters, digits, dots, dashes or underscores";
            faults.add(format!("{path}.name"), message);
        }
        let media_type = self
            .media_type
            .unwrap_or_else(|| "application/octet-stream".to_owned());
        faults.name(
            &format!("{path}.media_type"),
            &media_type,
            limits::NAME_CHARS,
        );
        let (encoding, content, bytes) = match (self.content, self.content_base64) {
            (Some(text), None) => {
                faults.text(&format!("{path}.content"), &text, usize::MAX);
                let bytes = text.len();
                (Encoding::Text, text, bytes)
            }
            (None, Some(text)) => {
                let decoded = STANDARD.decode(&text);
                if decoded.is_err() {
                    faults.add(format!("{path}.content_base64"), "is no base64");
                }
                let bytes = decoded.map_or(0, |bytes| bytes.len());
                (Encoding::Base64, text, bytes)
            }
            (Some(_), Some(_)) | (None, None) => {
                let message = "exactly one of `content` and `content_base64` must be given";
                faults.add(format!("{path}.content"), message);
                (Encoding::Text, String::new(), 0)
            }
        };
        let is_table = [RUN_CHANGES, SESSION_CHANGES].contains(&self.name.as_str());
        if is_table {
            let readable = serde_json::from_str::<ChangeSet>(&content).is_ok();
            if media_type != CHANGES_TYPE || encoding != Encoding::Text || !readable {
                let message = "must be a table of changes as `application/json`";
                faults.add(format!("{path}.content"), message);
            }
        }
        NewArtifact {
            name: self.name,
            media_type,
            encoding,
            content,
            bytes: bytes as u64,
        }
    }
}

/// Body of `POST /executor/runs/{id}/artifacts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactsRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// 1 to 16 artifacts.
    #[schema(required)]
    pub artifacts: Vec<ArtifactUpload>,
}

impl ArtifactsRequest {
    /// Checks every artifact.
    pub fn check(self) -> Result<(Presented, Vec<NewArtifact>), Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        let count = self.artifacts.len();
        if count == 0 || count > limits::RUN_ARTIFACTS {
            let message = format!("must hold 1 to {} artifacts", limits::RUN_ARTIFACTS);
            faults.add("artifacts", message);
        }
        let mut checked: Vec<NewArtifact> = Vec::new();
        for (index, artifact) in self.artifacts.into_iter().enumerate() {
            let path = format!("artifacts[{index}]");
            let artifact = artifact.check(&mut faults, &path);
            if checked.iter().any(|other| other.name == artifact.name) {
                faults.add(format!("{path}.name"), "is given twice");
            }
            checked.push(artifact);
        }
        faults.finish((claim, checked))
    }
}

/// A stored artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedArtifact {
    /// Its name in the run.
    pub name: String,
    /// Bytes of its content.
    pub bytes: u64,
}

/// Answer of an upload of artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactsResponse {
    /// The run.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// The artifacts that were sent, as they are stored.
    pub artifacts: Vec<SavedArtifact>,
}

/// The content of a stored artifact.
pub fn content(artifact: &NewArtifact) -> Option<Vec<u8>> {
    match artifact.encoding {
        Encoding::Text => Some(artifact.content.clone().into_bytes()),
        Encoding::Base64 => STANDARD.decode(&artifact.content).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(artifacts: Vec<ArtifactUpload>) -> ArtifactsRequest {
        ArtifactsRequest {
            executor_id: Some("box".to_owned()),
            claim_token: Some("1.x".to_owned()),
            artifacts,
            worker_id: None,
        }
    }

    fn paths(artifacts: Vec<ArtifactUpload>) -> Vec<String> {
        let errors = request(artifacts).check().unwrap_err();
        errors.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn text_goes_as_it_is_and_other_bytes_in_base64() {
        let sent = vec![
            ArtifactUpload::new("a", "text/plain", b"text".to_vec()),
            ArtifactUpload::new("b", "text/x-diff", b"caf\xe9".to_vec()),
            ArtifactUpload::new("c", "text/x-diff", b"a\0b".to_vec()),
        ];
        let (_, checked) = request(sent).check().unwrap();
        let encodings: Vec<_> = checked.iter().map(|artifact| artifact.encoding).collect();
        let expected = [Encoding::Text, Encoding::Base64, Encoding::Base64];
        assert_eq!(encodings, expected);
        assert_eq!(content(&checked[1]).unwrap(), b"caf\xe9");
        assert_eq!(checked[1].bytes, 4);
    }

    #[test]
    fn what_is_broken_is_named() {
        assert_eq!(paths(Vec::new()), ["artifacts"]);
        let good = || ArtifactUpload::new("a", "text/plain", b"x".to_vec());
        assert_eq!(paths(vec![good(), good()]), ["artifacts[1].name"]);
        for name in ["", "a/b", "ü", &"x".repeat(101)] {
            let artifact = ArtifactUpload::new(name, "text/plain", b"x".to_vec());
            assert_eq!(paths(vec![artifact]), ["artifacts[0].name"]);
        }
        let mut both = good();
        both.content_base64 = Some("eA==".to_owned());
        assert_eq!(paths(vec![both]), ["artifacts[0].content"]);
        let mut broken = good().with_bytes(b"x");
        broken.content = None;
        broken.content_base64 = Some("not base64".to_owned());
        assert_eq!(paths(vec![broken]), ["artifacts[0].content_base64"]);
        let table = ArtifactUpload::new(RUN_CHANGES, CHANGES_TYPE, b"{}".to_vec());
        assert_eq!(paths(vec![table]), ["artifacts[0].content"]);
        let set = serde_json::to_vec(&ChangeSet::default()).unwrap();
        let table = ArtifactUpload::new(RUN_CHANGES, CHANGES_TYPE, set);
        assert!(request(vec![table]).check().is_ok());
    }
}
