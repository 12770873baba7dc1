//! The answer to a prompt without a script: what a first run shows. It owns the wording; everything
//! in it must stay the same for the same prompt and directory.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::script::Call;
use super::turn::{Ending, Turn};
use super::{files, updates};

const WORD_EVERY: Duration = Duration::from_millis(15);
const ECHOED_CHARS: usize = 400;
const LISTED: usize = 50;

impl Turn {
    /// Thinks, plans, looks around and answers.
    pub(super) async fn answer(&mut self, prompt: &str) -> Result<(), Ending> {
        let plan = ["Look at the working directory", "Answer"].map(str::to_owned);
        let thought = "There is no script in this prompt, so I look around and answer in words.";
        self.send(updates::thought(thought)).await?;
        self.send(updates::plan(&plan, 0)).await?;
        let names = self.list_files().await?;
        self.send(updates::plan(&plan, 1)).await?;

        let echoed: String = prompt.chars().take(ECHOED_CHARS).collect();
        let asked = if echoed.is_empty() {
            String::new()
        } else {
            format!("You asked: {echoed}\n")
        };
        let text = format!(
            "Hello! I am the demo agent: no model, no key, the same answer every time.\n\
             {asked}I see {names} in the working directory. \
             Give me a script to see more, for example `say hello; stream 5 200`.\n"
        );
        let id = self.message_id();
        for word in text.split_inclusive([' ', '\n']) {
            self.say_piece(&id, word).await?;
            sleep(WORD_EVERY).await;
        }
        self.send(updates::plan(&plan, plan.len())).await
    }

    async fn list_files(&mut self) -> Result<String, Ending> {
        let call = Call {
            tool: "list_files".to_owned(),
            arguments: json!({"path": "."}),
        };
        let id = self.begin(&call).await?;
        self.send(updates::tool_running(&id)).await?;
        let listed = files::list(&self.cwd, LISTED).await;
        let summary = match &listed {
            Ok(names) if names.is_empty() => "nothing".to_owned(),
            Ok(names) if names.len() == LISTED => format!("at least {LISTED} entries"),
            Ok(names) => names.join(", "),
            Err(_) => "no readable entry".to_owned(),
        };
        let shown = listed.map(|names| {
            let output = json!({"files": names});
            (updates::shown_text(&names.join("\n")), output)
        });
        self.end(&id, shown).await?;
        Ok(summary)
    }
}
