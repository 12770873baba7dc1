//! Artifacts of runs: each once by its name, replaced by a later attempt's.

use async_trait::async_trait;
use tapedeck_domain::artifact::{Artifact, ArtifactFacts};
use tapedeck_domain::id::{RunKey, SessionKey};

use super::Rows;

/// Rows of `artifacts`.
#[async_trait]
pub trait ArtifactRows {
    /// What is known of a run's artifacts, without reading their contents.
    async fn artifact_facts(&mut self, run: RunKey) -> Rows<Vec<ArtifactFacts>>;
    /// Writes an artifact in the place of the one with its name, if there is one.
    async fn save_artifact(
        &mut self,
        session: SessionKey,
        run: RunKey,
        artifact: &Artifact,
    ) -> Rows<()>;
}
