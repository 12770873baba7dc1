//! Records that an executor was heard of.

use async_trait::async_trait;
use tapedeck_domain::executor::Contact;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Records a contact.
#[derive(Debug)]
pub struct RecordContact {
    /// What it says of itself.
    pub contact: Contact,
}

#[async_trait]
impl Command for RecordContact {
    type Output = ();
    const LANE: Lane = Lane::Background;

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let now = context.now;
        context.tx.save_contact(&self.contact, now).await?;
        Ok(())
    }
}
